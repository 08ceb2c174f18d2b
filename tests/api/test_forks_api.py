"""Forks over HTTP, with both clients and from the command line."""

from __future__ import annotations

from pathlib import Path

from remote_lines import local_line
from serving import Served
from support.store import Store, asks

from hermes_worker.client import HermesClient
from hermes_worker.core.replay import Replay


def test_a_fork_is_accepted_once_and_is_a_run_like_any_other(api: Served, store: Store) -> None:
    run_id = api.submit()
    store.ask_tools(run_id, asks(Replay.ONCE))
    store.settle(run_id)
    store.answer(run_id)
    with HermesClient(api.url, api_key=api.key) as client:
        made = client.fork_run(run_id, 1, tools="deny", max_iterations=7, idempotency_key="k")
        assert (made.forked_from, made.step, made.tools) == (run_id, 1, "deny")
        again = client.fork_run(run_id, 1, tools="deny", max_iterations=7, idempotency_key="k")
        assert (again.run_id, again.session_id) == (made.run_id, made.session_id)
        shown = client.run(made.run_id)
        assert (shown["status"], shown["model"]) == ("queued", client.run(run_id)["model"])
    other = api.http.post(f"/v1/runs/{run_id}/fork", json={"at": 0}, headers={"Idempotency-Key": "k"})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")


def test_a_step_that_is_not_there_is_a_conflict_that_names_the_others(api: Served, store: Store) -> None:
    run_id = api.submit()
    refused = api.http.post(f"/v1/runs/{run_id}/fork", json={"at": 3})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "run_not_forkable")
    assert "there are 0" in refused.json()["error"]["message"]
    for body in ({}, {"at": -1}, {"at": 0, "tools": "all"}, {"at": 0, "prompt": " "}, {"at": True}):
        assert api.http.post(f"/v1/runs/{run_id}/fork", json=body).status_code == 400, body


def test_the_command_says_the_id_and_reads_the_prompt(api: Served, tmp_path: Path) -> None:
    begun = api.submit()
    prompt = tmp_path / "prompt.md"
    prompt.write_text("Be brief.")
    hermes = local_line(api)
    done = hermes.inline("runs", "fork", begun, "--at", "0", "--prompt", str(prompt), "--json")
    assert '"tools": "recorded"' in done.out
    prompt.write_bytes(b"\xff")
    assert "no text in UTF-8" in hermes.inline("runs", "fork", begun, "--at", "0", "--prompt", str(prompt)).err
