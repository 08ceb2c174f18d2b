"""``hermes-worker fleet providers``."""

from __future__ import annotations

import json

from support.commandline import CommandLine
from support.store import Store

from hermes_worker.core.key_states import Finding, KeyCondition
from hermes_worker.store.key_states import KeyStates


def test_an_operator_sees_closed_keys_and_opens_them(hermes: CommandLine, store: Store) -> None:
    found = Finding(condition=KeyCondition.NO_MONEY)
    KeyStates(store.database).record_failure(("openai", "key1"), found, run_id="run_1", reason="pay first")
    [line] = [
        line for line in hermes.inline("fleet", "providers", "status").out.splitlines() if line.startswith("key1")
    ]
    assert "no_money" in line and "pay first" in line
    assert "may be used" in hermes.inline("fleet", "providers", "open", "key1").out
    [row] = map(json.loads, hermes.inline("fleet", "providers", "status", "--json").out.splitlines())
    assert (row["condition"], row["probe_at"]) == ("open", None)
    refused = hermes.inline("fleet", "providers", "open", "nobody")
    assert refused.code == 2 and "providers status" in refused.err
