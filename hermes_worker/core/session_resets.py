"""When a chat begins a new session by itself, and what its people are told about it. Pure.

By default never: a long conversation is compacted, and ``/new`` begins the
next. A policy may end a session when nothing was written for a while, at an hour of every day, or both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

_HOUR = 4
_IDLE_MINUTES = 1_440
_PROCESS_HOURS_MAX: Final = 24
"""A background process that is older keeps no session open."""
_SILENT: Final = frozenset({"api_server", "webhook"})
"""Platforms on which no notice is sent."""


class ResetMode(StrEnum):
    """The condition after which a session ends by itself."""

    NONE = "none"
    IDLE = "idle"
    DAILY = "daily"
    BOTH = "both"


class ResetReason(StrEnum):
    """Why a chat has a new session; the end reason of the one before."""

    ASKED = "session_reset"
    """A person said ``/new`` or ``/reset``."""
    IDLE = "idle"
    DAILY = "daily"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPolicy:
    """When a session ends by itself. The defaults are the original's."""

    mode: ResetMode = ResetMode.NONE
    at_hour: int = _HOUR
    """Hour of the local day, 0 to 23."""
    idle_minutes: int = _IDLE_MINUTES
    is_told: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPolicies:
    """The reset policies of chats. The policy of a platform takes precedence over the policy of a type of chat, and
    both over the default."""

    default: ResetPolicy = field(default_factory=ResetPolicy)
    by_chat_type: Mapping[str, ResetPolicy] = field(default_factory=dict)
    by_platform: Mapping[str, ResetPolicy] = field(default_factory=dict)

    def find_policy(self, platform: str, chat_type: str) -> ResetPolicy:
        """The policy that holds for a chat."""
        return self.by_platform.get(platform) or self.by_chat_type.get(chat_type) or self.default


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatActivity:
    """The activity of a chat's session when a message comes in. All times are aware."""

    now: datetime
    """The present time in the zone of the policy's hour."""
    updated_at: datetime
    """When the last message was written."""
    newest_process_at: datetime | None = None
    """When the youngest of its running background processes was started; ``None`` when there is none."""


def decide_reset(policy: ResetPolicy, chat: ChatActivity) -> ResetReason | None:
    """Decide why the next message begins a new session; ``None`` when the session goes on."""
    if policy.mode is ResetMode.NONE:
        return None
    now = chat.now.astimezone(UTC)
    process_at = chat.newest_process_at
    if process_at is not None and now - process_at.astimezone(UTC) <= timedelta(hours=_PROCESS_HOURS_MAX):
        return None
    updated = chat.updated_at.astimezone(UTC)
    is_idle = now > updated + timedelta(minutes=policy.idle_minutes)
    if is_idle and policy.mode in (ResetMode.IDLE, ResetMode.BOTH):
        return ResetReason.IDLE
    if policy.mode in (ResetMode.DAILY, ResetMode.BOTH) and updated < _find_last_boundary(policy, chat.now):
        return ResetReason.DAILY
    return None


def format_reset_notice(policy: ResetPolicy, reason: ResetReason, platform: str) -> str | None:
    """The notice about an automatic reset; ``None`` when a person asked for it, or the policy or the platform
    does not want one."""
    if reason is ResetReason.ASKED or not policy.is_told or platform in _SILENT:
        return None
    return (
        f"◐ Session automatically reset ({_describe_reason(policy, reason)}).\n"
        "This is a new conversation; what was said before is kept, and I do not see it here."
    )


def _describe_reason(policy: ResetPolicy, reason: ResetReason) -> str:
    if reason is ResetReason.DAILY:
        return f"daily schedule at {policy.at_hour}:00"
    hours, minutes = divmod(policy.idle_minutes, 60)
    told = [f"{hours}h"] * bool(hours) + [f"{minutes}m"] * bool(minutes or not hours)
    return f"inactive for {' '.join(told)}"


def _find_last_boundary(policy: ResetPolicy, now: datetime) -> datetime:
    """The latest moment at which a day of this policy began."""
    boundary = now.replace(hour=policy.at_hour, minute=0, second=0, microsecond=0, fold=0)
    if boundary.astimezone(UTC) > now.astimezone(UTC):
        boundary -= timedelta(days=1)  # a day of the wall clock, also when the zone's offset changed that night
    return boundary.astimezone(UTC)
