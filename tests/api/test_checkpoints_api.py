"""Checkpoints for whoever asks: over HTTP, with the client, from the command line here and over a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from serving import Served
from support.commandline import CommandLine
from support.store import Store
from support.workspace_hosts import ssh_server

from hermes_worker.client import HermesClient
from hermes_worker.features.checkpoints.files.places import find_store
from hermes_worker.features.checkpoints.rules import Moment
from hermes_worker.settings import Settings
from hermes_worker.store.access.audit import AuditLog
from hermes_worker.store.access.principals import KeyScope, Tenants
from hermes_worker.store.runs.workspaces import RunWorkspaces
from hermes_worker.store.tables import sessions
from hermes_worker.workspaces.build import build_copy_rule, make_workspace_opener
from hermes_worker.workspaces.ref import WorkspaceRef


def changed(served: Served) -> tuple[str, Path]:
    """A run that has changed a file."""
    run_id = served.submit()
    place = RunWorkspaces(served.client.database).load_workspace(run_id)
    root = Path(WorkspaceRef.from_json(place.workspace).root)
    root.mkdir(parents=True)
    (root / "a.txt").write_text("one\n")
    (root / "b.txt").write_text("key = sk-ant-api03-aaaaaaaaaaaaaaaaaaaaaaaa\n")
    store = find_store(served.client.settings.home, place.tenant, place.workspace)
    assert store is not None
    store.keep_checkpoint(Moment(session_id=place.session_id, run_id=run_id, iteration=1, tool="patch"))
    (root / "a.txt").write_text("two\n")
    (root / "b.txt").write_text("key = sk-ant-api03-bbbbbbbbbbbbbbbbbbbbbbbb\n")
    return run_id, root


def test_a_run_is_compared_and_put_back_over_the_api(api: Served, store: Store) -> None:
    run_id, root = changed(api)
    with HermesClient(api.url, api_key=api.key) as client:
        [found] = client.checkpoints(run_id)["data"]
        assert (found["run_id"], found["tool"], found["files"]) == (run_id, "patch", 2)
        told = client.diff(run_id)
        assert [(each.path, each.change) for each in told.files] == [("a.txt", "changed"), ("b.txt", "changed")]
        assert "-one\n+two\n" in told["text"]
        assert "aaaaaaaa" not in told["text"]

        refused = api.http.post(f"/v1/runs/{run_id}/restore", json={"checkpoint_id": found["id"]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "workspace_busy")
        assert (root / "a.txt").read_text() == "two\n"

        store.answer(run_id)
        done = client.restore(run_id, found["id"][:8], files=["a.txt"])
        assert (done["written"], done["removed"], done["failed"]) == (["a.txt"], [], [])
        assert (root / "a.txt").read_text() == "one\n"
        client.restore(run_id, done["before"])
        assert (root / "a.txt").read_text() == "two\n"
        assert [each["tool"] for each in client.checkpoints(run_id)["data"]] == ["restore", "restore", "patch"]
    deeds = [row for row in AuditLog(api.client.database).list_actions("default", limit=50) if row.act == "run.restore"]
    assert {row.subject for row in deeds} == {run_id}


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "."])
def test_a_path_outside_the_workspace_is_refused(api: Served, store: Store, path: str) -> None:
    run_id, _ = changed(api)
    store.answer(run_id)
    [found] = api.http.get(f"/v1/runs/{run_id}/checkpoints").json()["data"]
    answer = api.http.post(f"/v1/runs/{run_id}/restore", json={"checkpoint_id": found["id"], "files": [path]})
    assert answer.status_code == 404


def test_a_run_of_another_tenant_has_no_checkpoints_for_us(
    serve: Callable[..., Served],
) -> None:
    served = serve()
    run_id, _ = changed(served)
    tenants = Tenants(served.client.database)
    tenants.create_tenant("acme")
    key = tenants.create_key("acme", "bob", list(KeyScope)).token
    headers = {"Authorization": f"Bearer {key}"}
    for path in ("checkpoints", "diff"):
        assert served.http.get(f"/v1/runs/{run_id}/{path}", headers=headers).status_code == 404
    body = {"checkpoint_id": "abcd"}
    assert served.http.post(f"/v1/runs/{run_id}/restore", json=body, headers=headers).status_code == 404


def test_the_command_line_says_the_same_here_and_over_a_server(api: Served, store: Store, tmp_path: Path) -> None:
    run_id, root = changed(api)
    settings = api.client.settings
    key = tmp_path / "key"
    key.write_text(api.key)
    key.chmod(0o600)
    local = CommandLine(
        settings.home, {"HERMES_DATABASE_URL": settings.database_url, "HERMES_BROKER_URL": str(settings.broker.url)}
    )
    remote = CommandLine(tmp_path / "nothing", {"HERMES_SERVER_URL": api.url, "HERMES_SERVER_KEY_FILE": str(key)})
    for words in (
        ["checkpoints", run_id],
        ["checkpoints", run_id, "--json"],
        ["diff", run_id],
        ["diff", run_id, "--json"],
    ):
        here, there = local.inline("runs", *words), remote.inline("runs", *words)
        assert (here.code, here.out) == (there.code, there.out), (words, here.err, there.err)
        assert here.code == 0
    store.answer(run_id)
    [found] = [json.loads(line) for line in local.inline("runs", "checkpoints", run_id, "--json").out.splitlines()]
    done = remote.inline("runs", "restore", run_id, found["checkpoint_id"][:12], "--file", "a.txt")
    assert (done.code, done.out) == (0, "1 file written, 0 removed\n")
    assert "folders such as build, dist" in done.err
    assert (root / "a.txt").read_text() == "one\n"
    again = local.inline("runs", "restore", run_id, found["checkpoint_id"], "--stop", "--json")
    assert json.loads(again.out)["written"] == ["b.txt"]


def test_files_on_another_host_are_put_back_where_the_api_reaches_it(
    serve: Callable[..., Served], settings: Settings, tmp_path: Path
) -> None:
    with ssh_server(tmp_path / "ssh") as host:
        account = host.account()
        reached = replace(
            settings.terminal,
            ssh_host=account.host,
            ssh_port=account.port,
            ssh_user=account.user,
            ssh_key=account.key_file,
            ssh_known_hosts=account.known_hosts,
        )
        api = serve(replace(settings, terminal=reached))
        run_id = api.submit()
        ref = WorkspaceRef(kind="ssh", root=str(tmp_path / "there")).to_json()
        with api.client.database.write() as connection:
            connection.execute(sa.update(sessions).values(workspace=ref))
        opened = make_workspace_opener(
            api.client.settings, None, build_copy_rule(api.client.settings, api.client.database)
        )
        opened(ref).write_bytes("a.txt", b"one\n")
        kept = find_store(api.client.settings.home, "default", ref, opened=opened)
        assert kept is not None
        place = RunWorkspaces(api.client.database).load_workspace(run_id)
        kept.keep_checkpoint(Moment(session_id=place.session_id, run_id=run_id, iteration=1, tool="patch"))
        opened(ref).write_bytes("a.txt", b"two\n")

        [found] = api.http.get(f"/v1/runs/{run_id}/checkpoints").json()["data"]
        assert "-one\n+two\n" in api.http.get(f"/v1/runs/{run_id}/diff").json()["text"]
        Store.over(api.client.database).answer(run_id)
        done = api.http.post(f"/v1/runs/{run_id}/restore", json={"checkpoint_id": found["id"]}).json()
        assert (done["written"], done["failed"]) == (["a.txt"], [])
        assert (tmp_path / "there/a.txt").read_text() == "one\n"

        host.die()
        refused = api.http.get(f"/v1/runs/{run_id}/diff")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "checkpoints_unavailable")
        assert len(api.http.get(f"/v1/runs/{run_id}/checkpoints").json()["data"]) == 2
