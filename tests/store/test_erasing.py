"""What belongs to one person goes whole, and nothing of anybody else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import sleep

import pytest
import sqlalchemy as sa
from support.history import dangling, go_on
from support.store import Store, asks, check, settlement
from support.two_people import ANNA, BERT, People, person, traces

from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.replay import Replay
from hermes_worker.core.retention_rules import DEFAULT_RULES
from hermes_worker.features.retention.erasure_rows import (
    ErasureHeld,
    ErasureNotFound,
    Erasures,
    RunningErasure,
    RunsAtWork,
    SharedWithOthers,
)
from hermes_worker.features.retention.erasure_rules import InvalidReceipt, NobodyNamed, Person, parse_receipts
from hermes_worker.features.retention.export_rows import export_rows
from hermes_worker.features.retention.hold_rows import Retention
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.features.retention.selection_rows import BY_RUN, BY_SESSION, OF_TENANT
from hermes_worker.features.retention.tables import erasures
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.runs.runs import RunDeleted, SessionErased
from hermes_worker.store.sessions import Sessions
from hermes_worker.store.tables import deliveries, events, firings, jobs, runs, sessions, waits
from hermes_worker.store.whole_schema import load_schema

OF_BOTH = {"firings": "names a run and a job", "deliveries": "names a run, a job, or both", "jobs": "a person's jobs"}
OF_NOBODY = {
    "workers": "processes",
    "schema_revisions": "the schema",
    "blobs": "named by messages; they go when nothing names them",
    "statistics": "sums without ids",
    "maintenance": "times of periodic jobs",
    "tenant_shares": "numbers of a tenant",
    "limits": "written by operators",
    "spending": "sums by ids of keys, which nobody has any more",
    "submit_rates": "a number by ids of keys",
    "text_keys": "ids of keys",
    "logins": "of the installation",
    "key_states": "names of keys that say nothing about them",
    "workspace_heads": "named by sessions; they go with the workspaces of those",
    "provider_keys": "keys of a tenant, written by operators; an export would show them",
    "configurations": "settings, written by operators; the versions of a tenant's are kept",
    "alert_targets": "where a tenant is told of its limits; set by operators",
    "alerts": "what operators were told; names no person and no address",
    "tenants": "names of tenants",
    "retention_rules": "written by operators",
    "retention_marks": "places of passes",
    "legal_holds": "written by operators; what is held is not erased",
    "deleted_runs": "ids that we drew",
    "audit_log": "who did what: append-only, goes by its rule, and an export has it",
    "erasures": "plans, which go, and receipts, which name nobody",
}
"""Tables of which a person has no rows of their own, and why."""


def erase(store: Store, erasure: RunningErasure, *, steps: int = 10**9) -> bool:
    """So many steps of it; whether there were no more. A process that is killed between two of them leaves the same."""
    return all(number != steps for number, _ in enumerate(Erasures(store.database).delete_stepwise(erasure)))


def erased(store: Store, whom: Person, **more: bool) -> RunningErasure:
    every = Erasures(store.database)
    erasure = every.begin("default", whom, by="cli:operator", **more)
    erase(store, erasure)
    every.finish(erasure)
    return erasure


def rows_of_bert(store: Store) -> list[str]:
    """As an export has them, in order."""
    return [row.to_json() for row in export_rows(store.database, "default", person(BERT))]


def test_every_table_is_somebodys() -> None:
    """A new table needs a line in ``selection_rows``, an owner in its feature's declaration, or a reason here."""
    known = {column.table.name for column in (*BY_RUN, *BY_SESSION)} | {table.name for table in OF_TENANT}
    known |= {name for name, table in load_schema().tables.items() if "owner" in table.info}
    assert set(load_schema().tables) == known | set(OF_BOTH) | set(OF_NOBODY)
    assert not known & set(OF_NOBODY)
    columns = [column for table in load_schema().tables.values() for column in table.columns]
    hidden = {str(column) for column in columns if "is_secret" in column.info}
    assert hidden == {"api_keys.hash", "mcp_servers.token", "page_logins.hash", "webhook_routes.secret"}
    page = (Path(__file__).parents[2] / "docs/erasure.md").read_text(encoding="utf-8")
    assert [name for name in load_schema().tables if f"`{name}`" not in page] == [], "say what becomes of it"


@pytest.mark.parametrize("order", [(ANNA, BERT), (BERT, ANNA)])
def test_nothing_is_left_of_one_and_everything_of_the_other(store: Store, order: Sequence[str]) -> None:
    """Also when theirs are the newest rows of all, whose numbers SQLite would give away again."""
    people = People(store)
    ours = {name: people.live(name) for name in order}
    people.settle()
    before, highest = rows_of_bert(store), _highest(store)
    assert len(traces(store, ANNA)) > 20

    erasure = erased(store, person(ANNA))

    assert traces(store, ANNA) == {}
    assert rows_of_bert(store) == before
    assert dangling(store) == []
    for run_id in ours[ANNA]:
        with pytest.raises(RunDeleted):
            store.views.load_run(run_id)
    assert store.views.load_run(ours[BERT][0]).output
    assert _highest(store) >= highest
    assert erasure.counts["runs"] == 5
    assert {"messages", "blobs", "events", "deliveries", "hook_calls", "api_keys", "jobs"} <= set(erasure.counts)
    go_on(store)
    assert dangling(store) == []
    check(store)


def _highest(store: Store) -> tuple[int, int]:
    """The last numbers that were given away: on PostgreSQL they never come back."""
    if not store.database.is_sqlite:
        return (0, 0)
    with store.database.read() as connection:
        return tuple(connection.execute(sa.select(sa.func.max(t.c.pk))).scalar_one() for t in (runs, sessions))  # type: ignore[return-value]


@pytest.mark.parametrize("steps", range(0, 12, 2))
def test_an_erasure_that_was_killed_goes_on(store: Store, steps: int) -> None:
    people = People(store)
    people.live(ANNA)
    people.live(BERT)
    people.settle()
    before = rows_of_bert(store)
    every = Erasures(store.database)
    assert not erase(store, every.begin("default", person(ANNA), by="cli:operator"), steps=steps)

    [begun] = every.list_unfinished()
    assert erase(store, begun)
    receipt = every.finish(begun)

    assert traces(store, ANNA) == {}
    assert rows_of_bert(store) == before
    assert every.list_unfinished() == []
    assert every.load_receipt(receipt.receipt_id) == receipt
    with pytest.raises(ErasureNotFound):
        every.finish(begun)


def test_nothing_begins_in_a_session_that_is_being_erased(store: Store) -> None:
    people = People(store)
    people.live(ANNA)
    begun = Erasures(store.database).begin("default", person(ANNA), by="cli:operator")
    with pytest.raises(SessionErased):
        store.submit(session_id=f"chat-{ANNA}")
    with store.database.read() as connection:
        assert connection.execute(sa.select(jobs.c.next_fire_at)).scalars().all() == [None]
    erase(store, begun)
    Erasures(store.database).finish(begun)
    again = store.submit(session_id=f"chat-{ANNA}").run_id
    assert store.views.load_run(again).run_id == again


def test_what_is_at_work_is_stopped_first(store: Store) -> None:
    run_id = store.submit(principal=f"cli:{ANNA}").run_id
    claim = store.turn(run_id)
    every = Erasures(store.database)
    begun = every.begin("default", person(ANNA), by="cli:operator")
    with pytest.raises(RunsAtWork, match="--stop"):
        erase(store, begun)
    assert every.list_open_runs(begun) == [run_id]
    store.runs.stop_tree(run_id)
    store.runs.release_iteration(claim)
    store.sweep()
    assert erase(store, begun)
    every.finish(begun)
    with pytest.raises(RunDeleted):
        store.views.load_run(run_id)


def test_a_worker_that_still_holds_it_cannot_write_it_back(store: Store) -> None:
    run_id = store.with_tools(Replay.PURE, principal=f"cli:{ANNA}")
    claim = store.call(run_id)
    store.runs.stop_tree(run_id)
    store.sweep()
    with store.database.write() as connection:  # as when it fell silent, and was given up
        connection.execute(sa.text("update workers set expires_at = 0"))
    for _ in range(3):
        store.sweep()
    erased(store, person(ANNA))
    with pytest.raises(LeaseLost):
        store.calls.settle(claim, settlement(f"{ANNA} is back"))
    assert traces(store, ANNA) == {}


def test_others_work_on_while_one_is_erased(store: Store) -> None:
    """Their texts are the same ones, so they take up what the erasure is about to delete."""
    people = People(store)
    people.live(ANNA)
    people.settle()
    begun = Erasures(store.database).begin("default", person(ANNA), by="cli:operator")
    done, is_over = [], Event()

    def work() -> None:
        while not (is_over.is_set() and len(done) >= 5):
            run_id = store.submit(principal=f"cli:{BERT}", input="long " * 20_000, tools="[9]").run_id
            store.ask_tools(run_id, asks(Replay.PURE))
            store.settle(run_id, text="long " * 20_000)
            store.answer(run_id)
            done.append(run_id)

    with ThreadPoolExecutor(2) as others:
        at_work = [others.submit(work) for _ in range(2)]
        try:
            while not done:
                sleep(0.01)
            assert erase(store, begun)
        finally:
            is_over.set()
        for each in at_work:
            each.result()
    Erasures(store.database).finish(begun)

    assert traces(store, ANNA) == {}
    assert dangling(store) == []
    assert [store.views.load_run(run_id).is_completed for run_id in done] == [True] * len(done)
    check(store)


def test_a_legal_hold_wins(store: Store) -> None:
    people = People(store)
    first, *_ = people.live(ANNA)
    retention = Retention(store.database, DEFAULT_RULES)
    every = Erasures(store.database)
    hold = retention.place_hold("default", run_id=first, reason="a court", by="test")
    with pytest.raises(ErasureHeld, match=rf"\({hold.number}\).*release {hold.number}"):
        every.begin("default", person(ANNA), by="cli:operator")
    assert every.preview_erasure("default", person(ANNA)).held == (hold.number,)
    retention.release("default", hold.number)
    people.settle()
    begun = every.begin("default", person(ANNA), by="cli:operator")
    hold = retention.place_hold("default", run_id=first, reason="meanwhile", by="test")
    with pytest.raises(ErasureHeld):
        erase(store, begun)
    assert store.views.load_run(first).run_id == first
    retention.release("default", hold.number)
    assert erase(store, begun)


def test_a_session_with_others_is_not_erased_silently(store: Store) -> None:
    store.answer(store.submit(principal=f"cli:{ANNA}", session_id="team").run_id)
    other = store.submit(principal=f"cli:{BERT}", session_id="team").run_id
    store.answer(other)
    every = Erasures(store.database)
    assert every.preview_erasure("default", person(ANNA)).selected.shared == 1
    with pytest.raises(SharedWithOthers, match="--shared"):
        every.begin("default", person(ANNA), by="cli:operator")
    erased(store, person(ANNA), takes_shared=True)
    with pytest.raises(RunDeleted):
        store.views.load_run(other)


def test_who_acted_for_others_is_forgotten_there(store: Store) -> None:
    people = People(store)
    people.live(ANNA)
    _, *_, run_id = people.live(BERT)
    people.meddle(ANNA, run_id)
    people.settle()
    erased(store, person(ANNA))
    assert traces(store, ANNA) == {}
    with store.database.read() as connection:
        pk = connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == run_id)).scalar_one()
        kept = connection.execute(sa.select(events.c.data).where(events.c.run_pk == pk, events.c.seq == 1)).scalar_one()
        outcome = sa.select(waits.c.outcome).where(waits.c.run_pk == pk, waits.c.iteration == 8)
        assert connection.execute(outcome).scalar_one() == "allowed"
    assert json.loads(kept) == {"text": "faster"}


def test_one_session_goes_without_the_rest(store: Store) -> None:
    first = store.submit(session_id="one").run_id
    store.answer(first)
    second = store.submit(session_id="two").run_id
    store.answer(second)
    erased(store, Person(named=(("api", "nobody"),), sessions=(first,)))
    with pytest.raises(RunDeleted):
        store.views.load_run(first)
    assert store.views.load_run(second).output


def test_a_fork_goes_with_what_it_began_with(store: Store) -> None:
    first = store.submit(session_id="one", input=ANNA, principal=f"cli:{ANNA}").run_id
    store.answer(first)
    all_of_them = Sessions(store.database, "default", "api")
    all_of_them.fork(first, name="two")
    assert traces(store, ANNA)["messages.body"] > 1
    begun = Erasures(store.database).begin("default", Person(sessions=(first,)), by="cli:operator")
    with pytest.raises(SessionErased):
        all_of_them.fork(first, name="three")
    assert erase(store, begun)
    Erasures(store.database).finish(begun)
    assert traces(store, ANNA) == {}
    assert Pruner(store.database, DEFAULT_RULES).find_expired_workspaces("default", [first]) == {first}


def test_a_whole_tenant_goes_and_no_other(store: Store) -> None:
    Tenants(store.database).create_tenant("acme")
    people = People(store)
    people.live(BERT)
    for number in range(3):
        run_id = store.submit(tenant="acme", principal=f"cli:{ANNA}", input=ANNA, session_id=f"s{number}").run_id
        store.answer(run_id)
    people.settle()
    before = rows_of_bert(store)
    every = Erasures(store.database)
    begun = every.begin("acme", Person(is_everybody=True), by="cli:operator")
    assert erase(store, begun)
    every.finish(begun)
    assert traces(store, ANNA) == {}
    assert rows_of_bert(store) == before
    assert {view.name: view.disabled_at is None for view in Tenants(store.database).list_tenants()}["acme"] is False


def test_the_ledger_of_slots_stays_without_texts(store: Store) -> None:
    people = People(store)
    people.live(ANNA)
    people.settle()
    erased(store, person(ANNA))
    with store.database.read() as connection:
        slots = connection.execute(sa.select(firings.c.slot, firings.c.run_pk, firings.c.reason)).all()
        job = connection.execute(sa.select(jobs.c.name, jobs.c.definition, jobs.c.removed_at)).one()
        assert connection.execute(sa.select(sa.func.count()).select_from(deliveries)).scalar_one() == 0
    assert sorted(slots) == [(1.0, None, ""), (2.0, None, "")]
    assert (job.name, job.definition) == ("", "{}") and job.removed_at is not None


def test_a_restored_person_is_erased_again_by_the_receipt(store: Store) -> None:
    """The receipt names nobody, and finds them: also sessions that it never saw, which retention had deleted before."""
    people = People(store)
    people.live(ANNA)
    people.settle()
    every = Erasures(store.database)
    erased(store, person(ANNA))
    lines = [json.dumps(receipt.build_document()) for receipt in every.list_receipts()]
    assert ANNA.lower() not in "".join(lines).lower()
    with store.database.write() as connection:
        connection.execute(sa.delete(erasures))
    People(store).live(ANNA)  # as a backup from before has them: with other ids than those of the receipt
    people.settle()

    [receipt] = parse_receipts(lines)
    whom = every.find_person_again(receipt)
    assert (whom.holders, whom.targets) == ((ANNA,), (f"telegram:{ANNA}",))
    begun = every.begin("default", whom, by="cli:operator", replays=receipt.receipt_id)
    assert erase(store, begun)
    assert every.finish(begun).replays == receipt.receipt_id
    assert traces(store, ANNA) == {}
    assert every.find_person_again(receipt) == Person(sessions=receipt.sessions)


def test_a_receipt_that_was_changed_is_none(store: Store) -> None:
    people = People(store)
    people.live(ANNA)
    people.settle()
    erased(store, person(ANNA))
    [receipt] = Erasures(store.database).list_receipts()
    document = receipt.build_document()
    assert parse_receipts([json.dumps(document), ""]) == [receipt]
    with pytest.raises(InvalidReceipt, match="was changed"):
        parse_receipts([json.dumps({**document, "by": "cli:somebody"})])
    with pytest.raises(InvalidReceipt, match="no receipt"):
        parse_receipts(["{}"])
    assert replace(receipt, tenant="acme").build_document()["sha256"] != document["sha256"]


def test_an_export_holds_every_text_and_no_secret(store: Store) -> None:
    people = People(store)
    people.live(ANNA)
    people.live(BERT)
    people.settle()
    lines = [row.to_json() for row in export_rows(store.database, "default", person(ANNA))]
    kinds = {json.loads(line)["kind"] for line in lines}
    assert {column.partition(".")[0] for column in traces(store, ANNA)} <= kinds
    text = "".join(lines)
    assert ANNA in text and BERT not in text
    assert len(lines) == sum(Erasures(store.database).preview_erasure("default", person(ANNA)).counts.values())
    assert not any("hash" in json.loads(line)["row"] for line in lines if json.loads(line)["kind"] == "api_keys")


def test_nobody_is_not_everybody(store: Store) -> None:
    with pytest.raises(NobodyNamed):
        Erasures(store.database).preview_erasure("default", Person())
    erased(store, Person(principals=("cli:nobody",)))


def test_workspaces_of_erased_sessions_go_whatever_the_rules_say(store: Store) -> None:
    run_id = store.submit(principal=f"cli:{ANNA}").run_id
    store.answer(run_id)
    other = store.submit(principal=f"cli:{BERT}").run_id
    store.answer(other)
    pruner = Pruner(store.database, DEFAULT_RULES)
    assert pruner.find_expired_workspaces("default", [run_id, other]) == set()
    assert not pruner.has_erased("default") and not pruner.may_remove_workspaces("default")
    erased(store, person(ANNA))
    assert pruner.has_erased("default") and pruner.may_remove_workspaces("default")
    assert pruner.find_expired_workspaces("default", [run_id, other]) == {run_id}


def test_a_run_with_calls_that_wait_is_named(store: Store) -> None:
    run_id = store.submit(principal=f"cli:{ANNA}").run_id
    store.ask_tools(run_id, asks(Replay.ONCE))
    assert Erasures(store.database).preview_erasure("default", person(ANNA)).open_runs == (run_id,)
