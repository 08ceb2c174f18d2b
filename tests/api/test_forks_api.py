"""Forks over HTTP, with both clients and from the command line."""

from __future__ import annotations

from pathlib import Path

import httpx
from remote_lines import local_line
from serving import Served
from support.store import ANSWER, Store, asks
from test_fleet_api import acme, submit  # noqa: F401  (a fixture)
from test_tenants import client, tenants  # noqa: F401  (fixtures)

from hermes_worker.client import HermesClient
from hermes_worker.core.messages import ModelReply
from hermes_worker.core.replay import Replay


def test_a_fork_is_accepted_once_and_is_a_run_like_any_other(api: Served, store: Store) -> None:
    run_id = api.submit()
    store.ask_tools(run_id, asks(Replay.ONCE))
    store.settle(run_id)
    store.answer(run_id)
    with HermesClient(api.url, api_key=api.key) as client:  # noqa: F811
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


def test_a_fork_is_called_after_its_original_and_is_listed(api: Served, store: Store) -> None:
    run_id = api.submit(input="Count the stars")
    store.ask_tools(run_id, asks(Replay.PURE))
    store.settle(run_id)
    store.answer(run_id)
    forks = [
        api.http.post(f"/v1/runs/{run_id}/fork", json=body).json() for body in ({"at": 1}, {"at": 0, "replay": "r"})
    ]
    hermes = local_line(api)
    for fork, step in zip(forks, (1, 0), strict=True):
        shown = api.http.get(f"/v1/runs/{fork['run_id']}").json()
        assert shown["title"] == shown["session_title"] == f"Count the stars (fork from step {step})"
        assert (shown["forked_from"], shown["fork_step"]) == (run_id, step)
        assert f"fork of   {run_id}, behind step {step}" in hermes.inline("runs", "show", fork["run_id"]).out
    assert hermes.inline("runs", "list", "-o", "name").out.split() == [forks[0]["run_id"], run_id]
    assert hermes.inline("runs", "list", "--all", "-o", "name").out.split()[0] == forks[1]["run_id"]
    again = api.http.post(f"/v1/runs/{run_id}/fork", json={"at": 2})
    assert again.status_code == 409
    told = again.json()["error"]["message"]
    assert f"step 2 of run {run_id!r} is its answer" in told
    assert "'hermes-worker sessions fork'" in told and "behind step 0 and 1" in told


def test_a_comparison_shows_the_calls_that_differ_and_how_to_see_the_rest(api: Served, store: Store) -> None:
    first, second = api.submit(input="Count"), api.submit(input="Count")
    for run_id, many in ((first, 2), (second, 1)):
        store.ask_tools(run_id, asks(*[Replay.PURE] * many))
        for position in range(many):
            store.settle(run_id, position, "\n".join(map(str, range(60))))
    told = api.http.get(f"/v1/runs/{first}/comparison", params={"with": second}).json()
    assert (told["differs_at"], told["calls"], told["other_calls"]) == (1, ["1.0", "1.1"], ["1.0"])
    shown = local_line(api).inline("runs", "compare", first, second).out
    assert shown.count("  asked:") == 3
    assert f"… 50 more lines, 'hermes-worker runs calls {first} 1.1 --all' opens them" in shown


def test_two_runs_are_compared_step_by_step_over_http_and_in_the_terminal(
    api: Served,
    store: Store,
    acme: httpx.Client,  # noqa: F811
) -> None:
    first, second = api.submit(input="Count"), api.submit(input="Count", model="other")
    for run_id in (first, second):
        store.ask_tools(run_id, asks(Replay.ONCE))
        store.settle(run_id)
    path, named = f"/v1/runs/{first}/comparison", {"with": second}
    assert api.http.get(path, params=named).json()["differs_at"] is None
    store.answer(first, ModelReply(text="12"))
    told = api.http.get(path, params=named).json()
    assert (told["differs_at"], told["does"], told["other_does"]) == (2, 'says "12"', None)
    assert (told["steps"], told["other_steps"]) == (2, 1)
    shown = local_line(api).inline("runs", "compare", first[:16], second).out
    assert "step 2 is the first that differs" in shown
    assert f"\n{second}  does nothing more" in shown
    assert "other" in next(line for line in shown.splitlines() if line.startswith("model"))
    theirs = submit(acme)
    for wrong in (theirs, "run_no"):
        assert api.http.get(path, params={"with": wrong}).status_code == 404


def test_steps_are_counted_from_the_beginning_of_a_run_also_in_forks_and_later_turns(api: Served, store: Store) -> None:
    first = api.submit(input="Count", session_id="s")
    store.answer(first, ModelReply(text="one"))
    first, second = api.submit(input="Count", session_id="s"), api.submit(input="Count")
    for run_id in (first, second):
        store.ask_tools(run_id, asks(Replay.ONCE))
        store.settle(run_id)
    store.answer(first, ModelReply(text="douze"))
    store.answer(second, ModelReply(text="twelve"))
    assert find_difference(api, first, second) == (2, 'says "douze"', 'says "twelve"')
    fork = api.http.post(f"/v1/runs/{first}/fork", json={"at": 1, "tools": "deny"}).json()["run_id"]
    assert find_difference(api, fork, first) == (2, None, 'says "douze"')
    store.answer(fork, ModelReply(text="twelve"))
    assert find_difference(api, fork, first) == (2, 'says "twelve"', 'says "douze"')
    assert find_difference(api, fork, second) == (None, None, None)


def find_difference(api: Served, run_id: str, other: str) -> tuple[int | None, str | None, str | None]:
    told = api.http.get(f"/v1/runs/{run_id}/comparison", params={"with": other}).json()
    return told["differs_at"], told["does"], told["other_does"]


def test_a_key_that_is_no_key_is_refused(api: Served, store: Store) -> None:
    run_id = api.submit()
    for key in (b"k" * 257, "ü".encode(), b"a\tb"):
        refused = api.http.post(f"/v1/runs/{run_id}/fork", json={"at": 0}, headers=[(b"Idempotency-Key", key)])
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Idempotency-Key"), key


def test_the_command_says_the_id_and_reads_the_prompt(api: Served, tmp_path: Path) -> None:
    begun = api.submit()
    prompt = tmp_path / "prompt.md"
    prompt.write_text("Be brief.")
    hermes = local_line(api)
    done = hermes.inline("runs", "fork", begun, "--at", "0", "--prompt", str(prompt), "--json")
    assert '"tools": "recorded"' in done.out
    prompt.write_bytes(b"\xff")
    assert "no text in UTF-8" in hermes.inline("runs", "fork", begun, "--at", "0", "--prompt", str(prompt)).err


def test_a_replay_reports_each_run_beside_its_original(api: Served, store: Store) -> None:
    originals = [api.submit(), api.submit()]
    store.ask_tools(originals[0], asks(Replay.ONCE))
    store.settle(originals[0])
    for each in originals:
        store.answer(each)
    with HermesClient(api.url, api_key=api.key) as client:  # noqa: F811
        forks = [client.fork_run(each, 0, tools="offline", replay="nightly.1").run_id for each in originals]
        store.answer(forks[0])
        report = client.replay("nightly.1")
        assert [(row.run_id, row.replay_run_id) for row in report.data] == list(zip(originals, forks, strict=True))
        assert [row.problem for row in report.data] == [None, "the replay ended as unfinished"]
        first = report.data[0]
        # The original asked a tool before it answered, and the replay answers at once.
        assert (first.differs_at, first.answer_before, first.answer_after) == (1, ANSWER.text, ANSWER.text)
        assert (report.runs, report.not_played, report.steps_before, report.good) == (2, 0, 3, {})

        client.grade_replay("nightly.1", {forks[0]: {"exact": True}, "run_of_somebody": {"exact": True}})
        client.grade_replay("nightly.1", {forks[0]: {"polite": False}})
        assert client.replay("nightly.1").data[0].grades == {"exact": True, "polite": False}
        assert [(each.name, each.runs) for each in client.replays()] == [("nightly.1", 2)]
    for wrong in ({"run": {"exact": "yes"}}, {"run": {"": True}}):
        assert api.http.put("/v1/replays/nightly.1/grades", json={"grades": wrong}).status_code == 400, wrong


def test_a_replay_of_nobody_is_not_found_and_live_runs_are_no_part_of_one(api: Served, store: Store) -> None:
    run_id = api.submit()
    for answer in (api.http.get("/v1/replays/none"), api.http.put("/v1/replays/none/grades", json={"grades": {}})):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "replay_not_found")
    live = api.http.post(f"/v1/runs/{run_id}/fork", json={"at": 0, "tools": "live", "replay": "r"})
    assert (live.status_code, live.json()["error"]["param"]) == (400, "replay")
    assert api.http.get("/v1/replays").json()["data"] == []
