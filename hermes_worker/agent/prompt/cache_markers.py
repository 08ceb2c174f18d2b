"""Where a provider shall cut its prompt cache: the "system and 3" layout (docs/behaviour.md, "Prompt cache").

Anthropic's models, and some that copied their interface, cache a prompt up to marked places. At most four marks are
allowed: one behind the system prompt, which never changes in a session, and one behind each of the last three messages,
so that the next request finds the longest beginning it shares with this one. The results of one reply's calls are one
message: a mark behind its last row is enough, and the others stay where the request before this one ended, which a
provider would not find from here if many calls were made at once (Anthropic looks back over 20 blocks:
https://docs.claude.com/en/docs/build-with-claude/prompt-caching, 2026). Only rows that may be marked are parsed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hermes_worker.core.families import is_host, is_kimi
from hermes_worker.core.messages import canonical_json

MARKS_MAX = 4
_RESULT = '"role":"tool"'
"""As canonical JSON spells it. Inside a string the quotes would be escaped."""


class CacheLayout(StrEnum):
    """Where a mark may stand."""

    NATIVE = "native"
    """Anywhere: the conversion to Anthropic's messages moves a mark on a row into its last block. The assistant's rows
    are marked as a whole, because of some the conversion takes stored blocks instead of the content."""
    ENVELOPE = "envelope"
    """In content parts only. On an empty row it would be ignored, and on an empty tool row some servers hang."""


class CacheLifetime(StrEnum):
    """How long the provider keeps what was marked. An hour costs more to write."""

    FIVE_MINUTES = "5m"
    ONE_HOUR = "1h"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTarget:
    """What a request is sent to."""

    provider: str
    model: str
    host: str
    """Bare host name."""
    is_anthropic_wire: bool


def cache_layout(target: CacheTarget) -> CacheLayout | None:
    """How to mark requests to ``target``; ``None`` when marks would be ignored or refused."""
    return next((layout for applies, layout in _POLICY if applies(target)), None)


def with_cache_markers(
    messages: Sequence[str], layout: CacheLayout | None, lifetime: CacheLifetime = CacheLifetime.FIVE_MINUTES
) -> Sequence[str]:
    """``messages`` (canonical JSON, system row first) with at most ``MARKS_MAX`` of them marked."""
    if layout is None or not messages:
        return messages
    mark = {"type": "ephemeral"} if lifetime is CacheLifetime.FIVE_MINUTES else {"type": "ephemeral", "ttl": "1h"}
    marked = list(messages)
    for position, row in _rows_to_mark(messages, layout):
        marked[position] = canonical_json(_marked(row, mark, layout))
    return marked


def _rows_to_mark(messages: Sequence[str], layout: CacheLayout) -> Iterator[tuple[int, dict[str, Any]]]:
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


def _marked(row: dict[str, Any], mark: Mapping[str, str], layout: CacheLayout) -> dict[str, Any]:
    content: Any = row.get("content")
    is_marked_whole = layout is CacheLayout.NATIVE and row.get("role") in ("tool", "assistant")
    if is_marked_whole or not _has_part_to_mark(content):
        return {**row, "cache_control": mark}
    if isinstance(content, str):
        return {**row, "content": [{"type": "text", "text": content, "cache_control": mark}]}
    return {**row, "content": [*content[:-1], {**content[-1], "cache_control": mark}]}


# ------------------------------------------------------------------------------------------------------------ policy


def _names(target: CacheTarget, *words: str) -> bool:
    return any(word in target.model.lower() for word in words)


def _is_anthropic(target: CacheTarget) -> bool:
    is_own = target.provider.lower() == "anthropic" or is_host(target.host, "api.anthropic.com")
    return target.is_anthropic_wire and is_own


def _is_relayed_claude_or_kimi(target: CacheTarget) -> bool:
    is_relay = is_host(target.host, "openrouter.ai", "nousresearch.com")
    return is_relay and (_names(target, "claude") or is_kimi(target.model))


def _is_relayed_qwen(target: CacheTarget) -> bool:
    return is_host(target.host, "nousresearch.com") and _names(target, "qwen")


def _is_claude_behind_its_own_wire(target: CacheTarget) -> bool:
    return target.is_anthropic_wire and _names(target, "claude")


def _is_minimax(target: CacheTarget) -> bool:
    is_theirs = target.provider.lower() in ("minimax", "minimax-cn")
    return target.is_anthropic_wire and (is_theirs or is_host(target.host, "api.minimax.io", "api.minimaxi.com"))


def _is_alibaba_qwen(target: CacheTarget) -> bool:
    # The catalogue calls Alibaba "qwen"; a provider it does not know has no name but its host.
    is_theirs = target.provider.lower() in ("opencode", "opencode-zen", "opencode-go", "alibaba", "qwen")
    return (is_theirs or is_host(target.host, *_QWEN_HOSTS)) and _names(target, "qwen")


_QWEN_HOSTS = (
    "dashscope.aliyuncs.com",
    "dashscope-intl.aliyuncs.com",
    "dashscope-us.aliyuncs.com",
    "opencode.ai",
)


_POLICY: tuple[tuple[Callable[[CacheTarget], bool], CacheLayout], ...] = (
    (_is_anthropic, CacheLayout.NATIVE),
    (_is_relayed_claude_or_kimi, CacheLayout.ENVELOPE),
    (_is_relayed_qwen, CacheLayout.ENVELOPE),
    (_is_claude_behind_its_own_wire, CacheLayout.NATIVE),
    (_is_minimax, CacheLayout.NATIVE),
    (_is_alibaba_qwen, CacheLayout.ENVELOPE),
)
"""First match wins; no match, no marks."""
