"""What operators are told of keys of providers."""

from __future__ import annotations

import httpx
from support.store import Store

from hermes_worker.core.key_states import Finding, KeyCondition
from hermes_worker.store.key_states import KeyStates


def test_closed_keys_are_listed_with_what_was_said(store: Store, http: httpx.Client) -> None:
    assert http.get("/v1/providers/states").json() == {"object": "list", "data": []}
    found = Finding(condition=KeyCondition.NO_MONEY)
    KeyStates(store.database).record_failure(("openai", "key1"), found, run_id="run_1", reason="pay first")
    [row] = http.get("/v1/providers/states").json()["data"]
    assert row["probe_at"] > row["since"]
    assert {name: row[name] for name in row if not name.endswith(("_at", "since"))} == {
        "credential": "key1",
        "provider": "openai",
        "condition": "no_money",
        "epoch": 1,
        "probes": 0,
        "is_probed": False,
        "parked": 0,
        "reason": "pay first",
    }
