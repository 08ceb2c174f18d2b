"""The operator's settings for Honcho."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.setting_groups import setting

_ROLES = ("model", "tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class Honcho:
    """The address, the key, and the names of user and agent."""

    key: str | None = setting(
        "HONCHO_API_KEY", "The key for Honcho; a server of your own may want none.", is_secret=True, roles=_ROLES
    )
    url: str = setting("HONCHO_URL", "The address of Honcho.", default="https://api.honcho.dev", roles=_ROLES)
    workspace: str = setting("HONCHO_WORKSPACE_ID", "The workspace at Honcho.", default="hermes", roles=_ROLES)
    user: str = setting(
        "HONCHO_USER", "The user's name at Honcho; the name of the tenant is added.", default="user", roles=_ROLES
    )
    agent: str = setting(
        "HONCHO_AGENT", "The agent's name at Honcho; the name of the tenant is added.", default="hermes", roles=_ROLES
    )
