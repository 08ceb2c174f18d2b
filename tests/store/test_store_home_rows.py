"""Rows hold paths below the home relative to it, also those that older code wrote; a copy has no outside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.desk import Desk
from support.store import EMPTY, Store

from hermes_worker.core.effects import CallHook, SendDelivery
from hermes_worker.core.hooks import build_observed
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.sealing import Sealer, build_text_keys, select_stored_text
from hermes_worker.store.gateway import GatewayRows
from hermes_worker.store.home_rows import convert_rows, finish_conversion
from hermes_worker.store.hooks.calls import HookCalls
from hermes_worker.store.jobs.jobs import Jobs
from hermes_worker.store.outbox.deliveries import Deliveries
from hermes_worker.store.restore_detection import is_copy, mark_epoch, remove_copy_mark
from hermes_worker.store.runs.workspaces import RunWorkspaces
from hermes_worker.store.tables import jobs, maintenance, sessions

OLD, NEW = "/srv/old", "/srv/new"
OWN, OTHER = "run_" + "a1" * 16, "run_" + "b2" * 16
OpenAt = Callable[..., Store]


@pytest.fixture
def open_at(store: Store) -> Iterator[OpenAt]:
    """The same database, as processes see it whose home is somewhere."""
    opened: list[Database] = []

    def at(home: str, **more: object) -> Store:
        url = store.database.url.render_as_string(hide_password=False)
        opened.append(Database(url, homes=(home,), **more))  # type: ignore[arg-type]
        return Store.over(opened[-1])

    yield at
    for database in opened:
        database.close()


def ref(root: str, kind: str = "local") -> str:
    return json.dumps({"kind": kind, "root": root}, sort_keys=True, separators=(",", ":"))


def stored(store: Store) -> list[str]:
    with store.database.read() as connection:
        return list(
            connection.execute(sa.select(select_stored_text(sessions.c.workspace)).order_by(sessions.c.pk)).scalars()
        )


def root_of(store: Store, run_id: str) -> str:
    return str(json.loads(RunWorkspaces(store.database).load_workspace(run_id).workspace)["root"])


def write_as_before(store: Store, run_id: str, workspace: str) -> None:
    """As code of 0.1 does."""
    with store.database.write() as connection:
        this = sa.update(sessions).where(sessions.c.session_id == run_id)
        connection.execute(this.values(workspace=sa.literal(workspace, sa.Text())))


def test_a_session_is_found_in_the_home_wherever_that_is(open_at: OpenAt) -> None:
    old, new = open_at(OLD), open_at(NEW)
    run_id = old.submit(workspace=ref(f"{OLD}/workspaces/{OWN}"), run_id=OWN).run_id
    chosen = old.submit(workspace=ref("/srv/project")).run_id
    elsewhere = old.submit(workspace=ref(f"{OLD}/workspaces/x", "ssh")).run_id
    assert [json.loads(text)["root"] for text in stored(old)] == [
        f"{OLD}/./workspaces/{OWN}",
        "/srv/project",
        f"{OLD}/workspaces/x",
    ]
    assert root_of(old, run_id) == f"{OLD}/workspaces/{OWN}"
    assert [root_of(new, each) for each in (run_id, chosen, elsewhere)] == [
        f"{NEW}/workspaces/{OWN}",
        "/srv/project",
        f"{OLD}/workspaces/x",
    ]
    claim = new.turn(run_id)
    of_prompts = json.loads(new.runs.load_session_context(claim.loaded.session_pk).workspace)
    assert (of_prompts["root"], of_prompts["said"]) == (f"{NEW}/workspaces/{OWN}", f"{OLD}/workspaces/{OWN}")


def test_rows_of_older_code_are_read_and_then_written_relative_to_the_home(store: Store, open_at: OpenAt) -> None:
    """The home may be elsewhere by now: what its sessions were given says where it was."""
    for run_id in (OWN, OTHER):
        store.submit(run_id=run_id)
    write_as_before(store, OWN, ref(f"{OLD}/workspaces/{OWN}"))
    write_as_before(store, OTHER, ref(f"{OLD}/workspaces/{OWN}"))  # a fork
    chosen, nested = store.submit().run_id, store.submit().run_id
    write_as_before(store, chosen, ref("/srv/workspaces/project"))
    write_as_before(store, nested, ref(f"{OLD}/workspaces/{OWN}/src"))
    new = open_at(NEW)
    assert root_of(new, OWN) == f"{OLD}/workspaces/{OWN}"

    assert convert_rows(new.database) == 3
    assert convert_rows(new.database) == 0

    roots = [root_of(new, each) for each in (OWN, OTHER, chosen, nested)]
    own = f"{NEW}/workspaces/{OWN}"
    assert roots == [own, own, "/srv/workspaces/project", f"{own}/src"]
    assert json.loads(stored(new)[0]) == {"kind": "local", "root": f"{OLD}/./workspaces/{OWN}"}


def test_what_the_revision_leaves_to_be_done_is_done_once(store: Store, open_at: OpenAt) -> None:
    store.submit(run_id=OWN)
    write_as_before(store, OWN, ref(f"{OLD}/workspaces/{OWN}"))
    here = open_at(OLD)
    with store.database.write() as connection:
        connection.execute(sa.delete(maintenance).where(maintenance.c.name == "paths_related"))
    finish_conversion(here.database)
    assert "/./" in stored(here)[0]
    write_as_before(store, OWN, ref(f"{OLD}/workspaces/{OWN}"))
    finish_conversion(here.database)
    assert "/./" not in stored(here)[0]


@pytest.mark.parametrize("keys", [(), ("k" * 40,)])
def test_a_job_works_below_the_home_that_is(store: Store, open_at: OpenAt, keys: tuple[str, ...]) -> None:
    sealer = Sealer(build_text_keys(keys))
    old, new = open_at(OLD, sealer=sealer), open_at(NEW, sealer=sealer)
    old.submit(workspace=ref(f"{OLD}/workspaces/{OWN}"), run_id=OWN)
    with old.database.write() as connection:
        for name, directory in (("inside", f"{OLD}/workspaces/{OWN}"), ("outside", "/srv/x"), ("none", None)):
            values = {"job_id": name, "name": name, "definition": json.dumps({"directory": directory, "prompt": "p"})}
            times = {"created_at": 0.0, "updated_at": 0.0, "state": "scheduled"}
            connection.execute(sa.insert(jobs).values(tenant="default", **values, **times))
    with new.database.read() as connection:
        found = dict(connection.execute(sa.select(jobs.c.name, jobs.c.definition)).all())
    directories = {name: json.loads(text)["directory"] for name, text in found.items()}
    assert directories == {"inside": f"{NEW}/workspaces/{OWN}", "outside": "/srv/x", "none": None}
    assert all(set(json.loads(text)) == {"directory", "prompt"} for text in found.values())


def test_who_works_in_a_folder_is_seen_whichever_home_the_rows_name(open_at: OpenAt) -> None:
    """Sessions that began before a move and behind it share a folder."""
    old, new = open_at(OLD), open_at(NEW)
    old.submit(workspace=ref(f"{OLD}/workspaces/{OWN}"), run_id=OWN)
    old.answer(OWN)
    at_work = new.submit(workspace=ref(f"{NEW}/workspaces/{OWN}")).run_id
    places = RunWorkspaces(new.database)
    assert list(places.list_open_runs(places.load_workspace(OWN))) == [at_work]
    assert Pruner(new.database, {}).load_workspace_states([OWN]) == {OWN: "at work"}


# --- copies ----------------------------------------------------------------------------------------------------------


def test_a_copy_delivers_nothing_until_its_original_is_gone(store: Store) -> None:
    run_id = store.submit(deliver=["local"]).run_id
    [hint] = [each for each in store.answer(run_id) if isinstance(each.effect, SendDelivery)]
    assert isinstance(hint.effect, SendDelivery)
    mark_epoch(store.database, are_workers_gone=True)
    store._owner = None
    outbox = Deliveries(store.database)
    store.let_pass(600.0)
    assert outbox.claim(hint.effect, store.owner) is None
    swept = store.sweep(EMPTY)
    assert not [each for each in swept.hints if isinstance(each.effect, SendDelivery)]

    assert remove_copy_mark(store.database) and not remove_copy_mark(store.database)
    store.let_pass(600.0)
    swept = store.sweep(EMPTY)
    assert [each for each in swept.hints if isinstance(each.effect, SendDelivery)]
    assert outbox.claim(hint.effect, store.owner) is not None


def test_a_copy_calls_no_hooks(store: Store, open_at: OpenAt) -> None:
    watched = open_at(OLD, observed=build_observed([("bell", ("agent:end",))]))
    run_id = watched.submit().run_id
    [hint] = [each for each in watched.answer(run_id) if isinstance(each.effect, CallHook)]
    assert isinstance(hint.effect, CallHook)
    mark_epoch(store.database, are_workers_gone=True)
    watched._owner = None
    assert HookCalls(watched.database).claim(hint.effect, watched.owner) is None
    remove_copy_mark(store.database)
    assert HookCalls(watched.database).claim(hint.effect, watched.owner) is not None


def test_a_copy_listens_to_no_chats(store: Store) -> None:
    rows = GatewayRows(store.database)
    mark_epoch(store.database, are_workers_gone=True)
    taking = {"mode": "poll", "token_hash": "t", "holder": "gw", "lease_s": 30.0}
    assert rows.acquire_lease("telegram:default", **taking) is None  # type: ignore[arg-type]
    remove_copy_mark(store.database)
    assert rows.acquire_lease("telegram:default", **taking) is not None  # type: ignore[arg-type]


def test_a_copy_fires_no_jobs(store: Store, tmp_path: Path) -> None:
    desk = Desk(store, tmp_path / "home")
    row = desk.add("every 10m")
    mark_epoch(store.database, are_workers_gone=True)
    desk.at(601)
    assert (desk.tick(), desk.ledger(row), list(desk.jobs.list_due())) == ([], [], [])
    remove_copy_mark(store.database)
    desk.tick()
    assert desk.ledger(row) == [(10, "fired")]
    assert isinstance(desk.jobs, Jobs)


def test_a_restore_whose_original_is_gone_is_no_copy(store: Store) -> None:
    assert not is_copy(store.database)
    mark_epoch(store.database, are_workers_gone=True)
    store.database.remembered.forget()
    assert is_copy(store.database)
    mark_epoch(store.database, are_workers_gone=True, is_original_gone=True)
    assert not is_copy(store.database)
