"""The operator's settings for Mem0."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.setting_groups import setting

_ROLES = ("model", "tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mem0:
    """The address, the key, and the user whose memories are kept."""

    key: str = setting("MEM0_API_KEY", "The key for Mem0.", is_secret=True, roles=_ROLES)
    url: str = setting("MEM0_HOST", "The address of Mem0.", default="https://api.mem0.ai", roles=_ROLES)
    user: str = setting(
        "MEM0_USER", "The user's name at Mem0; the name of the tenant is added.", default="hermes", roles=_ROLES
    )
    memories_max: int = setting(
        "MEM0_TOP_K", "So many memories are recalled for a turn.", default=10, minimum=1, maximum=100, roles=_ROLES
    )
