"""When a session is told about its background processes, and in what words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

SPACING_S: Final = 15.0
"""Least seconds between two messages about the output of a process."""
STRIKES_MAX: Final = 3
"""How many times in a row a process may write watched text faster than that; then it is not watched any more."""
BURST_MAX: Final = 15
BURST_S: Final = 10.0
"""Seconds within which at most ``BURST_MAX`` messages about output begin, over all processes."""
COOL_OFF_S: Final = 30.0
"""Seconds without messages after a burst."""
PATTERNS_MAX: Final = 10
PATTERN_CHARS_MAX: Final = 200
_LINES_MAX: Final = 20
_LINE_CHARS_MAX: Final = 500


class ProcessRow(NamedTuple):
    """A process as its session sees it. Times are epoch seconds by the database's clock."""

    process_id: str
    command: str
    state: str
    exit_code: int | None
    has_terminal: int
    started_at: float
    ended_at: float | None
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputWatch:
    """The state of watching one process's output: what its session was told so far."""

    told_at: float | None = None
    """Epoch seconds by the database's clock."""
    strikes: int = 0
    suppressed: int = 0
    """Matching lines since the last message that were not reported."""
    is_off: bool = False
    """It wrote too many matching lines: its end is reported instead."""


def advance_watch(watch: OutputWatch, lines: int, now: float) -> tuple[OutputWatch, bool]:
    """The watch after ``lines`` new lines match, and whether the session is told about them."""
    if watch.is_off or lines == 0:
        return watch, False
    if watch.told_at is not None and now - watch.told_at < SPACING_S:
        return replace(watch, suppressed=watch.suppressed + lines), False
    strikes = watch.strikes + 1 if watch.suppressed else 0
    if strikes >= STRIKES_MAX:
        return replace(watch, strikes=strikes, is_off=True), False
    return OutputWatch(told_at=now, strikes=strikes), True


def find_matching_lines(text: str, patterns: Sequence[str]) -> list[str]:
    """List the lines that contain one of ``patterns``. Plain text search, so no pattern takes long."""
    return [line for line in text.splitlines() if any(pattern in line for pattern in patterns)]


def extract_new_text(output: bytes, total: int, seen: int, *, is_over: bool) -> tuple[str, int]:
    """The output after the first ``seen`` bytes, as far as it was kept, in whole lines unless the process ``is_over``;
    and how many bytes are seen then. ``output`` is the end of the process's ``total`` bytes."""
    fresh = output[max(0, len(output) - max(0, total - seen)) :]
    if not is_over:
        fresh = fresh[: fresh.rfind(b"\n") + 1]
        if not fresh:
            return "", seen if total - seen <= len(output) else total - len(output)
        return fresh.decode("utf-8", "replace"), total - (len(output) - output.rfind(b"\n") - 1)
    return fresh.decode("utf-8", "replace"), total


def shorten_lines(lines: Sequence[str]) -> str:
    """Join the last of these lines, shortened."""
    left_out = len(lines) - _LINES_MAX
    shown = [line[:_LINE_CHARS_MAX] for line in lines[-_LINES_MAX:]]
    return "\n".join([f"({left_out} lines before these)", *shown] if left_out > 0 else shown)


def build_end_message(process_id: str, *, how: str, command: str, output: str) -> str:
    """The message that begins the run in which a session learns that a process has ended. ``output`` is wrapped as
    untrusted already."""
    return (
        f"[BACKGROUND PROCESS {process_id}: it {how}. This message comes from the system, not from the user; tell the "
        f"user what matters of it.]\nCommand: {command}\n{output}"
    )


def build_watch_message(process_id: str, *, command: str, output: str, suppressed: int) -> str:
    """The message that begins the run in which a session learns of watched output. ``output`` is wrapped as untrusted
    already."""
    more = f" {suppressed} earlier lines matched as well." if suppressed else ""
    return (
        f"[BACKGROUND PROCESS {process_id}: it wrote what you watch for, and it goes on.{more} This message comes from "
        f"the system, not from the user; act on it if you need to.]\nCommand: {command}\n{output}"
    )


def describe_end(state: str, exit_code: int | None, ran_s: float, note: str | None) -> str:
    """Describe how a process ended, in words that follow ``it``."""
    said = {
        "exited": f"has ended by itself with exit code {exit_code}",
        "killed": "was ended",
        "timed_out": "was ended because it had run for as long as it may",
    }.get(state, "has died, and nobody knows its exit code")
    after = f"{said} after {ran_s:.0f} s"
    return f"{after}: {note}" if note else after
