"""Tell an observer of something that is committed: claim what it is owed, call it, record what came of it.

A row is told by one worker at a time and recorded once. A worker that dies in between leaves it to another: an observer
is called at least once, and its event id is the same each time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hermes_worker.broker.queue import QueueName
from hermes_worker.core.effects import CallHook
from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.hooks import list_beginning_calls
from hermes_worker.core.json_values import read_list, read_mapping, read_text
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.observe import bind_facts, count, log
from hermes_worker.store.hooks.calls import HookCallClaim, HookCalls, HookFacts
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.runs import IterationClaim
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.tasks.hooks.rewriting import PAYLOAD_VERSION
from hermes_worker.tasks.hooks.running import HookOutcome, LoadedHook
from hermes_worker.tasks.iteration.persistence import persist
from hermes_worker.tasks.step_runner import begin_step

if TYPE_CHECKING:
    from hermes_worker.core.abort import AbortSignal
    from hermes_worker.tasks.context import WorkerContext

_TEXT_CHARS_MAX = 100_000
_SHOWN_CHARS_MAX = 500
"""Characters of question and answer in the events of the original's gateway."""


def call_hook(parts: WorkerContext, effect: CallHook, at: float) -> None:
    """Tell the hook that ``effect`` names, if that is still to be done. ``at`` is when its message was hinted.

    Safe to deliver any number of times: of all deliveries of the message one gets the claim.
    """
    begin_step(parts, QueueName.TOOLS, Hint(effect=effect, at=at), lambda: _call_hook(parts, effect))


def record_run_begin(parts: WorkerContext, claim: IterationClaim) -> None:
    """Record that hooks for the beginning of runs are to be called, before the first model call of a run.

    At least once: a claim that is taken over records it again, and each row is written once. A process without such
    hooks does nothing.
    """
    hooks, loaded = parts.hooks, claim.loaded
    if hooks.store is None or loaded.run.iteration:
        return
    is_first = parts.rows.runs.load_session_context(loaded.session_pk).session_id == claim.run_id
    is_child = loaded.parent is not None
    if list_beginning_calls(hooks.observed, is_child=is_child, is_first=is_first):
        hints = hooks.store.record_run_begin((loaded.pk, claim.run_id), is_child=is_child, is_first=is_first)
        parts.sender.send(hints)


def _call_hook(parts: WorkerContext, effect: CallHook) -> None:
    hook, store = parts.hooks.runner.find_hook(effect.hook), parts.hooks.store
    if hook is None or store is None:
        return  # a worker that has it takes it: this one is older, or younger, than the writer of the row
    claim = store.claim(effect, parts.leases.owner)
    if claim is None:
        count("hint.stale")
        return
    faults.pass_point(FaultPoint.CALL_HOOK_AFTER_CLAIM, effect.run_id)
    with (
        bind_facts(run_id=effect.run_id, hook=effect.hook),
        # Not under the run's id: an observer is told of runs that ended as well, and no stop of a run concerns it.
        parts.leases.hold_claim(claim.token, claim.event_id, may_hand_over=False) as abort,
    ):
        _tell(parts, store, hook, claim, abort)


def _tell(parts: WorkerContext, store: HookCalls, hook: LoadedHook, claim: HookCallClaim, abort: AbortSignal) -> None:
    if not parts.leases.is_surely_held(claim.token):
        # Frozen since the claim: it may be another worker's by now. A claim that is ours still is given up as a stray.
        log.warning("hook.refused", reason="the lease may have lapsed before the start")
        return
    called = call_observer(parts, hook, store.load_facts(claim), claim, abort)
    faults.pass_point(FaultPoint.CALL_HOOK_AFTER_CALL, claim.event_id.partition(".")[0])
    if called.failure is not None:
        _report_failure(parts, store, claim, called.failure)
    try:
        persist(partial(_record, store, claim, called), abort, patience_s=parts.commit_patience_s)
    except LeaseLost as lost:
        count("hook.refused")
        log.warning("hook.refused", reason=str(lost))
        return
    count("hook.told")


def call_observer(
    parts: WorkerContext, hook: LoadedHook, facts: HookFacts, claim: HookCallClaim, abort: AbortSignal
) -> HookOutcome:
    """Tell the hook of the event and return what came of it. A memory provider is not told of runs that may not write
    memories: what strangers say is not remembered.
    """
    if hook.of_memory and not parts.hooks.may_remember(_choose_memory_run(facts, claim)):
        return HookOutcome()
    payload = parts.redactor.redact_result(dump_canonical_json(build_payload(facts, claim)))
    return parts.hooks.runner.call(hook, claim.event_id, claim.event, payload, abort)


def _choose_memory_run(facts: HookFacts, claim: HookCallClaim) -> str:
    """The run whose memory an event is for: the one that delegated, of the end of a child run."""
    return facts.parent_run_id or facts.run_id if claim.event in _OF_PARENTS else facts.run_id


_OF_PARENTS = frozenset({"subagent_start", "subagent_stop"})


def _record(store: HookCalls, claim: HookCallClaim, called: HookOutcome) -> None:
    if not called.was_broken_off:
        store.settle(claim, called.failure)
    else:
        raise LeaseLost(f"the claim on {claim.event_id!r} was lost while {claim.hook!r} ran")


def _report_failure(parts: WorkerContext, store: HookCalls, claim: HookCallClaim, reason: str) -> None:
    count("hook.failed")
    log.warning("hook.failed", hook=claim.hook, hook_event=claim.event, reason=reason)
    store.record_failure(claim.run_pk, hook=claim.hook, event=claim.event, reason=reason)


# --- payloads --------------------------------------------------------------------------------------------------------


def build_payload(facts: HookFacts, claim: HookCallClaim) -> dict[str, Any]:
    """The payload that the hook is given, with the original's keys. Pure."""
    told = {
        "event_id": claim.event_id,
        "telemetry_schema_version": PAYLOAD_VERSION,
        "session_id": facts.session_id,
        "tenant": facts.tenant,
        "task_id": facts.run_id,
        "turn_id": facts.run_id,
        "model": facts.model,
        "platform": facts.origin,
    }
    return {**told, **_MORE.get(claim.event, _build_empty_payload)(facts)}


def _build_empty_payload(facts: HookFacts) -> dict[str, Any]:
    return {}


def _build_turn_payload(facts: HookFacts) -> dict[str, Any]:
    """The payload for the beginning of a turn, as the original's gateway builds it."""
    ended = {} if facts.exit_reason is None else {"response": _read_content(facts.output)[:_SHOWN_CHARS_MAX]}
    return {"message": _read_content(facts.opening)[:_SHOWN_CHARS_MAX], **ended}


def _build_end_payload(facts: HookFacts) -> dict[str, Any]:
    return {
        **_build_turn_payload(facts),
        "completed": facts.status == "completed",
        "interrupted": facts.status == "cancelled",
        "turn_exit_reason": facts.exit_reason,
        "error": facts.failure,
    }


def _build_answer_payload(facts: HookFacts) -> dict[str, Any]:
    return {"user_message": _read_content(facts.opening), "assistant_response": _read_content(facts.output)}


def _build_reply_payload(facts: HookFacts) -> dict[str, Any]:
    row = read_mapping(_parse_json(facts.result))
    names = [
        read_text(read_mapping(read_mapping(call).get("function")).get("name"))
        for call in read_list(row.get("tool_calls"))
    ]
    return {
        "iteration": facts.data.get("iteration"),
        "api_call_count": facts.data.get("iteration"),
        "finish_reason": facts.data.get("finish_reason"),
        "response": _read_content(facts.result),
        "tool_names": names,
    }


def _build_call_payload(facts: HookFacts) -> dict[str, Any]:
    position = facts.data.get("position")
    calls = read_list(read_mapping(_parse_json(facts.reply)).get("tool_calls"))
    asked = read_mapping(calls[position]) if isinstance(position, int) and position < len(calls) else {}
    arguments = facts.arguments or read_text(read_mapping(asked.get("function")).get("arguments"))
    result, has_failed = _read_content(facts.result), bool(facts.data.get("error"))
    blocked = "blocked" if facts.data.get("refused_by") else "error"
    return {
        "tool_name": facts.data.get("tool"),
        "tool_call_id": facts.data.get("tool_call_id") or asked.get("id"),
        "api_request_id": f"{facts.run_id}.{facts.data.get('iteration')}",
        "args": read_mapping(_parse_json(arguments)) if len(arguments) <= _TEXT_CHARS_MAX else {},
        "result": result,
        "duration_ms": round(float(facts.data.get("duration") or 0.0) * 1000),
        "status": facts.data.get("outcome") or (blocked if has_failed else "ok"),
        "error_message": result[:_SHOWN_CHARS_MAX] if has_failed else None,
    }


def _build_child_payload(facts: HookFacts) -> dict[str, Any]:
    return {
        "parent_session_id": facts.parent_session_id,
        "parent_turn_id": facts.parent_run_id,
        "child_session_id": facts.session_id,
        "child_goal": _read_content(facts.opening),
    }


def _build_child_end_payload(facts: HookFacts) -> dict[str, Any]:
    return {**_build_child_payload(facts), "child_summary": _read_content(facts.output), "child_status": facts.status}


def _build_question_payload(facts: HookFacts) -> dict[str, Any]:
    names = ("command", "description", "pattern_key", "pattern_keys", "choice", "by", "wait_id", "tool", "tool_call_id")
    return {name: facts.data[name] for name in names if name in facts.data}


def _build_compaction_payload(facts: HookFacts) -> dict[str, Any]:
    return {
        "old_session_id": facts.session_id,
        "in_place": True,
        "compression_count": facts.data.get("compression_count"),
        "message_count": facts.data.get("rows"),
    }


_MORE = {
    "agent:start": _build_turn_payload,
    "agent:step": _build_reply_payload,
    "agent:end": _build_end_payload,
    "on_session_end": _build_end_payload,
    "post_api_request": _build_reply_payload,
    "session:compress": _build_compaction_payload,
    "post_llm_call": _build_answer_payload,
    "post_tool_call": _build_call_payload,
    "subagent_start": _build_child_payload,
    "subagent_stop": _build_child_end_payload,
    "pre_approval_request": _build_question_payload,
    "post_approval_response": _build_question_payload,
}


def _read_content(body: str | None) -> str:
    """The text of a row of the transcript, bounded."""
    said = read_mapping(_parse_json(body)).get("content")
    text = said if isinstance(said, str) else "" if said is None else dump_canonical_json(said)
    return text[:_TEXT_CHARS_MAX]


def _parse_json(text: str | None) -> Mapping[str, Any] | Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
