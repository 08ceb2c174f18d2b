"""The operator's settings for Hindsight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hermes_worker.setting_groups import setting

_ROLES = ("model", "tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """The address, the key, and the user whose memories are kept."""

    key: str | None = setting(
        "HINDSIGHT_API_KEY", "The key for Hindsight; a server of your own may want none.", is_secret=True, roles=_ROLES
    )
    url: str = setting(
        "HINDSIGHT_API_URL", "The address of Hindsight.", default="https://api.hindsight.vectorize.io", roles=_ROLES
    )
    bank: str = setting(
        "HINDSIGHT_BANK_ID",
        "The bank of memories at Hindsight; the name of the tenant is added.",
        default="hermes",
        roles=_ROLES,
    )
    budget: Literal["low", "mid", "high"] = setting(
        "HINDSIGHT_BUDGET", "How hard Hindsight looks for memories before a turn.", default="low", roles=_ROLES
    )
