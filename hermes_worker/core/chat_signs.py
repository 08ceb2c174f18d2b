"""Signs of a run at work in its chat: its text so far, a typing sign, and its tool calls. Pure.

All of it is a hint: it may be late or left out, and it is never the delivery. What is to be shown stands in the
metadata of the run, so every delivery worker shows it alike, independent of its own settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from hermes_worker.core.run import CallStatus, RunStatus
from hermes_worker.core.sources import CHAT_SOURCES

TYPING_EVERY_S: Final = 4.0
"""Seconds between two typing signs. Platforms show one for 5 seconds (Telegram) to 10 (Discord)."""
TYPING_S_MAX: Final = 600.0
"""Seconds of a run after which no typing sign is sent any more."""
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
    """The amount of detail about a run's tool calls that is shown."""

    OFF = "off"
    SHORT = "short"
    """Which calls are running, and how many have ended."""
    FULL = "full"
    """The last calls, a line each, with how they ended."""


class CallSign(NamedTuple):
    """A tool call, as a chat shows it."""

    name: str
    status: CallStatus


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run."""

    status: RunStatus | None = None
    calls: Sequence[CallSign] = ()
    """Oldest first."""

    @property
    def is_at_work(self) -> bool:
        """The run waits for no person and no time."""
        return self.status in (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING_FOR_CHILDREN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSigns:
    """The set of signs that a chat shows."""

    has_text: bool = True
    has_typing: bool = False
    progress: ProgressMode = ProgressMode.OFF

    @property
    def shows_something(self) -> bool:
        return self.has_text or self.has_typing

    @property
    def depends_on_progress(self) -> bool:
        """Whether the progress of the run has to be read."""
        return self.has_typing or (self.has_text and self.progress is not ProgressMode.OFF)

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of a run with these signs."""
        words = [_TEXT] * self.has_text + [_TYPING] * self.has_typing
        return {_KEY: ",".join([*words, f"tools={self.progress.value}"])}


def read_signs(metadata: Mapping[str, str], source: str | None) -> ChatSigns:
    """Read the signs from a run's metadata. Runs without them, and runs that no chat began, show their text."""
    if source not in CHAT_SOURCES or _KEY not in metadata:
        return ChatSigns()
    words = metadata[_KEY].split(",")
    modes = [mode for mode in ProgressMode if f"tools={mode.value}" in words]
    progress = modes[0] if modes else ProgressMode.OFF
    return ChatSigns(has_text=_TEXT in words, has_typing=_TYPING in words, progress=progress)


def choose_progress_mode(usual: str, modes: Sequence[str], platform: str) -> ProgressMode:
    """Choose the mode for a platform; ``modes`` are exceptions as ``platform=mode``, of which the last one counts."""
    named = dict(text.split("=", 1) for text in modes)
    return ProgressMode(named.get(platform, usual))


def format_progress(calls: Sequence[CallSign], mode: ProgressMode) -> str:
    """Format tool calls for display above the text of the run; empty for nothing."""
    if mode is ProgressMode.OFF or not calls:
        return ""
    if mode is ProgressMode.FULL:
        return "\n".join(f"{_MARKS.get(call.status, _OPEN_MARK)} {call.name}" for call in calls[-_LINES_MAX:])
    names = Counter(call.name for call in calls if not call.status.is_settled)
    over = sum(call.status.is_settled for call in calls)
    at_work = [name if times == 1 else f"{name} ×{times}" for name, times in names.items()]
    done = f"{over} done" if over else ""
    return f"{_OPEN_MARK} {', '.join(filter(None, [*at_work, done]))}"


def is_typing(signs: ChatSigns, progress: RunProgress, *, age_s: float, has_preview: bool) -> bool:
    """Whether the chat shows a typing sign. ``age_s`` is the time since the run was first looked at."""
    return signs.has_typing and progress.is_at_work and age_s < TYPING_S_MAX and not has_preview


def compute_next_look_s(delay_s: float | None, signs: ChatSigns) -> float | None:
    """Seconds until the next look, where without typing signs it would come after ``delay_s``; ``None`` for not before
    the end."""
    if delay_s is None:
        return None
    return min(delay_s, TYPING_EVERY_S) if signs.has_text else TYPING_EVERY_S
