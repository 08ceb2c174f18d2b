"""Mark where a provider shall cut its prompt cache: the "system and 3" layout.

Anthropic's models, and some that copied their interface, cache a prompt up to marked places. At most four marks are
allowed: one behind the system prompt, which never changes in a session, and one behind each of the last three messages,
so that the next request finds the longest beginning it shares with this one. The results of one reply's calls are one
message: a mark behind its last row is enough, and the others stay where the request before this one ended, which a
provider would not find from here if many calls were made at once (Anthropic looks back over 20 blocks:
https://docs.claude.com/en/docs/build-with-claude/prompt-caching, 2026). Only rows that may be marked are parsed.

Whether a provider takes marks, and in which layout, is a field of its row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.model_capabilities import CacheLayout

MARKS_MAX = 4
_MARK = {"type": "ephemeral"}
"""The provider keeps marked content for five minutes; an hour would cost more to write."""
_RESULT = '"role":"tool"'
"""A tool result's role as canonical JSON spells it. Inside a string the quotes would be escaped."""


def add_cache_markers(messages: Sequence[str], layout: CacheLayout | None) -> Sequence[str]:
    """``messages`` (canonical JSON, system row first) with at most ``MARKS_MAX`` of them marked."""
    if layout is None or not messages:
        return messages
    marked = list(messages)
    for position, row in _select_rows_to_mark(messages, layout):
        marked[position] = dump_canonical_json(_mark_row(row, layout))
    return marked


def _select_rows_to_mark(messages: Sequence[str], layout: CacheLayout) -> Iterator[tuple[int, dict[str, Any]]]:
    marks_left = MARKS_MAX
    first: dict[str, Any] = json.loads(messages[0])
    if first.get("role") == "system":
        yield 0, first
        marks_left -= 1
    has_marked_result = False
    for position in range(len(messages) - 1, -1, -1):
        if not marks_left:
            return
        if has_marked_result and _RESULT in messages[position]:
            continue
        row: dict[str, Any] = json.loads(messages[position])
        has_marked_result = False
        if row.get("role") != "system" and _can_carry(row, layout):
            yield position, row
            marks_left -= 1
            has_marked_result = row.get("role") == "tool"


def _can_carry(row: Mapping[str, Any], layout: CacheLayout) -> bool:
    return layout is CacheLayout.NATIVE or _has_part_to_mark(row.get("content"))


def _has_part_to_mark(content: object) -> bool:
    if isinstance(content, list):
        return bool(content) and isinstance(content[-1], dict)
    return isinstance(content, str) and content != ""


def _mark_row(row: dict[str, Any], layout: CacheLayout) -> dict[str, Any]:
    content: Any = row.get("content")
    is_marked_whole = layout is CacheLayout.NATIVE and row.get("role") in ("tool", "assistant")
    if is_marked_whole or not _has_part_to_mark(content):
        return {**row, "cache_control": _MARK}
    if isinstance(content, str):
        return {**row, "content": [{"type": "text", "text": content, "cache_control": _MARK}]}
    return {**row, "content": [*content[:-1], {**content[-1], "cache_control": _MARK}]}
