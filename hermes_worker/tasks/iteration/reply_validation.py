"""Decide what a model's reply does to its turn: it is stored, asked for again, or the end of the run.

``core.recovery.reply_policy`` decides; here its verdict is put into an event and into the reply as it will be stored:
without thinking that was written between tags, with the parts of an answer that came in several pieces joined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from hermes_worker.agent.tools.catalog import ToolCatalog
from hermes_worker.core import events as ev
from hermes_worker.core.errors import Failure
from hermes_worker.core.guardrails import GuardrailRules
from hermes_worker.core.messages import Message, ModelReply, ModelRequest, Role, build_assistant_body, build_user_body
from hermes_worker.core.recovery import reply_policy as empty
from hermes_worker.core.recovery.raw_calls import has_raw_call
from hermes_worker.core.recovery.reasoning_tags import extract_reasoning, strip_reasoning, strip_think_blocks
from hermes_worker.core.recovery_state import RecoveryState, ReplyCounters, dump_recovery_state
from hermes_worker.core.run import ExitReason, Run
from hermes_worker.core.structured_output import REPAIRS_MAX, build_call_demand, build_correction, quote_refused
from hermes_worker.safety.redaction import redact
from hermes_worker.tasks.iteration.planning import add_precedents, list_unknown_names, plan_calls

NO_SUMMARY = "(The steps this task allows are used up, and the model wrote no summary of what it did.)"
_ROWS_AFTER_TOOLS = 5
"""How many rows back a tool's result still counts as what the model should have answered.
"""
_ITEMS_OF_THE_TEXT = ("codex_message_items", "anthropic_content_blocks")
"""Fields of a row that repeat its text; they go when the text that is stored is another."""
_EXIT_OF: Mapping[empty.AcceptReason, ExitReason] = {
    empty.AcceptReason.TEXT_RESPONSE: ExitReason.TEXT_RESPONSE,
    empty.AcceptReason.PARTIAL_STREAM_RECOVERY: ExitReason.PARTIAL_STREAM_RECOVERY,
    empty.AcceptReason.PRIOR_CONTENT: ExitReason.FALLBACK_PRIOR_TURN_CONTENT,
}


_PARTIAL_EXIT_OF: Mapping[empty.PartialReason, ExitReason] = {
    empty.PartialReason.UNKNOWN_TOOLS: ExitReason.UNKNOWN_TOOLS,
    empty.PartialReason.RAW_CALLS: ExitReason.UNKNOWN_TOOLS,
}
"""Exit reasons of partial answers by verdict; for any other verdict the reason is that the answer is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedReply:
    """A reply and the event that it becomes."""

    event: ev.ModelReplied | ev.AskedAgain | ev.ModelFailed
    reply: ModelReply
    """The reply as it is stored, if ``event`` is a ``ModelReplied``; otherwise only its cost counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeContext:
    """The facts that a reply is judged by, beside its own content."""

    run: Run
    memory: RecoveryState
    rows: Sequence[Message]
    """The transcript the request was made of."""
    request: ModelRequest
    has_fallback: bool
    """Whether the chain has another provider left."""
    output_tokens_default: int | None = None
    calls_max: int = 64
    offered: frozenset[str] | None = None
    """Names of the session's tools; ``None`` for all tools of the catalogue."""
    output_schema: Mapping[str, object] | None = None
    """The schema that the answer has to fit; ``None`` where there is none."""
    guardrails: GuardrailRules = field(default_factory=GuardrailRules)


def judge(reply: ModelReply, where: JudgeContext, catalog: ToolCatalog) -> JudgedReply:
    """Decide what becomes of ``reply``. Pure."""
    if where.run.wants_summary:
        return _judge_summary(reply, where)
    offered = catalog.names if where.offered is None else where.offered
    facts = empty.read_reply_facts(reply, unknown_names=list_unknown_names(reply, offered, catalog))
    verdict = empty.judge_reply(facts, where.memory.counters, _describe_context(where))
    # The larger output limit was for this call only.
    memory = replace(where.memory, output_tokens_max=None)
    match verdict:
        case empty.RunTools():
            return _accept_calls(reply, verdict, memory, where, catalog)
        case empty.Accept() if memory.forced_tools:
            return _demand_call(reply, verdict, memory)
        case empty.Accept() if where.output_schema is not None:
            return _judge_output(reply, verdict, memory, where.output_schema)
        case empty.Accept():
            answer = _build_reply_to_store(reply, verdict.text, keeps_calls=False)
            return JudgedReply(event=ev.ModelReplied(exit_reason=_EXIT_OF[verdict.reason]), reply=answer)
        case empty.AskAgain():
            again = replace(memory, counters=verdict.counters, output_tokens_max=verdict.output_tokens_max)
            return _ask_again(reply, again, is_counted=verdict.is_counted)
        case empty.FallBackProvider():
            elsewhere = replace(memory, counters=verdict.counters, provider=memory.provider + 1, amendments=frozenset())
            return _ask_again(reply, elsewhere, is_counted=verdict.is_counted)
        case empty.FinishPartial():
            return _finish_partial(reply, verdict)
        case empty.EndUnanswered():
            return _give_up(reply, verdict)
        case _:
            assert_never(verdict)


def _describe_context(where: JudgeContext) -> empty.ReplyContext:
    return empty.ReplyContext(
        is_after_tools=any(row.role is Role.TOOL for row in where.rows[-_ROWS_AFTER_TOOLS:]),
        has_fallback=where.has_fallback,
        output_tokens_default=where.output_tokens_default,
        output_tokens_requested=where.request.output_tokens_max,
    )


def _accept_calls(
    reply: ModelReply, verdict: empty.RunTools, memory: RecoveryState, where: JudgeContext, catalog: ToolCatalog
) -> JudgedReply:
    planned, calls = plan_calls(_build_reply_to_store(reply, verdict.text, keeps_calls=True), catalog)
    if len(calls) > where.calls_max:
        message = f"the model asked for {len(calls)} tool calls in one reply; at most {where.calls_max} are run"
        return _fail_run(reply, ExitReason.MODEL_CALL_REFUSED, "too_many_tool_calls", message)
    # The client's next request says what is forced then.
    is_done = any(call.name in memory.forced_tools for call in calls)
    memory = replace(memory, forced_tools=() if is_done else memory.forced_tools)
    # A round of calls is progress, so compactions in vain before it are forgotten.
    document = dump_recovery_state(replace(memory, counters=verdict.counters, context="", vain_compactions=0))
    planned = add_precedents(planned, where.rows, catalog) if where.guardrails.is_on else planned
    return JudgedReply(event=ev.ModelReplied(calls=calls, memory=document), reply=planned)


def _ask_again(reply: ModelReply, memory: RecoveryState, *, is_counted: bool) -> JudgedReply:
    return JudgedReply(event=ev.AskedAgain(memory=dump_recovery_state(memory), is_counted=is_counted), reply=reply)


def _finish_partial(reply: ModelReply, verdict: empty.FinishPartial) -> JudgedReply:
    if not verdict.text:
        exit_reason = _PARTIAL_EXIT_OF.get(verdict.reason, ExitReason.TRUNCATED)
        return _fail_run(reply, exit_reason, verdict.reason.value, verdict.note)
    failure = Failure(kind=verdict.reason.value, message=verdict.note)
    event = ev.ModelReplied(exit_reason=ExitReason.TRUNCATED, failure=failure)
    return JudgedReply(event=event, reply=_build_reply_to_store(reply, verdict.text, keeps_calls=False))


def _demand_call(reply: ModelReply, verdict: empty.Accept, memory: RecoveryState) -> JudgedReply:
    """Send back an answer in the place of a forced call: the provider did not force it, or cannot."""
    repairs = memory.counters.output_repairs
    if repairs >= REPAIRS_MAX:
        message = f"The model called none of {', '.join(memory.forced_tools)}, after {repairs} corrections."
        message += quote_refused(verdict.text)
        return _fail_run(reply, ExitReason.OUTPUT_INVALID, "output_invalid", message)
    return _send_back(reply, verdict, memory, build_call_demand(memory.forced_tools))


def _send_back(reply: ModelReply, verdict: empty.Accept, memory: RecoveryState, correction: str) -> JudgedReply:
    sent_back = (
        build_assistant_body(_build_reply_to_store(reply, verdict.text, keeps_calls=False)),
        build_user_body(correction),
    )
    counters = ReplyCounters(output_repairs=memory.counters.output_repairs + 1, scaffold=sent_back)
    return _ask_again(reply, replace(memory, counters=counters), is_counted=True)


def _judge_output(
    reply: ModelReply, verdict: empty.Accept, memory: RecoveryState, schema: Mapping[str, object]
) -> JudgedReply:
    """An answer that has to fit a schema; one that does not is sent back with what is wrong."""
    from hermes_worker.agent import output  # takes long to import, and few runs have a schema

    found = output.judge_answer(verdict.text, schema)
    if isinstance(found, output.FittingAnswer):
        answer = _build_reply_to_store(reply, found.text, keeps_calls=False)
        return JudgedReply(event=ev.ModelReplied(exit_reason=_EXIT_OF[verdict.reason]), reply=answer)
    repairs = memory.counters.output_repairs
    if repairs >= REPAIRS_MAX:
        message = f"The answer does not fit its schema, after {repairs} corrections: {'; '.join(found.problems)}."
        message += quote_refused(verdict.text)
        return _fail_run(reply, ExitReason.OUTPUT_INVALID, "output_invalid", message)
    return _send_back(reply, verdict, memory, build_correction(found.problems))


def _give_up(reply: ModelReply, verdict: empty.EndUnanswered) -> JudgedReply:
    if verdict.reason is empty.UnansweredReason.EMPTY_RESPONSE_EXHAUSTED:
        message = (
            "The model's replies were empty, however often it was asked. Try again, or use another model or provider."
        )
        return _fail_run(reply, ExitReason.EMPTY_RESPONSE_EXHAUSTED, verdict.reason.value, message)
    said = f" It said: {verdict.text}" if verdict.text else ""
    message = f"The provider's safety filter stopped the model's reply.{said}"
    return _fail_run(reply, ExitReason.CONTENT_POLICY_BLOCKED, verdict.reason.value, message)


def _fail_run(reply: ModelReply, reason: ExitReason, kind: str, message: str) -> JudgedReply:
    failure = Failure(kind=kind, message=redact(message))
    return JudgedReply(event=ev.ModelFailed(failure=failure, exit_reason=reason), reply=reply)


def _judge_summary(reply: ModelReply, where: JudgeContext) -> JudgedReply:
    """The one call after the last allowed step: an empty summary is asked for once more."""
    text = "" if has_raw_call(strip_reasoning(reply.text)) else strip_think_blocks(reply.text).strip()
    if not text and not where.memory.summaries:
        return _ask_again(reply, replace(where.memory, summaries=1), is_counted=False)
    return JudgedReply(
        event=ev.ModelReplied(), reply=_build_reply_to_store(reply, text or NO_SUMMARY, keeps_calls=False)
    )


def with_text(reply: ModelReply, text: str) -> ModelReply:
    """The reply with ``text`` as its text."""
    return _build_reply_to_store(reply, text, keeps_calls=False)


def _build_reply_to_store(reply: ModelReply, text: str, *, keeps_calls: bool) -> ModelReply:
    """The reply as a row: ``text`` for its text, thinking out of it and into the reasoning."""
    is_same_text = text == reply.text.strip()
    return replace(
        reply,
        text=text,
        reasoning=reply.reasoning or extract_reasoning({"content": reply.text}),
        row_fields={
            name: value for name, value in reply.row_fields.items() if is_same_text or name not in _ITEMS_OF_THE_TEXT
        },
        tool_requests=reply.tool_requests if keeps_calls else (),
    )
