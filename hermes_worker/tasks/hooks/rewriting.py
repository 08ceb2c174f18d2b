"""Ask the hooks that may change a step, inside its claim and before it is written.

What they changed is stored before it has an effect, or with the step that it changed, so a worker that takes the step
over finds it and does not ask again. A hook that fails changes nothing: the step goes on, and an event of the run names
the hook.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hermes_worker.agent.prompt.compaction import CompactionPlan
from hermes_worker.agent.tools.base import ToolResult
from hermes_worker.agent.tools.results import build_error_result
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.compactions import parse_requested_focus, select_visible
from hermes_worker.core.errors import LeaseLost, UnavailableError
from hermes_worker.core.hooks import (
    PRE_COMPRESS,
    PRE_LLM_CALL,
    PRE_TOOL_CALL,
    TRANSFORM_LLM_OUTPUT,
    TRANSFORM_TOOL_RESULT,
    Approve,
    Block,
    HookAnswer,
    InvalidHookAnswer,
    ReplaceArguments,
    ReplaceText,
    parse_answer,
)
from hermes_worker.core.messages import Message, dump_canonical_json
from hermes_worker.core.questions import Question, Refusal, RefusedBy
from hermes_worker.core.run import WaitKind
from hermes_worker.observe import count, log
from hermes_worker.safety.approvals import ApprovalChoice, ApprovalMode, UnattendedMode
from hermes_worker.safety.origins import TextOrigin, judge_text
from hermes_worker.safety.redaction import holds_marker
from hermes_worker.store.runs.calls import CallClaim
from hermes_worker.store.runs.runs import IterationClaim, SessionContext
from hermes_worker.tasks.hooks.running import HookAbort, LoadedHook
from hermes_worker.tasks.iteration.persistence import persist
from hermes_worker.tasks.leases import AbortReason

if TYPE_CHECKING:
    from hermes_worker.tasks.context import WorkerContext

PAYLOAD_VERSION = "hermes.observer.v1"
"""The version that the original writes into each payload."""
_HISTORY_CHARS_MAX = 200_000


def ask_before_call(
    parts: WorkerContext, claim: CallClaim, session: SessionContext, abort: AbortSignal
) -> tuple[CallClaim, ToolResult | None]:
    """The claim with the arguments that the call runs with, and what stands in for a call that may not run now.

    Arguments that hooks changed are stored before this returns; a call that has them, that a person allowed or that
    went on after a question is not asked about again. Raises ``LeaseLost``, ``UnavailableError``.
    """
    if (refusal := _refuse_memory_tool(parts, claim)) is not None:
        return claim, refusal
    hooks = parts.hooks.runner.select_hooks(PRE_TOOL_CALL)
    if not hooks or claim.is_rewritten or claim.is_approved or claim.has_asked:
        return claim, None
    if _parse_object(claim.request.arguments) is None:
        return claim, None  # they cannot be read; the model is told so
    changed, stand_in = _ask_before_call(parts, claim, session, abort, claim.idempotency_key)
    if changed != claim.request.arguments:
        persist(partial(parts.rows.calls.rewrite, claim, changed), abort, patience_s=parts.commit_patience_s)
        claim = replace(claim, request=replace(claim.request, arguments=changed), is_rewritten=True)
    return claim, stand_in


def ask_before_inner_call(
    parts: WorkerContext, claim: CallClaim, session: SessionContext, abort: AbortSignal, key: str
) -> tuple[CallClaim, ToolResult | None]:
    """Ask the hooks about a call that a script makes, whose key is ``key`` and whose request is in ``claim``. Returns
    what ``ask_before_call`` does.

    Nothing is stored, because the call is never made again; where a hook wants a person to be asked, the call does not
    run.
    """
    if (refusal := _refuse_memory_tool(parts, claim)) is not None:
        return claim, refusal
    if not parts.hooks.runner.select_hooks(PRE_TOOL_CALL) or _parse_object(claim.request.arguments) is None:
        return claim, None
    changed, stand_in = _ask_before_call(parts, claim, session, abort, key)
    if stand_in is not None and stand_in.question is not None:
        stand_in = build_error_result(
            f"{claim.request.name} was not run: it needs somebody's permission, which a script cannot wait for"
        )
    return replace(claim, request=replace(claim.request, arguments=changed)), stand_in


def _refuse_memory_tool(parts: WorkerContext, claim: CallClaim) -> ToolResult | None:
    """The result that stands in for a call of a memory provider's tool in a run that may not write memories; ``None``
    when the call may run.
    """
    if claim.request.name not in parts.hooks.memory_tools or parts.hooks.may_remember(claim.run_id):
        return None
    return build_error_result("This run may not use what is remembered of people. Go on without.")


def _ask_before_call(
    parts: WorkerContext, claim: CallClaim, session: SessionContext, abort: AbortSignal, key: str
) -> tuple[str, ToolResult | None]:
    """The arguments after all hooks, and the result that stands in for a call that may not run now, or ``None``."""
    asking = _HookQuestion(parts, claim.run_pk, f"{key}.{PRE_TOOL_CALL}", PRE_TOOL_CALL, abort)
    arguments = _parse_object(claim.request.arguments) or {}
    payload, changed = _build_call_payload(claim, session, arguments), claim.request.arguments
    for hook in parts.hooks.runner.select_hooks(PRE_TOOL_CALL):
        match asking.answer(hook, payload):
            case Block(reason=reason):
                return changed, _build_hook_refusal(hook, reason)
            case Approve() as wish:
                stand_in = _ask_person(parts, claim, hook, wish, changed)
                if stand_in is not None:
                    return changed, stand_in
            case ReplaceArguments(arguments=new):
                if holds_marker(new) and not holds_marker(claim.request.arguments):
                    asking.report_failure(hook, "its arguments contain the marker of a secret that was hidden from it")
                    continue
                changed, payload = new, {**payload, "args": json.loads(new)}
            case _:
                pass
    return changed, None


def build_result_rewriter(
    parts: WorkerContext, claim: CallClaim, session: SessionContext, abort: AbortSignal, *, key: str | None = None
) -> Callable[[ToolResult], ToolResult] | None:
    """Build the function that gives a tool's result to the hooks for it and replaces its text with the first text that
    one of them returns; ``None`` without such hooks. The result given to hooks holds no secrets; the one returned may.
    ``key`` is the key of an inner call.
    """
    hooks = parts.hooks.runner.select_hooks(TRANSFORM_TOOL_RESULT)
    if not hooks:
        return None
    began = time.monotonic()

    def revise_result(result: ToolResult) -> ToolResult:
        asking = _HookQuestion(
            parts, claim.run_pk, f"{key or claim.idempotency_key}.{TRANSFORM_TOOL_RESULT}", TRANSFORM_TOOL_RESULT, abort
        )
        arguments = _parse_object(claim.request.arguments) or {}
        payload = {
            **_build_call_payload(claim, session, arguments),
            "result": result.text,
            "duration_ms": round((time.monotonic() - began) * 1000),
            "status": "error" if result.is_error else "ok",
        }
        text = asking.find_first_text(hooks, payload)
        return result if text is None else replace(result, text=text)

    return revise_result


def ask_for_context(parts: WorkerContext, claim: IterationClaim, abort: AbortSignal) -> str:
    """The text that hooks add to the requests of this turn, asked for once, before its first model call.

    Empty for a turn of which something is written already: a prompt that was sent once is sent again unchanged.
    """
    hooks, run = parts.hooks.runner.select_hooks(PRE_LLM_CALL), claim.loaded.run
    if not hooks or run.iteration or run.memory is not None or run.recovery is not None or run.wants_summary:
        return ""
    event_id = f"{claim.run_id}.1.{PRE_LLM_CALL}"
    asking = _HookQuestion(parts, claim.loaded.pk, event_id, PRE_LLM_CALL, abort)
    stored = parts.rows.transcripts.load(claim.loaded.session_pk, claim.loaded.message_seq)
    if parse_requested_focus(stored) is not None:
        return ""  # no model is asked for an answer
    hooks = _drop_memory_hooks(parts, claim, hooks)
    rows = select_visible(stored)
    payload = {
        **_build_turn_payload(parts, claim),
        "user_message": _read_content(rows[-1]) if rows else "",
        "conversation_history": _select_history(rows),
    }
    return "\n\n".join(asking.iterate_answers(hooks, payload))


def _drop_memory_hooks(
    parts: WorkerContext, claim: IterationClaim, hooks: Sequence[LoadedHook]
) -> Sequence[LoadedHook]:
    """``hooks``, without those of memory providers where the run may not write memories: what strangers say is not
    remembered, and what is remembered of people is not told to strangers.
    """
    if not any(hook.of_memory for hook in hooks) or parts.hooks.may_remember(claim.run_id):
        return hooks
    return [hook for hook in hooks if not hook.of_memory]


def ask_before_compaction(parts: WorkerContext, claim: IterationClaim, abort: AbortSignal, plan: CompactionPlan) -> str:
    """The text that hooks want the summary of a conversation to keep: asked for before the summary is written, and
    stored with it.
    """
    hooks = _drop_memory_hooks(parts, claim, parts.hooks.runner.select_hooks(PRE_COMPRESS))
    if not hooks:
        return ""
    event_id = f"{claim.run_id}.{claim.loaded.run.iteration + 1}.{plan.through}.{PRE_COMPRESS}"
    asking = _HookQuestion(parts, claim.loaded.pk, event_id, PRE_COMPRESS, abort)
    payload = {
        **_build_turn_payload(parts, claim),
        "conversation_history": _select_history(plan.turns),
        "focus": plan.focus,
        "message_count": len(plan.turns),
    }
    return "\n\n".join(asking.iterate_answers(hooks, payload))


def ask_about_answer(parts: WorkerContext, claim: IterationClaim, text: str, abort: AbortSignal) -> str | None:
    """The text that a hook puts in the place of the run's answer, with secrets hidden; ``None`` to leave it."""
    hooks = parts.hooks.runner.select_hooks(TRANSFORM_LLM_OUTPUT)
    if not hooks or not text.strip():
        return None
    event_id = f"{claim.run_id}.{claim.loaded.run.iteration + 1}.{TRANSFORM_LLM_OUTPUT}"
    asking = _HookQuestion(parts, claim.loaded.pk, event_id, TRANSFORM_LLM_OUTPUT, abort, waits_while_draining=True)
    found = asking.find_first_text(hooks, {**_build_turn_payload(parts, claim), "response_text": text})
    return None if found is None else parts.redactor.redact_text(found)


@dataclass(frozen=True, slots=True)
class _WriteAbandoned:
    """Set when this process will not write what the hooks were asked about."""

    abort: AbortSignal

    def is_set(self) -> bool:
        return self.abort.is_set() and self.abort.reason != AbortReason.DRAIN


@dataclass(slots=True)
class _HookQuestion:
    """One question to the hooks for it."""

    parts: WorkerContext
    run_pk: int
    event_id: str
    event: str
    abort: AbortSignal
    waits_while_draining: bool = False
    """Whether the step is written in any case, so that a draining process waits for the hooks' answer."""

    @property
    def stopping(self) -> HookAbort:
        return _WriteAbandoned(self.abort) if self.waits_while_draining else self.abort

    def answer(self, hook: LoadedHook, payload: Mapping[str, Any]) -> HookAnswer | None:
        """Ask one hook. ``None`` when it failed or there was no time to wait for it; a failure is told in an event of
        the run.
        """
        told = {**payload, "event_id": self.event_id, "telemetry_schema_version": PAYLOAD_VERSION}
        written = self.parts.redactor.redact_result(dump_canonical_json(told))
        called = self.parts.hooks.runner.call(hook, self.event_id, self.event, written, self.stopping)
        count("hook.asked")
        if called.was_broken_off:
            return None
        if called.failure is not None:
            self.report_failure(hook, called.failure)
            return None
        meaning = parse_answer(self.event, called.answer)
        if isinstance(meaning, InvalidHookAnswer):
            self.report_failure(hook, meaning.why)
            return None
        if hook.of_memory and isinstance(meaning, ReplaceText):
            return self._judge_recalled(hook, meaning)
        return meaning

    def _judge_recalled(self, hook: LoadedHook, said: ReplaceText) -> HookAnswer | None:
        """The text that a memory provider recalled, as it may be used; ``None`` for text that looks like an attack,
        which an event of the run reports.
        """
        judged = judge_text(said.text, TextOrigin.RECALLED_MEMORY)
        if judged.is_blocked:
            self.report_failure(hook, f"what it recalled looks like an attack ({', '.join(judged.threats)})")
            return None
        return replace(said, text=judged.text)

    def iterate_answers(self, hooks: Sequence[LoadedHook], payload: Mapping[str, Any]) -> Iterator[str]:
        """Ask each hook in turn and yield the texts of those that return one."""
        for hook in hooks:
            answer = self.answer(hook, payload)
            if isinstance(answer, ReplaceText):
                yield answer.text

    def find_first_text(self, hooks: Sequence[LoadedHook], payload: Mapping[str, Any]) -> str | None:
        return next(self.iterate_answers(hooks, payload), None)

    def report_failure(self, hook: LoadedHook, reason: str) -> None:
        """Say that the hook failed: in the log, and in an event of the run. Never raises."""
        count("hook.failed")
        log.warning("hook.failed", hook=hook.name, hook_event=self.event, reason=reason)
        if self.parts.hooks.store is None:
            return
        tell = partial(
            self.parts.hooks.store.record_failure, self.run_pk, hook=hook.name, event=self.event, reason=reason
        )
        try:
            persist(tell, self.abort, patience_s=self.parts.commit_patience_s)
        except (UnavailableError, LeaseLost) as error:
            log.warning("hook.failed", hook=hook.name, hook_event=self.event, reason=f"not told: {error}")


# --- payloads --------------------------------------------------------------------------------------------------------


def _build_call_payload(claim: CallClaim, session: SessionContext, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "tool_name": claim.request.name,
        "args": arguments,
        "task_id": claim.run_id,
        "turn_id": claim.run_id,
        "session_id": session.session_id,
        "tenant": session.tenant,
        "tool_call_id": claim.request.id,
        "api_request_id": f"{claim.run_id}.{claim.iteration}",
    }


def _build_turn_payload(parts: WorkerContext, claim: IterationClaim) -> dict[str, Any]:
    session = parts.rows.runs.load_session_context(claim.loaded.session_pk)
    return {
        "session_id": session.session_id,
        "tenant": session.tenant,
        "task_id": claim.run_id,
        "turn_id": claim.run_id,
        "is_first_turn": session.session_id == claim.run_id,
        "model": claim.loaded.model,
        "platform": claim.loaded.origin or "",
    }


def _parse_object(arguments: str) -> dict[str, Any] | None:
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else {} if value is None else None


def _read_content(row: Message) -> str:
    content = json.loads(row.body).get("content")
    return content if isinstance(content, str) else dump_canonical_json(content)


def _select_history(rows: Sequence[Message]) -> list[dict[str, str]]:
    """The newest messages of the transcript that fit, each with its role."""
    found: list[dict[str, str]] = []
    left = _HISTORY_CHARS_MAX
    for row in reversed(rows):
        text = _read_content(row)
        left -= len(text)
        if left < 0:
            break
        found.append({"role": row.role.value, "content": text})
    return found[::-1]


# --- what stands in for a call ---------------------------------------------------------------------------------------


def _build_hook_refusal(hook: LoadedHook, reason: str) -> ToolResult:
    log.info("hook.blocked", hook=hook.name)
    refusal = Refusal(by=RefusedBy.HOOK, reason=f"{hook.name}: {reason}")
    return replace(build_error_result(reason), refusal=refusal)


def _ask_person(
    parts: WorkerContext, claim: CallClaim, hook: LoadedHook, wish: Approve, arguments: str
) -> ToolResult | None:
    """The question to a person that a hook wants; a refusal where there is nobody to ask, and ``None`` where everything
    is allowed.
    """
    terms = parts.rows.waits.load_terms(claim.run_pk)
    policy = parts.rules.approvals.narrow_policy(parts.rules.approvals.build_session_policy({}), terms)
    if policy.mode is ApprovalMode.OFF or policy.unattended is UnattendedMode.APPROVE:
        return None
    if policy.unattended is UnattendedMode.DENY:
        return _build_hook_refusal(hook, f"{wish.reason} (nobody is there to allow it)")
    request = {
        "command": f"{claim.request.name} {parts.redactor.redact_result(arguments)}",
        "description": wish.reason,
        "pattern_key": f"plugin_rule:{wish.rule or hook.name}",
        "arguments": arguments,
    }
    choices = [ApprovalChoice.ONCE.value, ApprovalChoice.DENY.value]
    expires_s = terms.approval_s or parts.rules.approvals.timeout_s
    question = Question(kind=WaitKind.APPROVAL, request=request, choices=choices, expires_s=expires_s)
    return ToolResult(text="", question=question)
