"""The gates before a tool call, as functions of what they look at, and the order in which they are asked."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.core.delegation import DELEGATE_TOOL, DelegationPolicy
from hermes_worker.core.guardrails import NO_PRECEDENT, GuardrailRules, Precedent
from hermes_worker.core.notices import NOT_FOR_GUESTS, OTHER_EFFECT
from hermes_worker.core.questions import RefusedBy
from hermes_worker.core.replay import Replay
from hermes_worker.core.sources import GUEST_SOURCE
from hermes_worker.store.runs.calls import CallClaim
from hermes_worker.tasks.calls import permission
from hermes_worker.tasks.calls.approval_rules import ApprovalRules
from hermes_worker.tasks.calls.permission import GateContext, find_stand_in
from hermes_worker.tasks.context import RunRules, WorkerContext


def gated(
    name: str = "terminal",
    arguments: Mapping[str, Any] | None = None,
    *,
    replay: Replay = Replay.ONCE,
    origin: str = "api",
    neighbours: tuple[str, ...] = (),
    position: int = 0,
    precedent: Precedent = NO_PRECEDENT,
    guardrails: GuardrailRules | None = None,
    approvals: ApprovalRules | None = None,
) -> GateContext:
    """What the gates look at, without a store: a gate that asked one would raise."""
    claim = SimpleNamespace(
        replay=replay,
        loaded=SimpleNamespace(origin=origin),
        neighbours=neighbours,
        position=position,
        precedent=precedent,
        is_approved=False,
    )
    rules = RunRules(
        delegation=DelegationPolicy(children_max=2),
        guardrails=guardrails or GuardrailRules(),
        approvals=approvals or ApprovalRules(),
    )
    parts = SimpleNamespace(rules=rules, rows=SimpleNamespace(waits=None))
    return GateContext(
        parts=cast(WorkerContext, parts),
        claim=cast(CallClaim, claim),
        tool=build_default_catalog().get(name),
        arguments=arguments or {"command": "ls"},
        context=cast(ToolContext, SimpleNamespace(session={}, workspace=None, origin=None)),
    )


def test_a_harmless_call_passes_every_gate() -> None:
    assert find_stand_in(gated()) is None


def test_a_call_that_was_claimed_as_repeatable_must_not_become_one_that_runs_once() -> None:
    result = find_stand_in(gated(replay=Replay.PURE))
    assert result is not None
    assert OTHER_EFFECT in result.text


def test_a_guest_causes_no_effect() -> None:
    refused = permission.refuse_guest(gated(origin=GUEST_SOURCE))
    assert refused is not None
    assert (refused.is_error, NOT_FOR_GUESTS in refused.text) == (True, True)
    assert refused.refusal is not None
    assert refused.refusal.by is RefusedBy.RULES
    assert permission.refuse_guest(gated("read_file", {"path": "x"}, origin=GUEST_SOURCE)) is None


@pytest.mark.parametrize(("position", "passes"), [(0, True), (1, True), (2, False)])
def test_delegations_of_one_reply_are_counted_in_its_order(position: int, passes: bool) -> None:
    call = gated(DELEGATE_TOOL, {"goal": "x"}, neighbours=(DELEGATE_TOOL,) * 3, position=position)
    assert (permission.refuse_surplus_delegation(call) is None) is passes


def test_other_tools_behind_delegations_are_no_surplus() -> None:
    call = gated(neighbours=(DELEGATE_TOOL, DELEGATE_TOOL, "terminal"), position=2)
    assert permission.refuse_surplus_delegation(call) is None


def test_repetition_in_vain_is_blocked_where_guardrails_stop() -> None:
    precedent = Precedent(exact_failures=5)
    blocked = permission.block_repetition(gated(precedent=precedent, guardrails=GuardrailRules(stops=True)))
    assert blocked is not None
    assert '"action":"block"' in blocked.text
    assert permission.block_repetition(gated(precedent=precedent)) is None


def test_a_denied_command_asks_nobody() -> None:
    refused = permission.wait_for_permission(gated(approvals=ApprovalRules(deny=("ls*",))))
    assert refused is not None
    assert (refused.question, refused.consultation) == (None, None)
    assert refused.refusal is not None


def test_the_first_gate_that_refuses_counts_and_no_later_one_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def gate(name: str, result: ToolResult | None) -> permission.CallGate:
        def decide(_call: GateContext) -> ToolResult | None:
            asked.append(name)
            return result

        return decide

    first, second = ToolResult(text="first"), ToolResult(text="second")
    monkeypatch.setattr(permission, "GATES", (gate("a", None), gate("b", first), gate("c", second)))
    assert find_stand_in(gated()) is first
    assert asked == ["a", "b"]


def test_a_person_is_asked_last() -> None:
    """A question that is shown to a person is about a call that every other rule allows."""
    assert permission.GATES[-1] is permission.wait_for_permission
