"""Following a run from a terminal, against a real database and a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from support.store import ANSWER, Store, opened
from support.valkey import valkey_server

from hermes_worker.broker.queue import build_redis_client
from hermes_worker.cli.follow import Notice, Sources, follow
from hermes_worker.core.errors import UnavailableError
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.store.runs.runs import RunNotFound
from hermes_worker.stream.live import Live, LiveEntry, make_stream_key
from hermes_worker.stream.sse import Cursor, WireEvent


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(f"sqlite:///{tmp_path / 'follow.db'}") as store:
        yield store


def sources(store: Store, url: str | None) -> Sources:
    return Sources(views=store.views, runs=store.runs, broker_url=lambda: url)


def told(*events: WireEvent | Notice) -> list[str]:
    return [event.name if isinstance(event, WireEvent) else event.text for event in events]


def test_a_run_that_has_ended_is_told_from_its_rows_without_a_broker(store: Store) -> None:
    run_id = store.submit().run_id
    store.answer(run_id)
    assert told(*follow(sources(store, None), run_id)) == ["message.delta", "message.completed", "run.completed"]


def test_a_reader_who_comes_back_is_told_the_rest(store: Store) -> None:
    run_id = store.submit().run_id
    store.answer(run_id)
    first = next(iter(follow(sources(store, None), run_id)))
    assert isinstance(first, WireEvent)
    rest = follow(sources(store, None), run_id, told=Cursor.parse(first.id))
    assert told(*rest) == ["message.completed", "run.completed"]


def test_an_unknown_run_is_an_error(store: Store) -> None:
    with pytest.raises(RunNotFound):
        next(iter(follow(sources(store, None), "run_nowhere")))


def test_that_nobody_works_is_said_once_and_the_end_is_still_told(store: Store) -> None:
    run_id = store.submit().run_id
    following = follow(sources(store, None), run_id, on_idle=lambda: "nobody works")
    assert told(next(following)) == ["nobody works"]
    store.runs.request_stop(run_id)
    assert told(*following) == ["run.cancelled"]


def test_text_is_shown_while_it_is_written(store: Store, broker_url: str) -> None:
    run_id = store.submit().run_id
    following = follow(sources(store, broker_url), run_id)
    with build_redis_client(broker_url) as client:
        live = Live(client)
        for offset, text in ((0, "do"), (2, "ne")):
            live.append(run_id, LiveEntry(kind="text", text=text, iteration=1, attempt=1, offset=offset))
        pieces = [next(following), next(following)]
    store.answer(run_id)
    assert [piece.fields["delta"] for piece in pieces if isinstance(piece, WireEvent)] == ["do", "ne"]
    assert told(*following) == ["message.completed", "run.completed"]


@pytest.mark.parametrize("spoil", ["words", "from the future"])
def test_a_preview_that_is_none_is_thrown_away(
    store: Store, broker_url: str, breaking: redis.Redis, spoil: str
) -> None:
    run_id = store.submit().run_id
    key = make_stream_key(run_id)
    if spoil == "words":
        breaking.set(key, "words")
    else:
        breaking.xadd(key, {"kind": "row"}, id="18446744073709551615-18446744073709551615")
    following = follow(sources(store, broker_url), run_id)
    threading.Thread(target=lambda: (until_gone(breaking, key), store.answer(run_id)), daemon=True).start()
    assert told(*following)[-1] == "run.completed"


def until_gone(client: redis.Redis, key: str) -> None:
    while client.exists(key):
        time.sleep(0.01)


def test_whoever_follows_is_counted_as_a_watcher(store: Store, broker_url: str) -> None:
    run_id = store.submit().run_id
    with build_redis_client(broker_url) as client, client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe("hermes:control")
        heard.get_message(timeout=5)
        following = follow(sources(store, broker_url), run_id)
        threading.Thread(target=lambda: list(following), daemon=True).start()
        message = None
        while message is None:
            message = heard.get_message(timeout=5)
        assert message["data"] == f"watch {run_id}"
    claim = store.turn(run_id)
    assert claim.loaded.is_watched
    store.runs.commit_reply(claim, ANSWER, ())


def test_a_broker_that_comes_back_elsewhere_is_found(store: Store) -> None:
    run_id = store.submit().run_id
    urls: list[str | None] = [None]
    following = follow(Sources(views=store.views, runs=store.runs, broker_url=lambda: urls[-1]), run_id)

    def write(server: EmbeddedValkey, text: str, offset: int) -> str:
        urls.append(server.url)
        with build_redis_client(server.url) as client:
            entry = LiveEntry(kind="text", text=text, iteration=1, attempt=1, offset=offset)
            Live(client).append(run_id, entry)
        piece = next(following)
        assert isinstance(piece, WireEvent)
        return str(piece.fields["delta"])

    with valkey_server(is_durable=False) as first:
        assert write(first, "do", 0) == "do"
    with valkey_server(is_durable=False) as second:
        assert write(second, "ne", 2) == "ne"
    store.answer(run_id)
    assert told(*following) == ["message.completed", "run.completed"]


def test_a_database_that_is_away_is_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = store.submit().run_id
    following = follow(sources(store, None), run_id, on_idle=lambda: "began")
    assert told(next(following)) == ["began"]
    read = store.views.list_events_after
    failures = iter([True, True])

    def sometimes(asked: str, seq: int) -> object:
        if next(failures, False):
            raise UnavailableError("the database did not answer")
        return read(asked, seq)

    monkeypatch.setattr(store.views, "list_events_after", sometimes)
    store.answer(run_id)
    said = told(*following)
    assert said[0] == "the database did not answer; waiting for it to come back"
    assert said[-1] == "run.completed"
