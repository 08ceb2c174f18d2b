"""Convert ids of tool calls into the forms that providers accept. Pure, and equal on every worker (invariant I7).

A transcript keeps an id as the model gave it; a wire converts it when it sends the row, for the call and its result
alike. An acceptable id is never changed.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hermes_worker.core.json_values import read_list, read_mapping, read_text

_DIGITS = string.digits + string.ascii_letters
_SHORT = re.compile(r"[a-zA-Z0-9]{9}")
"""The ids that Mistral's API and the templates of its models accept: "alphanumeric strings with length 9"."""


def derive_short_id(text: str) -> str:
    """Derive an id of nine letters or digits from ``text``, which every provider accepts."""
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8])
    digits = []
    for _ in range(9):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)


def to_mistral_id(call_id: str) -> str:
    """Convert ``call_id`` for a provider that accepts nine letters or digits only."""
    return call_id if _SHORT.fullmatch(call_id) else derive_short_id(call_id)


def shorten_id(call_id: str, chars_max: int) -> str:
    """Convert ``call_id`` for a provider that accepts at most ``chars_max`` characters, which must be more than
    nine."""
    return call_id if len(call_id) <= chars_max else f"{call_id[: chars_max - 10]}_{derive_short_id(call_id)}"


def make_ids_distinct(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Rewrite a history for a provider that requires unique ids. Some servers count their calls from 0 in every reply,
    so a repeated id, and the results of its calls, get another one."""
    answered: dict[str, int] = {}
    renamed: dict[str, str] = {}
    for row in rows:
        if row.get("role") == "assistant":
            used = map(_read_id, map(read_mapping, read_list(row.get("tool_calls"))))
            renamed = {
                each: shorten_id(f"{each}_{answered[each] + 1}", _ID_CHARS_MAX) for each in used if each in answered
            }
            yield (
                {**row, "tool_calls": [_rename_call(call, renamed) for call in row["tool_calls"]]} if renamed else row
            )
            continue
        named = read_text(row.get("tool_call_id"))
        if row.get("role") == "tool" and named:
            answered[named] = answered.get(named, 0) + 1
        yield {**row, "tool_call_id": renamed[named]} if named in renamed else row


def _read_id(call: Mapping[str, Any]) -> str:
    return read_text(call.get("call_id")) or read_text(call.get("id"))


def _rename_call(call: Mapping[str, Any], renamed: Mapping[str, str]) -> Mapping[str, Any]:
    used = _read_id(read_mapping(call))
    return {**call, "id": renamed[used], "call_id": renamed[used]} if used in renamed else call


_ID_CHARS_MAX = 64
"""The most characters that the Responses API and Bedrock accept."""
