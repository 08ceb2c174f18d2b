"""Targets that no worker has credentials for, and what runs said and did not arrive."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from serving import Served
from support.store import Store

from hermes_worker.core.effects import SendDelivery
from hermes_worker.core.errors import Failure
from hermes_worker.store.outbox.deliveries import Deliveries

WHY = (
    "Invalid 'deliver': nothing can be sent to telegram: no worker that delivers has TELEGRAM_BOT_TOKEN; set it where "
    "the workers start, or choose another target."
)


def submit(http: httpx.Client, **body: Any) -> httpx.Response:
    return http.post("/v1/runs", json={"input": "hello", **body})


def test_a_run_whose_answer_nobody_could_send_is_refused(api: Served, http: httpx.Client, store: Store) -> None:
    assert submit(http, deliver="telegram:42").status_code == 202, "no worker says what it has"
    store.workers.register(name="sends", queues="delivery", ttl_s=60.0, sends_with=["SLACK_BOT_TOKEN"])
    refused = submit(http, deliver=["slack:C1", "telegram:42"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "undeliverable_target")
    assert refused.json()["error"]["message"] == WHY
    for fine in ("slack:C1", "local", "webhook:https://example.org/hook"):
        assert submit(http, deliver=fine).status_code == 202
    several = http.post(
        "/v1/batch/runs", json={"runs": [{"input": "a", "deliver": "telegram"}, {"input": "b", "deliver": "slack"}]}
    ).json()
    assert [one.get("error", {}).get("code") for one in several["data"]] == ["undeliverable_target", None]
    kept = http.post(
        "/api/jobs", json={"name": "n", "schedule": "every 1h", "prompt": "x", "deliver": "telegram"}
    ).json()
    assert "nothing can be sent to telegram: no worker" in kept["job"]["notice"]
    store.workers.register(name="more", queues="delivery", ttl_s=60.0, sends_with=["TELEGRAM_BOT_TOKEN"])
    assert submit(http, deliver="telegram:42").status_code == 202


@pytest.mark.parametrize("is_abandoned", [True, False])
def test_a_run_tells_what_did_not_arrive(api: Served, http: httpx.Client, store: Store, is_abandoned: bool) -> None:
    outbox = Deliveries(store.database)
    run_id, fine = (submit(http, deliver="telegram:42").json()["run_id"] for _ in range(2))
    for each in (run_id, fine):
        store.answer(each)
    assert "undelivered" not in http.get(f"/v1/runs/{run_id}").json(), "nobody has tried yet"
    [effect] = outbox.list(run_id=run_id)
    claim = outbox.claim(SendDelivery(run_id=run_id, delivery_id=effect.delivery_id, attempt=1), store.owner)
    assert claim is not None
    failure = Failure(kind="unavailable", message="no answer from telegram, token sk-" + "a" * 40)
    if is_abandoned:
        outbox.settle_failed(claim, failure, is_abandoned=True)
    else:
        outbox.postpone_retry(claim, failure, delay_s=60.0, adjustments=(), is_in_doubt=False)
    [told] = http.get(f"/v1/runs/{run_id}").json()["undelivered"]
    assert (told["target"], told["attempts"]) == ("telegram:42", 1)
    assert told["state"] == ("abandoned" if is_abandoned else "pending")
    assert "a" * 40 not in told["error"]
    listed = {one["run_id"]: one.get("undelivered") for one in http.get("/v1/runs").json()["data"]}
    assert listed == {run_id: [told], fine: None}
    assert http.get(f"/v1/sheets/{run_id}").json()["view"]["undelivered"] == [{"not_before": None, **told}]
