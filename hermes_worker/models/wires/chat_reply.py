"""Assemble one reply from the chunks of a chat completion. Pure: no network, no clock.

A chunk is a parsed JSON object. A whole, unstreamed completion is one chunk that says ``message`` where a streamed one
says ``delta``, so both take the same way. The shapes accepted are those of Hermes Agent 0.19, and of the
servers that call themselves compatible; what contradicts them raises ``MalformedReply``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from hermes_worker.core.call_ids import derive_short_id
from hermes_worker.core.json_values import read_count, read_mapping, read_text
from hermes_worker.core.messages import Delta, ModelReply, ToolRequest, Usage
from hermes_worker.core.recovery.repair import ArgumentsOutcome, assess_arguments, dump_arguments, to_plain_json


class MalformedReply(ValueError):
    """The server sent something that is not a chat completion."""


class StreamedError(Exception):
    """The server reported a failure inside a stream that had begun with status 200."""

    def __init__(self, body: Mapping[str, object]) -> None:
        super().__init__(str(body.get("message") or body))
        self.body = body
        codes = (parse_number(body.get(name)) for name in ("code", "status", "status_code", "http_code"))
        self.status_code = next((code for code in codes if code is not None and 400 <= code < 600), None)


def raise_reported(event: Mapping[str, object]) -> None:
    """Raise ``StreamedError`` when a chunk without a reply is the body of an error, in any of the forms that servers
    give errors; a chunk of another kind passes."""
    error = event.get("error")
    if isinstance(error, Mapping):
        beside = {name: event[name] for name in _BESIDE_ERROR if name in event}
        raise StreamedError({**beside, **error})
    is_error = event.get("object") == "error" or event.get("type") == "error"
    if error or is_error or (not any(name in event for name in _OF_CHUNKS) and any(event.get(n) for n in _OF_ERRORS)):
        raise StreamedError({"message": error, **event} if isinstance(error, str) and error else event)


_BESIDE_ERROR = ("code", "status", "error_code")
_OF_CHUNKS = ("choices", "usage", "id", "created", "usageMetadata", "promptFeedback")
_OF_ERRORS = ("message", "detail", "errors", "error_msg", "error_message")


def parse_number(value: object) -> int | None:
    """A whole number from 0 on, or the text of one, as an ``int``: gateways write indexes and codes as either. ``None``
    for anything else.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < _DIGITS_MAX:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


_DIGITS_MAX = 10


class CutShort(Exception):
    """The stream ended before the reply did, and nothing worth keeping had come."""


_FINISH_REASONS: Mapping[str, str] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "incomplete": "incomplete",
}
"""Servers' finish reasons, in lower case, to those of ``ModelReply.finish_reason``. Any other counts as ``stop``."""


@dataclass(slots=True)
class _PendingCall:
    """A tool call that is still being assembled."""

    id: str
    name: str
    arguments: list[str]
    extra_content: Mapping[str, object] | None = None
    """Gemini's thought signature; without it the next request is rejected."""

    @property
    def is_whole(self) -> bool:
        """Whether its arguments have come to their end."""
        # The last character is looked at first: to parse what has come anew with each piece would take for ever.
        is_closed = bool(self.arguments) and self.arguments[-1].rstrip().endswith(("}", "]", "```"))
        return is_closed and to_plain_json("".join(self.arguments)) is not None


class ReplyAssembler:
    """Assembles a reply: ``feed`` it every chunk, in order, then ``finish`` it. ``on_delta`` gets each new piece as it
    comes.
    """

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._on_delta = on_delta
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._slots: list[_PendingCall] = []
        self._slot_at: dict[int, _PendingCall] = {}
        self._details: list[dict[str, object]] = []
        self._finish_reason: str | None = None
        self._has_answered = self._has_refused = False
        self._usage = Usage()
        self._cost_usd: Decimal | None = None
        self._model = ""
        self.has_choice = False
        """Whether any chunk was about a reply at all."""

    @property
    def is_finished(self) -> bool:
        """Whether the server has said why it stopped. Usage may still follow."""
        return self._finish_reason is not None

    @property
    def is_over(self) -> bool:
        """Always false: usage may follow the finish reason, and only ``[DONE]`` ends it all."""
        return False

    @property
    def has_content(self) -> bool:
        return bool(self._text or self._slots)

    def feed(self, chunk: object) -> None:
        """Take the next chunk of the stream. Raises ``MalformedReply`` or ``StreamedError``."""
        if not isinstance(chunk, dict):
            raise MalformedReply(f"expected a JSON object, got {type(chunk).__name__}")
        if (choices := chunk.get("choices")) is None or "error" in chunk:
            raise_reported(chunk)
        if choices:
            self.has_choice = True
            self._feed_choice(_find_first_choice(choices))
        if not self._model and isinstance(model := chunk.get("model"), str):
            self._model = model
        if usage := chunk.get("usage") or ("x_groq" in chunk and read_mapping(chunk["x_groq"]).get("usage")):
            self._usage = parse_usage(read_mapping(usage))
            self._cost_usd = parse_billed_cost(read_mapping(usage))

    def feed_whole(self, document: object) -> None:
        """Take a completion that was not streamed. Raises ``MalformedReply``, ``StreamedError``."""
        self.feed(document)
        if not self.has_choice:
            raise MalformedReply("the reply has no choices")

    def finish(self, *, was_cut_short: bool = False) -> ModelReply:
        """Return the reply. ``was_cut_short`` says that the stream ended without its regular end.

        Text without an end counts as cut by a length limit, so that the loop asks to go on; tool calls of such a stream
        are dropped, as their arguments may be incomplete. Raises ``CutShort`` when no text had come.
        """
        dropped: tuple[str, ...] = ()
        is_cut = was_cut_short and self._finish_reason is None
        if is_cut:
            if not self._text:
                raise CutShort
            dropped = tuple(slot.name for slot in self._slots if slot.name)
            self._slots = []
            self._finish_reason = "length"
        self._slots = [slot for number, slot in enumerate(self._slots) if not _is_echo(slot, self._slots[:number])]
        if self._has_refused and not self._has_answered and not self._slots:
            self._finish_reason, is_cut = "content_filter", False
        requests = tuple(_build_request(slot, index) for index, slot in enumerate(self._slots))
        return ModelReply(
            text=join_pieces(self._text),
            tool_requests=make_ids_unique(requests),
            reasoning=join_pieces(self._reasoning) or None,
            finish_reason=decide_finish_reason(self._finish_reason or "stop", requests),
            usage=self._usage,
            model=self._model,
            row_fields={"reasoning_details": self._details} if self._details else {},
            was_cut_by_network=is_cut,
            dropped_calls=dropped,
            cost_usd=self._cost_usd,
        )

    def _feed_choice(self, choice: Mapping[str, object]) -> None:
        delta = read_mapping(choice.get("delta") or choice.get("message"))
        if content := delta.get("content"):
            self._has_answered = True
            self._add_text(_read_content_text(content))
        if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
            self._add_reasoning(reasoning)
        if details := delta.get("reasoning_details"):
            _add_details(self._details, details)
        if refusal := delta.get("refusal"):
            self._has_refused = True
            self._add_text(_read_content_text(refusal))
        if tool_calls := delta.get("tool_calls"):
            self._add_tool_calls(tool_calls)
        elif legacy := delta.get("function_call"):
            self._add_tool_call({"index": _LEGACY_INDEX, "function": legacy}, 0)
        if reason := choice.get("finish_reason"):
            self._finish_reason = _finish_reason(reason, choice)
        if usage := choice.get("usage"):  # Moonshot reports it here
            self._usage = parse_usage(read_mapping(usage))

    def _add_text(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._on_delta(Delta(text=text))

    def _add_reasoning(self, reasoning: object) -> None:
        if isinstance(reasoning, str):
            self._reasoning.append(reasoning)
            self._on_delta(Delta(reasoning=reasoning))

    def _add_tool_calls(self, tool_calls: object) -> None:
        if not isinstance(tool_calls, list):
            raise MalformedReply("tool_calls is not a list")
        for position, entry in enumerate(tool_calls):
            self._add_tool_call(read_mapping(entry), position)

    def _add_tool_call(self, entry: Mapping[str, object], position: int) -> None:
        function = read_mapping(entry.get("function"))
        name = read_text(function.get("name"))
        slot = self._find_pending_call(entry, name, position)
        slot.id = slot.id or read_text(entry.get("id"))
        if name and name != slot.name:
            is_first = not slot.name
            slot.name = name
            if is_first:
                self._on_delta(Delta(tool_name=name))
        slot.extra_content = find_signature(entry) or slot.extra_content
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else "" if arguments is None else dump_arguments(arguments)
        if text:
            slot.arguments.append(text)

    def _find_pending_call(self, entry: Mapping[str, object], name: str, position: int) -> _PendingCall:
        """Find or open the call that a piece belongs to. Servers leave out ids, leave out indexes, number every
        parallel call 0, and repeat names and ids in each piece or not; so a piece goes where its id says, else where
        its index does, and opens another call when it can be no part of that one.
        """
        call_id, index = read_text(entry.get("id")), _find_index(entry)
        at_index = self._slot_at.get(position if index is None else index)
        same = next((slot for slot in reversed(self._slots) if call_id and slot.id == call_id), None)
        found = same or at_index or (None if name or call_id else self._unfinished_call)
        if index is None and not name and not call_id and not position and self._slots:
            found = self._slots[-1]
        if found is None or _begins_another_call(
            found, call_id, name, is_elsewhere=index is not None and found is not at_index
        ):
            found = _PendingCall(call_id, "", [])
            self._slots.append(found)
        self._slot_at[position if index is None else index] = found
        return found

    @property
    def _unfinished_call(self) -> _PendingCall | None:
        """The newest call, while its arguments have not come to their end; else ``None``."""
        return self._slots[-1] if self._slots and not self._slots[-1].is_whole else None


_LEGACY_INDEX = -1
"""The index of the single call of a server that still says ``function_call``, which has neither index nor id."""


def _find_index(entry: Mapping[str, object]) -> int | None:
    index = entry.get("index")
    return _LEGACY_INDEX if index == _LEGACY_INDEX else parse_number(index)


def _begins_another_call(slot: _PendingCall, call_id: str, name: str, *, is_elsewhere: bool) -> bool:
    """Whether a piece begins a call of its own rather than continuing the call in ``slot``."""
    has_other_id = bool(call_id and slot.id and call_id != slot.id)
    if not name:  # without a name it goes on with what is not finished, whatever id a server made up for it
        return has_other_id and (slot.is_whole or not slot.arguments)
    if not slot.name:
        return has_other_id
    is_grown = not slot.arguments and name.startswith(slot.name)
    if has_other_id or (name != slot.name and not is_grown):
        return True
    return slot.is_whole if slot.arguments else is_elsewhere


def _is_echo(slot: _PendingCall, before: list[_PendingCall]) -> bool:
    """Return whether ``slot`` is no call, but the repeated name of an earlier one."""
    if slot.arguments:
        return False
    return any(each.arguments and each.name == slot.name and slot.id in ("", each.id) for each in before)


def find_signature(entry: Mapping[str, object]) -> Mapping[str, object] | None:
    """Gemini's signature of a call, in the form of Google's compatible address; gateways put it elsewhere. ``None`` for
    none.
    """
    if extra := read_mapping(entry.get("extra_content")):
        return extra
    places = (entry, read_mapping(entry.get("function")))
    fields = (read_mapping(place.get("provider_specific_fields")) for place in places)
    signed = next((read_text(place.get("thought_signature")) for place in (*places, *fields) if place.get(_SIGNED)), "")
    return {"google": {_SIGNED: signed}} if signed else None


_SIGNED = "thought_signature"


def parse_usage(usage: Mapping[str, object]) -> Usage:
    """Token counts with the cached ones taken out of ``input``.

    Cache reads are reported in the details (OpenAI, OpenRouter), at the top (Moonshot), or as hits (DeepSeek).
    """
    details = read_mapping(usage.get("prompt_tokens_details"))
    cache_read = find_first_count(details.get("cached_tokens"), *(usage.get(name) for name in _CACHE_READS))
    cache_write = find_first_count(*(place.get(name) for place in (details, usage) for name in CACHE_WRITES))
    read = find_first_count(usage.get("prompt_tokens"), usage.get("input_tokens"))
    return Usage(
        input=max(0, read - cache_read - cache_write),
        output=find_first_count(usage.get("completion_tokens"), usage.get("output_tokens")),
        cache_read=cache_read,
        cache_write=cache_write,
        reasoning=read_count(read_mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")),
    )


_CACHE_READS = ("cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens")
"""Fields at the top of the usage: Moonshot, proxies of Anthropic, DeepSeek."""
CACHE_WRITES = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
"""OpenAI and OpenRouter; older proxies; DashScope and LiteLLM, the latter at the top."""


def find_first_count(*values: object) -> int:
    """The first of the counts that is more than 0."""
    return next((count for count in map(read_count, values) if count), 0)


def parse_billed_cost(usage: Mapping[str, object]) -> Decimal | None:
    """The amount that OpenRouter says it billed, in US dollars (its "Usage accounting", July 2026); ``None`` when there
    is no sane number.
    """
    billed = usage.get("cost")
    if isinstance(billed, bool) or not isinstance(billed, int | float) or not 0 <= billed < _COST_USD_MAX:
        return None
    return Decimal(str(billed))


_COST_USD_MAX = 10_000
"""More US dollars than any single call can cost."""


def make_call_id(name: str, arguments: str, index: int) -> str:
    """Make the id of a call that came without one: the same on every worker, and of a form that each reader takes, the
    templates of Mistral's models too.
    """
    return derive_short_id(f"{name}:{arguments}:{index}")


_GROWING = ("text", "summary", "data")
"""Fields of a reasoning block that are streamed in pieces; the others come whole, the signature last."""


def _add_details(blocks: list[dict[str, object]], details: object) -> None:
    """OpenRouter's opaque reasoning blocks. They are sent back with the row, so pieces of one become one again."""
    for piece in details if isinstance(details, list) else ():
        if not isinstance(piece, dict):
            continue
        last = blocks[-1] if blocks else None
        if last is None or "index" not in piece or _block_key(last) != _block_key(piece):
            blocks.append(dict(piece))
            continue
        for name, value in piece.items():
            if value is not None:
                grows = name in _GROWING and isinstance(value, str)
                last[name] = f"{read_text(last.get(name))}{value}" if grows else value


def _block_key(piece: Mapping[str, object]) -> tuple[object, object]:
    return piece.get("index"), piece.get("type")


def _build_request(slot: _PendingCall, index: int) -> ToolRequest:
    arguments = join_pieces(slot.arguments)
    return ToolRequest(
        id=slot.id or make_call_id(slot.name, arguments, index),
        name=slot.name,
        arguments=arguments,
        row_fields={"extra_content": slot.extra_content} if slot.extra_content else {},
    )


def make_ids_unique(requests: tuple[ToolRequest, ...]) -> tuple[ToolRequest, ...]:
    """The requests with a generated id for each second use of an id, since results are matched to calls by id."""
    seen: set[str] = set()
    unique = []
    for index, request in enumerate(requests):
        if request.id in seen:
            request = replace(request, id=make_call_id(request.name, request.arguments, index))
        seen.add(request.id)
        unique.append(request)
    return tuple(unique)


def decide_finish_reason(reason: str, requests: tuple[ToolRequest, ...]) -> str:
    """The finish reason by the content of the reply, whatever the server called it."""
    if requests and any(is_cut(request.arguments) for request in requests):
        return "length"
    if requests and reason == "stop":
        return "tool_calls"
    if not requests and reason == "tool_calls":
        return "stop"
    return reason


def is_cut(arguments: str) -> bool:
    """Whether arguments are cut: not JSON, and without the bracket a whole text would end in. Text that is only wrong
    is the loop's to judge.
    """
    return assess_arguments(arguments).outcome is ArgumentsOutcome.TRUNCATED


def _finish_reason(reason: object, choice: Mapping[str, object]) -> str:
    name = str(reason).lower()
    if name == "error":  # OpenRouter: the provider behind it failed in the middle
        raise StreamedError(read_mapping(choice.get("error")) or {"message": "the provider failed in the middle"})
    return _FINISH_REASONS.get(name, "stop")


def _find_first_choice(choices: object) -> Mapping[str, object]:
    """The choice with number 0; empty when this chunk is only about the others of a request for several (``n``)."""
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise MalformedReply("choices is not a list of objects")
    return next((choice for choice in choices if isinstance(choice, dict) and read_count(choice.get("index")) == 0), {})


def _read_content_text(content: object) -> str:
    """Text, or a list of parts of which the text is kept (Mistral)."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(read_text(read_mapping(part).get("text")) for part in content)
    raise MalformedReply(f"content is a {type(content).__name__}")


def join_pieces(pieces: list[str]) -> str:
    """Join the pieces into one text that encodes to UTF-8. A server may cut an emoji's surrogate pair in two."""
    text = "".join(pieces)
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


_SURROGATE = re.compile("[\ud800-\udfff]")
