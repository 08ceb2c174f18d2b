"""What was erased is in no file of the embedded database: not in it, not in its log, not in the index of its log."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.migrated import bring_up
from support.store import Store
from support.two_people import ANNA, People, person

from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.retention_rules import DEFAULT_RULES, RetentionKind, parse_rule
from hermes_worker.features.retention import erasure_rows as erasing
from hermes_worker.features.retention.deleting_rows import delete_blobs
from hermes_worker.features.retention.erasure_rows import IN_THE_LOG, Erasures
from hermes_worker.features.retention.erasure_rules import ErasureReceipt, Person
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.store.engine.database import Database
from hermes_worker.store.search.indexing import Indexer, merge_deleted
from hermes_worker.store.statistics import count_ended_rows

WORD = "zanzibarkanari"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hermes.db"


@pytest.fixture
def store(file: Path) -> Iterator[Store]:
    """The embedded database, in a file that the test reads."""
    bring_up(f"sqlite:///{file}")
    database = Database(f"sqlite:///{file}")
    yield Store.over(database)
    database.close()


def files_with(file: Path, word: str) -> list[str]:
    """Which files of the database hold the word, however it is written."""
    found = [file, *(file.with_name(file.name + end) for end in ("-wal", "-shm"))]
    return [each.name for each in found if each.exists() and word.lower().encode() in each.read_bytes().lower()]


def talk(store: Store, count: int, word: str) -> list[str]:
    """Conversations of all lengths, among others' that stay."""
    sizes, ids = random.Random(7), []
    for number in range(count):
        for told in (word, "others"):
            text = f"{told} " * sizes.choice((1, 3, 40, 300, 2_000))
            made = store.submit(session_id=f"{told}-{number}", input=text).run_id
            store.answer(made, ModelReply(text=text, usage=Usage(input=1, output=1)))
            ids += [made] if told == word else []
    while count_ended_rows(store.database):
        pass
    Indexer(store.database).index_due(60.0, pause_s=0.0)
    return ids


def erase(store: Store, whom: Person) -> ErasureReceipt:
    every = Erasures(store.database)
    begun = every.begin("default", whom, by="cli:test", takes_shared=True)
    for _ in every.delete_stepwise(begun):
        pass
    return every.finish(begun)


def test_after_an_erasure_no_file_holds_a_word_of_it(store: Store, file: Path) -> None:
    talk(store, 40, WORD)
    assert files_with(file, WORD) != []
    receipt = erase(store, Person(named=tuple(("api", f"{WORD}-{number}") for number in range(40))))
    assert files_with(file, WORD) == []
    assert IN_THE_LOG not in receipt.not_reached
    assert Erasures(store.database).load_receipt(receipt.receipt_id) == receipt


def test_after_the_erasure_of_a_person_only_what_was_done_is_left(store: Store, file: Path) -> None:
    people = People(store)
    people.live(ANNA)
    people.settle()
    with store.database.write() as connection:
        names = connection.execute(sa.text("select name from sqlite_master where type = 'trigger'")).scalars().all()
        for name in names:
            if "audit" in name:
                connection.execute(sa.text(f"drop trigger {name}"))
        connection.execute(sa.text("delete from audit_log"))
    erase(store, person(ANNA))
    assert files_with(file, ANNA) == []


def test_while_somebody_reads_the_receipt_says_until_when_and_the_sweeper_tries_again(
    store: Store, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "_LOG_WAIT_S", 0.0)
    [*ids] = talk(store, 3, WORD)
    with sqlite3.connect(file, isolation_level=None) as reader:
        reader.execute("begin")
        reader.execute("select count(*) from runs").fetchone()
        receipt = erase(store, Person(sessions=tuple(ids)))
        assert IN_THE_LOG in receipt.not_reached
        assert Erasures(store.database).load_receipt(receipt.receipt_id) == receipt
        store.sweeper.prune()
        assert f"{file.name}-wal" in files_with(file, WORD), "the reader still sees what was there"
        reader.execute("rollback")
    reader.close()
    store.sweeper.prune()
    assert files_with(file, WORD) == []


def test_what_the_rules_let_go_leaves_the_log_with_the_next_sweep(store: Store, file: Path) -> None:
    talk(store, 5, WORD)
    store.let_pass(100 * 86_400)
    rules = {kind: parse_rule(kind, "30d") for kind in (RetentionKind.RUNS, RetentionKind.TRANSCRIPTS)}
    assert (
        sum(
            each.count
            for each in Pruner(store.database, {**DEFAULT_RULES, **rules}).prune_stepwise()
            if each.what == "runs"
        )
        >= 9
    )
    while merge_deleted(store.database):
        pass
    store.sweeper.prune()
    while delete_blobs(store.database, 1_000, released_before=store.database.read_clock())[0]:
        pass
    store.sweeper.prune()
    assert files_with(file, WORD) == []
