"""Reading transcripts: the cache saves work and is never believed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import Store, asks

from hermes_worker.core.messages import Message, ModelReply
from hermes_worker.core.replay import Replay
from hermes_worker.store.rows import BLOB_CHARS_MIN
from hermes_worker.store.runs import runs as runs_module
from hermes_worker.store.runs import transcripts as transcripts_module
from hermes_worker.store.runs.transcripts import CorruptTranscript, Transcripts
from hermes_worker.store.tables import messages

P = Replay.PURE


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Every range of rows that was read from the database."""
    ranges: list[tuple[int, int]] = []
    read = transcripts_module.load_messages

    def counted(connection: Any, session_pk: int, first: int, last: int) -> list[Message]:
        ranges.append((first, last))
        return read(connection, session_pk, first, last)

    monkeypatch.setattr(transcripts_module, "load_messages", counted)
    return ranges


def conversation(store: Store, steps: int = 3) -> tuple[int, int]:
    """A session with ``steps`` iterations behind it: its number and its length."""
    run_id = store.submit(session_id="s").run_id
    for _ in range(steps):
        store.ask_tools(run_id, asks(P))
        store.settle(run_id)
    claim = store.turn(run_id)
    return claim.loaded.session_pk, claim.loaded.message_seq


def seqs(rows: Sequence[Message]) -> list[int]:
    return [row.seq for row in rows]


def test_a_transcript_is_all_its_rows_in_order(store: Store) -> None:
    session_pk, last = conversation(store)

    rows = store.transcripts.load(session_pk, last)

    assert seqs(rows) == list(range(1, 8))
    assert [row.role.value for row in rows] == ["user", *["assistant", "tool"] * 3]


def test_only_what_is_new_is_read_and_the_last_known_row_to_check_it(
    store: Store, reads: list[tuple[int, int]]
) -> None:
    session_pk, last = conversation(store)

    store.transcripts.load(session_pk, last - 2)
    store.transcripts.load(session_pk, last)
    store.transcripts.load(session_pk, last)

    assert reads == [(1, last - 2), (last - 2, last), (last, last)]


def test_a_cache_whose_last_row_is_not_the_stored_one_is_thrown_away(
    store: Store, reads: list[tuple[int, int]]
) -> None:
    """The database was restored from a backup, say, and the conversation took another turn."""
    session_pk, last = conversation(store)
    store.transcripts.load(session_pk, last)
    with store.database.write() as connection:
        connection.execute(
            sa.update(messages)
            .where(messages.c.session_pk == session_pk, messages.c.seq.in_([last - 1, last]))
            .values(body='{"content":"another turn","role":"user"}')
        )

    rows = store.transcripts.load(session_pk, last)

    assert [json.loads(row.body)["content"] for row in rows[-2:]] == ["another turn"] * 2
    assert reads[-1] == (1, last)


def test_a_shorter_view_of_a_longer_cache_is_read_afresh(store: Store) -> None:
    session_pk, last = conversation(store)
    store.transcripts.load(session_pk, last)

    assert seqs(store.transcripts.load(session_pk, last - 4)) == list(range(1, last - 3))
    assert seqs(store.transcripts.load(session_pk, last)) == list(range(1, last + 1))


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_missing_row_is_noticed_and_named(store: Store, is_cached: bool) -> None:
    session_pk, last = conversation(store)
    if is_cached:
        store.transcripts.load(session_pk, last - 4)
    with store.database.write() as connection:
        connection.execute(sa.delete(messages).where(messages.c.seq == last - 1))

    with pytest.raises(CorruptTranscript, match=f"{last - 1}"):
        store.transcripts.load(session_pk, last)


def test_sessions_do_not_mix(store: Store) -> None:
    pks = {said: store.turn(store.submit(input=said).run_id).loaded.session_pk for said in ("first", "second")}

    for _ in range(2):
        for said, pk in pks.items():
            assert json.loads(store.transcripts.load(pk, 1)[0].body)["content"] == said


def test_the_cache_holds_no_more_than_it_may_and_stays_right(store: Store) -> None:
    cache = Transcripts(store.database, chars_max=2_000)
    pks = []
    for number in range(6):
        created = store.submit(input=f"{number}" * 500)
        pks.append(store.turn(created.run_id).loaded.session_pk)

    for _ in range(3):
        for number, pk in enumerate(pks):
            assert json.loads(cache.load(pk, 1)[0].body)["content"] == f"{number}" * 500

    kept = cache._kept
    assert sum(one.chars for one in kept.values()) <= 2_000
    assert cache._chars == sum(one.chars for one in kept.values())


def test_of_many_short_sessions_the_last_ones_are_remembered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Transcripts(store.database, sessions_max=2)
    monkeypatch.setattr(runs_module, "SESSIONS_KEPT", 2)
    first, second, third = (
        store.turn(store.submit(input=said).run_id).loaded.session_pk for said in ("first", "second", "third")
    )
    store.runs._sessions.clear()

    for pk in (first, second, first, third):
        cache.load(pk, 1)
        store.runs.load_session_context(pk)

    assert list(cache._kept) == list(store.runs._sessions) == [first, third]


def test_large_rows_read_like_small_ones(store: Store) -> None:
    large = "ü" * BLOB_CHARS_MIN
    run_id = store.submit(input=large, session_id="s").run_id
    store.ask_tools(run_id, asks(P))
    store.settle(run_id, text=large)
    store.answer(run_id, ModelReply(text=large))

    assert [row["content"] for row in store.bodies(run_id)] == [large, None, large, large]
    assert store.views.load_run(run_id).output == large
    answered = store.views.list_events_after(run_id, 0)[-2]
    assert answered.data["text"] == large


def test_a_place_in_a_transcript_is_never_written_twice(store: Store) -> None:
    session_pk, last = conversation(store)
    row = {"session_pk": session_pk, "seq": last, "run_pk": 1, "role": "user", "body": "{}", "created_at": 0.0}

    with pytest.raises(sa.exc.IntegrityError), store.database.write() as connection:
        connection.execute(sa.insert(messages), row)
