"""Verbs about sessions, over a server and over its database."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from remote_lines import at_server, keyed_file, local_line, same
from serving import Served
from support.commandline import CommandLine
from support.store import Store

from hermes_worker.core.messages import ModelReply
from hermes_worker.settings import Settings
from hermes_worker.store.search.indexing import Indexer
from hermes_worker.store.sessions import Changes, Sessions
from hermes_worker.store.statistics import count_what_is_over


@pytest.fixture
def api(serve: Callable[..., Served], settings: Settings) -> Served:
    return serve(settings)


@pytest.fixture
def local(api: Served) -> CommandLine:
    return local_line(api)


@pytest.fixture
def remote(api: Served, tmp_path: Path) -> CommandLine:
    return at_server(api.url, tmp_path, keyed_file(tmp_path / "key", api.key))


def talked(store: Store, *texts: str) -> str:
    """A session that nobody named, so that both ways call it by its id."""
    first = store.submit(input=texts[0]).run_id
    store.answer(first, ModelReply(text="noted"))
    session_id = first
    for text in texts[1:]:
        store.answer(store.submit(input=text, session_id=session_id).run_id, ModelReply(text="noted"))
    while count_what_is_over(store.database):
        pass
    Indexer(store.database).look(60.0, pause_s=0.0)
    return session_id


def test_sessions_are_shown_and_found_alike(local: CommandLine, remote: CommandLine, store: Store) -> None:
    heron = talked(store, "deploy the heron", "and the stork")
    talked(store, "nothing of that")
    Sessions(store.database).change(heron, Changes(title="Birds"))

    lines = [
        *(
            [*words, *more]
            for words in (["list"], ["search", "heron OR stork"], ["lineage", heron])
            for more in ([], ["--json"])
        ),
        ["list", "--limit", "1"],
        ["show", heron],
        ["show", "Birds", "--messages"],
        ["show", heron, "--messages", "--json"],
        ["search", "heron", "--in", "Birds", "--sort", "newest", "--role", "user"],
        ["search", "nobody said this"],
    ]
    same(local, remote, [["sessions", *words] for words in lines])
    shown = remote.inline("sessions", "show", "Birds", "--messages").out
    assert "deploy the heron" in shown
    assert "Birds" in shown
    found = json.loads(remote.inline("sessions", "search", "stork", "--json").out)
    assert (found["session_id"], found["snippet"]) == (heron, "and the >>>stork<<<")


def test_a_session_that_there_is_not_is_told_alike(local: CommandLine, remote: CommandLine, store: Store) -> None:
    talked(store, "hello")
    for way in (local, remote):
        refused = way.inline("sessions", "show", "No such title")
        assert (refused.code, "no session with the id, the name or the title 'No such title'" in refused.err) == (
            2,
            True,
        )


@pytest.mark.parametrize("way", ["local", "remote"])
def test_sessions_are_changed(way: str, request: pytest.FixtureRequest, store: Store) -> None:
    line: CommandLine = request.getfixturevalue(way)
    session_id = talked(store, "hello", "again")
    its = Sessions(store.database)

    assert line.inline("sessions", "rename", session_id, "A  plan\n").code == 0
    assert line.inline("sessions", "end", "A plan", "--reason", "done").code == 0
    assert (its.get(session_id).title, its.get(session_id).end_reason) == ("A plan", "done")
    fork = line.inline("sessions", "fork", "A plan", "--at", "2").out.strip()
    assert [view.message_count for view in its.called("A plan", limit=9)] == [2, 4]
    assert line.inline("sessions", "delete", fork, "--yes").out == f"deleted {fork}\n"
    assert [view.label.id for view in its.called("A plan", limit=9)] == [session_id]


@pytest.mark.parametrize("way", ["local", "remote"])
def test_a_session_is_resumed_by_its_title(way: str, request: pytest.FixtureRequest, store: Store) -> None:
    line: CommandLine = request.getfixturevalue(way)
    session_id = talked(store, "hello")
    Sessions(store.database).change(session_id, Changes(title="Plan"))

    told = json.loads(line.inline("sessions", "resume", "Plan", "go on", "--detach", "--json").out)

    assert told["session_id"] == session_id
    store.answer(told["run_id"], ModelReply(text="gone on"))
    assert Sessions(store.database).get(session_id).message_count == 4
