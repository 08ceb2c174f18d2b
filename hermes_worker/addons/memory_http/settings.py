"""The operator's settings for a memory server."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.setting_groups import setting

_ROLES = ("model", "tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryServer:
    """The address of the memory server, and the token for it."""

    url: str = setting("HERMES_MEMORY_URL", "The address that is asked and told.", roles=_ROLES)
    token: str | None = setting("HERMES_MEMORY_TOKEN", "Sent as a bearer token.", is_secret=True, roles=_ROLES)
