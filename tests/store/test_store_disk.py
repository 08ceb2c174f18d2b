"""A database whose disk is full: a clear error, nothing half written, and the work goes on when there is room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import Store, asks, check, opened, settlement

from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus

LONG = "x" * 400_000
LONG_ANSWER = ModelReply(text=LONG, usage=Usage(input=3, output=2))


class Disk:
    """How many pages the database's file may have; ``None`` for any number."""

    pages: int | None = None


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def store(tmp_path: Path, disk: Disk) -> Iterator[Store]:
    with opened(f"sqlite:///{tmp_path / 'store.db'}") as store:

        def limit(connection: sa.Connection) -> None:
            connection.exec_driver_sql(f"pragma max_page_count = {disk.pages or 1 << 30}")

        sa.event.listen(store.database.engine, "begin", limit)
        yield store


def fill(store: Store, disk: Disk) -> None:
    """From here on the file does not grow."""
    with store.database.read() as connection:
        disk.pages = connection.exec_driver_sql("pragma page_count").scalar_one()


def rows(store: Store) -> list[Any]:
    with store.database.read() as connection:
        tables = ("runs", "messages", "events", "tool_calls", "blobs", "sessions")
        return [connection.execute(sa.text(f"select * from {table}")).all() for table in tables]


def test_a_reply_that_finds_no_room_is_written_whole_or_not_at_all(store: Store, disk: Disk) -> None:
    run_id = store.submit().run_id
    claim = store.turn(run_id)
    fill(store, disk)
    before = rows(store)

    with pytest.raises(UnavailableError, match="make room on its disk: database or disk is full"):
        store.runs.commit_reply(claim, LONG_ANSWER, ())

    assert rows(store) == before
    check(store)
    disk.pages = None
    store.runs.commit_reply(claim, LONG_ANSWER, ())
    assert store.status(run_id) is RunStatus.COMPLETED
    check(store)


def test_a_result_that_finds_no_room_is_written_whole_or_not_at_all(store: Store, disk: Disk) -> None:
    run_id = store.submit().run_id
    store.ask_tools(run_id, asks(Replay.ONCE, Replay.ONCE))
    claims = [store.call(run_id, position) for position in range(2)]
    fill(store, disk)
    before = rows(store)

    with pytest.raises(UnavailableError, match="make room"):
        store.calls.settle(claims[0], settlement(LONG))

    assert rows(store) == before
    check(store)
    disk.pages = None
    for claim in claims:
        store.calls.settle(claim, settlement(LONG))
    assert [len(result) for result in store.results(run_id)] == [len(LONG)] * 2
    check(store)


def test_a_submission_that_finds_no_room_is_refused(store: Store, disk: Disk) -> None:
    store.submit()
    fill(store, disk)
    before = rows(store)

    with pytest.raises(UnavailableError, match="make room"):
        store.submit(input=LONG)

    assert rows(store) == before
