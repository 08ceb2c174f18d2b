"""Whether a claimed call may run now: the gates that it passes, the last of them permission for dangerous commands.

Decided by the worker that claimed the call, before the tool sees it. A gate looks at the call and lets it pass, or
returns the result that stands in for it; ``GATES`` are asked in order, and the first result counts. What a decision
about a command needs beside it is read only when a dangerous pattern was found, so a harmless command costs no
statement.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hermes_worker.agent.tools.base import Tool, ToolContext, ToolResult
from hermes_worker.agent.tools.results import error_result
from hermes_worker.core import guardrails
from hermes_worker.core.auxiliary import AnsweredConsultation
from hermes_worker.core.delegation import DELEGATE_TOOL
from hermes_worker.core.gateway import may_be_called_for
from hermes_worker.core.messages import canonical_json
from hermes_worker.core.notices import NOT_FOR_GUESTS, OTHER_EFFECT, TOO_MANY_DELEGATIONS
from hermes_worker.core.questions import Question, Refusal, RefusedBy
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.features.skills.change_rules import SKILL_MANAGE_TOOL
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
)
from hermes_worker.safety.dangers import CODE_FLAG
from hermes_worker.store.runs.calls import CallClaim
from hermes_worker.tasks.calls.verdicts import read_verdict, verdict_consultation
from hermes_worker.tasks.context import WorkerContext
from hermes_worker.workspaces.base import ConversingWorkspace

_DECISIONS_ON_SKILLS: Mapping[UnattendedMode, Decision] = {
    UnattendedMode.APPROVE: Allow(),
    UnattendedMode.DENY: Deny(reason="Nobody is there who could allow a change of a skill. Go on without."),
    UnattendedMode.ASK: Ask(
        pattern_keys=(SKILL_MANAGE_TOOL,),
        remark="changes what later conversations are told",
        choices=(ApprovalChoice.ONCE, ApprovalChoice.DENY),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateContext:
    """The facts that a gate decides by."""

    parts: WorkerContext
    claim: CallClaim
    tool: Tool
    arguments: Mapping[str, Any]
    """As the tool gets them."""
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
        return error_result(OTHER_EFFECT)
    return None


def refuse_guest(call: GateContext) -> ToolResult | None:
    """Refuse an effect that guests of a chat may not cause."""
    if may_be_called_for(call.claim.loaded.origin, call.tool.spec.replay_of(call.arguments)):
        return None
    return replace(error_result(NOT_FOR_GUESTS), refusal=Refusal(by=RefusedBy.RULES, reason=NOT_FOR_GUESTS))


def refuse_surplus_delegation(call: GateContext) -> ToolResult | None:
    """Refuse a delegation where as many calls before it in its reply delegate as a run may have children."""
    allowed = call.parts.delegation.children_max
    before = call.claim.neighbours[: call.claim.position]
    if call.tool.spec.name != DELEGATE_TOOL or before.count(DELEGATE_TOOL) < allowed:
        return None
    return error_result(TOO_MANY_DELEGATIONS.format(allowed=allowed))


def block_repetition(call: GateContext) -> ToolResult | None:
    """Block a call that repeats itself in vain."""
    pattern = guardrails.find_block(call.claim.precedent, call.parts.guardrails)
    if pattern is None:
        return None
    count("guardrail.blocked")
    text = guardrails.format_block(call.tool.spec.name, pattern, call.claim.precedent)
    return ToolResult(text=text, is_error=True)


def wait_for_permission(call: GateContext) -> ToolResult | None:
    """Refuse a dangerous command, or leave a question to a person or to a model about it.

    Where the sandbox confines a program, no person is asked about it merely because it is one: the sandbox decides what
    it can reach, and the calls that it makes are judged one by one.
    """
    claim, rules, waits = call.claim, call.parts.approvals, call.parts.waits
    command = _command_of(call.tool, call.arguments)
    policy = rules.session_policy(call.context.session)
    if _is_confined(call):
        policy = replace(policy, allowed=policy.allowed | {CODE_FLAG})
    if command is None:
        return _wait_for_skill(call, policy)
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
            return ToolResult(text="", consultation=verdict_consultation(command, decision))
        decision = apply_verdict(decision, read_verdict(call.judged, command, decision))
    if isinstance(decision, Deny):
        log.info("command.blocked", tool=call.tool.spec.name)
    return _result_of_decision(decision, command, call.arguments, expires_s)


GATES: tuple[CallGate, ...] = (
    refuse_other_effect,
    refuse_guest,
    refuse_surplus_delegation,
    block_repetition,
    wait_for_permission,
)
"""In the order in which they are asked: a person is asked last, and only about a call that would run."""


def _is_confined(call: GateContext) -> bool:
    """Whether the call is a script that reaches only the files and the network that the sandbox gives it."""
    workspace = call.context.workspace
    is_script = call.tool.spec.code_argument is not None
    return is_script and isinstance(workspace, ConversingWorkspace) and workspace.confines(call.context.origin)


def _wait_for_skill(call: GateContext, policy: ApprovalPolicy) -> ToolResult | None:
    """The result that stands in for a call that changes a skill where a person must allow each change; ``None`` when
    the call may run.
    """
    rules, arguments = call.parts.approvals, call.arguments
    if call.tool.spec.name != SKILL_MANAGE_TOOL or not rules.asks_for_skills or call.claim.is_approved:
        return None
    terms = call.parts.waits.load_terms(call.claim.run_pk)
    decision = _DECISIONS_ON_SKILLS[rules.narrow_policy(policy, terms).unattended]
    # The person who allows the change is shown the text that it writes.
    texts = (f"{name}: {value}" for name, value in arguments.items() if name not in ("action", "name"))
    command = "\n".join((f"{SKILL_MANAGE_TOOL} {arguments['action']} {arguments['name']}", *texts))
    return _result_of_decision(decision, command, arguments, terms.approval_s or rules.timeout_s)


def _result_of_decision(
    decision: Decision, command: str, arguments: Mapping[str, Any], expires_s: float | None
) -> ToolResult | None:
    """The result that the model or a person gets in place of the call; ``None`` when it may run."""
    match decision:
        case Allow():
            return None
        case Deny(reason=reason):
            return replace(error_result(reason), refusal=Refusal(by=RefusedBy.RULES, reason=reason))
        case Ask():
            request = {
                "command": command,
                "description": decision.description,
                "pattern_key": decision.pattern_keys[0],
                "pattern_keys": decision.pattern_keys,
                "arguments": canonical_json(dict(arguments)),
            }
            choices = [choice.value for choice in decision.choices]
            question = Question(kind=WaitKind.APPROVAL, request=request, choices=choices, expires_s=expires_s)
            return ToolResult(text="", question=question)


def _command_of(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """The command that the call runs. A program is judged as one that a shell hands to an interpreter."""
    name, program = tool.spec.command_argument, tool.spec.code_argument
    command = arguments.get(name) if name is not None else None
    if isinstance(command, str):
        return command
    code = arguments.get(program) if program is not None else None
    return f"python3 -c {shlex.quote(code)}" if isinstance(code, str) else None
