"""What people see in a chat while a run is at work: what it writes, that it writes, which tools it calls. Pure.

All of it is a hint: it may be late or left out, and it is never the delivery. What is wanted stands in the metadata of
the run, so every delivery worker shows the same, whatever its own settings say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from hermes_worker.core.gateway import CHAT_SOURCES
from hermes_worker.core.run import CallStatus, RunStatus

TYPING_EVERY_S: Final = 4.0
"""Platforms show it for 5 seconds (Telegram) to 10 (Discord)."""
TYPING_S_MAX: Final = 600.0
"""A run that takes longer is waited for without it."""
_KEY: Final = "shows"
_TEXT: Final = "text"
_TYPING: Final = "typing"
_LINES_MAX: Final = 12
_MARKS: Final = {
    CallStatus.SUCCEEDED: "✓",
    CallStatus.FAILED: "✗",
    CallStatus.CANCELLED: "✗",
    CallStatus.UNKNOWN: "?",
}
_OPEN_MARK: Final = "…"


class ProgressMode(StrEnum):
    """How much of the tools that a run calls is shown."""

    OFF = "off"
    SHORT = "short"
    """Which are at work, and how many were."""
    FULL = "full"
    """The last calls, a line each, and how they ended."""


class CallSign(NamedTuple):
    """A call of a tool, as far as people see it."""

    name: str
    status: CallStatus


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is."""

    status: RunStatus | None = None
    calls: Sequence[CallSign] = ()
    """Oldest first."""

    @property
    def is_at_work(self) -> bool:
        """Nobody is asked anything, and nothing is waited for."""
        return self.status in (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING_FOR_CHILDREN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSigns:
    """What is shown."""

    has_text: bool = True
    has_typing: bool = False
    progress: ProgressMode = ProgressMode.OFF

    @property
    def shows_something(self) -> bool:
        return self.has_text or self.has_typing

    @property
    def depends_on_progress(self) -> bool:
        """Whether it matters how far the run is."""
        return self.has_typing or (self.has_text and self.progress is not ProgressMode.OFF)

    @property
    def metadata(self) -> dict[str, str]:
        """As a run says it."""
        words = [_TEXT] * self.has_text + [_TYPING] * self.has_typing
        return {_KEY: ",".join([*words, f"tools={self.progress.value}"])}


def signs_in(metadata: Mapping[str, str], source: str | None) -> ChatSigns:
    """What a run says. Of runs from before there was this, and of those that no chat began, what they write."""
    if source not in CHAT_SOURCES or _KEY not in metadata:
        return ChatSigns()
    words = metadata[_KEY].split(",")
    modes = [mode for mode in ProgressMode if f"tools={mode.value}" in words]
    progress = modes[0] if modes else ProgressMode.OFF
    return ChatSigns(has_text=_TEXT in words, has_typing=_TYPING in words, progress=progress)


def chosen_progress(usual: str, modes: Sequence[str], platform: str) -> ProgressMode:
    """The mode for a platform; ``modes`` are others, as ``platform=mode``, of which the last one counts."""
    named = dict(text.split("=", 1) for text in modes)
    return ProgressMode(named.get(platform, usual))


def progress_text(calls: Sequence[CallSign], mode: ProgressMode) -> str:
    """What is shown of calls above what the run writes; empty for nothing."""
    if mode is ProgressMode.OFF or not calls:
        return ""
    if mode is ProgressMode.FULL:
        return "\n".join(f"{_MARKS.get(call.status, _OPEN_MARK)} {call.name}" for call in calls[-_LINES_MAX:])
    names = Counter(call.name for call in calls if not call.status.is_settled)
    over = sum(call.status.is_settled for call in calls)
    at_work = [name if times == 1 else f"{name} ×{times}" for name, times in names.items()]
    done = f"{over} done" if over else ""
    return f"{_OPEN_MARK} {', '.join(filter(None, [*at_work, done]))}"


def types_now(signs: ChatSigns, progress: RunProgress, *, age_s: float, has_preview: bool) -> bool:
    """Whether the chat is shown that somebody writes. ``age_s`` is since the run was first looked at."""
    return signs.has_typing and progress.is_at_work and age_s < TYPING_S_MAX and not has_preview


def after_typing(delay_s: float | None, signs: ChatSigns) -> float | None:
    """When to look again, where a look without it would come after ``delay_s``; ``None`` for not before the end."""
    if delay_s is None:
        return None
    return min(delay_s, TYPING_EVERY_S) if signs.has_text else TYPING_EVERY_S
