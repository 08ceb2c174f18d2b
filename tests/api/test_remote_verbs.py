"""Verbs about jobs, deliveries and the installation over a server: what they print is what the database says."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from remote_lines import at_server, fixed, keyed_file, local_line, played, said, same
from serving import Served
from support.commandline import CommandLine
from support.questions import DANGER
from support.store import Store

from hermes_worker import live_settings
from hermes_worker.core.effects import CallHook, GatherArtifacts
from hermes_worker.core.hooks import build_observed
from hermes_worker.core.key_states import Finding, KeyCondition
from hermes_worker.core.principals import KeyScope
from hermes_worker.core.replay import Replay
from hermes_worker.settings import Settings
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.artifacts.gatherings import Gatherings, KeptFile
from hermes_worker.store.engine.database import Database
from hermes_worker.store.hooks.calls import HookCalls
from hermes_worker.store.key_states import KeyStates
from hermes_worker.store.outbox.alerts import AlertPolicy, sweep_alerts
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.tables import configurations, dead_targets, deliveries, firings, jobs


@pytest.fixture
def api(serve: Callable[..., Served], settings: Settings) -> Served:
    targets = ("telegram:1", "email:ops@example.org")
    return serve(replace(settings, delivery=replace(settings.delivery, alert_targets=targets)))


@pytest.fixture
def local(api: Served) -> CommandLine:
    hermes = local_line(api)
    hermes.environ["HERMES_ALERT_TARGETS"] = "telegram:1,email:ops@example.org"
    return hermes


@pytest.fixture
def remote(api: Served, tmp_path: Path) -> CommandLine:
    return at_server(api.url, tmp_path, keyed_file(tmp_path / "key", api.key))


def both(*lines: list[str]) -> Iterator[list[str]]:
    """Each line as a table and as JSON."""
    for words in lines:
        yield words
        yield [*words, "--json"]


def test_alerts_and_keys_of_providers(local: CommandLine, remote: CommandLine, store: Store) -> None:
    found = Finding(condition=KeyCondition.NO_MONEY)
    KeyStates(store.database).record_failure(("openai", "key1"), found, run_id="run_1", reason="pay first")
    sweep_alerts(store.database, AlertPolicy(targets=("telegram:1",)))
    same(
        local,
        remote,
        [
            *both(["fleet", "alerts", "list"], ["fleet", "providers", "status"]),
            ["fleet", "alerts", "list", "--limit", "1"],
        ],
    )
    same(
        local,
        remote,
        [["fleet", "alerts", "test"], ["fleet", "providers", "open", "key1"], ["fleet", "providers", "status"]],
    )
    refused = remote.inline("fleet", "providers", "open", "nobody")
    assert (refused.code, "nothing is known of a key 'nobody'" in refused.err) == (2, True)


def test_configurations_are_changed_as_in_the_database(
    local: CommandLine, remote: CommandLine, store: Store, api: Served
) -> None:
    session = api.http.get(f"/v1/runs/{api.submit()}").json()["session_id"]
    lines = [
        ["config", "set", "--fleet", "agent.max_turns", "50", "--dry-run"],
        ["config", "set", "--fleet", "agent.max_turns", "50"],
        ["config", "set", "--fleet", "agent.max_turns", "50"],
        ["config", "set", "--tenant", "acme", "agent.max_turns", "20"],
        ["config", "versions", "--text", "1"],
        ["config", "versions", "--tenant", "acme", "--text", "1"],
        ["config", "versions", "--text", "9"],
        ["config", "set", "--tenant", "acme", "lease.ttl_s", "1"],
        ["config", "set", "--session", session, "agent.max_turns", "10"],
        ["config", "set", "--session", session, "agent.max_turns", ""],
    ]
    Tenants(store.database).create_tenant("acme")
    here = played(remote, lines)
    with store.database.write() as connection:
        connection.execute(sa.delete(configurations))
    assert [each[1:] for each in here] == [each[1:] for each in played(local, lines)]  # type: ignore[index]
    assert [each[1] for each in here] == [0, 0, 0, 0, 0, 0, 2, 2, 0, 0]  # type: ignore[index]
    refused = remote.inline("config", "set", "agent.max_turns", "50")
    assert (refused.code, "over a server there is no config.yaml" in refused.err) == (2, True)
    assert not remote.home.exists()
    acts = {json.loads(line)["act"] for line in remote.inline("data", "audit", "list", "--json").out.splitlines()}
    assert "configuration.write" in acts


def test_settings_are_shown_as_the_server_accepts_a_run(
    local: CommandLine, remote: CommandLine, api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_settings, "LOOK_EVERY_S", 0.0)
    session = api.http.get(f"/v1/runs/{api.submit()}").json()["session_id"]
    remote.inline("config", "set", "--fleet", "agent.max_turns", "50")
    remote.inline("config", "set", "--session", session, "agent.max_turns", "10")
    of_session = ["config", "show", "agent.max_turns", "--session", session, "--origin"]
    lines = (["config", "show", "agent.max_turns", "--json"], of_session, ["config", "show", "--all"])
    shown = [remote.inline(*words).out for words in lines]
    assert json.loads(shown[0])["value"] == "50" and json.loads(shown[0])["layer"] == "fleet"
    assert shown[1] == local.inline(*of_session).out and "10" in shown[1]
    assert "server.key" in shown[2] and api.key not in shown[2]
    wrong = (["config", "show", "nothing"], ["config", "show", "--run", "run_no"], [*of_session, "--run", "run_no"])
    assert [remote.inline(*words).code for words in wrong] == [2, 2, 2]
    assert not remote.home.exists()


def test_what_waits_is_answered_and_workers_are_drained(local: CommandLine, remote: CommandLine, store: Store) -> None:
    run_id = store.with_tools(Replay.ONCE)
    Waits(store.database).ask(store.call(run_id), DANGER)
    same(local, remote, [*both(["approvals", "list"], ["approvals", "list", "--all-tenants"])])
    [waiting] = map(json.loads, remote.inline("approvals", "list", "--json").out.splitlines())
    answered = remote.inline("approvals", "answer", str(waiting["id"]), "deny", "--reason", "not here")
    assert answered.code == 0, answered.err
    same(local, remote, [*both(["approvals", "history"])])
    [closed] = map(json.loads, remote.inline("approvals", "history", "--json").out.splitlines())
    assert (closed["outcome"], closed["reason"], closed["run_id"]) == ("deny", "not here", run_id)

    worker_id = store.worker("somewhere").worker_id
    assert remote.inline("fleet", "workers", "drain", "somewhere").out.startswith(worker_id)
    same(local, remote, [*both(["fleet", "workers", "list"])])
    assert "draining" in remote.inline("fleet", "workers", "list").out


def test_deliveries_are_shown_and_sent_again(local: CommandLine, remote: CommandLine, store: Store) -> None:
    run_ids = [store.submit(deliver=["telegram:1", "webhook:https://example.org/hook?key=abc"]).run_id for _ in "ab"]
    for run_id in run_ids:
        store.answer(run_id)
    same(local, remote, [["gateway", "deliveries", "dead"]])
    with store.database.write() as connection:
        dead = {"tenant": "default", "key": "telegram:2", "reason": "gone", "marked_at": 1.0}
        connection.execute(dead_targets.insert().values(**dead))
    first = json.loads(local.inline("gateway", "deliveries", "list", "--json").out.splitlines()[0])["delivery_id"]
    lines = [
        *both(
            ["gateway", "deliveries", "list"],
            ["gateway", "deliveries", "list", "--limit", "2"],
            ["gateway", "deliveries", "show", first],
        ),
        *both(
            ["gateway", "deliveries", "list", "--run", run_ids[0][:16], "--state", "pending"],
            ["gateway", "deliveries", "show", first[:14]],
        ),
        ["gateway", "deliveries", "list", "--state", "failed"],
        ["gateway", "deliveries", "dead"],
    ]
    same(local, remote, lines)
    for hermes in (local, remote):  # it is not settled yet
        assert hermes.inline("gateway", "deliveries", "retry", first).code == 2
    over = sa.update(deliveries).values(state="abandoned", settled_at=1.0, hinted_at=None, attempts=5)
    with store.database.write() as connection:
        connection.execute(over)
    assert remote.inline("gateway", "deliveries", "retry", first).code == 0
    same(local, remote, [["gateway", "deliveries", "show", first]])
    shown = local.inline("gateway", "deliveries", "show", first).out
    assert re.search(r"^retries .* by api:\S+, when it was abandoned after 5 attempts$", shown, re.MULTILINE), shown
    assert "Delivery not found" in remote.inline("gateway", "deliveries", "show", f"dlv_{'0' * 32}").err


def test_what_hooks_were_told_and_a_training_sample(
    local: CommandLine, remote: CommandLine, store: Store, api: Served, tmp_path: Path
) -> None:
    database = Database(api.client.settings.database_url, observed=build_observed([("audit", ("agent:end",))]))
    here = Store.over(database)
    untold, run_id = (here.submit(source="cli").run_id for _ in range(2))
    [effect] = [hint.effect for hint in here.answer(run_id) if isinstance(hint.effect, CallHook)]
    claim = HookCalls(database).claim(effect, here.owner)
    assert claim is not None
    HookCalls(database).settle(claim, "ValueError: no bell")
    database.close()
    same(local, remote, [*both(["runs", "hooks", run_id], ["runs", "hooks", untold])])
    for hermes, name in ((local, "here"), (remote, "there")):
        assert hermes.inline("runs", "export", run_id, "--trajectories", str(tmp_path / name)).code == 0
    here_text, there_text = ((tmp_path / name / "trajectory_samples.jsonl").read_text() for name in ("here", "there"))
    assert here_text == there_text != ""


def test_artifacts_are_fetched_by_signed_addresses_and_their_hashes_looked_at(
    local: CommandLine, remote: CommandLine, store: Store, tmp_path: Path
) -> None:
    none, run_id = store.submit().run_id, store.submit(artifacts=["**"]).run_id
    same(local, remote, [*both(["runs", "artifacts", none], ["runs", "artifacts", run_id])])
    store.answer(run_id)
    gatherings = Gatherings(store.database)
    claim = gatherings.claim(GatherArtifacts(run_id=run_id, attempt=1), store.owner)
    assert claim is not None
    kept = KeptFile(
        path="out/a.txt",
        sha256=hashlib.sha256(b"x").hexdigest(),
        size=1,
        media_type="text/plain",
        modified_at=1.0,
        blob_hash=gatherings.store_content(b"x"),
    )
    gatherings.settle(claim, [kept])
    same(local, remote, [*both(["runs", "artifacts", run_id])])
    fetched = remote.inline("runs", "artifacts", run_id, "--fetch", str(tmp_path / "there"))
    assert (fetched.code, (tmp_path / "there" / "out" / "a.txt").read_bytes()) == (0, b"x")
    assert remote.inline("runs", "artifacts", run_id, "--fetch", str(tmp_path / "there")).code == 2  # it is there


# ---------------------------------------------------------------------------------------------------------------- jobs

ORIGIN = '"origin"'


def test_jobs_are_read_as_in_the_database(local: CommandLine, remote: CommandLine, store: Store) -> None:
    same(local, remote, [["cron", "list"]])
    made = local.inline("cron", "create", "every 1h", "look", "--name", "Nightly", "--repeat", "3", "--json")
    job = json.loads(made.out)["job_id"]
    local.inline("cron", "create", "0 9 * * 1-5", "look again", "--deliver", "telegram:1", "--force")
    local.inline("cron", "run", job)
    with store.database.write() as connection:
        job_pk = connection.execute(sa.select(jobs.c.pk).where(jobs.c.job_id == job)).scalar_one()
        slot = {
            "slot": 1.8e9,
            "outcome": "skipped_overlap",
            "reason": "the run before was at work",
            "settled_at": 1.8e9,
        }
        connection.execute(firings.insert().values(job_pk=job_pk, **slot))
    lines = [*both(["cron", "list"], ["cron", "show", "nightly"], ["cron", "show", job[:5]], ["cron", "history", job])]
    same(local, remote, [*lines, ["cron", "next", job, "--limit", "3"]])
    listed = [json.loads(line) for line in local.inline("cron", "history", job, "--json").out.splitlines()]
    assert listed == [json.loads(line) for line in remote.inline("cron", "history", job, "--json").out.splitlines()]
    unrun = dict.fromkeys(("run_id", "run_status", "execution", "remark", "ended_at"))
    assert {**slot, **unrun, "is_waiting": False} in listed
    for words in (["show", "nobody"], ["remove", "nobody"], ["history", "nobody"], ["pause", "nobody"]):
        here, there = local.inline("cron", *words), remote.inline("cron", *words)
        assert (here.code, here.err) == (there.code, there.err)


def test_jobs_are_changed_as_in_the_database(local: CommandLine, remote: CommandLine) -> None:
    more = "--tokens-per-day 900 --cost-usd-max 1.5 --cost-usd-per-day 2.50 --approvals deny --jitter-s 5 --no-wrap"
    lines = [
        ["cron", "create", "every 1h", "look", "--name", "n", "--toolset", "web", *more.split()],
        ["cron", "create", "every 30m", "see what is new", "--repeat", "4", "--timezone", "Europe/Vienna"],
        ["cron", "edit", "n", "--schedule", "every 2h", "--prompt", "look twice", "--model", "m"],
        ["cron", "edit", "n", "--repeat", "7"],
        ["cron", "edit", "n", "--repeat", "0", "--clear-skills"],
        ["cron", "pause", "n", "--reason", "holidays"],
        ["cron", "list"],
        ["cron", "resume", "n"],
        ["cron", "run", "n"],
        ["cron", "remove", "n"],
        ["cron", "remove", "see what is new"],
        ["cron", "create", "now and then", "look"],
        ["cron", "list"],
    ]
    here, there = played(local, lines), played(remote, lines)
    assert here == there
    assert remote.inline("cron", "create", "every 1h", "x", "--workspace", "/tmp").code == 2


def test_a_job_that_is_made_over_a_server_is_the_same_but_for_who_asked(
    local: CommandLine, remote: CommandLine
) -> None:
    words = ["cron", "create", "every 1h", "look", "--deliver", "telegram:1", "--force", "--json"]
    here, there = (json.loads(hermes.inline(*words).out) for hermes in (local, remote))
    differ = {name for name in here if fixed_value(here[name]) != fixed_value(there[name])}
    assert differ <= {"job_id", "origin", "next_slot", "next_fire_at", "created_at", "updated_at", "schedule"}
    assert there["origin"]["platform"] == "api_server"


def fixed_value(value: object) -> str:
    return json.dumps(value, sort_keys=True)


# ------------------------------------------------------------------------------------------- what agents remember


def test_what_is_remembered_is_changed_as_in_the_database(
    local: CommandLine, remote: CommandLine, tmp_path: Path
) -> None:
    file = tmp_path / "USER.md"
    file.write_text("She is called Ada.\n\u00a7\nShe likes tea.\n")
    lines = [
        ["memory", "list"],
        ["memory", "add", "The tests are run with make."],
        ["memory", "add", "The tests are run with make."],
        ["memory", "import", "--user", str(file)],
        ["memory", "replace", "run with make", "The tests are run with pytest."],
        ["memory", "replace", "nothing of this kind", "x"],
        ["memory", "remove", "--user", "likes tea"],
        ["memory", "undo", "--user"],
        ["memory", "undo", "mem_000000000000"],
        ["memory", "redact", "mem_000000000000@1"],
        ["memory", "approve", "mem_000000000000"],
        ["memory", "decline", "mem_000000000000"],
    ]
    for words in lines:
        here = fixed(local.inline(*words, "--profile", "of-here"))
        assert fixed(remote.inline(*words, "--profile", "of-there")) == here, words
    of_there = ["--profile", "of-there"]
    same(
        local,
        remote,
        [
            *both(["memory", "list", *of_there], ["memory", "history", *of_there]),
            ["memory", "history", "--user", "--limit", "2", *of_there],
            ["memory", "show", *of_there],
            ["memory", "export", "--user", *of_there],
        ],
    )
    first = json.loads(remote.inline("memory", "history", "--json", *of_there).out.splitlines()[-1])
    past = f"{first['entry_id']}@{first['version']}"
    assert "holds no text" in remote.inline("memory", "redact", past, *of_there).out
    same(local, remote, [["memory", "history", *of_there]])


# ------------------------------------------------------------------------------------------------- the audit log, keys


def test_the_audit_log_is_exported_up_to_what_is_settled(
    local: CommandLine, remote: CommandLine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local.inline("cron", "create", "every 1h", "look").code == 0
    monkeypatch.setattr("hermes_worker.features.audit.routes.SETTLED_S", -1.0)
    exported = ["data", "audit", "export"]
    same(local, remote, [exported, [*exported, "--all-tenants"], [*exported, "--after", "0"]])
    assert said(remote.inline(*exported, "--after", "999999")) == (0, "")
    assert json.loads(remote.inline(*exported).out.splitlines()[-1])["act"] == "job.create"


def test_another_tenant_exports_its_own_log_alone(api: Served, remote: CommandLine, tmp_path: Path) -> None:
    tenants = Tenants(api.client.database)
    tenants.create_tenant("acme")
    key = keyed_file(tmp_path / "acme", tenants.create_key("acme", "ci", [KeyScope.ADMIN]).token)
    refused = remote.inline("data", "audit", "export", "--all-tenants", "--key-file", str(key))
    assert (refused.code, "whole installation" in refused.err) == (2, True)


# -------------------------------------------------------------------------------------------------- where it is asked


def test_the_server_may_be_named_before_the_verb_or_behind_it(api: Served, remote: CommandLine, tmp_path: Path) -> None:
    key = str(keyed_file(tmp_path / "mine", api.key))
    del remote.environ["HERMES_SERVER_URL"], remote.environ["HERMES_SERVER_KEY_FILE"]
    before = remote.inline("--server", api.url, "--key-file", key, "cron", "list", "--json")
    behind = remote.inline("cron", "list", "--json", "--server", api.url, "--key-file", key)
    assert (before.code, before.out, before.err) == (behind.code, behind.out, behind.err) == (0, "", "")
    remote.environ["HERMES_SERVER_URL"] = "http://127.0.0.1:1"
    assert remote.inline("--server", api.url, "--key-file", key, "runs", "list").code == 0
    assert remote.inline("runs", "list", "--server", api.url, "--key-file", key).code == 0
    refused = remote.inline("--server", api.url, "start", "worker")
    assert (refused.code, "'start worker' cannot ask a server" in refused.err) == (2, True)
    assert "--server" in remote.inline("--help").out
    assert fixed(remote.inline("start", "worker", "--help"))[0] == 0
