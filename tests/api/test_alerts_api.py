"""What operators are told of alerts."""

from __future__ import annotations

import httpx
from support.store import Store

from hermes_worker.core.key_states import Finding, KeyCondition
from hermes_worker.store.key_states import KeyStates
from hermes_worker.store.outbox.alerts import AlertPolicy, sweep_alerts


def test_alerts_are_listed_newest_first(store: Store, http: httpx.Client) -> None:
    assert http.get("/v1/alerts").json() == {"object": "list", "data": []}
    for key in ("key1", "key2"):
        found = Finding(condition=KeyCondition.NO_MONEY)
        KeyStates(store.database).record_failure(("openai", key), found, run_id="run_1", reason="pay first")
        sweep_alerts(store.database, AlertPolicy(targets=("telegram:1",)))
    rows = http.get("/v1/alerts").json()["data"]
    assert [(row["kind"], row["subject"], row["recovered_at"]) for row in rows] == [
        ("provider", "key2", None),
        ("provider", "key1", None),
    ]
    assert [row["subject"] for row in http.get("/v1/alerts", params={"limit": 1}).json()["data"]] == ["key2"]
