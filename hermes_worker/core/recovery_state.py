"""Recovery state: what a turn carries from one model call to the next, beside its transcript.

The next call may be made by another worker, so it is a document of the run. It says what earlier replies left behind
(counters, scaffold rows, a larger output limit), what requests of this turn have to do without, and which provider of
the chain is in use. None of it is ever shown or stored as part of the conversation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from hermes_worker.core.json_values import read_text, require_count
from hermes_worker.core.messages import dump_canonical_json

VERSION = 1
"""Version of the document. A worker that reads a newer one ignores what it does not know."""


class Amendment(StrEnum):
    """A change to the requests of a turn, because its provider refused them as they were."""

    NO_REASONING_REPLAY = "no_reasoning_replay"
    """Reasoning is not sent back, neither signed nor encrypted nor plain."""
    REASONING_ECHO = "reasoning_echo"
    """Reasoning is sent back with each row, although the catalogue does not say so of its provider."""
    NO_IMAGES = "no_images"
    SMALL_IMAGES = "small_images"
    """Images are scaled down to ``RecoveryState.image_side_px_max``."""
    NO_TOOL_IMAGES = "no_tool_images"
    """Images in tool results are replaced by a text."""
    PLAIN_TOOL_SCHEMAS = "plain_tool_schemas"
    """Tool schemas without ``pattern`` and ``format``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyCounters:
    """The history of earlier replies of the turn, and what the next request has to say about it."""

    continuations: int = 0
    reissues: int = 0
    incompletes: int = 0
    open_scratchpads: int = 0
    unknown_rounds: int = 0
    """Replies in a row whose calls named no tool at all."""
    raw_calls: int = 0
    """Replies in a row that held calls as text."""
    prefills: int = 0
    empties: int = 0
    was_nudged_after_tools: bool = False
    parts: tuple[str, ...] = ()
    """Texts of the replies that were continued; the answer begins with them."""
    housekeeping_text: str = ""
    """Text beside the last rounds of calls, while those were of housekeeping tools only."""
    scaffold: tuple[str, ...] = ()
    """Canonical rows that follow the transcript in the next request."""
    last_interim: str = ""
    """The text of the newest incomplete reply, to recognise a repetition."""
    output_repairs: int = 0
    """Answers of the run that did not fit its schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryState:
    """The recovery state of a turn. Equal to a new object when there is nothing to carry."""

    counters: ReplyCounters = field(default_factory=ReplyCounters)
    output_tokens_max: int | None = None
    """Output limit of the next call only."""
    summaries: int = 0
    """Final summaries that came back empty."""
    amendments: frozenset[Amendment] = frozenset()
    image_side_px_max: int = 0
    """The longest side of images in requests of this turn, while that is amended."""
    provider: int = 0
    """Position in the chain: 0 is the provider that was configured, 1 the first to fall back on."""
    compactions: int = 0
    """How often the conversation was compacted in this turn."""
    vain_compactions: int = 0
    """How many of the newest compactions gained nothing, with no reply since; the last one counts until its gain is
    known."""
    shortened_from: int = 0
    """Tokens of the request for which the newest compaction was made, until its gain is known."""
    unsummarised: int = 0
    """Summaries that no model wrote since the last compaction, and that the conversation could do without."""
    window: int = 0
    """The model's context window as its provider reported it in this turn; 0 when it did not."""
    weight_percent: int = 0
    """The provider's count of the newest long request, in per cent of our estimate; 0 when there is none."""
    forced_tools: tuple[str, ...] = ()
    """The client's tools, one of which has to be called before anything is answered; empty where the model is free."""
    context: str = ""
    """Text that hooks add to the requests of the turn, until its first reply is stored, which holds it from then on."""


_NOTHING = RecoveryState()


def dump_recovery_state(memory: RecoveryState) -> str | None:
    """Dump the state for its column; ``None`` when there is nothing to store. Equal states give equal bytes."""
    if memory == _NOTHING:
        return None
    values: dict[str, object] = {
        "counters": build_document(memory.counters),
        "output_tokens_max": memory.output_tokens_max,
        "summaries": memory.summaries,
        "amendments": sorted(memory.amendments),
        "image_side_px_max": memory.image_side_px_max,
        "provider": memory.provider,
        "compactions": memory.compactions,
        "vain_compactions": memory.vain_compactions,
        "shortened_from": memory.shortened_from,
        "unsummarised": memory.unsummarised,
        "window": memory.window,
        "weight_percent": memory.weight_percent,
        "forced_tools": list(memory.forced_tools),
        "context": memory.context,
    }
    return dump_canonical_json({"version": VERSION, **{name: value for name, value in values.items() if value}})


def parse_recovery_state(document: str | None) -> RecoveryState:
    """Parse what ``dump_recovery_state`` wrote. Raises ``ValueError`` when it makes no sense."""
    if document is None:
        return _NOTHING
    read = json.loads(document)
    if not isinstance(read, dict) or not isinstance(read.get("version"), int):
        raise ValueError("the memory of a turn must be an object with a version")
    counters = read.get("counters", {})
    amendments = read.get("amendments", [])
    if not isinstance(counters, dict) or not isinstance(amendments, list):
        raise ValueError("the memory of a turn has a field of the wrong type")
    known = {amendment.value for amendment in Amendment}
    return RecoveryState(
        counters=parse_counters(counters),
        output_tokens_max=require_count(read, "output_tokens_max") or None,
        summaries=require_count(read, "summaries"),
        amendments=frozenset(Amendment(name) for name in amendments if name in known),
        image_side_px_max=require_count(read, "image_side_px_max"),
        provider=require_count(read, "provider"),
        compactions=require_count(read, "compactions"),
        vain_compactions=require_count(read, "vain_compactions"),
        shortened_from=require_count(read, "shortened_from"),
        unsummarised=require_count(read, "unsummarised"),
        window=require_count(read, "window"),
        weight_percent=require_count(read, "weight_percent"),
        forced_tools=tuple(map(str, read.get("forced_tools", ()))),
        context=read_text(read.get("context")),
    )


def build_document(counters: ReplyCounters) -> dict[str, object]:
    """Build JSON values for the counters, without defaults."""
    fresh = ReplyCounters()
    values = {name: getattr(counters, name) for name in ReplyCounters.__dataclass_fields__}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value != getattr(fresh, name)
    }


def parse_counters(document: Mapping[str, object]) -> ReplyCounters:
    """Parse what ``build_document`` wrote. Unknown fields, which a newer worker wrote, are ignored. Raises
    ``ValueError`` for values of the wrong type."""
    fresh = ReplyCounters()
    values: dict[str, object] = {}
    for name in ReplyCounters.__dataclass_fields__:
        if name in document:
            values[name] = _require_type_of(getattr(fresh, name), document[name], name)
    return replace(fresh, **values)  # type: ignore[arg-type]


def _require_type_of(example: object, value: object, name: str) -> object:
    if isinstance(example, tuple):
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
    elif type(value) is type(example):
        return value
    raise ValueError(f"{name!r} has the wrong type: {value!r}")
