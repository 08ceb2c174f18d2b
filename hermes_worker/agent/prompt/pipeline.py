"""Turn the rows of a transcript into the messages of a request.

``build_messages`` is called before every model call. Our own rows are canonical JSON, and the state machine sees to it
that every call has its result, so the usual history is passed on row by row without being parsed: roles and counts are
compared, assistant rows are translated once and remembered. Whatever is not as it should be (a history that a client
handed in, a turn that failed between two messages of its user) goes through ``repair_messages``, a chain of pure
functions over plain rows.

Both ways use the same translation of a row, so a row that needs no repair has the same bytes in either: when a history
turns from one way to the other, only what is new differs (invariant I7). For the same reason nothing here looks at the
clock, at the position in the history or at other rows where it need not.

``import_history`` cleans rows from outside once, before they are stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, cast

from hermes_worker.core.call_ids import to_mistral_id
from hermes_worker.core.messages import THINKER_FIELD, Message, Role, dump_canonical_json
from hermes_worker.core.model_capabilities import STANDARD, UNSIGNED, WireNeeds
from hermes_worker.core.recovery.repair import ArgumentsOutcome, assess_arguments

Row = Mapping[str, Any]
"""A message in chat-completions form. Functions here return new rows and change none."""

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})

UNAVAILABLE = "[The result of this call is not available: it is not part of this conversation any more.]"
DAMAGED = "[The arguments of this call were damaged and are shown as {}. It did not run with what was meant.]"
"""The text before the result of a call whose arguments could not be read."""
NAMELESS_CALL = "invalid_tool_call"


def build_messages(rows: Sequence[Message], needs: WireNeeds = STANDARD) -> Sequence[str]:
    """Build the messages of a request, as canonical JSON. ``rows`` are in order and hold no system prompt of ours.

    Raises ``ValueError`` when a row that has to be parsed is not a JSON object.
    """
    if not _is_well_ordered(rows):
        return repair_messages(rows, needs)
    translate, assistant = _build_translation(needs), Role.ASSISTANT
    answers = Role.TOOL if needs.takes_short_ids_only else assistant
    bodies = [
        translate(row.body) if row.role is assistant or row.role is answers or _SIDECAR in row.body else row.body
        for row in rows  # (a hot loop: it goes over every row of every request)
    ]
    if None in bodies:
        return repair_messages(rows, needs)
    return cast(list[str], bodies)


def repair_messages(rows: Sequence[Message], needs: WireNeeds = STANDARD) -> Sequence[str]:
    """Build the messages of any history, however odd, at the price of parsing it."""
    settled = pair_results(repair_roles(mend_arguments(_parse_row(row.body) for row in rows)))
    return [dump_canonical_json(translate_row(row, needs)) for row in drop_thinking_only(settled)]


def import_history(history: Iterable[object]) -> list[str]:
    """Build canonical rows of a history from outside, to be stored before a session's first own row.

    Rows without a known role are left out, private fields are removed, surrounding white space goes, and the sequence
    is put right as far as it can be. Raises ``ValueError`` for numbers that JSON does not have.
    """
    rows = (_import_row(row) for row in history if isinstance(row, Mapping) and _read_role(row) in ROLES)
    settled = pair_results(repair_roles(mend_arguments(rows)))
    return [dump_canonical_json(_normalize_stored_calls(row)) for row in settled]


# ------------------------------------------------------------------------------------------------------ the quick way

_CALLS = '"tool_calls":['
_CALL = '"type":"function"'
_REASONING = '"reasoning'
_SIDECAR = '"api_content":'
_CODEX = '"codex_'
_ANTHROPIC = '"anthropic_'
"""Keys as canonical JSON spells them. Inside a string the quotes would be escaped, so these cannot be text. A string
*value* may look like the third; that only costs a translation."""


def _is_well_ordered(rows: Sequence[Message]) -> bool:
    """Whether each call has a result right behind its row, and no role but tools' follows itself. Judged by roles and
    by counts of substrings; that the ids agree is the store's promise.
    """
    awaited, previous = 0, None
    tool, system, assistant = Role.TOOL, Role.SYSTEM, Role.ASSISTANT
    for row in rows:
        role = row.role
        if role is tool:
            awaited -= 1
            if awaited < 0:
                return False
        elif awaited or (role is previous and role is not system):
            return False
        elif role is assistant:
            awaited = row.body.count(_CALL) if _CALLS in row.body else 0
        previous = role
    return not awaited


@cache
def _build_translation(needs: WireNeeds) -> Callable[[str], str | None]:
    """Build the translation of assistant rows for one kind of endpoint; it returns ``None`` for a row whose neighbours
    have to be looked at. It caches: a row is the same on every call, and a worker sees the same session again and
    again.
    """
    remembered = lru_cache(maxsize=4_096)(lambda body: _translate_body(body, needs))

    def translate(body: str) -> str | None:
        if not needs.echoes_reasoning and not needs.takes_short_ids_only and _is_plain(body):
            return body
        return remembered(body) if len(body) <= _REMEMBERED_CHARS_MAX else _translate_body(body, needs)

    return translate


def _is_plain(body: str) -> bool:
    """Whether a row holds nothing that endpoints take differently. (Spelled out, because it is asked of every row.)"""
    return not (_CALLS in body or _REASONING in body or _SIDECAR in body or _CODEX in body or _ANTHROPIC in body)


_REMEMBERED_CHARS_MAX = 32_768
"""Larger rows are translated each time, so that the cache stays small."""


def _translate_body(body: str, needs: WireNeeds) -> str | None:
    row = _parse_row(body)
    if _is_thinking_only(row) or any(_is_damaged(call) for call in _list_calls(row)):
        return None
    return dump_canonical_json(translate_row(row, needs))


def _parse_row(body: str) -> dict[str, Any]:
    row = json.loads(body)
    if not isinstance(row, dict):
        raise ValueError(f"a message must be a JSON object, not {type(row).__name__}")
    return row


# ------------------------------------------------------------------------------------------------------------ one row

_NEVER_SENT = frozenset({"reasoning", "finish_reason", "tool_name", "effect_disposition", "timestamp", "api_content"})


def translate_row(row: Row, needs: WireNeeds = STANDARD) -> dict[str, Any]:
    """A row as the endpoint takes it: the sidecar text instead of the shown one, reasoning as it is wanted, canonical
    arguments, no private fields.
    """
    sent = {key: value for key, value in row.items() if not key.startswith("_") and key not in _NEVER_SENT}
    if isinstance(row.get("api_content"), str):
        sent["content"] = row["api_content"]
    if not needs.keeps_reasoning_details:
        sent.pop("reasoning_details", None)
    if not needs.keeps_response_items:
        sent.pop("codex_reasoning_items", None)
        sent.pop("codex_message_items", None)
    if not needs.keeps_anthropic_blocks:
        sent.pop("anthropic_content_blocks", None)
        sent.pop("anthropic_issuer", None)
    if row.get("role") == "assistant":
        _set_or_remove(
            sent, "reasoning_content", find_reasoning_echo(row, needs.thinker) if needs.echoes_reasoning else None
        )
        if "tool_calls" in row:
            _set_or_remove(sent, "tool_calls", _translate_calls(row, needs) or None)
    elif needs.takes_short_ids_only and row.get("role") == "tool":
        sent["tool_call_id"] = to_mistral_id(_read_answered_call_id(row))
    return sent


def find_reasoning_echo(row: Row, thinker: str = "") -> str:
    """The ``reasoning_content`` of an assistant row for an endpoint that insists on it: what its own model, which is
    ``thinker``, thought in it.

    A single blank where there is nothing, since absence is refused. In a row without a recorded thinker (an older
    version wrote it, or a client) the ``reasoning`` beside calls is left out, since it may be another model's.
    """
    echoed, by = row.get("reasoning_content"), row.get(THINKER_FIELD)
    is_own = by == thinker if by is not None else not row.get("tool_calls")
    if by is not None and not is_own:
        return " "
    if not isinstance(echoed, str) and is_own:
        echoed = row.get("reasoning")
    return echoed if isinstance(echoed, str) and echoed else " "


def _set_or_remove(row: dict[str, Any], key: str, value: object) -> None:
    if value is None:
        row.pop(key, None)
    else:
        row[key] = value


def _translate_calls(row: Row, needs: WireNeeds) -> list[dict[str, Any]]:
    calls = _list_calls(row)
    sent = [_translate_call(call, needs) for call in calls]
    if needs.insists_on_signature and sent and not any("extra_content" in call for call in sent):
        sent[0]["extra_content"] = _UNSIGNED
    return sent


_UNSIGNED = {"google": {"thought_signature": UNSIGNED}}


def _translate_call(call: Row, needs: WireNeeds) -> dict[str, Any]:
    function = _read_function(call)
    assessed = assess_arguments(function.get("arguments"))
    arguments = assessed.arguments if assessed.outcome is ArgumentsOutcome.OK else "{}"
    sent: dict[str, Any] = {
        "id": to_mistral_id(_read_call_id(call)) if needs.takes_short_ids_only else _read_call_id(call),
        "type": "function",
        "function": {"name": _read_call_name(call), "arguments": arguments},
    }
    if needs.keeps_thought_signatures and "extra_content" in call:
        sent["extra_content"] = call["extra_content"]
    if needs.keeps_response_items:
        sent |= {key: call[key] for key in ("call_id", "response_item_id") if key in call}
    return sent


def _list_calls(row: Row) -> list[Row]:
    calls = row.get("tool_calls")
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []


def _read_function(call: Row) -> Row:
    function = call.get("function")
    return function if isinstance(function, Mapping) else {}


def _read_call_name(call: Row) -> str:
    name = _read_function(call).get("name")
    return name if isinstance(name, str) and name.strip() else NAMELESS_CALL


def _read_call_id(call: Row) -> str:
    """The id that results name: ``call_id`` where a Responses call has both. A call without any gets a hash of its
    content, the same on every worker.
    """
    for key in ("call_id", "id"):
        if isinstance(call.get(key), str) and call[key]:
            return str(call[key])
    said = dump_canonical_json([_read_call_name(call), _read_function(call).get("arguments")])
    return f"call_{hashlib.sha256(said.encode()).hexdigest()[:12]}"


def _collect_call_ids(call: Row) -> set[str]:
    """Every name under which a result may speak of this call."""
    return {_read_call_id(call)} | {
        call[key] for key in ("id", "call_id") if isinstance(call.get(key), str) and call[key]
    }


# ---------------------------------------------------------------------------------------------------------- arguments


def mend_arguments(rows: Iterable[Row]) -> list[Row]:
    """Replace arguments that cannot be read by ``{}``, and say so in the result of their call; one is added if there is
    none. Arguments that only need noise removed are left for ``translate_row``: such a call has run.
    """
    mended: list[Row] = []
    unmarked: list[str] = []
    for row in rows:
        if row.get("role") == "tool":
            call_id = _read_answered_call_id(row)
            if call_id in unmarked:
                unmarked.remove(call_id)
                row = {**row, "content": _mark_damaged(row.get("content"))}
            mended.append(row)
            continue
        mended.extend(_build_result(call_id, DAMAGED) for call_id in unmarked)
        unmarked = [_read_call_id(call) for call in _list_calls(row) if _is_damaged(call)]
        mended.append(_mend_calls(row) if unmarked else row)
    mended.extend(_build_result(call_id, DAMAGED) for call_id in unmarked)
    return mended


def _is_damaged(call: Row) -> bool:
    return assess_arguments(_read_function(call).get("arguments")).outcome is not ArgumentsOutcome.OK


def _mend_calls(row: Row) -> Row:
    calls = [
        {**call, "function": {**_read_function(call), "arguments": "{}"}} if _is_damaged(call) else call
        for call in _list_calls(row)
    ]
    return {**row, "tool_calls": calls}


def _mark_damaged(content: object) -> str:
    if not content:
        return DAMAGED
    text = content if isinstance(content, str) else dump_canonical_json(content)
    return text if text.startswith(DAMAGED) else f"{DAMAGED}\n{text}"


def _build_result(call_id: str, content: str) -> Row:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _read_answered_call_id(row: Row) -> str:
    """The id of the call that a result answers, as the row names it."""
    named = row.get("tool_call_id")
    return named.strip() if isinstance(named, str) else ""


# -------------------------------------------------------------------------------------------------------------- roles


def repair_roles(rows: Iterable[Row]) -> list[Row]:
    """Put rows in an order that strict providers take: assistants that speak twice are one, results stand behind the
    calls they answer or are dropped, users that speak twice are one.
    """
    answered = _drop_stray_results(_merge_assistants(rows))
    # A stray result may have stood between two assistants.
    return _merge_users(_merge_assistants(answered))


def _merge_assistants(rows: Iterable[Row]) -> list[Row]:
    merged: list[Row] = []
    for row in rows:
        if merged and _may_merge(merged[-1], row):
            merged[-1] = _merge_two_assistants(merged[-1], row)
        else:
            merged.append(row)
    return merged


def _may_merge(first: Row, second: Row) -> bool:
    is_assistants = first.get("role") == second.get("role") == "assistant"
    return is_assistants and not _is_interim(first) and not _is_interim(second)


def _is_interim(row: Row) -> bool:
    """Whether a row is a step of a Responses reply, which the provider wants back as the item it was."""
    has_items = bool(row.get("codex_reasoning_items") or row.get("codex_message_items"))
    return has_items or row.get("finish_reason") == "incomplete"


def _merge_two_assistants(first: Row, second: Row) -> Row:
    if first.get("finish_reason") in ("verification_required", "verify_hook_continue"):
        return second
    both = dict(first)
    if calls := [*_list_calls(first), *_list_calls(second)]:
        both["tool_calls"] = calls
    both["content"] = _join_contents(first.get("content"), second.get("content"))
    if not first.get("reasoning_content") and second.get("reasoning_content"):
        both["reasoning_content"] = second["reasoning_content"]
    return both


def _join_contents(first: object, second: object) -> object:
    if isinstance(first, str) and isinstance(second, str):
        return "\n".join(part for part in (first.strip(), second.strip()) if part)
    if first and second:
        return [*_iterate_parts(first), *_iterate_parts(second)]
    return first or (first if second is None else second)


def _drop_stray_results(rows: Iterable[Row]) -> list[Row]:
    kept: list[Row] = []
    awaited: list[set[str]] = []
    for row in rows:
        if row.get("role") == "tool":
            answered = next((ids for ids in awaited if _read_answered_call_id(row) in ids), None)
            if answered is None:
                continue
            awaited.remove(answered)
        elif row.get("role") in ("assistant", "user"):
            awaited = [_collect_call_ids(call) for call in _list_calls(row)]
        kept.append(row)
    return kept


def _merge_users(rows: Iterable[Row]) -> list[Row]:
    """Merge neighbouring user rows: texts are joined by a blank line. A message of parts stays by itself: where an
    image stands has a meaning.
    """
    merged: list[Row] = []
    for row in rows:
        is_second = bool(merged) and merged[-1].get("role") == row.get("role") == "user"
        if is_second and isinstance(merged[-1].get("content"), str) and isinstance(row.get("content"), str):
            merged[-1] = _merge_two_users(merged[-1], row)
        else:
            merged.append(row)
    return merged


def _merge_two_users(first: Row, second: Row) -> Row:
    both = {key: value for key, value in first.items() if key != "api_content"}
    both["content"] = "\n\n".join(part for part in (first["content"], second["content"]) if part)
    return both


# ------------------------------------------------------------------------------------------------- calls and results


def pair_results(rows: Iterable[Row]) -> list[Row]:
    """Give each call of a row exactly one result right behind it, and each result a call.

    Real results keep their order and come first; calls that have none get one that says so. Ids need to be unique in
    one row only: some servers count from 0 in every reply.
    """
    paired: list[Row] = []
    awaited: dict[str, set[str]] = {}
    for row in rows:
        if _read_role(row) not in ROLES:
            continue
        if row.get("role") == "tool":
            call_id = next(
                (call_id for call_id, names in awaited.items() if _read_answered_call_id(row) in names), None
            )
            if call_id is not None:
                del awaited[call_id]
                paired.append({**row, "tool_call_id": call_id})
            continue
        paired.extend(_build_result(call_id, UNAVAILABLE) for call_id in awaited)
        row = _make_calls_distinct(row) if row.get("role") == "assistant" else row
        awaited = (
            {_read_call_id(call): _collect_call_ids(call) for call in _list_calls(row)}
            if row.get("role") == "assistant"
            else {}
        )
        paired.append(row)
    paired.extend(_build_result(call_id, UNAVAILABLE) for call_id in awaited)
    return paired


def _read_role(row: Row) -> str:
    role = row.get("role")
    return role if isinstance(role, str) else ""


def _make_calls_distinct(row: Row) -> Row:
    if "tool_calls" not in row:
        return row
    distinct: dict[str, Row] = {}
    for call in _list_calls(row):
        distinct.setdefault(_read_call_id(call), _normalize_call_name(call))
    rest = {key: value for key, value in row.items() if key != "tool_calls"}
    return {**rest, "tool_calls": list(distinct.values())} if distinct else rest


def _normalize_call_name(call: Row) -> Row:
    name = _read_call_name(call)
    return (
        call
        if _read_function(call).get("name") == name
        else {**call, "function": {**_read_function(call), "name": name}}
    )


# ----------------------------------------------------------------------------------------------------- thinking only


def drop_thinking_only(rows: Iterable[Row]) -> list[Row]:
    """Drop assistant rows that hold nothing but reasoning, which providers refuse to see again. Users that stand side
    by side because of that are merged, whatever their content.
    """
    kept: list[Row] = []
    has_dropped = False
    for row in rows:
        if _is_thinking_only(row):
            has_dropped = True
            continue
        if has_dropped and kept and kept[-1].get("role") == row.get("role") == "user":
            kept[-1] = {**kept[-1], "content": _join_as_parts(kept[-1].get("content"), row.get("content"))}
        else:
            kept.append(row)
        has_dropped = False
    return kept


_REASONING_FIELDS = ("reasoning", "reasoning_content", "reasoning_details", "codex_reasoning_items")


def _is_thinking_only(row: Row) -> bool:
    if row.get("role") != "assistant" or _list_calls(row) or row.get("codex_message_items"):
        return False
    has_reasoned = any(_says_something(row.get(field)) for field in _REASONING_FIELDS)
    return (has_reasoned or _has_thinking_part(row.get("content"))) and not _is_visible(row.get("content"))


def _says_something(value: object) -> bool:
    return bool(value.strip()) if isinstance(value, str) else bool(value)


def _has_thinking_part(content: object) -> bool:
    return isinstance(content, list) and any(_read_type(part) in ("thinking", "redacted_thinking") for part in content)


def _is_visible(content: object) -> bool:
    if isinstance(content, list):
        return any(_is_visible_part(part) for part in content)
    return _says_something(content)


def _is_visible_part(part: object) -> bool:
    if not isinstance(part, Mapping):
        return bool(part)
    if _read_type(part) == "text":
        return _says_something(part.get("text"))
    return _read_type(part) not in ("thinking", "redacted_thinking")


def _read_type(part: object) -> object:
    return part.get("type") if isinstance(part, Mapping) else None


def _join_as_parts(first: object, second: object) -> object:
    if isinstance(first, str) and isinstance(second, str):
        return "\n\n".join(part for part in (first, second) if part)
    return [*_iterate_parts(first), *_iterate_parts(second)]


def _iterate_parts(content: object) -> Iterator[object]:
    if isinstance(content, list):
        yield from content
    elif content:
        yield {"type": "text", "text": content if isinstance(content, str) else dump_canonical_json(content)}


# ------------------------------------------------------------------------------------------------------------- import

_TEXT_FIELDS = {"assistant": ("reasoning", "reasoning_content"), "tool": ("tool_call_id",)}


def _import_row(row: Row) -> Row:
    role, content = _read_role(row), _import_content(row.get("content"))
    texts = {key: row[key] for key in _TEXT_FIELDS.get(role, ("name",)) if isinstance(row.get(key), str)}
    if role == "assistant" and (calls := _list_calls(row)):
        return {"role": role, "content": content, "tool_calls": calls, **texts}
    return {"role": role, "content": "" if content is None else content, **texts}


def _normalize_stored_calls(row: Row) -> Row:
    return (
        {**row, "tool_calls": [_translate_call(call, STANDARD) for call in _list_calls(row)]}
        if _list_calls(row)
        else row
    )


def _import_content(content: object) -> object:
    if content is None or isinstance(content, list):
        return content
    return content.strip() if isinstance(content, str) else dump_canonical_json(content)
