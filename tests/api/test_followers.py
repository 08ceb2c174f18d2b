"""Mailboxes and positions: what a reader hears when others come, go and lag."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from unittest.mock import Mock

import pytest
import redis

from hermes_worker.stream import followers
from hermes_worker.stream.followers import (
    _UNREAD_MAX,
    Feed,
    Followers,
    FollowPolicy,
    News,
    ReceivedEntry,
    _iterate_streams,
    _parse_entries,
    _Positions,
)
from hermes_worker.stream.live import Live, LiveEntry, make_stream_key

FIELDS = {"kind": "text", "text": "a", "iteration": "1", "attempt": "1", "offset": "0"}


def heard(number: int, kind: str = "text") -> ReceivedEntry:
    return ReceivedEntry((number, 0), LiveEntry(kind=kind, text="a", iteration=1, attempt=1, offset=0))


def news_of(feed: Feed) -> News | None:
    return asyncio.run(feed.wait_for_news(0.01))


def numbers(feed: Feed) -> list[int]:
    news = news_of(feed)
    return [] if news is None else [one.id[0] for one in news.entries]


def test_what_was_heard_before_is_left_out() -> None:
    feed = Feed()
    feed.take_entries((0, 0), [heard(1), heard(2)])
    feed.take_entries((0, 0), [heard(1), heard(2), heard(3)])
    feed.take_entries((3, 0), [heard(4)])
    assert numbers(feed) == [1, 2, 3, 4]
    assert news_of(feed) is None


def test_a_read_that_began_before_the_reader_came_is_not_for_it() -> None:
    feed = Feed()
    feed.take_entries((7, 0), [heard(8)])
    feed.take_entries((0, 0), [heard(7), heard(8)])
    assert numbers(feed) == [7, 8]


def test_rows_are_due_when_somebody_says_so_or_there_are_newer_ones() -> None:
    feed = Feed()
    feed.rows_read = 3
    feed.note_rows(3)
    assert news_of(feed) is None
    feed.note_rows(4)
    assert news_of(feed) == News(entries=[], are_rows_due=True)
    feed.take_entries((0, 0), [heard(1, "row")])
    found = news_of(feed)
    assert found is not None
    assert found.are_rows_due


def test_a_reader_that_takes_nothing_does_not_fill_the_memory() -> None:
    feed = Feed()
    for number in range(1, 4 * _UNREAD_MAX):
        feed.take_entries((number - 1, 0), [heard(number)])
    assert len(numbers(feed)) == _UNREAD_MAX
    feed.take_entries((4 * _UNREAD_MAX - 1, 0), [heard(4 * _UNREAD_MAX)])
    assert numbers(feed) == [4 * _UNREAD_MAX], "and it hears what comes now; rows tell it what is missing"


def test_a_position_is_not_moved_by_a_read_that_a_new_reader_has_overtaken() -> None:
    positions = _Positions()
    positions.join("r")
    positions.advance("r", (0, 0), (5, 0))
    positions.join("r")
    positions.advance("r", (5, 0), (9, 0))
    assert positions.copy_all() == {"r": (0, 0)}
    positions.leave("r")
    assert positions.copy_all() == {"r": (0, 0)}
    positions.leave("r")
    assert positions.copy_all() == {}
    positions.advance("r", (0, 0), (1, 0))
    assert positions.copy_all() == {}


@pytest.mark.parametrize(
    "replies",
    [[["k", [("5-1", FIELDS)]]], {"k": [[("5-1", FIELDS)]]}],
    ids=["RESP2", "RESP3"],
)
def test_both_protocols_are_read(replies: Any) -> None:
    [(key, entries)] = _iterate_streams(replies)
    [one] = _parse_entries(entries)
    assert (key, one.id, one.entry.iteration, one.at) == ("k", (5, 1), 1, 0.005)


@pytest.mark.parametrize("replies", [None, [], {}])
def test_no_reply_is_no_stream(replies: Any) -> None:
    assert list(_iterate_streams(replies)) == []


def test_entries_that_announce_nothing_are_soon_not_followed_and_true_ones_are() -> None:
    def reads(*, are_true: bool) -> int:
        feed, due = Feed(), 0
        for number in range(1, 101):
            feed.take_entries((0, 0), [heard(number, "row")])
            found = news_of(feed)
            assert found is not None
            due += found.are_rows_due
            if are_true:
                feed.confirm_rows(number)
        return due

    assert reads(are_true=True) == 100
    assert reads(are_true=False) <= 8


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_new_reader_does_not_wait_for_what_others_follow(
    broker_url: str, breaking: redis.Redis, monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    monkeypatch.setattr(followers, "_BLOCK_MS", 0)  # for ever
    entry = LiveEntry(kind="text", text="Hello", iteration=1, attempt=1, offset=0)
    client = redis.Redis.from_url(broker_url, decode_responses=True, socket_timeout=None)
    live = Live(client)

    async def follow_both() -> list[str]:
        following = Followers(client=client, runs=Mock(), views=Mock(), policy=FollowPolicy(rows_every_s=1e6))
        if is_broken:
            breaking.set(make_stream_key(following._wakes), "no stream")
        following.start()
        with following.follow("quiet") as quiet:
            live.append("quiet", entry)
            assert await quiet.wait_for_news(100)
            while not any("b" in each["flags"] for each in breaking.client_list()):
                await asyncio.sleep(0.01)  # until the thread waits at the broker
            with following.follow("new") as new:
                live.append("new", entry)
                news = await new.wait_for_news(100)
        following._end.set()
        live.append("quiet", entry)  # ends the read
        return [one.entry.text for one in cast(News, news).entries]

    assert asyncio.run(follow_both()) == ["Hello"]


def test_what_was_written_while_a_reader_came_is_looked_for_soon() -> None:
    """Its worker did not know of the reader, and announced nothing."""
    views = Mock(load_event_seqs=Mock(return_value={"run": 3}))

    async def follow_one() -> News | None:
        following = Followers(client=Mock(), runs=Mock(), views=views, policy=FollowPolicy(rows_every_s=1e6))
        following._call_in_loop = asyncio.get_running_loop().call_soon_threadsafe
        with following.follow("run") as feed:
            return await feed.wait_for_news(100)

    assert asyncio.run(follow_one()) == News(entries=[], are_rows_due=True)
