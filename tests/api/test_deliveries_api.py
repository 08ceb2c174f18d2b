"""/v1/deliveries, on a real server."""

from __future__ import annotations

import httpx
import pytest
from remote_lines import local_line
from serving import Served, hints_waiting, until
from support.store import Store

from hermes_worker.client import HermesClient
from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.core.effects import SendDelivery
from hermes_worker.core.errors import Failure
from hermes_worker.store.outbox.deliveries import Deliveries


def delivered(store: Store, target: str) -> str:
    """A run that ended, with one delivery owed; returns the delivery's id."""
    (hint,) = store.answer(store.submit(deliver=[target]).run_id)
    assert isinstance(hint.effect, SendDelivery)
    return hint.effect.delivery_id


def settled(store: Store, target: str, error: str = "HTTP 500") -> str:
    delivery_id = delivered(store, target)
    outbox = Deliveries(store.database)
    claim = outbox.claim(SendDelivery(run_id="", delivery_id=delivery_id, attempt=1), store.owner)
    assert claim is not None
    outbox.settle_failed(claim, Failure(kind="transient", message=error), is_abandoned=True)
    return delivery_id


def test_deliveries_are_listed_newest_first_page_by_page(http: httpx.Client, store: Store) -> None:
    ids = [delivered(store, f"telegram:{number}") for number in range(3)]
    first = http.get("/v1/deliveries", params={"limit": 2}).json()
    assert [one["delivery_id"] for one in first["data"]] == ids[:0:-1]
    assert first["has_more"] is True
    second = http.get("/v1/deliveries", params={"limit": 2, "before": first["data"][-1]["delivery_id"]}).json()
    assert [one["delivery_id"] for one in second["data"]] == ids[:1]
    assert second["has_more"] is False
    assert first["data"][0]["target"] == "telegram:2"
    of_run = http.get("/v1/deliveries", params={"run_id": first["data"][0]["run_id"]}).json()
    assert [one["delivery_id"] for one in of_run["data"]] == ids[2:]
    assert http.get("/v1/deliveries", params={"state": "failed"}).json()["data"] == []


@pytest.mark.parametrize(
    ("query", "param"), [("before=dlv_no", "before"), ("state=lost", "state"), ("limit=0", "limit"), ("x=1", "x")]
)
def test_a_wrong_question_is_answered_with_what_is_wrong(http: httpx.Client, query: str, param: str) -> None:
    answer = http.get(f"/v1/deliveries?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_delivery_is_shown_without_secrets(http: httpx.Client, store: Store) -> None:
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    delivery_id = settled(store, f"webhook:https://example.org/{secret}", error=f"refused {secret}")
    answer = http.get(f"/v1/deliveries/{delivery_id}")
    assert "abcdefghijklmnop" not in answer.text
    document = answer.json()
    assert (document["state"], document["attempts"]) == ("abandoned", 1)
    assert document["target"] == "webhook:https://example.org/***"


def test_a_settled_delivery_is_sent_again_and_announced(api: Served, store: Store) -> None:
    delivery_id = settled(store, "telegram:1")
    answer = api.http.post(f"/v1/deliveries/{delivery_id}/retry")
    assert answer.status_code == 202
    assert answer.json()["state"] == "pending"
    until(lambda: hints_waiting(api.client) == 1, "the hint")
    document = api.http.get(f"/v1/deliveries/{delivery_id}").json()
    assert (document["attempts"], document["is_retried"]) == (0, True)
    [retried] = document["retries"]
    assert (retried["state"], retried["attempts"], retried["by"].partition(":")[0]) == ("abandoned", 1, "api")
    [listed] = api.http.get("/v1/deliveries").json()["data"]
    assert listed["is_retried"]
    again = api.http.post(f"/v1/deliveries/{delivery_id}/retry")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "delivery_not_settled")


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/retry")])
def test_an_unknown_delivery_is_not_found(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, f"/v1/deliveries/dlv_0{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "delivery_not_found")


def test_a_script_sends_a_message_with_the_client_and_from_the_command_line(api: Served, store: Store) -> None:
    with HermesClient(api.url, api_key=api.key) as client:
        [sent] = client.send_message("telegram:1", "disk is full")
        assert (client.delivery(sent.delivery_id).target, sent.state) == ("telegram:1", DeliveryState.PENDING)
    said = local_line(api).inline("gateway", "send", "telegram:1", "disk is full", "--wait", "0")
    assert (said.code, said.out.split()[1:3]) == (0, ["pending", "telegram:1;"])


def test_a_message_is_sent_without_a_run_once_to_each_target(http: httpx.Client, store: Store) -> None:
    body = {"target": "telegram:1, webhook:https://example.org/x", "text": "the disk is full"}
    first = http.post("/v1/deliveries", json=body, headers={"Idempotency-Key": "disk"})
    again = http.post("/v1/deliveries", json=body, headers={"Idempotency-Key": "disk"})
    assert (first.status_code, again.json()) == (202, first.json())
    made = first.json()["data"]
    assert [(one["target"], one["state"]) for one in made] == [
        ("telegram:1", "pending"),
        ("webhook:https://example.org/***", "pending"),
    ]
    assert len(http.get("/v1/deliveries").json()["data"]) == 2
    effect = SendDelivery(run_id="", delivery_id=made[0]["delivery_id"], attempt=1)
    claim = Deliveries(store.database).claim(effect, store.owner)
    assert claim is not None
    assert claim.body == "the disk is full"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"target": "telegram:1", "text": " "}, "text"),
        ({"target": "origin", "text": "x"}, "target"),
        ({"target": "nowhere:1", "text": "x"}, "target"),
        ({"target": "", "text": "x"}, "target"),
        ({"target": "telegram:1"}, "text"),
        ({"target": "telegram:1", "text": "x", "run_id": "y"}, "run_id"),
    ],
)
def test_a_message_that_cannot_be_sent_is_refused_with_the_field(
    http: httpx.Client, body: dict[str, str], param: str
) -> None:
    answer = http.post("/v1/deliveries", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
