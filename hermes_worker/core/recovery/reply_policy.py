"""Decide what to do with a reply that is cut short or empty.

``judge_reply`` judges every reply, the good ones too, and returns a verdict together with the counters to carry to the
next one. It is a list of rungs in a fixed order; each either answers or passes the reply on.

A retry that has to say something to the model does so with *scaffold* rows: they follow the transcript in the next
requests of this turn, are never stored, and vanish when the model goes on properly. The counters carry them, because
the next request may be built on another worker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from hermes_worker.core.messages import ModelReply, build_assistant_body, build_user_body, dump_canonical_json
from hermes_worker.core.recovery.raw_calls import has_raw_call
from hermes_worker.core.recovery.reasoning_tags import (
    has_open_scratchpad,
    has_thinking_tags,
    has_visible_text,
    strip_reasoning,
    strip_think_blocks,
)
from hermes_worker.core.recovery_state import ReplyCounters

CONTINUATIONS_MAX = 3
"""Requests to go on after an answer hit its length limit; the answer that is cut after the last one ends the turn."""
REISSUES_MAX = 4
"""Repetitions of a request whose tool calls came back cut off."""
INCOMPLETES_MAX = 3
"""Replies of the Responses API with status ``incomplete``, the last of which ends the turn."""
UNKNOWN_ROUNDS_MAX = 3
"""Replies in a row all of whose calls name no tool, the last of which ends the turn."""
RAW_CALLS_MAX = 2
"""Requests to call tools properly, after replies that held calls as text."""
SCRATCHPADS_MAX = 2
PREFILLS_MAX = 2
EMPTIES_MAX = 3
OUTPUT_TOKENS_BASE = 4_096
"""The output limit assumed for a request that stated none."""
OUTPUT_TOKENS_CEILING = 32_768
"""Continuations raise the limit up to here, or to what the request asked for already."""

HOUSEKEEPING_TOOLS = frozenset({"memory", "todo", "skill_manage", "session_search"})
"""Tools whose results need no comment: a text that came with their calls may be the answer."""

EMPTY_TEXT = "(empty)"


class AcceptReason(StrEnum):
    TEXT_RESPONSE = "text_response"
    PARTIAL_STREAM_RECOVERY = "partial_stream_recovery"
    """The reply itself is empty, but this text was streamed before its connection broke."""
    PRIOR_CONTENT = "fallback_prior_turn_content"
    """The model had answered already, beside its last housekeeping calls."""


class PartialReason(StrEnum):
    THINKING_EXHAUSTED = "thinking_exhausted"
    TRUNCATED = "truncated"
    TRUNCATED_CALLS = "truncated_calls"
    OPEN_SCRATCHPAD = "open_scratchpad"
    INCOMPLETE = "incomplete"
    UNKNOWN_TOOLS = "unknown_tools"
    RAW_CALLS = "raw_calls"


class UnansweredReason(StrEnum):
    EMPTY_RESPONSE_EXHAUSTED = "empty_response_exhausted"
    CONTENT_POLICY_BLOCKED = "content_policy_blocked"


# ------------------------------------------------------------------------------------------------- what is judged


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFacts:
    """The facts about a reply that matter here."""

    text: str
    """The text as received, tags included."""
    row: str
    """The canonical assistant row, for replaying the reply to the model."""
    finish_reason: str = "stop"
    call_names: tuple[str, ...] = ()
    unknown_names: tuple[str, ...] = ()
    """The names among ``call_names`` that are no tool the model was offered, however they are read."""
    reasoning: str = ""
    has_replayable_items: bool = False
    """The row carries opaque provider items (encrypted reasoning, message items), so that repeating it changes what
    the provider sees even without any text."""
    streamed_text: str = ""
    """The text that was streamed in this call, which may be more than ``text``."""
    was_cut_by_network: bool = False
    """``length`` stands for a broken stream, not for a limit."""
    was_cut_by_limit: bool = False
    """``incomplete`` stands for the output limit, so the text is to be continued where it stops."""
    dropped_calls: tuple[str, ...] = ()
    """Names of calls that were lost with the stream."""

    @property
    def is_visible(self) -> bool:
        return has_visible_text(self.text)

    @property
    def visible_text(self) -> str:
        return strip_think_blocks(self.text).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyContext:
    """The circumstances of a reply."""

    is_after_tools: bool = False
    """A tool result is among the last five rows before it."""
    has_fallback: bool = False
    """Another provider is left to try."""
    output_tokens_default: int | None = None
    """The configured output limit."""
    output_tokens_requested: int | None = None
    """The output limit of the request that was answered."""


# --------------------------------------------------------------------------------------------------------- verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """The turn's answer."""

    text: str
    reason: AcceptReason = AcceptReason.TEXT_RESPONSE
    kind: Literal["accept"] = "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTools:
    """The model wants tools. The assistant row gets ``text`` for its content."""

    text: str
    counters: ReplyCounters
    kind: Literal["run_tools"] = "run_tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAgain:
    """Call the model again, with ``counters.scaffold`` behind the transcript. The reply is not stored."""

    counters: ReplyCounters
    output_tokens_max: int | None = None
    """Limit for the next call only; ``None`` leaves it as it is."""
    is_counted: bool = True
    """Costs an iteration of the budget."""
    kind: Literal["ask_again"] = "ask_again"


@dataclass(frozen=True, slots=True, kw_only=True)
class FallBackProvider:
    """Call the next provider of the chain; costs no iteration when the reply was blocked or broken off."""

    counters: ReplyCounters
    is_counted: bool
    kind: Literal["fall_back_provider"] = "fall_back_provider"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishPartial:
    """End the turn with what there is. ``text`` may be empty; ``note`` says to a person what happened."""

    text: str
    reason: PartialReason
    note: str
    kind: Literal["finish_partial"] = "finish_partial"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndUnanswered:
    """End the turn without an answer. ``text`` is what the model said about it, if anything."""

    reason: UnansweredReason
    text: str
    kind: Literal["give_up"] = "give_up"


Verdict = Accept | RunTools | AskAgain | FallBackProvider | FinishPartial | EndUnanswered


def judge_reply(reply: ReplyFacts, counters: ReplyCounters, around: ReplyContext) -> Verdict:
    """Judge a reply. Pure and total; the model is asked again a bounded number of times per turn."""
    if reply.finish_reason == "content_filter":
        return _judge_blocked(reply, counters, around)
    if reply.finish_reason == "length":
        return _judge_truncated(reply, counters, around)
    if has_open_scratchpad(reply.text):
        return _judge_open_scratchpad(counters)
    if counters.open_scratchpads:
        counters = replace(counters, open_scratchpads=0)
    if reply.finish_reason == "incomplete":
        return _judge_incomplete(reply, counters, around)
    if counters.incompletes or counters.last_interim:
        counters = replace(counters, incompletes=0, last_interim="")
    if reply.call_names:
        return _judge_calls(reply, counters)
    if has_raw_call(strip_reasoning("".join((*counters.parts, reply.text)))):
        return _judge_raw_call(counters, around)
    if not reply.is_visible:
        return _judge_empty(reply, counters, around)
    return Accept(text=_join_parts(counters, reply))


def read_reply_facts(reply: ModelReply, *, streamed_text: str = "", unknown_names: tuple[str, ...] = ()) -> ReplyFacts:
    """Read the facts of a reply."""
    return ReplyFacts(
        text=reply.text,
        row=build_assistant_body(reply),
        finish_reason=reply.finish_reason,
        call_names=tuple(request.name for request in reply.tool_requests),
        unknown_names=unknown_names,
        reasoning=reply.reasoning or "",
        has_replayable_items=bool(reply.row_fields),
        streamed_text=streamed_text,
        was_cut_by_network=reply.was_cut_by_network,
        was_cut_by_limit=reply.was_cut_by_limit,
        dropped_calls=reply.dropped_calls,
    )


def compute_output_limit(around: ReplyContext, doublings: int) -> int:
    """The output limit of the next call after ``doublings`` replies were cut: doubled each time."""
    requested = around.output_tokens_requested or 0
    doubled = (around.output_tokens_default or OUTPUT_TOKENS_BASE) << doublings
    return min(max(doubled, requested), max(OUTPUT_TOKENS_CEILING, requested))


# ----------------------------------------------------------------------------------------------------- cut or blocked


def _judge_blocked(reply: ReplyFacts, counters: ReplyCounters, around: ReplyContext) -> Verdict:
    if around.has_fallback:
        return FallBackProvider(counters=counters, is_counted=False)
    return EndUnanswered(reason=UnansweredReason.CONTENT_POLICY_BLOCKED, text=reply.visible_text)


def _judge_truncated(reply: ReplyFacts, counters: ReplyCounters, around: ReplyContext) -> Verdict:
    if not reply.call_names and has_thinking_tags(reply.text) and not reply.is_visible:
        return FinishPartial(text="", reason=PartialReason.THINKING_EXHAUSTED, note=THINKING_EXHAUSTED)
    if reply.call_names:
        return _judge_truncated_calls(reply, counters, around)
    return _judge_truncated_text(reply, counters, around)


def _judge_truncated_text(reply: ReplyFacts, counters: ReplyCounters, around: ReplyContext) -> Verdict:
    counted = replace(counters, continuations=counters.continuations + 1, parts=_collect_parts(counters, reply))
    if counted.continuations > CONTINUATIONS_MAX:
        return FinishPartial(text=_join_texts(counted.parts), reason=PartialReason.TRUNCATED, note=STILL_TRUNCATED)
    return AskAgain(
        counters=replace(counted, scaffold=(*counted.scaffold, *_build_continuation_rows(reply))),
        output_tokens_max=compute_output_limit(around, counted.continuations),
    )


def _judge_truncated_calls(reply: ReplyFacts, counters: ReplyCounters, around: ReplyContext) -> Verdict:
    """Judge a reply whose calls are cut off. They are never executed, and the reply is forgotten: the request is simply
    repeated."""
    if counters.reissues >= REISSUES_MAX:
        note = CALLS_DROPPED if reply.was_cut_by_network else CALLS_TRUNCATED
        return FinishPartial(text="", reason=PartialReason.TRUNCATED_CALLS, note=note)
    reissued = replace(counters, reissues=counters.reissues + 1)
    return AskAgain(
        counters=reissued,
        output_tokens_max=compute_output_limit(around, reissued.reissues),
        is_counted=False,
    )


def _judge_open_scratchpad(counters: ReplyCounters) -> Verdict:
    if counters.open_scratchpads >= SCRATCHPADS_MAX:
        return FinishPartial(text="", reason=PartialReason.OPEN_SCRATCHPAD, note=SCRATCHPAD_LEFT_OPEN)
    return AskAgain(counters=replace(counters, open_scratchpads=counters.open_scratchpads + 1))


def _judge_incomplete(reply: ReplyFacts, counters: ReplyCounters, around: ReplyContext) -> Verdict:
    """Judge an incomplete reply. Its row goes back with the next request; text that the output limit cut is a part of
    the answer, too."""
    said = reply.visible_text or reply.reasoning.strip()
    is_repetition = bool(said) and said == counters.last_interim
    parts = counters.parts if is_repetition and _ends_with(counters.parts, reply) else _collect_parts(counters, reply)
    counted = replace(counters, incompletes=counters.incompletes + 1)
    if counted.incompletes >= INCOMPLETES_MAX:
        return _finish_incomplete(_join_texts(parts), counters)
    again = AskAgain(counters=counted, output_tokens_max=_raise_limit(reply, around, counted.incompletes))
    if not said and not reply.has_replayable_items:
        return again
    earlier = _drop_last_interim(counters.scaffold) if is_repetition else counters.scaffold
    scaffold = (*earlier, reply.row, *_build_nudges(reply))
    kept = parts if _is_cut_text(reply) else counters.parts
    return replace(again, counters=replace(counted, scaffold=scaffold, last_interim=said, parts=kept))


def _finish_incomplete(text: str, counters: ReplyCounters) -> Verdict:
    if not text and counters.housekeeping_text:
        return Accept(text=counters.housekeeping_text, reason=AcceptReason.PRIOR_CONTENT)
    return FinishPartial(text=text, reason=PartialReason.INCOMPLETE, note=STILL_INCOMPLETE)


def _build_nudges(reply: ReplyFacts) -> tuple[str, ...]:
    """The rows that are sent to the model after its incomplete reply."""
    if _is_cut_text(reply):
        return (_LIMIT_ROW,)
    return () if reply.is_visible or reply.has_replayable_items else (_INCOMPLETE_ROW,)


def _is_cut_text(reply: ReplyFacts) -> bool:
    return reply.was_cut_by_limit and reply.is_visible


def _ends_with(parts: tuple[str, ...], reply: ReplyFacts) -> bool:
    return bool(parts) and _join_texts(parts[-1:]) == reply.visible_text


def _raise_limit(reply: ReplyFacts, around: ReplyContext, doublings: int) -> int | None:
    """The raised output limit, or ``None``. Only a stated limit can be raised: without one, the model was given all
    that it can write."""
    has_limit = bool(around.output_tokens_requested or around.output_tokens_default)
    return compute_output_limit(around, doublings) if reply.was_cut_by_limit and has_limit else None


def _drop_last_interim(scaffold: tuple[str, ...]) -> tuple[str, ...]:
    """Remove the row of the last incomplete reply when the same text comes again: sending both would make the model
    repeat itself."""
    rows = scaffold[:-1] if scaffold and scaffold[-1] in (_INCOMPLETE_ROW, _LIMIT_ROW) else scaffold
    return rows[:-1]


# ------------------------------------------------------------------------------------------------------------- empty


def _judge_empty(reply: ReplyFacts, counters: ReplyCounters, around: ReplyContext) -> Verdict:
    """Judge a reply without visible text and without calls, by the rungs in the original's order."""
    if has_visible_text(reply.streamed_text):
        text = strip_think_blocks(reply.streamed_text).strip()
        return Accept(text=text, reason=AcceptReason.PARTIAL_STREAM_RECOVERY)
    if counters.housekeeping_text:
        return Accept(text=counters.housekeeping_text, reason=AcceptReason.PRIOR_CONTENT)
    is_thinking = has_thinking_tags(reply.text)
    if around.is_after_tools and not counters.was_nudged_after_tools and not is_thinking:
        return _nudge_after_tools(counters)
    has_reasoned = is_thinking or bool(reply.reasoning)
    if has_reasoned and counters.prefills < PREFILLS_MAX:
        prefilled = (*counters.scaffold, reply.row)
        return AskAgain(counters=replace(counters, prefills=counters.prefills + 1, scaffold=prefilled))
    if counters.empties < EMPTIES_MAX:
        return AskAgain(counters=replace(counters, empties=counters.empties + 1))
    if around.has_fallback:
        return FallBackProvider(counters=replace(counters, empties=0), is_counted=True)
    if text := _join_texts(counters.parts):
        return FinishPartial(text=text, reason=PartialReason.TRUNCATED, note=NOT_CONTINUED)
    return EndUnanswered(reason=UnansweredReason.EMPTY_RESPONSE_EXHAUSTED, text=EMPTY_TEXT)


def _nudge_after_tools(counters: ReplyCounters) -> Verdict:
    rows = (*counters.scaffold, _EMPTY_ROW, _AFTER_TOOLS_ROW)
    return AskAgain(counters=replace(counters, was_nudged_after_tools=True, scaffold=rows))


def _judge_calls(reply: ReplyFacts, counters: ReplyCounters) -> Verdict:
    """Judge a reply with calls. Calls that name no tool are answered with an error that lists the tools there are; a
    model that only makes such calls would go on for ever. One good call among them is progress."""
    after = _reset_after_calls(reply, counters)
    if len(reply.unknown_names) < len(reply.call_names):
        return RunTools(text=_join_parts(counters, reply), counters=after)
    rounds = counters.unknown_rounds + 1
    if rounds >= UNKNOWN_ROUNDS_MAX:
        names = ", ".join(repr(name[:_NAME_CHARS]) for name in reply.unknown_names[:3])
        return FinishPartial(text="", reason=PartialReason.UNKNOWN_TOOLS, note=STILL_UNKNOWN.format(names=names))
    return RunTools(text=_join_parts(counters, reply), counters=replace(after, unknown_rounds=rounds))


def _reset_after_calls(reply: ReplyFacts, counters: ReplyCounters) -> ReplyCounters:
    """Reset the counters after a round of calls, which is progress: a later empty or cut reply counts anew, however
    many there were before in a long turn."""
    is_housekeeping = HOUSEKEEPING_TOOLS.issuperset(reply.call_names)
    return ReplyCounters(
        housekeeping_text=(reply.visible_text or counters.housekeeping_text) if is_housekeeping else "",
        output_repairs=counters.output_repairs,
    )


def _judge_raw_call(counters: ReplyCounters, around: ReplyContext) -> Verdict:
    """Judge a reply with a call written as text. The notation itself is not sent back: some templates stumble over the
    tokens in it."""
    if counters.raw_calls < RAW_CALLS_MAX:
        rows = (*counters.scaffold, _EMPTY_ROW, _RAW_CALL_ROW)
        return AskAgain(counters=replace(counters, raw_calls=counters.raw_calls + 1, parts=(), scaffold=rows))
    if around.has_fallback:
        return FallBackProvider(counters=replace(counters, raw_calls=0, parts=(), scaffold=()), is_counted=True)
    return FinishPartial(text="", reason=PartialReason.RAW_CALLS, note=STILL_RAW)


def _collect_parts(counters: ReplyCounters, reply: ReplyFacts) -> tuple[str, ...]:
    return (*counters.parts, reply.text) if reply.text else counters.parts


def _join_parts(counters: ReplyCounters, reply: ReplyFacts) -> str:
    return _join_texts((*counters.parts, reply.text))


def _join_texts(parts: tuple[str, ...]) -> str:
    return strip_think_blocks("".join(parts)).strip()


# ------------------------------------------------------------------------------------------------------------- texts


def _build_continuation_rows(reply: ReplyFacts) -> tuple[str, ...]:
    """The rows that ask the model to continue; empty when there is nothing visible to continue from: then a larger
    limit has to do."""
    if not reply.is_visible and not reply.dropped_calls:
        return ()
    interim = (
        (dump_canonical_json({"role": "assistant", "content": reply.text}),) if reply.is_visible else (_EMPTY_ROW,)
    )
    return (*interim, build_user_body(_choose_continuation_text(reply)))


def _choose_continuation_text(reply: ReplyFacts) -> str:
    if reply.was_cut_by_network and reply.dropped_calls:
        return CONTINUE_SMALLER.format(names=", ".join(reply.dropped_calls[:3]))
    return CONTINUE_AFTER_DROP if reply.was_cut_by_network else CONTINUE_AFTER_LIMIT


CONTINUE_AFTER_LIMIT = (
    "[System note: the reply above stopped because it reached its length limit. Carry on from the exact place where it "
    "stops, without repeating anything and without an introduction, and bring the answer to its end.]"
)
CONTINUE_AFTER_DROP = (
    "[System note: the connection broke while the reply above was being sent. Carry on from the exact place where it "
    "stops, without repeating anything and without an introduction, and bring the answer to its end.]"
)
CONTINUE_SMALLER = (
    "[System note: the call to {names} was so large that the connection broke before it arrived, and it was not "
    "executed. Do not send it again as it was. Split the work into several smaller calls, for example several patches "
    "or files, and keep the arguments of each under about 8,000 tokens.]"
)
_LIMIT_ROW = build_user_body(CONTINUE_AFTER_LIMIT)
_EMPTY_ROW = dump_canonical_json({"role": "assistant", "content": EMPTY_TEXT})
_AFTER_TOOLS_ROW = build_user_body(
    "[System note: the tools you called have answered, see above, but your reply to that was empty. Read their results "
    "and go on with the task.]"
)
_INCOMPLETE_ROW = build_user_body(
    "[System note: your last reply held only reasoning, no answer and no tool call. Stop reasoning now and write the "
    "answer as plain text, or make the call that you had in mind.]"
)
_RAW_CALL_ROW = build_user_body(
    "[System note: your last reply held a tool call as plain text, and nothing was executed. Call the tool through the "
    "function-calling interface, or answer in plain text without a call.]"
)
THINKING_EXHAUSTED = (
    "The model used its whole output limit for reasoning and had none left for an answer. Lower the reasoning effort, "
    "raise the output limit, or use another model."
)
NOT_CONTINUED = "The answer was cut off, and the model's replies to the request to continue it were empty."
STILL_TRUNCATED = f"The answer was still cut off after {CONTINUATIONS_MAX} continuations."
CALLS_TRUNCATED = "The model's tool calls were cut off by the output limit each time, so none of them was executed."
CALLS_DROPPED = "The connection broke in the middle of the model's tool calls each time, so none was executed."
SCRATCHPAD_LEFT_OPEN = "The model did not get out of its reasoning scratchpad, however often it was asked."
_NAME_CHARS = 60
STILL_UNKNOWN = (
    f"The model called only tools that do not exist {UNKNOWN_ROUNDS_MAX} times in a row, the last time {{names}}. "
    "Use another model, or give it the toolset it looks for."
)
STILL_RAW = (
    "The model's tool calls came as plain text, so none of them was executed: the server that serves it lacks the tool "
    "parser for this model. Start the server with it (vLLM: --enable-auto-tool-choice --tool-call-parser, SGLang: "
    "--tool-call-parser, llama-server: --jinja), or use another server or model."
)
STILL_INCOMPLETE = f"The model's reply was incomplete {INCOMPLETES_MAX} times in a row."
