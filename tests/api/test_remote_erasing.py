"""``export`` and ``erase`` over a server: line by line, request after request, with a receipt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from remote_lines import at_server, keyed_file, local_line, same
from serving import Served
from support.commandline import CommandLine
from support.cutting import CuttingProxy
from support.store import Store
from support.two_people import ANNA, BERT, People, traces

from hermes_worker.core.principals import KeyScope
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.local.paths import get_workspaces_dir
from hermes_worker.store.access.principals import Tenants

WHOM = ["--holder", ANNA, "--principal", f"cli:{ANNA}", "--target", f"telegram:{ANNA}"]


@pytest.fixture
def local(api: Served) -> CommandLine:
    return local_line(api)


@pytest.fixture
def remote(api: Served, tmp_path: Path) -> CommandLine:
    return at_server(api.url, tmp_path, keyed_file(tmp_path / "key", api.key))


@pytest.fixture
def anna(store: Store) -> list[str]:
    """The runs of one of two people."""
    people = People(store)
    people.live(BERT)
    found = people.live(ANNA)
    people.settle()
    return found


def test_an_export_is_the_same_line_by_line_and_a_broken_one_is_none(
    api: Served, local: CommandLine, remote: CommandLine, anna: list[str], tmp_path: Path
) -> None:
    same(local, remote, [["data", "export", *WHOM], ["data", "export", "--session", anna[0]]])
    for hermes in (local, remote):
        nobody = hermes.inline("data", "export", "--principal", "nobody")
        assert (nobody.code, nobody.out) == (2, "")
        assert "nothing of the tenant 'default' is known by the principal 'nobody'" in nobody.err
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    written = [
        hermes.inline("data", "export", *WHOM, "--out", str(out)).out
        for hermes, out in ((local, here), (remote, there))
    ]
    assert written[0] == written[1] != ""
    assert here.read_bytes() == there.read_bytes()
    assert "say whom" in remote.inline("data", "export").err
    port = int(api.url.rpartition(":")[2])
    with CuttingProxy(port, lambda n: 9_000) as proxy:
        cut = remote.inline("data", "export", *WHOM, "--server", proxy.url)
    assert (cut.code, "is not all there is" in cut.err) == (2, True)


def test_an_erasure_goes_on_request_after_request_and_leaves_a_receipt(
    api: Served,
    local: CommandLine,
    remote: CommandLine,
    store: Store,
    anna: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    note = get_workspaces_dir(api.client.settings.home) / anna[0] / "note.txt"
    note.parent.mkdir(parents=True)
    note.write_text(ANNA)
    same(
        local,
        remote,
        [
            ["data", "erase", *WHOM],
            ["data", "erase", *WHOM, "--json"],
            ["data", "erase", "--resume"],
            ["data", "erase", "--receipts"],
        ],
    )
    monkeypatch.setattr(
        "hermes_worker.features.retention.erasure_routes._AT_IT_S", 0.0
    )  # a chain or a session for each request
    done = remote.inline("data", "erase", *WHOM, "--yes", "--json")
    assert done.code == 0, done.err
    receipt = json.loads(done.out)
    assert (receipt["erased"]["runs"], receipt["erased"]["workspaces"], receipt["by"][:4]) == (5, 1, "api:")
    assert not note.exists()
    assert {name: n for name, n in traces(store, ANNA).items() if name != "audit_log.facts"} == {}
    kept = tmp_path / "receipts.jsonl"
    kept.write_text(done.out)
    same(
        local,
        remote,
        [
            ["data", "erase", "--receipt", receipt["receipt"]],
            ["data", "erase", "--receipts"],
            ["data", "erase", "--resume"],
        ],
    )
    again = json.loads(remote.inline("data", "erase", "--replay", str(kept), "--json").out)
    assert (again["replays"], again["erased"]) == (receipt["receipt"], {})
    for hermes in (local, remote):
        refused = hermes.inline("data", "erase", "--receipt", "era_0")
        assert (refused.code, "there is no receipt 'era_0'" in refused.err) == (2, True)


def test_what_is_at_work_or_held_is_not_erased(local: CommandLine, remote: CommandLine, store: Store) -> None:
    run_id = store.submit(principal="cli:carl").run_id
    whom = ["--principal", "cli:carl", "--yes"]
    here, there = local.inline("data", "erase", *whom), remote.inline("data", "erase", *whom)
    assert (here.code, there.code) == (2, 2)
    assert there.err.startswith(here.err.rstrip()[:-1])
    number = local.inline("data", "retention", "hold", "--run", run_id, "--reason", "a court").out.split()[0]
    assert "legal holds keep some of it" in remote.inline("data", "erase", *whom, "--stop").err
    assert local.inline("data", "retention", "release", number).code == 0
    done = remote.inline("data", "erase", *whom, "--stop", "--json")  # it waited for a worker, so it ends at once
    assert done.code == 0, done.err
    assert json.loads(done.out)["erased"]["runs"] == 1
    busy = store.with_tools(Replay.PURE, principal="cli:carl")
    store.call(busy)  # a worker is at it
    waited = remote.inline("data", "erase", *whom, "--stop", "--wait-s", "0")
    assert (waited.code, "erase --resume --stop" in waited.err) == (2, True)
    assert store.status(busy) in (RunStatus.STOPPING, RunStatus.CANCELLED)


def test_only_an_operator_erases_a_whole_tenant(api: Served, remote: CommandLine, store: Store, tmp_path: Path) -> None:
    tenants = Tenants(api.client.database)
    tenants.create_tenant("acme")
    store.answer(store.submit(tenant="acme", principal="api:x/y").run_id)
    key = keyed_file(tmp_path / "acme", tenants.create_key("acme", "ci", [KeyScope.ADMIN]).token)
    guest = ["--key-file", str(key)]
    refused = remote.inline("data", "erase", "--everybody", "--yes", *guest)
    assert (refused.code, "an operator erases a whole tenant" in refused.err) == (2, True)
    assert "Tenant not found" in remote.inline("data", "export", "--everybody", "--tenant", "bolt", *guest).err
    assert json.loads(remote.inline("data", "erase", "--everybody", "--json", *guest).out)["would_erase"]["runs"] == 1
    done = remote.inline("data", "erase", "--everybody", "--tenant", "acme", "--yes", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["erased"]["runs"] == 1
    assert remote.inline("data", "erase", "--receipts").out == ""  # of the key's own tenant
    assert remote.inline("data", "erase", "--receipts", "--tenant", "acme").out == done.out
