"""Convert between chat-completions rows, which is what transcripts hold, and the items of the Responses API. Pure:
dictionaries in, dictionaries out.

The API keeps nothing for us (``store`` is false), so reasoning travels encrypted in the transcript. Only the endpoint
that sealed it can open it: each item is stored with its *issuer* and sent to no other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hermes_worker.core.call_ids import make_ids_distinct, shorten_id
from hermes_worker.core.json_values import read_list, read_mapping
from hermes_worker.core.messages import ModelReply, ToolRequest, Usage, dump_canonical_json
from hermes_worker.core.model_families import find_traits
from hermes_worker.core.recovery.repair import dump_arguments
from hermes_worker.models.wires.chat_reply import CACHE_WRITES, find_first_count, is_cut, make_call_id

Row = Mapping[str, Any]
Item = dict[str, Any]

ITEM_ID_CHARS_MAX = 64
CACHE_KEY_CHARS_MAX = 64

CODEX = "codex_backend"
XAI = "xai_responses"
GITHUB = "github_responses"
_THINKS_IN_STEPS = frozenset({CODEX, XAI, GITHUB})
"""Issuers whose replies of nothing but reasoning are a step on the way, although they say that they are complete."""


class FailedResponse(Exception):
    """The API answered with status 200 and a response that failed. ``body`` is for ``core.recovery.classify``."""

    def __init__(self, message: str, body: Mapping[str, object]) -> None:
        super().__init__(message)
        self.body = body


# -------------------------------------------------------------------------------------------------------------- request


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesPrompt:
    """The parts of a request that come from the transcript."""

    instructions: str
    input: list[Item]


def to_input(rows: Iterable[Row], *, issuer: str, replays_reasoning: bool = True) -> ResponsesPrompt:
    """The rows as items. ``replays_reasoning`` is switched off for a session whose reasoning was once rejected."""
    instructions: list[str] = []
    items: list[Item] = []
    replay = _ReasoningReplay(issuer=issuer if replays_reasoning else None)
    for row in make_ids_distinct(rows):
        match row.get("role"):
            case "system" | "developer":
                instructions.append(_render_plain_text(row.get("content")))
            case "assistant":
                items.extend(_iterate_assistant_items(row, replay, keeps_ids=issuer != GITHUB))
            case "tool":
                items.extend(_iterate_result_items(row))
            case _:
                parts = _convert_parts(row.get("content"), "input_text")
                items.append({"role": "user", "content": parts or _render_plain_text(row.get("content"))})
    return ResponsesPrompt(instructions="\n\n".join(filter(None, instructions)), input=items)


class _ReasoningReplay:
    """Selects the sealed reasoning that may be sent: that of ``issuer``, each item once; none when ``issuer`` is
    ``None``.
    """

    def __init__(self, *, issuer: str | None) -> None:
        self._issuer = issuer
        self._seen: set[str] = set()

    def select_items(self, stored: object) -> Iterator[Item]:
        for item in stored if isinstance(stored, list) and self._issuer is not None else ():
            if not isinstance(item, Mapping) or not item.get("encrypted_content"):
                continue
            is_foreign = item.get("_issuer_kind") not in (None, self._issuer)
            item_id = item.get("id")
            if is_foreign or (isinstance(item_id, str) and item_id in self._seen):
                continue
            if isinstance(item_id, str):
                self._seen.add(item_id)
            yield {key: value for key, value in item.items() if key not in ("id", "_issuer_kind")}


def _iterate_assistant_items(row: Row, replay: _ReasoningReplay, *, keeps_ids: bool) -> Iterator[Item]:
    reasoning = list(replay.select_items(row.get("codex_reasoning_items")))
    yield from reasoning
    stored = row.get("codex_message_items")
    messages = [m for m in (_build_message_item(m, keeps_ids) for m in stored) if m] if isinstance(stored, list) else []
    if messages:
        yield from messages
    elif parts := _convert_parts(row.get("content"), "output_text"):
        yield {"role": "assistant", "content": parts}
    elif (text := _render_plain_text(row.get("content"))).strip():
        yield {"role": "assistant", "content": text}
    elif reasoning:
        # Reasoning has to be followed by what it led to.
        yield {"role": "assistant", "content": ""}
    yield from _iterate_call_items(row)


def _build_message_item(item: object, keeps_ids: bool) -> Item | None:
    """A message as it was written, so that its step and its phase survive. GitHub binds ids to one connection and
    refuses them on the next.
    """
    if not isinstance(item, Mapping) or (item.get("type"), item.get("role")) != ("message", "assistant"):
        return None
    content = item.get("content")
    texts = [_read_text(part) for part in content if _is_text(part)] if isinstance(content, list) else []
    if not texts:
        return None
    replayed: Item = {
        "type": "message",
        "role": "assistant",
        "status": _read_message_status(item.get("status")),
        "content": [{"type": "output_text", "text": text} for text in texts],
    }
    item_id, phase = item.get("id"), item.get("phase")
    if keeps_ids and isinstance(item_id, str) and 0 < len(item_id.strip()) <= ITEM_ID_CHARS_MAX:
        replayed["id"] = item_id.strip()
    if isinstance(phase, str) and phase.strip():
        replayed["phase"] = phase.strip()
    return replayed


def _read_message_status(status: object) -> str:
    spelled = status.strip().lower().replace("-", "_").replace(" ", "_") if isinstance(status, str) else ""
    return spelled if spelled in ("completed", "incomplete", "in_progress") else "completed"


def _iterate_call_items(row: Row) -> Iterator[Item]:
    calls = row.get("tool_calls")
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        function = read_mapping(read_mapping(call).get("function"))
        name = function.get("name")
        if not isinstance(name, str) or not name.strip():
            continue
        arguments = _encode_arguments(function.get("arguments"))
        call_id = (
            _read_call_id(call.get("call_id")) or _read_call_id(call.get("id")) or make_call_id(name, arguments, index)
        )
        yield {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def _encode_arguments(value: object) -> str:
    text = value if isinstance(value, str) else "" if value is None else dump_arguments(value)
    return text.strip() or "{}"


def _read_call_id(value: object) -> str:
    """The call's id out of the forms it is stored in: alone, or before the item's id in ``call_1|fc_9``."""
    named = value.partition("|")[0].strip() if isinstance(value, str) else ""
    whole = f"call_{named.removeprefix('fc_')}" if named.startswith("fc_") and len(named) > len("fc_") else named
    return shorten_id(whole, ITEM_ID_CHARS_MAX)


def _iterate_result_items(row: Row) -> Iterator[Item]:
    call_id = _read_call_id(row.get("tool_call_id"))
    if call_id:
        output: object = _convert_parts(row.get("content"), "input_text") or _render_plain_text(row.get("content"))
        yield {"type": "function_call_output", "call_id": call_id, "output": output}


def _convert_parts(content: object, text_type: str) -> list[Item]:
    """Content parts as the API names them; empty for a plain string. It refuses input text from the assistant and
    output text from the user.
    """
    parts: list[Item] = []
    for part in content if isinstance(content, list) else ():
        if _is_text(part) and _read_text(part):
            parts.append({"type": text_type, "text": _read_text(part)})
        elif isinstance(part, Mapping) and part.get("type") in ("image_url", "input_image"):
            parts.extend(_iterate_image_part(part))
    return parts


def _iterate_image_part(part: Row) -> Iterator[Item]:
    image = part.get("image_url")
    fields = image if isinstance(image, Mapping) else {"url": image}
    url, detail = fields.get("url"), fields.get("detail", part.get("detail"))
    if isinstance(url, str) and url:
        known = {"detail": detail.strip()} if isinstance(detail, str) and detail.strip() else {}
        yield {"type": "input_image", "image_url": url, **known}


def _is_text(part: object) -> bool:
    return isinstance(part, str) or (
        isinstance(part, Mapping) and part.get("type") in ("text", "input_text", "output_text")
    )


def _read_text(part: object) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    return text if isinstance(text, str) else ""


def _render_plain_text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(filter(None, (_read_text(part) for part in content if _is_text(part))))
    return "" if content is None else dump_canonical_json(content)


def to_tools(tools: Iterable[Row]) -> list[Item]:
    """Chat-completions tool definitions as the API takes them: flat, and not strict, since ours have optional
    arguments."""
    functions = (tool.get("function") for tool in tools)
    return [
        {
            "type": "function",
            "name": function["name"],
            "description": function.get("description") or "",
            "strict": False,
            "parameters": function.get("parameters") or {"type": "object", "properties": {}},
        }
        for function in functions
        if isinstance(function, Mapping) and isinstance(function.get("name"), str) and function["name"].strip()
    ]


def build_reasoning_fields(model: str, effort: str | None, *, issuer: str, replays_reasoning: bool = True) -> Item:
    """The request fields about reasoning; ``None`` asks for none. xAI knows three efforts and no summaries."""
    if effort is None:
        return {}
    sealed = ["reasoning.encrypted_content"] if replays_reasoning else []
    level = _EFFORTS.get(effort, effort)
    if issuer == XAI:
        return {"reasoning": {"effort": _XAI_EFFORTS.get(level, level)}, "include": sealed}
    known = find_traits(model).efforts or {}
    return {"reasoning": {"effort": known.get(level, level), "summary": "auto"}, "include": sealed}


_EFFORTS = {"minimal": "low"}
_XAI_EFFORTS = {"xhigh": "high", "max": "high", "ultra": "high"}


def derive_prompt_cache_key(instructions: str, tools: Sequence[Item], *, session_id: str = "") -> str | None:
    """A key that leads requests that begin alike to the same cache: a hash of what never changes in a session, so that
    sessions of one kind share it. It is a hint, never a matter of correctness.
    """
    if instructions or tools:
        by_name = sorted(tools, key=lambda tool: str(tool.get("name")))
        return _hash_key(f"{instructions}\0{dump_canonical_json(by_name) if by_name else ''}")
    return session_id if len(session_id) <= CACHE_KEY_CHARS_MAX else _hash_key(session_id)


def _hash_key(text: str) -> str:
    return f"pck_{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:24]}"


# --------------------------------------------------------------------------------------------------------------- reply

_UNFINISHED = frozenset({"queued", "in_progress", "incomplete"})
_LIMITS = frozenset({"max_output_tokens", "max_tokens", "length"})
"""Reasons why a response is incomplete that ran into its output limit."""
_COMMENTARY = frozenset({"commentary", "analysis"})
_FINAL = frozenset({"final_answer", "final"})
_LEAKED_CALL = re.compile(r"(?:^|[\s>|])to=functions\.[A-Za-z_][\w.]*", re.IGNORECASE)
"""A tool call that the model wrote as text, in its own inner notation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """A response's items, sorted by what they are."""

    texts: list[str]
    reasoning: list[str]
    message_items: list[Item]
    reasoning_items: list[Item]
    requests: list[ToolRequest]
    phases: frozenset[str]
    has_reasoned: bool
    has_cut_call: bool
    is_refusal: bool
    """Whether the model only said why it does not answer."""
    is_unfinished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """How the response says that it ended, and how its text looks."""

    status: str
    why_incomplete: str
    issuer: str
    has_text: bool = False
    is_leaked: bool = False

    @property
    def was_filtered(self) -> bool:
        return self.status == "incomplete" and self.why_incomplete == "content_filter"

    @property
    def was_cut_by_limit(self) -> bool:
        return self.status == "incomplete" and self.why_incomplete in _LIMITS


def from_response(response: Row, *, issuer: str) -> ModelReply:
    """Convert a whole response to a reply, which may be empty where the response is completed. Raises
    ``FailedResponse`` when it failed, or says neither what it holds nor that it is complete."""
    reason = _parse_word(read_mapping(response.get("incomplete_details")).get("reason"))
    ending = _Ending(status=_parse_word(response.get("status")), why_incomplete=reason, issuer=issuer)
    if ending.status in ("failed", "cancelled"):
        said = _format_failure(response.get("error"), ending.status)
        raise FailedResponse(said, {"error": read_mapping(response.get("error"))})
    items = [item for item in read_list(response.get("output")) if isinstance(item, Mapping)]
    shown = _render_plain_text(response.get("output_text")).strip()
    if not items and not shown and not ending.was_filtered and ending.status != "completed":
        raise FailedResponse("The Responses API returned an empty response", {})
    output = _sort_items(items, ending)
    text, reasoning = _split_answer(output, shown, issuer)
    is_leaked = bool(text) and not output.requests and _LEAKED_CALL.search(text) is not None
    text = "" if is_leaked else text
    return ModelReply(
        text=text,
        tool_requests=tuple(output.requests),
        reasoning=reasoning or None,
        finish_reason=_finish_reason(output, replace(ending, has_text=bool(text.strip()), is_leaked=is_leaked)),
        usage=parse_usage(response.get("usage")),
        model=_render_plain_text(response.get("model")),
        was_cut_by_limit=ending.was_cut_by_limit,
        row_fields={
            name: kept
            for name, kept in (
                ("codex_reasoning_items", output.reasoning_items),
                ("codex_message_items", [] if is_leaked else output.message_items),
            )
            if kept
        },
    )


def _sort_items(items: Sequence[Row], ending: _Ending) -> _Output:
    messages = [item for item in items if item.get("type") == "message"]
    reasoning = [item for item in items if item.get("type") == "reasoning"]
    spoken = [(item, text) for item in messages if (text := _read_message_text(item)).strip()]
    # A call that the response's own end cut off is reported with the others, so that all are asked for again.
    calls = [item for item in items if _is_call(item) and (_is_finished(item) or ending.status == "incomplete")]
    return _Output(
        texts=[text for item, text in spoken if _parse_word(item.get("phase")) not in _COMMENTARY],
        reasoning=[text for item in items if (text := _read_reasoning_text(item))],
        message_items=[_build_stored_message(item, text) for item, text in spoken],
        reasoning_items=[stored for item in reasoning if (stored := _build_stored_reasoning(item, ending.issuer))],
        requests=list(_build_requests(calls)),
        phases=frozenset(_parse_word(item.get("phase")) for item in messages),
        has_reasoned=bool(reasoning),
        has_cut_call=any(map(_is_cut_call, calls)),
        is_refusal=bool(spoken)
        and not any(_is_text(part) for item, _ in spoken for part in read_list(item["content"])),
        is_unfinished=any(
            _parse_word(item.get("status")) in _UNFINISHED for item in items if not _is_server_side(item)
        ),
    )


def _is_server_side(item: Row) -> bool:
    """Whether the item is a search or the like that ran at the provider. One that did not finish does not make the
    reply unfinished.
    """
    kind = _parse_word(item.get("type"))
    return kind.endswith("_call") and kind not in ("function_call", "custom_tool_call")


def _split_answer(output: _Output, shown: str, issuer: str) -> tuple[str, str]:
    """The visible text and the reasoning."""
    text = "\n".join(output.texts)
    reasoning = "\n\n".join(output.reasoning).strip()
    is_only_commentary = bool(output.phases & _COMMENTARY) and not output.phases & _FINAL
    if not text and not is_only_commentary:
        text = shown
    if not text and not output.requests and issuer == XAI:
        return _split_reasoning(reasoning)
    return text, reasoning


def _split_reasoning(reasoning: str) -> tuple[str, str]:
    """Split an answer out of the reasoning: xAI now and then puts its answer there, between tags."""
    before, tag, after = reasoning.rpartition("<response>")
    answer = after.partition("</response>")[0].strip()
    return (answer, before.strip()) if tag and answer else ("", reasoning)


def _finish_reason(output: _Output, ending: _Ending) -> str:
    if output.requests:
        return "length" if output.has_cut_call else "tool_calls"
    if ending.was_filtered or output.is_refusal:
        return "content_filter"
    if ending.is_leaked or ending.was_cut_by_limit or output.is_unfinished:
        return "incomplete"
    if ending.status in ("queued", "in_progress"):
        return "incomplete"
    if (ending.status == "incomplete" or output.phases & _COMMENTARY) and not output.phases & _FINAL:
        return "incomplete"
    if (output.has_reasoned or output.reasoning) and not ending.has_text:
        is_all = ending.status == "completed" and ending.issuer not in _THINKS_IN_STEPS
        return "stop" if is_all else "incomplete"
    return "stop"


def _build_requests(calls: Sequence[Row]) -> Iterator[ToolRequest]:
    for position, item in enumerate(calls):
        name = _render_plain_text(item.get("name"))
        arguments = _encode_arguments(item.get("input" if item.get("type") == "custom_tool_call" else "arguments"))
        call_id = _read_call_id(item.get("call_id")) or make_call_id(name, arguments, position)
        yield ToolRequest(id=call_id, name=name, arguments=arguments)


def _is_call(item: Row) -> bool:
    return item.get("type") in ("function_call", "custom_tool_call")


def _is_finished(item: Row) -> bool:
    return item.get("type") == "custom_tool_call" or _parse_word(item.get("status")) not in _UNFINISHED


def _is_cut_call(item: Row) -> bool:
    """Whether the arguments of a call are cut. The input of a custom tool is any text, so its end cannot be told, and
    it never counts as cut.
    """
    if item.get("type") != "function_call":
        return False
    return not _is_finished(item) or is_cut(_encode_arguments(item.get("arguments")))


def _build_stored_message(item: Row, text: str) -> Item:
    stored: Item = {
        "type": "message",
        "role": "assistant",
        "status": _read_message_status(item.get("status")),
        "content": [{"type": "output_text", "text": text}],
    }
    phase = _parse_word(item.get("phase"))
    return stored | {
        key: value for key, value in (("id", item.get("id")), ("phase", phase)) if isinstance(value, str) and value
    }


def _build_stored_reasoning(item: Row, issuer: str) -> Item | None:
    sealed, item_id = item.get("encrypted_content"), item.get("id")
    is_passing = isinstance(item_id, str) and item_id.startswith("rs_tmp_")
    if not isinstance(sealed, str) or not sealed or is_passing:
        return None
    summary = [{"type": "summary_text", "text": _read_text(part)} for part in read_list(item.get("summary"))]
    stored: Item = {"type": "reasoning", "encrypted_content": sealed, "summary": summary, "_issuer_kind": issuer}
    return stored | ({"id": item_id} if item_id else {})


def _read_message_text(item: Row) -> str:
    """The text of a message as it was written: white space at its ends joins it to the rest of an answer that came in
    pieces.
    """
    return "".join(map(_read_part_text, read_list(item.get("content"))))


def _read_part_text(part: object) -> str:
    """The text of a part, or of a refusal; empty for other parts."""
    refusal = part.get("refusal") if isinstance(part, Mapping) and part.get("type") == "refusal" else None
    return refusal if isinstance(refusal, str) else _read_text(part) if _is_text(part) else ""


def _read_reasoning_text(item: Row) -> str:
    if item.get("type") == "message":
        return _read_message_text(item).strip() if _parse_word(item.get("phase")) in _COMMENTARY else ""
    if item.get("type") != "reasoning":
        return ""
    summary = "\n".join(filter(None, map(_read_text, read_list(item.get("summary"))))).strip()
    return summary or _render_plain_text(item.get("text")).strip()


def _format_failure(error: object, status: str) -> str:
    """The error's code and message, since either alone may say nothing ("Slow down")."""
    fields = read_mapping(error)
    said = [str(fields[key]).strip() for key in ("code", "message") if fields.get(key)]
    return ": ".join(said) or f"The Responses API returned a response with status {status!r}"


def parse_usage(usage: object) -> Usage:
    """Token counts with the cached ones taken out of ``input``."""
    counts = read_mapping(usage)
    details = read_mapping(counts.get("input_tokens_details"))
    read, written = _parse_count(details.get("cached_tokens")), find_first_count(*map(details.get, CACHE_WRITES))
    return Usage(
        input=max(0, _parse_count(counts.get("input_tokens")) - read - written),
        output=_parse_count(counts.get("output_tokens")),
        cache_read=read,
        cache_write=written,
        reasoning=_parse_count(read_mapping(counts.get("output_tokens_details")).get("reasoning_tokens")),
    )


def _parse_count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _parse_word(value: object) -> str:
    return value.strip().lower() if isinstance(value, str) else ""
