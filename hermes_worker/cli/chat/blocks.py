"""Split Markdown that comes in pieces into blocks that can be shown already. Pure.

A block is a paragraph, a list, a table, a fence with its code. It is whole when something follows that cannot belong to
it: after an empty line a line that is not indented, or anything after the end of a fence. A block that gets too long is
cut, and the rest of it is shown as plain text. Which blocks come out does not depend on how the text was cut into
pieces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

BLOCK_CHARS_MAX = 16_000
"""Longest block, in characters; the rest is plain text. A renderer of Markdown takes time that grows faster than its
text."""
_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})(?P<rest>.*)")
_LIST_ITEM = re.compile(r" {0,3}([-*+]|\d{1,9}[.)])[ \t]")


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkdownBlock:
    """A piece of a reply that is shown at once."""

    text: str
    is_plain: bool = False
    """Whether it is a part of a block that was too long: to be shown as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """Text that is not a whole block yet."""

    text: str = ""
    is_cut: bool = False
    """Whether it continues a block whose beginning was shown."""
    fence: str = ""
    """The fence that the cut block had open; it says where that block ends."""


def take_blocks(before: Unfinished, more: str) -> tuple[Unfinished, list[MarkdownBlock]]:
    """Add ``more`` to the unfinished text. Returns what is unfinished then, and the blocks that became whole."""
    now, blocks = replace(before, text=before.text + more), []
    while now.text:
        # No more is looked at than the longest block and one character. What stands behind that may be there or not
        # yet, and must decide nothing.
        end, fence = _find_end_of_block(replace(now, text=now.text[: BLOCK_CHARS_MAX + 1]))
        if end is None or end > BLOCK_CHARS_MAX:
            if len(now.text) <= BLOCK_CHARS_MAX:
                break
            blocks.append(MarkdownBlock(text=now.text[:BLOCK_CHARS_MAX], is_plain=now.is_cut))
            open_fence = _find_fence_after_text(now.text[:BLOCK_CHARS_MAX], now.fence)
            now = Unfinished(text=now.text[BLOCK_CHARS_MAX:], is_cut=True, fence=open_fence)
            continue
        blocks.append(MarkdownBlock(text=now.text[:end], is_plain=now.is_cut))
        now = Unfinished(text=now.text[end:], fence=fence)
    return now, blocks


def flush_blocks(before: Unfinished) -> list[MarkdownBlock]:
    """Make the last block of the text; empty where nothing is unfinished."""
    return [MarkdownBlock(text=before.text, is_plain=before.is_cut)] if before.text else []


def _find_end_of_block(now: Unfinished) -> tuple[int | None, str]:
    """Find where the first block ends, and the fence that is open there; ``None`` when more text may belong to the
    block."""
    fence, at, is_list = now.fence, 0, False
    has_text = is_after_gap = False
    while at < len(now.text):
        newline = now.text.find("\n", at)
        line = now.text[at:] if newline < 0 else now.text[at:newline]
        if not fence and has_text and is_after_gap and line.strip() and not (is_list and line[0] in " \t"):
            return at, ""
        if newline < 0:
            return None, ""  # how the line goes on decides
        was_open, fence = bool(fence), _find_fence_after_line(line, fence)
        at = newline + 1
        if was_open and not fence:
            return at, ""
        if not line.strip():
            is_after_gap = True
            continue
        is_list = is_list or (not has_text and _LIST_ITEM.match(line) is not None)
        has_text, is_after_gap = True, False
    return None, ""


def _find_fence_after_line(line: str, is_open: str) -> str:
    """Find the fence that is open after ``line``."""
    found = _FENCE.fullmatch(line)
    if found is None:
        return is_open
    fence, rest = found["fence"], found["rest"]
    if not is_open:
        return "" if fence[0] == "`" and "`" in rest else fence
    is_end = fence[0] == is_open[0] and len(fence) >= len(is_open) and not rest.strip()
    return "" if is_end else is_open


def _find_fence_after_text(text: str, fence: str) -> str:
    for line in text.split("\n")[:-1]:
        fence = _find_fence_after_line(line, fence)
    return fence
