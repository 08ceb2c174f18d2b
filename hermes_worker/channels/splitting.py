"""Split a long text into messages that a platform accepts.

Cuts fall on line ends where there is one in the second half of the room, else between words, else anywhere but inside a
character. A code block that is cut is closed at the end of one message and opened again, with its language, in the
next. Each of several messages ends in ``(i/N)``, on a line of its own behind a code block.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from hermes_worker.channels.catalog import TextLimit, TextUnit

SIZE_MIN = 80
"""The smallest limit that leaves room for fences and counters."""
_COUNTER_RESERVE = 10
_LANGUAGE_CHARS_MAX = 32
_MARKER_CHARS_MAX = 16
_MARKER = re.compile(rf"`{{3,{_MARKER_CHARS_MAX}}}|~{{3,{_MARKER_CHARS_MAX}}}")
_FENCE = re.compile(rf" {{0,3}}(?P<marker>`{{3,{_MARKER_CHARS_MAX}}}|~{{3,{_MARKER_CHARS_MAX}}})(?P<info>[^\n]*)")
_JOINER = "\u200d"


def measure(text: str, unit: TextUnit) -> int:
    """The length of ``text`` as the platform counts it."""
    match unit:
        case TextUnit.CHARACTERS:
            return len(text)
        case TextUnit.UTF16:
            return len(text) + sum(character > "\uffff" for character in text)
        case TextUnit.BYTES:
            return len(text.encode("utf-8", "surrogatepass"))


def split_text(text: str, limit: TextLimit) -> tuple[str, ...]:
    """Split ``text`` into messages within ``limit``; a single one when it fits. Raises ``ValueError`` for a limit below
    80."""
    if limit.size_max < SIZE_MIN:
        raise ValueError(f"a limit of {limit.size_max} leaves no room for text; the least is {SIZE_MIN}")
    if measure(text, limit.unit) <= limit.size_max:
        return (text,)
    reserve = _COUNTER_RESERVE
    while True:
        parts = cut_pieces(text, limit.size_max - reserve, limit.unit)
        longest_counter = len(f" ({len(parts)}/{len(parts)})")
        if longest_counter <= reserve:
            break
        reserve = longest_counter
    return tuple(
        f"{part}{_end_before_counter(part)}({number}/{len(parts)})" for number, part in enumerate(parts, start=1)
    )


def _end_before_counter(part: str) -> str:
    """End a part for its counter: a line that closes a code block holds nothing else, or it is read as more of the
    code."""
    return "\n" if _FENCE.fullmatch(part[part.rfind("\n") + 1 :]) else " "


@dataclass(frozen=True, slots=True)
class _OpenFence:
    """A code block that a cut falls into."""

    marker: str
    language: str

    @property
    def opening(self) -> str:
        return f"{self.marker}{self.language}\n"

    @property
    def closing(self) -> str:
        return f"\n{self.marker}"


def cut_pieces(text: str, room: int, unit: TextUnit = TextUnit.CHARACTERS) -> list[str]:
    """Cut ``text`` into pieces of at most ``room``, fences included, without counters."""
    # Any run of fence characters may come to stand at the beginning of a message, where it opens a block.
    closing_reserve = 1 + max((len(run[0]) for run in _MARKER.finditer(text)), default=3)
    parts: list[str] = []
    fence: _OpenFence | None = None
    while text:
        prefix = fence.opening if fence else ""
        last = _build_last(prefix, text, fence) if len(text) <= room else None
        if last is not None and measure(last, unit) <= room:
            parts.append(last)
            break
        window = _count_fitting(text, room - measure(prefix, unit) - closing_reserve, unit)
        cut = _choose_cut(text, window, fence)
        body = text[:cut]
        fence = _find_open_fence(body, fence)
        if body.strip():
            parts.append(prefix + body + (fence.closing if fence else ""))
        # The line end or the space at the cut separates the two messages now.
        text = text[cut + 1 :] if text[cut : cut + 1] in ("\n", " ") else text[cut:]
        if fence is None:
            text = text.lstrip("\n")
    return parts


def _build_last(prefix: str, text: str, fence: _OpenFence | None) -> str:
    """Make the rest one message. A block that its author left open is closed, as in the messages before."""
    end_fence = _find_open_fence(text, fence)
    return prefix + text + (end_fence.closing if end_fence else "")


def _count_fitting(text: str, space: int, unit: TextUnit) -> int:
    """Count how many characters of ``text`` measure at most ``space``."""
    if unit is TextUnit.CHARACTERS:
        return min(space, len(text))
    measured = 0
    for index, character in enumerate(text):
        measured += measure(character, unit)
        if measured > space:
            return index
    return len(text)


def _choose_cut(text: str, window: int, fence: _OpenFence | None) -> int:
    """Choose where to cut, at least 1 and at most ``window``."""
    cut = text.rfind("\n", window // 2, window + 1)
    if cut <= 0:
        cut = text.rfind(" ", 1, window + 1)
        cut = _move_before_inline_code(text, cut, fence) if cut > 0 else _move_before_character(text, window)
    return _move_before_fence_line(text, cut, fence)


def _move_before_inline_code(text: str, cut: int, fence: _OpenFence | None) -> int:
    """Move a cut between two backticks of a line in front of them, if that is not far: both halves would be broken."""
    line_start = text.rfind("\n", 0, cut) + 1
    if fence is not None or text.count("`", line_start, cut) % 2 == 0:
        return cut
    before = text.rfind(" ", 0, text.rfind("`", line_start, cut))
    return before if before > cut // 4 else cut


def _move_before_character(text: str, window: int) -> int:
    """Find the end of the last whole character: an accent or a part of an emoji stays with its base."""
    cut = window
    while 0 < cut < len(text) and window - cut < 16 and _continues(text, cut):
        cut -= 1
    return cut if cut > 0 and window - cut < 16 else max(window, 1)


def _continues(text: str, index: int) -> bool:
    character = text[index]
    return (
        unicodedata.combining(character) != 0
        or character == _JOINER
        or text[index - 1] == _JOINER
        or "\ufe00" <= character <= "\ufe0f"
        or "\U0001f3fb" <= character <= "\U0001f3ff"
    )


def _move_before_fence_line(text: str, cut: int, fence: _OpenFence | None) -> int:
    """Move a cut out of the line of a fence, and away from right behind one that opens a block."""
    line_start = text.rfind("\n", 0, cut) + 1
    if line_start == 0:
        return cut
    line_end = text.find("\n", line_start)
    match = _FENCE.fullmatch(text, line_start, len(text) if line_end < 0 else line_end)
    if match is None:
        return cut
    is_within = cut < match.end()
    is_opening = _find_open_fence(text[:line_start], fence) is None
    return line_start - 1 if (is_within or is_opening) and line_start > 1 else cut


def _find_fence_lines(text: str) -> list[re.Match[str]]:
    return [match for match in (_FENCE.fullmatch(line) for line in text.split("\n")) if match is not None]


def _find_open_fence(text: str, fence: _OpenFence | None) -> _OpenFence | None:
    """Find the code block that is open at the end of ``text``, given the one open at its beginning."""
    for match in _find_fence_lines(text):
        marker, info = match["marker"], match["info"].strip()
        if fence is None:
            if "`" not in info:
                fence = _OpenFence(marker, _read_language(info))
        elif marker[0] == fence.marker[0] and len(marker) >= len(fence.marker) and not info:
            fence = None
    return fence


def _read_language(info: str) -> str:
    word = info.partition(" ")[0]
    return word if word.isascii() and len(word) <= _LANGUAGE_CHARS_MAX else ""
