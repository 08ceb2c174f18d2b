"""Runs that wait for files of chats begin in the order in which people wrote."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.core.effects import FetchFile
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.inbound_files import FileOutcome
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.store.inbound_files import (
    FetchedFile,
    FileChat,
    InboundFiles,
    NewFile,
    NewFiles,
    begin_if_ready,
    enqueue_files,
    find_wait_s,
)
from hermes_worker.store.tables import runs

HAD = FetchedFile(outcome=FileOutcome(media_type="text/plain", size_bytes=1))


def sent(store: Store, session: str, *, wait_s: float = 90.0) -> tuple[str, FetchFile]:
    """A message with a file comes: its run, and the fetch that is due."""
    run_id = store.submit(session_id=session, source="gateway", files="kept", delay_s=wait_s).run_id
    new = NewFiles(account="telegram:default", files=[NewFile(media=MediaRef(kind=MediaKind.DOCUMENT, id="f"))])
    with store.database.write() as connection:
        [hint] = enqueue_files(connection, run_id, new, "default")
    assert isinstance(hint.effect, FetchFile)
    return run_id, hint.effect


def said(store: Store, session: str) -> str:
    """A text that comes behind it."""
    chat = FileChat(tenant="default", source="gateway", session=session, principal="telegram:2")
    with store.database.read() as connection:
        left_s = find_wait_s(connection, chat)
    assert left_s is not None
    run_id = store.submit(session_id=session, source="gateway", delay_s=left_s).run_id
    with store.database.write() as connection:
        begin_if_ready(connection, run_id)
    return run_id


def settled(store: Store, effect: FetchFile) -> None:
    files = InboundFiles(store.database)
    claim = files.claim(effect, store.owner)
    assert claim is not None
    files.settle(claim, HAD)


def begun(store: Store, *run_ids: str) -> list[bool]:
    with store.database.read() as connection:
        rows = connection.execute(sa.select(runs.c.run_id, runs.c.hinted_at).where(runs.c.run_id.in_(run_ids)))
        found = {run_id: at is not None for run_id, at in rows}
    return [found[run_id] for run_id in run_ids]


def test_a_text_behind_a_file_begins_when_the_turn_with_the_file_is_over(store: Store) -> None:
    first, effect = sent(store, "s")
    second, third = said(store, "s"), said(store, "s")
    assert begun(store, first, second, third) == [False, False, False]
    settled(store, effect)
    assert begun(store, first, second, third) == [True, False, False]
    store.runs.request_stop(first)
    assert begun(store, first, second, third) == [False, True, False]


def test_where_nothing_waits_for_files_nothing_is_put_off(store: Store) -> None:
    first, effect = sent(store, "s")
    settled(store, effect)
    chat = FileChat(tenant="default", source="gateway", session="s", principal="telegram:2")
    other = FileChat(tenant="default", source="gateway", session="t", principal="telegram:2")
    with store.database.read() as connection:
        assert [find_wait_s(connection, one) for one in (chat, other)] == [None, None]
    assert begun(store, first) == [True]


def test_a_text_whose_turn_before_began_meanwhile_is_not_put_off(store: Store) -> None:
    """Between the look and the run, the file came."""
    first, effect = sent(store, "s")
    second = store.submit(session_id="s", source="gateway", delay_s=80.0).run_id
    settled(store, effect)
    with store.database.write() as connection:
        begin_if_ready(connection, second)
    store.runs.request_stop(first)
    assert begun(store, first, second) == [False, True]


def test_time_that_is_over_begins_turns_in_their_order(store: Store) -> None:
    first, _ = sent(store, "s")
    second = said(store, "s")
    store.let_pass(100.0)
    store.sweep()
    assert begun(store, first, second) == [True, False]
    store.runs.request_stop(first)
    assert begun(store, first, second) == [False, True]


@pytest.mark.parametrize("seed", range(3))
def test_files_that_are_settled_at_the_same_moment_begin_their_turns_in_order(store: Store, seed: int) -> None:
    chats = {f"s{number}": [sent(store, f"s{number}") for _ in range(3)] for number in range(5)}
    effects = [chat[place][1] for place in range(3) for chat in chats.values()]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda effect: settled(store, effect), effects[seed:] + effects[:seed]))
    for turns in chats.values():
        run_ids = [run_id for run_id, _ in turns]
        for place, run_id in enumerate(run_ids):
            assert begun(store, *run_ids) == [number == place for number in range(3)]
            store.runs.request_stop(run_id)
