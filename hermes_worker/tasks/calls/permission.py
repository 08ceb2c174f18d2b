"""Whether a claimed call may run now: the gates that it passes, the last of them permission for dangerous commands.

Decided by the worker that claimed the call, before the tool sees it. A gate looks at the call and lets it pass, or
returns the result that stands in for it; ``GATES`` are asked in order, and the first result counts. What a decision
about a command needs beside it is read only when a dangerous pattern was found, so a harmless command costs no
statement.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hermes_worker.agent.tools.base import Tool, ToolContext, ToolResult
from hermes_worker.agent.tools.builtin import ENV_KEY
from hermes_worker.agent.tools.results import build_error_result
from hermes_worker.agent.tools.terminal import find_command_folder
from hermes_worker.core import guardrails
from hermes_worker.core.auxiliary import AnsweredConsultation
from hermes_worker.core.delegation import DELEGATE_TOOL
from hermes_worker.core.gateway import may_be_called_for
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.notices import NOT_FOR_GUESTS, OTHER_EFFECT, TOO_MANY_DELEGATIONS
from hermes_worker.core.questions import APPROVED_KEY, Question, Refusal, RefusedBy
from hermes_worker.core.replay import Replay
from hermes_worker.core.rewind import describe_outcome
from hermes_worker.core.run import CallStatus, WaitKind
from hermes_worker.observe import count, log
from hermes_worker.safety.approvals import (
    Allow,
    ApprovalChoice,
    ApprovalMode,
    ApprovalPolicy,
    Ask,
    Decision,
    Deny,
    UnattendedMode,
    apply_verdict,
    assess_command,
    find_dangers,
)
from hermes_worker.safety.dangers import CODE_FLAG
from hermes_worker.safety.destruction import describe_unkept
from hermes_worker.safety.reading import is_reading
from hermes_worker.store.rewinds import CALLS_MAX, RewoundPart
from hermes_worker.store.runs.calls import CallClaim
from hermes_worker.tasks.calls.rewound import AGAIN, UNKNOWN_S, find_part, find_recorded, find_remark, mark_used
from hermes_worker.tasks.calls.verdicts import build_verdict_consultation, read_verdict
from hermes_worker.tasks.context import WorkerContext
from hermes_worker.workspaces.base import ConversingWorkspace


@dataclass(frozen=True, slots=True, kw_only=True)
class GateContext:
    """The facts that a gate decides by."""

    parts: WorkerContext
    claim: CallClaim
    tool: Tool
    arguments: Mapping[str, Any]
    """The arguments as the tool gets them."""
    context: ToolContext
    judged: AnsweredConsultation | None = None
    """A model's verdict about the danger of the call, once there is one."""


CallGate = Callable[[GateContext], ToolResult | None]
"""Returns the result that stands in for a call that must not run, or not yet; ``None`` lets it pass."""


def find_stand_in(call: GateContext) -> ToolResult | None:
    """Ask the gates in order for the result that stands in for the call; ``None`` when the call may run."""
    return next((result for gate in GATES if (result := gate(call)) is not None), None)


def refuse_other_effect(call: GateContext) -> ToolResult | None:
    """Refuse arguments with which the call must not run twice, where the claim was made for one that may."""
    if call.claim.replay is not Replay.ONCE and call.tool.spec.replay_of(call.arguments) is Replay.ONCE:
        return build_error_result(OTHER_EFFECT)
    return None


def refuse_guest(call: GateContext) -> ToolResult | None:
    """Refuse an effect that guests of a chat may not cause."""
    if may_be_called_for(call.claim.loaded.origin, call.tool.spec.replay_of(call.arguments)):
        return None
    return replace(build_error_result(NOT_FOR_GUESTS), refusal=Refusal(by=RefusedBy.RULES, reason=NOT_FOR_GUESTS))


def refuse_surplus_delegation(call: GateContext) -> ToolResult | None:
    """Refuse a delegation where as many calls before it in its reply delegate as a run may have children."""
    allowed = call.parts.rules.delegation.children_max
    before = call.claim.neighbours[: call.claim.position]
    if call.tool.spec.name != DELEGATE_TOOL or before.count(DELEGATE_TOOL) < allowed:
        return None
    return build_error_result(TOO_MANY_DELEGATIONS.format(allowed=allowed))


def block_repetition(call: GateContext) -> ToolResult | None:
    """Block a call that repeats itself in vain."""
    pattern = guardrails.find_block(call.claim.precedent, call.parts.rules.guardrails)
    if pattern is None:
        return None
    count("guardrail.blocked")
    text = guardrails.format_block(call.tool.spec.name, pattern, call.claim.precedent)
    return ToolResult(text=text, is_error=True)


def ask_about_rewound_call(call: GateContext) -> ToolResult | None:
    """Offer the recorded outcome of an equal call that was made before the conversation was taken back, or ask a person
    about a call of the same tool. No permission of before, no rule and no mode answers that question: they were given
    for the first time. A command that only reads runs again, and stands for no effect either, unless the session has
    exported variables."""
    part = find_part(call.context.session)
    if part is None:
        return None
    name, replay = call.tool.spec.name, call.tool.spec.replay_of(call.arguments)
    allowed = call.context.session.get(APPROVED_KEY) or ()
    may_repeat = replay is not Replay.ONCE and name != DELEGATE_TOOL
    if may_repeat or call.claim.is_approved or f"{AGAIN}{name}" in allowed:
        return None
    command = _read_command(call.tool, call.arguments)
    # An exported PATH or function may be another program than the name says.
    if not call.context.session.get(ENV_KEY):
        if command is not None and is_reading(command):
            return None
        part = _forget_reading(part, call.tool)
    arguments = dump_canonical_json(dict(call.arguments))
    same = find_recorded(part, name, replay, arguments)
    if same is not None:
        unknown = same.recorded.status is CallStatus.UNKNOWN
        return ToolResult(
            text=describe_outcome(same.recorded), is_unknown=unknown, session_updates=mark_used(part, same)
        )
    remark = find_remark(part, name, replay, arguments)
    if remark is None:
        return None
    dangers = tuple(find_dangers(command)) if command is not None else ()
    choices = (ApprovalChoice.ONCE, *(() if dangers else (ApprovalChoice.SESSION,)), ApprovalChoice.DENY)
    question = Ask(pattern_keys=(f"{AGAIN}{name}", *dangers), remark=remark, choices=choices)
    refusal = f"Blocked: {remark}. Nobody is there to allow it. Do not try it again in another form."
    shown = command if command is not None else f"{name} {arguments}"
    if part.unknown_until is None:
        return _ask_whatever_allows_it(call, question, shown, refusal)
    is_unanswered = call.parts.rows.waits.has_expired(call.claim.run_pk)
    return _ask_whatever_allows_it(call, question, shown, refusal, nobody=is_unanswered, most_s=UNKNOWN_S)


def _forget_reading(part: RewoundPart, tool: Tool) -> RewoundPart:
    """Forget the calls of a rewound part that is known whole, where all that must not run twice were commands of this
    tool that only read."""
    once = [call for call in part.calls if call.replay is Replay.ONCE]
    is_whole = len(part.calls) < CALLS_MAX
    if is_whole and once and all(call.tool == tool.spec.name and _has_only_read(tool, call.arguments) for call in once):
        return replace(part, once_tools=frozenset(), calls=tuple(call for call in part.calls if call not in once))
    return part


def _has_only_read(tool: Tool, arguments: str) -> bool:
    """Whether ``arguments``, the recorded JSON of a call of ``tool``, ask for a command that only reads. False where
    the record is no JSON, because long arguments are recorded in part."""
    try:
        command = _read_command(tool, json.loads(arguments))
    except ValueError:
        return False
    return command is not None and is_reading(command)


def wait_for_permission(call: GateContext) -> ToolResult | None:
    """Refuse a dangerous command, or leave a question to a person or to a model about it.

    Where the sandbox confines a program, no person is asked about it merely because it is one: the sandbox decides what
    it can reach, and the calls that it makes are judged one by one.
    """
    claim, rules, waits = call.claim, call.parts.rules.approvals, call.parts.rows.waits
    command = _read_command(call.tool, call.arguments)
    policy = rules.build_session_policy(call.context.session)
    if _is_confined(call):
        policy = replace(policy, allowed=policy.allowed | {CODE_FLAG})
    if command is None:
        return _wait_for_asked_call(call, policy)
    if claim.is_approved:
        # A person allowed this very command; hardline and deny rules refuse it all the same.
        policy = replace(policy, mode=ApprovalMode.OFF)
    decision = assess_command(command, policy)
    expires_s = rules.timeout_s
    if isinstance(decision, Ask):
        terms = waits.load_terms(claim.run_pk)
        expires_s = terms.approval_s or rules.timeout_s
        decision = assess_command(command, rules.narrow_policy(policy, terms))
    if isinstance(decision, Ask) and policy.mode is ApprovalMode.SMART:
        if call.judged is None:
            return ToolResult(text="", consultation=build_verdict_consultation(command, decision))
        decision = apply_verdict(decision, read_verdict(call.judged, command, decision))
    if isinstance(decision, Ask) and call.parts.rules.checkpoints is not None:
        decision = decision.add_remark(describe_unkept(command))
    if isinstance(decision, Deny):
        log.info("command.blocked", tool=call.tool.spec.name)
    return _build_decision_result(call, decision, command, expires_s)


GATES: tuple[CallGate, ...] = (
    refuse_other_effect,
    refuse_guest,
    refuse_surplus_delegation,
    block_repetition,
    ask_about_rewound_call,
    wait_for_permission,
)
"""In the order in which they are asked: a person is asked last, and only about a call that would run."""


def _is_confined(call: GateContext) -> bool:
    """Whether the call is a script that reaches only the files and the network that the sandbox gives it."""
    workspace = call.context.workspace
    is_script = call.tool.spec.code_argument is not None
    return is_script and isinstance(workspace, ConversingWorkspace) and workspace.confines(call.context.origin)


def _wait_for_asked_call(call: GateContext, policy: ApprovalPolicy) -> ToolResult | None:
    """The result that stands in for a call of a tool whose every call a person must allow; ``None`` when the call may
    run.
    """
    rules, arguments, spec = call.parts.rules.approvals, call.arguments, call.tool.spec
    asked = call.context.policies.asked.get(spec.name)
    if asked is None or call.claim.is_approved:
        return None
    terms = call.parts.rows.waits.load_terms(call.claim.run_pk)
    decision: Decision
    match rules.narrow_policy(policy, terms).unattended:
        case UnattendedMode.APPROVE:
            decision = Allow()
        case UnattendedMode.DENY:
            decision = Deny(reason=asked.refusal)
        case UnattendedMode.ASK:
            choices = (ApprovalChoice.ONCE, ApprovalChoice.DENY)
            decision = Ask(pattern_keys=(spec.name,), remark=asked.remark, choices=choices)
    # The person who allows the call is shown every argument: such as the text that it writes.
    needed = spec.parameters.get("required", ())
    texts = (f"{name}: {value}" for name, value in arguments.items() if name not in needed)
    command = "\n".join((" ".join((spec.name, *(str(arguments[name]) for name in needed))), *texts))
    return _build_decision_result(call, decision, command, terms.approval_s or rules.timeout_s)


def _ask_whatever_allows_it(
    call: GateContext, question: Ask, command: str, refusal: str, *, nobody: bool = False, most_s: float | None = None
) -> ToolResult | None:
    """Leave a question to a person, past every permission and mode; refuse the call where nobody may be asked, or
    ``nobody`` is there. ``most_s`` is for how long it stays open where nothing else says so."""
    terms, rules = call.parts.rows.waits.load_terms(call.claim.run_pk), call.parts.rules.approvals
    decision: Decision = question
    if nobody or rules.narrow_policy(rules.build_session_policy({}), terms).unattended is UnattendedMode.DENY:
        decision = Deny(reason=refusal)
    return _build_decision_result(call, decision, command, terms.approval_s or rules.timeout_s or most_s)


def _build_decision_result(
    call: GateContext, decision: Decision, command: str, expires_s: float | None
) -> ToolResult | None:
    """The result that the model or a person gets in place of the call; ``None`` when it may run."""
    match decision:
        case Allow():
            return None
        case Deny(reason=reason):
            return replace(build_error_result(reason), refusal=Refusal(by=RefusedBy.RULES, reason=reason))
        case Ask():
            request = {
                "command": command,
                "description": decision.description,
                "pattern_key": decision.pattern_keys[0],
                "pattern_keys": decision.pattern_keys,
                "arguments": dump_canonical_json(dict(call.arguments)),
            }
            if _read_command(call.tool, call.arguments) is not None:
                request["directory"] = find_command_folder(call.arguments, call.context)
            choices = [choice.value for choice in decision.choices]
            question = Question(kind=WaitKind.APPROVAL, request=request, choices=choices, expires_s=expires_s)
            return ToolResult(text="", question=question)


def _read_command(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """The command that the call runs. A program is judged as one that a shell hands to an interpreter."""
    name, program = tool.spec.command_argument, tool.spec.code_argument
    command = arguments.get(name) if name is not None else None
    if isinstance(command, str):
        return command
    code = arguments.get(program) if program is not None else None
    return f"python3 -c {shlex.quote(code)}" if isinstance(code, str) else None
