"""``send_message`` and the outbox, on both databases."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.inside import inside
from support.store import Store

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.agent.tools.messaging import SendMessageTool
from hermes_worker.core.effects import SendDelivery
from hermes_worker.store.jobs.jobs import Jobs
from hermes_worker.store.outbox.deliveries import Deliveries, DeliveryClaim
from hermes_worker.store.rows import Hint
from hermes_worker.tasks.agent_messages import AgentMessages
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceRef
from hermes_worker.workspaces.sandbox.network import RunOrigin


class Sent:
    """What the broker was told."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def __call__(self, hints: Sequence[Hint]) -> None:
        self.hints += hints


def context_of(run_id: str, tmp_path: Path, **changes: Any) -> ToolContext:
    made = ToolContext(
        run_id=run_id,
        session_id=run_id,
        idempotency_key="call-1",
        attempt=1,
        workspace=open_workspace(WorkspaceRef(kind="local", root=str(tmp_path)), OpeningOptions(base_env={})),
        session={},
        cancelled=threading.Event(),
    )
    return replace(made, **changes)


def call(store: Store, context: ToolContext, sent: Sent | None = None, **arguments: str) -> ToolResult:
    messages = AgentMessages(Deliveries(store.database), Jobs(store.database), sent or Sent())
    return run_tool(SendMessageTool(messages), json.dumps(arguments), context)


def claimed(outbox: Deliveries, hint: Hint, owner: int) -> DeliveryClaim:
    assert isinstance(hint.effect, SendDelivery)
    claim = outbox.claim(hint.effect, owner)
    assert claim is not None
    return claim


def test_a_call_that_is_made_again_owes_nothing_new(store: Store, tmp_path: Path) -> None:
    run_id, sent = store.submit().run_id, Sent()
    context = context_of(run_id, tmp_path)
    for attempt in (1, 2):
        again = replace(context, attempt=attempt)
        result = call(store, again, sent, target="webhook:https://example.org/x", message="It **works**.")
        assert json.loads(inside(result.text))["sent"] is True
    [owed] = Deliveries(store.database).list()
    assert (owed.run_id, owed.target) == (run_id, "webhook:https://example.org/x")
    [hint] = sent.hints
    assert claimed(Deliveries(store.database), hint, store.owner).body == "It **works**."
    call(store, replace(context, idempotency_key="call-2"), sent, target="telegram", message="It **works**.")
    assert len(sent.hints) == 2


def test_a_message_takes_no_target_from_the_answer(store: Store, tmp_path: Path) -> None:
    """The answer of the run goes to ``all``, and one of those was told something before."""
    run_id, sent, outbox = store.submit(deliver=["all"]).run_id, Sent(), Deliveries(store.database)
    call(store, context_of(run_id, tmp_path), sent, target="telegram:-100", message="soon")
    hints = store.answer(run_id)
    [answer] = [hint for hint in hints if isinstance(hint.effect, SendDelivery)]
    claim = claimed(outbox, answer, store.owner)
    assert outbox.list_siblings(claim) == [""]
    expanded = outbox.expand(claim, ["telegram:-100", "slack:C1"])
    assert len(expanded) == 2
    [message] = sent.hints
    assert outbox.list_siblings(claimed(outbox, message, store.owner)) == [""]


def test_where_the_answer_goes_by_itself_no_message_goes(store: Store, tmp_path: Path) -> None:
    run_id, sent = store.submit(deliver=["telegram:-100"]).run_id, Sent()
    context = context_of(run_id, tmp_path)
    told = json.loads(inside(call(store, context, sent, target="telegram:-100", message="x").text))
    assert told["sent"] is False and "by itself" in told["note"]
    assert (sent.hints, Deliveries(store.database).list()) == ([], [])
    listed = json.loads(inside(call(store, context, action="list").text))
    assert listed["your_answer_goes_to"] == ["telegram:-100"] and "slack" in listed["platforms"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"target": "all", "message": "x"},
        {"target": "origin", "message": "x"},
        {"target": "local", "message": "x"},
        {"target": "telegram,slack", "message": "x"},
        {"target": "nowhere:1", "message": "x"},
        {"target": "webhook:http://169.254.169.254:22/", "message": "x"},
        {"target": "apprise:file:///etc/passwd", "message": "x"},
        {"target": "telegram:1", "message": "  "},
        {"target": "telegram:1", "message": "x" * 100_001},
        {"target": "", "message": "x"},
        {"message": "x"},
    ],
)
def test_what_cannot_be_sent_is_said_to_the_model(arguments: dict[str, str], store: Store, tmp_path: Path) -> None:
    assert call(store, context_of(store.submit().run_id, tmp_path), **arguments).is_error
    assert Deliveries(store.database).list() == []


def test_a_tenant_sends_nothing_with_the_credentials_of_the_installation(store: Store, tmp_path: Path) -> None:
    guest = context_of(store.submit().run_id, tmp_path, origin=RunOrigin(tenant="acme"))
    refused = call(store, guest, target="telegram", message="x")
    assert refused.is_error and "credentials" in refused.text
    assert not call(store, guest, target="webhook:https://example.org/x", message="x").is_error


def test_secrets_are_hidden_before_they_leave(store: Store, tmp_path: Path) -> None:
    key, sent = "ghp_" + "HsVJeM39xRFc8vDon3WHOi2MJrqLEpDcwJLA", Sent()
    call(store, context_of(store.submit().run_id, tmp_path), sent, target="telegram:1", message=f"take {key}")
    body = claimed(Deliveries(store.database), sent.hints[0], store.owner).body
    assert body is not None and key not in body and "redacted" in body
