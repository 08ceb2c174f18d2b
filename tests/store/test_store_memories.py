"""Memories as rows: versions, authors, limits under concurrency, undo, redaction, staged changes and who may write."""

from __future__ import annotations

from collections import Counter

import pytest
import sqlalchemy as sa
from support.memory_changes import PLACE, RULES, require_kept
from support.memory_kills import KilledWorkers
from support.store import Store, new_run

from hermes_worker.core.principals import KeyScope, format_named_holder
from hermes_worker.core.run_writers import MemoryWriter
from hermes_worker.features.memory.rows import Memories, MemoryNotFound, MemoryVersionStands
from hermes_worker.features.memory.rules import (
    MemoryAction,
    MemoryAuthor,
    MemoryChangeOutcome,
    MemoryKey,
    MemoryOperation,
    MemoryRefusal,
    MemoryRefused,
    MemoryRules,
    MemoryTarget,
)
from hermes_worker.store.access.audit import Actor, AuditLog, set_actor
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.sealing import MARK, Sealer, build_text_keys, select_stored_text
from hermes_worker.store.runs.writers import RunWriters
from hermes_worker.store.tables import memory_versions, runs

ADD, REPLACE, REMOVE = MemoryAction
ANN = MemoryAuthor(name="cli:ann")
USER = MemoryKey(tenant="default", target=MemoryTarget.USER)


@pytest.fixture
def memories(store: Store) -> Memories:
    return Memories(store.database)


def change(memories: Memories, *operations: MemoryOperation, author: MemoryAuthor = ANN) -> MemoryChangeOutcome:
    return memories.change(PLACE, operations, RULES, author)


def add(memories: Memories, content: str, author: MemoryAuthor = ANN) -> str:
    """The id of a new entry."""
    return change(memories, MemoryOperation(action=ADD, content=content), author=author).changed[0][0]


def contents(memories: Memories, place: MemoryKey = PLACE) -> list[str]:
    return [entry.content for entry in memories.load_entries(place.tenant, place.profile)[place.target]]


def test_entries_stand_in_the_order_in_which_they_came_and_keep_their_place(memories: Memories) -> None:
    ids = [add(memories, text) for text in ("tea", "coffee", "milk")]
    change(memories, MemoryOperation(action=REPLACE, content="cocoa", entry_id=ids[1], version=1))
    assert contents(memories) == ["tea", "cocoa", "milk"]


def test_each_version_says_who_made_it_when_and_in_which_run(memories: Memories) -> None:
    entry_id = add(memories, "tea")
    agent = MemoryAuthor(name="agent:run_1", run_id="run_7", call_key="run_7.1.0")
    change(memories, MemoryOperation(action=REPLACE, content="coffee", old_text="tea"), author=agent)
    change(memories, MemoryOperation(action=REMOVE, entry_id=entry_id))
    newest, middle, oldest = memories.list_versions(PLACE)
    assert [(one.version, one.act, one.content) for one in (oldest, middle, newest)] == [
        (1, "add", "tea"),
        (2, "replace", "coffee"),
        (3, "remove", None),
    ]
    assert (middle.author, middle.run_id) == ("agent:run_1", "run_7")
    assert oldest.author == newest.author == "cli:ann" and oldest.at <= middle.at <= newest.at
    assert memories.list_versions(PLACE, entry_id=entry_id, before=newest.number, limit=1) == [middle]
    assert contents(memories) == [] and memories.list_current("default", "default") == []


def test_tenants_profiles_and_targets_have_memories_of_their_own(memories: Memories) -> None:
    add(memories, "tea")
    for place in (MemoryKey(tenant="acme"), MemoryKey(tenant="default", profile="work"), USER):
        assert contents(memories, place) == []
        memories.change(place, [MemoryOperation(action=ADD, content="milk")], RULES, ANN)
        assert contents(memories, place) == ["milk"]
        with pytest.raises(MemoryRefused):
            memories.change(place, [MemoryOperation(action=REMOVE, old_text="tea")], RULES, ANN)
    assert contents(memories) == ["tea"]


def test_a_stale_replacement_gets_the_current_entries_and_changes_nothing(memories: Memories) -> None:
    entry_id = add(memories, "tea")
    change(memories, MemoryOperation(action=REPLACE, content="coffee", entry_id=entry_id, version=1))
    with pytest.raises(MemoryRefused) as caught:
        change(memories, MemoryOperation(action=REPLACE, content="milk", entry_id=entry_id, version=1))
    assert caught.value.kind is MemoryRefusal.NO_MATCH
    assert [(one.version, one.content) for one in caught.value.entries] == [(2, "coffee")]
    assert contents(memories) == ["coffee"]


def test_a_call_that_is_made_again_changes_nothing_twice(memories: Memories) -> None:
    call = MemoryAuthor(name="agent:run_1", run_id="run_1", call_key="run_1.1.0")
    wanted = [MemoryOperation(action=ADD, content="tea"), MemoryOperation(action=ADD, content="milk")]
    first = memories.change(PLACE, wanted, RULES, call)
    change(memories, MemoryOperation(action=REMOVE, old_text="tea"))
    again = memories.change(PLACE, wanted, RULES, call)
    assert again.is_repeated and again.changed == first.changed
    assert contents(memories) == ["milk"]


def test_texts_that_a_database_cannot_hold_are_kept_as_it_can(memories: Memories) -> None:
    add(memories, "a\x00b\ud800")
    assert contents(memories) == ["a\ufffdb\ufffd"] or contents(memories)[0].startswith("a\ufffdb")
    assert change(memories, MemoryOperation(action=ADD, content="a\x00b\ud800")).changed == ()


def test_an_undo_takes_back_the_last_change_and_a_second_one_makes_it_again(memories: Memories) -> None:
    entry_id = add(memories, "tea")
    change(memories, MemoryOperation(action=REPLACE, content="coffee", entry_id=entry_id))
    assert [one.content for one in memories.undo(PLACE, RULES, ANN).entries] == ["tea"]
    assert [one.content for one in memories.undo(PLACE, RULES, ANN).entries] == ["coffee"]
    change(memories, MemoryOperation(action=REMOVE, entry_id=entry_id))
    assert [one.content for one in memories.undo(PLACE, RULES, ANN, entry_id=entry_id).entries] == ["coffee"]
    other = add(memories, "milk")
    assert [one.content for one in memories.undo(PLACE, RULES, ANN, entry_id=other).entries] == ["coffee"]
    assert [one.act for one in memories.list_versions(PLACE, entry_id=entry_id)] == [
        "undo",
        "remove",
        "undo",
        "undo",
        "replace",
        "add",
    ]


def test_an_undo_keeps_to_the_limit_and_tells_what_stands_there(memories: Memories) -> None:
    entry_id = add(memories, "x" * 300)
    change(memories, MemoryOperation(action=REMOVE, entry_id=entry_id))
    add(memories, "y" * 300)
    with pytest.raises(MemoryRefused) as caught:
        memories.undo(PLACE, RULES, ANN, entry_id=entry_id)
    assert caught.value.kind is MemoryRefusal.OVER_LIMIT
    assert [one.content for one in caught.value.entries] == ["y" * 300]


def test_there_is_nothing_to_undo_in_an_empty_memory(memories: Memories) -> None:
    with pytest.raises(MemoryNotFound):
        memories.undo(PLACE, RULES, ANN)


def test_a_past_version_can_be_redacted_and_what_stands_cannot(memories: Memories) -> None:
    entry_id = add(memories, "my password is swordfish")
    with pytest.raises(MemoryVersionStands):
        memories.redact("default", entry_id, 1)
    change(memories, MemoryOperation(action=REMOVE, entry_id=entry_id))
    for _ in range(2):
        view = memories.redact("default", entry_id, 1)
        assert view.content is None and view.redacted_at is not None
    with pytest.raises(MemoryNotFound):
        memories.undo(PLACE, RULES, ANN, entry_id=entry_id)
    with pytest.raises(MemoryNotFound):
        memories.redact("acme", entry_id, 1)


def test_a_staged_change_waits_for_a_person_and_is_made_once(memories: Memories) -> None:
    call = MemoryAuthor(name="agent:run_1", run_id="run_1", call_key="run_1.1.0")
    wanted = [MemoryOperation(action=ADD, content="tea")]
    staged = memories.stage(PLACE, wanted, RULES, call)
    again = memories.stage(PLACE, wanted, RULES, call)
    assert again.is_repeated and again.staged_id == staged.staged_id is not None
    assert contents(memories) == [] and [one.state for one in memories.list_current("default", "default")] == ["staged"]
    with pytest.raises(MemoryNotFound):
        memories.settle_staged("acme", staged.staged_id, lambda target: RULES, ANN, approves=True)
    settled = memories.settle_staged("default", staged.staged_id, lambda target: RULES, ANN, approves=True)
    assert [one.content for one in settled.entries] == ["tea"] == contents(memories)
    with pytest.raises(MemoryNotFound):
        memories.settle_staged("default", staged.staged_id, lambda target: RULES, ANN, approves=True)


def test_a_staged_change_that_is_declined_is_never_made(memories: Memories) -> None:
    staged_id = memories.stage(PLACE, [MemoryOperation(action=ADD, content="tea")], RULES, ANN).staged_id
    assert staged_id is not None
    memories.settle_staged("default", staged_id, lambda target: RULES, ANN, approves=False)
    assert contents(memories) == [] and memories.list_versions(PLACE)[0].state == "declined"


def test_a_staged_change_that_cannot_be_made_any_more_stays_staged(memories: Memories) -> None:
    entry_id = add(memories, "tea")
    wanted = [MemoryOperation(action=REPLACE, content="coffee", entry_id=entry_id, version=1)]
    staged_id = memories.stage(PLACE, wanted, RULES, ANN).staged_id
    assert staged_id is not None
    change(memories, MemoryOperation(action=REPLACE, content="milk", entry_id=entry_id))
    with pytest.raises(MemoryRefused):
        memories.settle_staged("default", staged_id, lambda target: RULES, ANN, approves=True)
    assert "staged" in [one.state for one in memories.list_current("default", "default")]


def test_a_deed_of_a_person_is_recorded_without_its_text(store: Store, memories: Memories) -> None:
    with set_actor(Actor(tenant="default", name="cli:ann")):
        entry_id = add(memories, "likes tea")
        memories.undo(PLACE, RULES, ANN)
        memories.redact("default", entry_id, 1)
    deeds = AuditLog(store.database).list_actions("default")
    assert [deed.act for deed in deeds] == ["memory.change", "memory.undo", "memory.redact"]
    assert deeds[0].after["entries"] == [f"{entry_id}@1"] and "tea" not in str(deeds)


def test_what_is_remembered_is_encrypted_at_rest(store: Store) -> None:
    url = store.database.url.render_as_string(hide_password=False)
    database = Database(url, sealer=Sealer(build_text_keys(["hwt_" + "k" * 40])))
    try:
        add(Memories(database), "likes tea")
        with store.database.read() as connection:
            [stored] = connection.execute(sa.select(select_stored_text(memory_versions.c.content))).scalars()
        assert str(stored).startswith(MARK) and "tea" not in str(stored)
        assert contents(Memories(database)) == ["likes tea"]
    finally:
        database.close()


# --- who may write ---------------------------------------------------------------------------------------------------


def asked_by(store: Store, **facts: object) -> str:
    """A run of which the columns ``facts`` are as given."""
    run_id = str(store.runs.create(new_run()).run_id)
    with store.database.write() as connection:
        connection.execute(sa.update(runs).where(runs.c.run_id == run_id).values(**facts))
    return run_id


def test_who_a_run_is_stands_in_its_rows(store: Store) -> None:
    access = Tenants(store.database)
    allowed = access.create_key("default", "ann", [KeyScope.RUNS_WRITE, KeyScope.MEMORY]).view
    admin = access.create_key("default", "root", [KeyScope.ADMIN]).view
    guest = access.create_key("default", "bob", [KeyScope.RUNS_WRITE]).view

    def writers(**facts: object) -> set[str]:
        return set(RunWriters(store.database).load_writers(asked_by(store, **facts)))

    assert writers(origin="cli", principal="cli:ann") == {"person"}
    assert writers(origin="api", principal=None) == {"person"}
    assert writers(origin="api", principal="api:key-0123456789ab") == {"person"}
    assert writers(origin="api", principal=format_named_holder("ann", allowed.key_id)) == {"person"}
    assert writers(origin="api", principal=format_named_holder("root", admin.key_id)) == {"person"}
    assert writers(origin="api", principal=format_named_holder("bob", guest.key_id)) == {"guest"}
    assert writers(origin="api", principal=format_named_holder("gone", "key_000000000000")) == {"guest"}
    assert writers(origin="cron") == {"cron"} and writers(origin="webhook") == {"webhook"}
    assert writers(origin=None) == {"guest"} and RunWriters(store.database).load_writers("run_none") == {
        MemoryWriter.GUEST
    }


def test_a_key_of_another_tenant_with_the_same_id_lets_nobody_write(store: Store) -> None:
    Tenants(store.database).create_tenant("acme")
    view = Tenants(store.database).create_key("acme", "ann", [KeyScope.MEMORY]).view
    run_id = asked_by(store, origin="api", principal=format_named_holder("ann", view.key_id))
    assert RunWriters(store.database).load_writers(run_id) == {MemoryWriter.GUEST}


def test_a_run_that_another_one_delegated_is_a_child_of_whoever_asked(store: Store, memories: Memories) -> None:
    view = Tenants(store.database).create_key("default", "bob", [KeyScope.RUNS_WRITE]).view
    parent = asked_by(store, origin="api", principal=format_named_holder("bob", view.key_id))
    with store.database.read() as connection:
        parent_pk = connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == parent)).scalar_one()
    links = {"parent_pk": parent_pk, "parent_iteration": 1, "parent_position": 0, "root_pk": parent_pk, "depth": 1}
    child = asked_by(store, origin="api", principal=None, **links)
    assert RunWriters(store.database).load_writers(child) == {MemoryWriter.CHILD, MemoryWriter.GUEST}


# --- many at once ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "calls", "kills"),
    [(2, 3, 2), pytest.param(4, 160, 40, marks=[pytest.mark.slow, pytest.mark.timeout(3_600)])],
)
def test_of_64_workers_that_are_killed_no_change_is_lost_or_made_twice(
    own_store: Store, processes: int, calls: int, kills: int
) -> None:
    url = own_store.database.url.render_as_string(hide_password=False)
    fleet = KilledWorkers(url, processes=processes, workers=64, calls=calls, kills=kills, seed=19)
    fleet.play()
    told = require_kept(own_store.database, fleet.answers, fleet.asked())
    refused = Counter(answer.refused for answer in fleet.answers.values() if answer.refused)
    print(f"{len(fleet.answers)} calls, {fleet.deaths} deaths; made {dict(told)}, refused {dict(refused)}")
    assert set(fleet.answers) == fleet.asked() and fleet.deaths == kills
    assert min(told[act] for act in ("add", "replace", "remove")) > 5
    assert refused[MemoryRefusal.OVER_LIMIT.value] and refused[MemoryRefusal.NO_MATCH.value]


def test_the_rules_hold_for_whoever_asks_and_not_for_what_was_kept_before(memories: Memories) -> None:
    add(memories, "x" * 300)
    tighter = MemoryRules(limit=100)
    with pytest.raises(MemoryRefused):
        memories.change(PLACE, [MemoryOperation(action=ADD, content="y")], tighter, ANN)
    removed = memories.change(PLACE, [MemoryOperation(action=REMOVE, old_text="xxx")], tighter, ANN)
    assert removed.entries == ()
