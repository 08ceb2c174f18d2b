"""One tool call: record the intent, run it, settle it, send what follows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from typing import Any

from hermes_worker.agent.tools.base import Tool, ToolContext, ToolResult
from hermes_worker.agent.tools.builtin import ENV_KEY
from hermes_worker.agent.tools.catalog import UnknownTool
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.agent.tools.hints import HINTS_KEY
from hermes_worker.agent.tools.planning import only_reads
from hermes_worker.agent.tools.results import ResultLimits, build_error_result
from hermes_worker.broker.queue import QueueName
from hermes_worker.core import guardrails
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.auxiliary import AnsweredConsultation, AuxTask
from hermes_worker.core.delegation import DELEGATE_TOOL
from hermes_worker.core.effects import RunTool
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.guardrails import NO_PRECEDENT
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.moved_folders import from_stored_variables, to_stored_variables
from hermes_worker.core.questions import APPROVED_KEY
from hermes_worker.core.remote_tasks import RemoteTask
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus
from hermes_worker.observe import count, log
from hermes_worker.store.rewinds import REWOUND_KEY
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.calls import CallClaim, Settlement, build_started_event
from hermes_worker.store.runs.runs import SessionContext
from hermes_worker.stream.live import PROGRESS_CHARS_MAX, LiveEntry
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.tasks.calls.delegating import delegate
from hermes_worker.tasks.calls.inner import ClaimedInnerTools
from hermes_worker.tasks.calls.permission import GateContext, find_stand_in
from hermes_worker.tasks.calls.processes import ClaimedProcesses
from hermes_worker.tasks.calls.rewound import find_part, find_recorded, mark_used
from hermes_worker.tasks.context import CallAtWork, WorkerContext
from hermes_worker.tasks.hooks.rewriting import ask_before_call, build_result_rewriter
from hermes_worker.tasks.iteration.persistence import persist
from hermes_worker.tasks.iteration.planning import read_tool_names
from hermes_worker.tasks.leases import AbortReason
from hermes_worker.tasks.step_runner import RunStep, StepDone, run_step, write_outcome
from hermes_worker.tracing.recording import add_attributes, add_call
from hermes_worker.workspaces.base import FILES_KEY, KnownFiles, Workspace, WorkspaceError
from hermes_worker.workspaces.sandbox.network import UNKNOWN, Network, RunOrigin, choose_narrower


def call_tool(parts: WorkerContext, effect: RunTool, at: float) -> None:
    """Do the tool call ``effect`` names, if it is still to be done. ``at`` is when its message was hinted.

    Safe to deliver any number of times: of all deliveries one gets the claim, and a stale one finds nothing.
    """
    run_step(_STEP, parts, effect, at)


def _claim(parts: WorkerContext, effect: RunTool) -> CallClaim | None:
    claim = parts.rows.calls.claim(effect, parts.leases.owner)
    if claim is not None:
        count("tool_call.claimed")
        if claim.is_watched:
            _announce(parts, claim)
    return claim


def _announce(parts: WorkerContext, claim: CallClaim) -> None:
    parts.live.append(claim.run_id, build_tool_entry(claim))


def build_tool_entry(claim: CallClaim) -> LiveEntry:
    """The live entry that shows watchers that a tool runs now; its ``tool.started`` row is written with its result."""
    text = dump_canonical_json(build_started_event(claim).data)
    return LiveEntry(
        kind="tool_started", text=text, iteration=claim.iteration, attempt=claim.attempt, offset=claim.position
    )


def _run_and_settle(parts: WorkerContext, claim: CallClaim, abort: AbortSignal) -> StepDone:
    began = time.monotonic()
    add_attributes(tool=claim.request.name, call=claim.request.id)
    parts = parts.for_run(claim.loaded)
    parts.leases.announce_to_watchers(claim.token, partial(_announce, parts, claim))
    if parts.leases.is_surely_held(claim.token):
        claim, stand_in = ask_before_call(parts, claim, parts.rows.runs.load_session_context(claim.session_pk), abort)
        consulted = parts.rows.auxiliary_calls.list_answers(claim) if claim.has_asked else ()
        task = (
            parts.rows.remote_tasks.find_task(claim)
            if claim.has_asked and parts.rows.remote_tasks is not None
            else None
        )
        result = stand_in or _run(parts, claim, abort, consulted, task)
        add_call(claim.request.arguments, result.text)
        since = consulted[0].asked_at if consulted else task.begun_at if task is not None else claim.claimed_at
        waited_s = max(0.0, claim.claimed_at - since)
        write = partial(_write, parts, claim, result, waited_s + time.monotonic() - began, abort)
    else:
        # We were frozen between the claim and here; by now the call may be another worker's. Do not begin.
        log.warning("tool_call.refused", tool=claim.request.name, reason="the lease may have lapsed before the start")
        write = partial(parts.rows.calls.release, claim, has_begun=False)
    faults.pass_point(FaultPoint.CALL_TOOL_AFTER_RUN, claim.run_id)
    hints = write_outcome(parts, write, abort, refused="tool_call.refused", tool=claim.request.name)
    is_watched = claim.is_watched or parts.leases.is_watched(claim.run_id)
    if hints is None:
        return StepDone(hints=(), is_watched=is_watched)
    count("tool_call.settled")
    log.debug("tool_call.settled", tool=claim.request.name, duration_s=round(time.monotonic() - began, 3))
    return StepDone(hints=hints, is_watched=is_watched)


def _begin(parts: WorkerContext, claim: CallClaim, abort: AbortSignal) -> None:
    """Commit that the tool begins, where it must not run twice: a claim that is lost before this may go to another
    worker, one that is lost after it has an unknown outcome. Raises ``LeaseLost``, ``UnavailableError``.
    """
    if claim.replay is Replay.ONCE:
        faults.pass_point(FaultPoint.CALL_TOOL_BEFORE_BEGIN, claim.run_id)
        persist(partial(parts.rows.calls.begin, claim), abort, patience_s=parts.commit_patience_s)
        faults.pass_point(FaultPoint.CALL_TOOL_AFTER_BEGIN, claim.run_id)


def _write(
    parts: WorkerContext, claim: CallClaim, result: ToolResult, duration_s: float, abort: AbortSignal
) -> list[Hint]:
    if result.task is not None and parts.rows.remote_tasks is not None:
        if result.question is not None:
            return parts.rows.remote_tasks.ask(claim, result.task, result.question)
        return parts.rows.remote_tasks.park(claim, result.task)
    if result.question is not None:
        return parts.rows.waits.ask(claim, result.question)
    if abort.reason == AbortReason.DRAIN:
        # It was cut short so that another worker can run it whole.
        return parts.rows.calls.release(claim)
    if result.consultation is not None:
        return parts.rows.auxiliary_calls.enqueue_questions(claim, result.consultation)
    if result.delegated:
        return delegate(parts, claim, result.delegated, is_background=result.is_background)
    ended = CallStatus.FAILED if result.is_error else CallStatus.SUCCEEDED
    settlement = Settlement(
        status=CallStatus.UNKNOWN if result.is_unknown else ended,
        text=result.text,
        duration_s=duration_s,
        session_updates=result.session_updates,
        refusal=result.refusal,
        sandbox=result.sandbox,
        network=result.network,
    )
    return parts.rows.calls.settle(claim, settlement)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenedCall:
    """A claimed call with the tool, the session and the workspace that it names."""

    parts: WorkerContext
    claim: CallClaim
    abort: AbortSignal
    session: SessionContext
    tool: Tool
    workspace: Workspace
    remembered: KnownFiles | None
    """The workspace, where the session remembers files of it."""
    task: RemoteTask | None
    """The task that an earlier claim left."""


def _run(
    parts: WorkerContext,
    claim: CallClaim,
    abort: AbortSignal,
    consulted: Sequence[AnsweredConsultation],
    task: RemoteTask | None,
) -> ToolResult:
    session = parts.rows.runs.load_session_context(claim.session_pk)
    forks = parts.rules.forks if session.is_fork else None
    if forks is not None and (answer := forks.find_answer(claim)) is not None:
        return answer
    try:
        tool = _find_tool(parts, claim.request.name, session.tools)
        workspace = parts.workspace(session.workspace)
    except (UnknownTool, WorkspaceError, ConfigurationError) as error:
        return build_error_result(str(error))
    call = _OpenedCall(
        parts=parts,
        claim=claim,
        abort=abort,
        session=session,
        tool=tool,
        workspace=workspace,
        remembered=workspace if isinstance(workspace, KnownFiles) else None,  # once, because it takes 8 us
        task=task,
    )
    context = _build_context(call)
    judged, own = _find_verdict_and_answer(consulted)
    result = run_tool(
        tool,
        claim.request.arguments,
        context,
        limits=_choose_result_limits(parts.rules.model.window).for_calls(len(claim.neighbours)),
        gate=partial(_pass_gates, call, context, judged) if task is None else None,
        consulted=own,
        revise=build_result_rewriter(parts, claim, session, abort),
    )
    result = _add_remarks(parts, claim, tool, result)
    if claim.replay is Replay.KEYED and (part := find_part(context.session)) is not None:
        same = find_recorded(part, tool.spec.name, claim.replay, claim.request.arguments)
        given_away = {} if same is None else mark_used(part, same)
        result = replace(result, session_updates={**result.session_updates, **given_away})
    updates = _convert_variables(result.session_updates, to_stored_variables, session.workspace)
    return replace(result, session_updates={**updates, **_build_changed_identity(call.remembered, context.session)})


def _build_context(call: _OpenedCall) -> ToolContext:
    """Build the environment of the tool, with the documents of the session that it asks for."""
    parts, claim, session = call.parts, call.claim, call.session
    keys, remembered = _list_session_keys(call.tool), call.remembered
    finds_hints = bool(keys) and remembered is None  # no call asks the database for hints alone
    more = (FILES_KEY,) if remembered is not None else (HINTS_KEY,) if finds_hints else ()
    documents = _load_documents(parts, claim, session, (*keys, *more))
    if remembered is not None:
        remembered.expect(documents.get(FILES_KEY))
    part = find_part(documents)
    same = None if part is None else find_recorded(part, call.tool.spec.name, claim.replay, claim.request.arguments)
    runs_scripts = call.tool.spec.code_argument is not None
    return ToolContext(
        run_id=claim.run_id,
        session_id=session.session_id,
        idempotency_key=claim.idempotency_key if same is None else same.recorded.key,
        attempt=claim.attempt,
        workspace=call.workspace,
        session=documents,
        cancelled=call.abort,
        progress=partial(_publish_progress, parts, claim),
        origin=_build_origin(parts, claim, session.tenant),
        kept=partial(parts.rows.calls.load_kept_result, claim.session_pk),
        task=call.task,
        finds_hints=finds_hints,
        policies=parts.rules.policies,
        redactor=parts.redactor,
        inner=ClaimedInnerTools(parts, claim, session, call.abort) if runs_scripts else None,
        processes=None if parts.rows.processes is None else ClaimedProcesses(parts, parts.rows.processes, claim),
    )


def _pass_gates(
    call: _OpenedCall,
    context: ToolContext,
    judged: AnsweredConsultation | None,
    tool: Tool,
    arguments: Mapping[str, Any],
) -> ToolResult | None:
    """Return what stands in for the call; where it may run, keep a checkpoint and commit that it begins. A call that
    goes on with a task was let through before it began."""
    parts, claim, abort = call.parts, call.claim, call.abort
    stand_in = find_stand_in(
        GateContext(parts=parts, claim=claim, tool=tool, arguments=arguments, context=context, judged=judged)
    )
    if stand_in is None:
        if parts.rules.checkpoints is not None:
            at_work = CallAtWork(
                claim=claim, session=call.session, workspace=call.workspace, tool=tool, arguments=arguments
            )
            parts.rules.checkpoints.keep_checkpoint(at_work, abort)
        _begin(parts, claim, abort)
    return stand_in


def _build_changed_identity(remembered: KnownFiles | None, documents: Mapping[str, Any]) -> Mapping[str, Any]:
    """Build the session document that names the files on another host; empty where nothing changed."""
    if remembered is None or remembered.identity in (None, documents.get(FILES_KEY)):
        return {}
    return {FILES_KEY: remembered.identity}


def _load_documents(
    parts: WorkerContext, claim: CallClaim, session: SessionContext, keys: Sequence[str]
) -> Mapping[str, Any]:
    """Load the documents of the session that a tool asked for by ``keys``."""
    found = parts.rows.calls.load_documents(claim.session_pk, keys)
    return _convert_variables(found, from_stored_variables, session.workspace)


def _convert_variables(
    documents: Mapping[str, Any], convert: Callable[[Mapping[str, str], str], Mapping[str, str]], workspace: str
) -> Mapping[str, Any]:
    """Session documents in which ``convert`` has encoded or decoded the variables of the session's shell."""
    variables = documents.get(ENV_KEY)
    return {**documents, ENV_KEY: convert(variables, workspace)} if variables else documents


def _find_verdict_and_answer(
    consulted: Sequence[AnsweredConsultation],
) -> tuple[AnsweredConsultation | None, AnsweredConsultation | None]:
    """A model's verdict about the danger of the call, and the answer to the last question that the tool itself
    asked.
    """
    judged = next((one for one in consulted if one.task is AuxTask.APPROVAL), None)
    return judged, next((one for one in reversed(consulted) if one.task is not AuxTask.APPROVAL), None)


def _build_origin(parts: WorkerContext, claim: CallClaim, tenant: str) -> RunOrigin:
    """The origin of a call, with the narrower of the networks that its job and its settings ask for."""
    asked = [Network(each) for each in (claim.loaded.network, parts.rules.policies.network) if each is not None]
    narrowest = reduce(choose_narrower, asked) if asked else None
    return RunOrigin(source=claim.loaded.origin or UNKNOWN, asked=narrowest, tenant=tenant)


@cache
def _choose_result_limits(window: int | None) -> ResultLimits:
    return ResultLimits() if window is None else ResultLimits.for_window(window)


def _add_remarks(parts: WorkerContext, claim: CallClaim, tool: Tool, result: ToolResult) -> ToolResult:
    """The result, with the guardrails' remarks added where they have any."""
    is_parked = result.question is not None or result.consultation is not None or result.task is not None
    is_final = not is_parked and not result.delegated
    if (
        not is_final
        or claim.precedent == NO_PRECEDENT
        or guardrails.find_block(claim.precedent, parts.rules.guardrails)
    ):
        return result
    is_reader = only_reads(tool.spec)
    text = guardrails.append_remark(
        tool.spec.name,
        result.text,
        claim.precedent,
        parts.rules.guardrails,
        is_error=result.is_error,
        is_reader=is_reader,
    )
    if text is result.text:
        return result
    count("guardrail.warned")
    return replace(result, text=text)


def _publish_progress(parts: WorkerContext, claim: CallClaim, text: str) -> None:
    """Publish progress to watchers; none of it is stored."""
    if claim.is_watched or parts.leases.is_watched(claim.run_id):
        told = dump_canonical_json({"tool": claim.request.name, "text": text[:PROGRESS_CHARS_MAX]})
        entry = LiveEntry(
            kind="tool_progress", text=told, iteration=claim.iteration, attempt=claim.attempt, offset=claim.position
        )
        parts.live.append(claim.run_id, entry)


def _find_tool(parts: WorkerContext, name: str, tools: str) -> Tool:
    """Find the tool in the session's stored definitions, ``tools``: a tool that the model was not offered cannot be
    used, whatever is installed here.

    Raises ``UnknownTool``, ``ConfigurationError``.
    """
    offered = read_tool_names(tools)
    if name in offered:
        return parts.catalog.for_session(tools).get(name)
    if name == DELEGATE_TOOL:
        raise UnknownTool("tasks cannot be handed on from here; do the work yourself")
    there = ", ".join(sorted(offered)) or "no tools"
    raise UnknownTool(f"there is no tool {name!r} in this session; there are {there}")


def _list_session_keys(tool: Tool) -> tuple[str, ...]:
    guarded = tool.spec.command_argument is not None or tool.spec.code_argument is not None
    is_pure = tool.spec.replay is Replay.PURE and tool.spec.replay_by is None
    if is_pure and not guarded and tool.spec.name != DELEGATE_TOOL:
        return tool.spec.session_keys
    return (*tool.spec.session_keys, APPROVED_KEY, REWOUND_KEY)


_STEP = RunStep(
    queue=QueueName.TOOLS,
    suspects=QueueName.SUSPECT_TOOLS,
    after_claim=FaultPoint.CALL_TOOL_AFTER_CLAIM,
    after_commit=FaultPoint.CALL_TOOL_AFTER_SETTLE,
    claim=_claim,
    may_hand_over=lambda claim: claim.replay is not Replay.ONCE,
    do=_run_and_settle,
)
