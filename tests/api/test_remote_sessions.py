"""Verbs about sessions, over a server and over its database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from remote_lines import at_server, keyed_file, local_line, same
from serving import Served
from support.commandline import CommandLine
from support.store import Store

from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.settings import Settings
from hermes_worker.store.search.indexing import Indexer
from hermes_worker.store.sessions import SessionChanges, SessionPage, Sessions
from hermes_worker.store.statistics import count_ended_rows

STATE_DB = """
create table sessions (id text primary key, source text, model text, system_prompt text, parent_session_id text,
  started_at real, ended_at real, end_reason text, title text);
create table messages (id integer primary key autoincrement, session_id text, role text, content text,
  tool_call_id text, tool_calls text, tool_name text, timestamp real, active integer default 1, compacted integer);
insert into sessions values ('20260102_101010_bbbbbbbb', 'cron', 'm', 'Obey.', '20260101_101010_aaaaaaaa',
  1767000100.0, 1767000200.0, 'cron_complete', 'Plan');
insert into sessions values ('20260101_101010_aaaaaaaa', 'cli', 'm', 'Obey.', null, 1767000000.0, null, null, null);
insert into messages (session_id, role, content, tool_call_id, tool_calls, tool_name, timestamp, active) values
  ('20260101_101010_aaaaaaaa', 'user', 'left out', null, null, null, 1767000000.0, 0),
  ('20260101_101010_aaaaaaaa', 'user', 'hello', null, null, null, 1767000001.0, 1),
  ('20260101_101010_aaaaaaaa', 'assistant', '', null,
   '[{"id": "c1", "type": "function", "function": {"name": "todo", "arguments": "{}"}}]', null, 1767000002.0, 1),
  ('20260101_101010_aaaaaaaa', 'tool', 'done', 'c1', null, 'todo', 1767000003.0, 1),
  ('20260101_101010_aaaaaaaa', 'assistant', 'hi', null, null, null, 1767000004.0, 1),
  ('20260102_101010_bbbbbbbb', 'user', 'again', null, null, null, 1767000101.0, 1);
"""
"""In the form of the original's ``state.db`` (around 6.1), version 22."""


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
    while count_ended_rows(store.database):
        pass
    Indexer(store.database).index_due(60.0, pause_s=0.0)
    return session_id


def test_sessions_are_shown_and_found_alike(local: CommandLine, remote: CommandLine, store: Store) -> None:
    heron = talked(store, "deploy the heron", "and the stork")
    talked(store, "nothing of that")
    Sessions(store.database).change(heron, SessionChanges(title="Birds"))

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


def test_a_session_of_one_run_has_the_tokens_of_that_run(remote: CommandLine, store: Store) -> None:
    run_id = store.submit(input="hello").run_id
    usage = Usage(input=1_200, cache_read=3_000, cache_write=40, output=70)
    store.answer(run_id, ModelReply(text="noted", usage=usage))
    for words in (["sessions", "show"], ["runs", "show"]):
        assert "4,240 tokens in, 70 out" in remote.inline(*words, run_id).out


def test_a_session_that_there_is_not_is_told_alike(local: CommandLine, remote: CommandLine, store: Store) -> None:
    talked(store, "hello")
    for way in (local, remote):
        refused = way.inline("sessions", "show", "No such title")
        assert (refused.code, "there is no session 'No such title'" in refused.err) == (2, True)


@pytest.mark.parametrize("way", ["local", "remote"])
def test_sessions_are_changed(way: str, request: pytest.FixtureRequest, store: Store) -> None:
    line: CommandLine = request.getfixturevalue(way)
    session_id = talked(store, "hello", "again")
    its = Sessions(store.database)

    assert line.inline("sessions", "rename", session_id, "A  plan\n").code == 0
    assert line.inline("sessions", "end", "A plan", "--reason", "done").code == 0
    assert (its.get(session_id).title, its.get(session_id).end_reason) == ("A plan", "done")
    fork = line.inline("sessions", "fork", "A plan", "--at", "2").out.strip()
    assert [view.message_count for view in its.find_by_title("A plan", limit=9)] == [2, 4]
    assert line.inline("sessions", "delete", fork, "--yes").out == f"deleted {fork}\n"
    assert [view.label.id for view in its.find_by_title("A plan", limit=9)] == [session_id]


@pytest.mark.parametrize("way", ["local", "remote"])
def test_sessions_move_through_a_file(way: str, request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> None:
    line: CommandLine = request.getfixturevalue(way)
    session_id = talked(store, "hello \u2028 \U0001f99a", "again")
    talked(store, "another")
    file = tmp_path / "out.jsonl"

    assert line.inline("sessions", "export", "--out", str(file)).code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert line.inline("sessions", "export", "--out", str(file)).code == 2
    first = line.inline("sessions", "import", str(file))
    assert (first.code, len(first.out.split())) == (0, 2), first.err
    source = "cli" if way == "local" else "api"
    its = Sessions(store.database, source=source)
    assert [one.body for one in its.list_messages(f"import_{session_id}")] == [
        one.body for one in its.list_messages(session_id)
    ]
    again = line.inline("sessions", "import", str(file))
    assert (again.code, again.out) == (1, "")
    assert "2 not" in again.err


@pytest.mark.parametrize("way", ["local", "remote"])
def test_the_originals_database_is_imported(
    way: str, request: pytest.FixtureRequest, store: Store, tmp_path: Path
) -> None:
    line: CommandLine = request.getfixturevalue(way)
    talked(store, "so that there is something")
    with closing(sqlite3.connect(tmp_path / "state.db")) as state, state:
        state.executescript(STATE_DB)

    told = line.inline("sessions", "import", str(tmp_path / "state.db"))

    assert (told.code, told.out.split()) == (0, ["20260101_101010_aaaaaaaa", "20260102_101010_bbbbbbbb"]), told.err
    its = Sessions(store.database, source="cli" if way == "local" else "api")
    view = its.get("20260102_101010_bbbbbbbb")
    assert (view.title, view.end_reason, view.parent and view.parent.name) == (
        "Plan",
        "cron_complete",
        "20260101_101010_aaaaaaaa",
    )
    said = its.list_messages("20260101_101010_aaaaaaaa")
    assert [(one.role.value, one.created_at, one.tool_name) for one in said] == [
        ("user", 1_767_000_001.0, None),
        ("assistant", 1_767_000_002.0, None),
        ("tool", 1_767_000_003.0, "todo"),
        ("assistant", 1_767_000_004.0, None),
    ]


def test_a_hostile_file_does_no_harm(local: CommandLine, store: Store, tmp_path: Path) -> None:
    talked(store, "so that there is something")
    with closing(sqlite3.connect(tmp_path / "views.db")) as state, state:
        state.executescript(
            "create view sessions as with recursive n(id) as (select 1 union all select id + 1 from n) select * from n;"
            "create table messages (id integer primary key, session_id, role, content);"
        )
    (tmp_path / "long.jsonl").write_bytes(b"[" * (6 * 1024 * 1024))
    (tmp_path / "deep.jsonl").write_text("[" * 100_000 + "\n" + '{"id": "fine", "messages": []}\n')
    (tmp_path / "broken.db").write_bytes(b"SQLite format 3\x00" + bytes(5_000))

    for name, why in (
        ("views.db", "no sessions in the form"),
        ("long.jsonl", "bytes"),
        ("broken.db", "cannot be read"),
    ):
        refused = local.inline("sessions", "import", str(tmp_path / name))
        assert (refused.code, why in refused.err) == (2, True), (name, refused.err)
    deep = local.inline("sessions", "import", str(tmp_path / "deep.jsonl"))
    assert (deep.code, deep.out) == (0, "fine\n")
    assert "session 1: the line is no JSON" in deep.err


@pytest.mark.parametrize("way", ["local", "remote"])
def test_sessions_that_ended_are_pruned(way: str, request: pytest.FixtureRequest, store: Store) -> None:
    line: CommandLine = request.getfixturevalue(way)
    ended, archived, going_on = (talked(store, text) for text in ("one", "two", "three"))
    its = Sessions(store.database)
    its.change(ended, SessionChanges(end_reason="done"))
    its.change(archived, SessionChanges(end_reason="done", is_archived=True))

    shown = line.inline("sessions", "prune", "--older-than", "0")
    assert "would delete 1 session;" in shown.err
    assert line.inline("sessions", "prune", "--older-than", "1", "--yes").out == "deleted 0 of 0 sessions\n"
    assert line.inline("sessions", "prune", "--older-than", "0", "--reason", "other", "--yes").out.startswith(
        "deleted 0"
    )
    assert line.inline("sessions", "prune", "--older-than", "0", "--yes").out == "deleted 1 of 1 session\n"
    assert {view.label.id for view in its.list_page(SessionPage())} == {going_on}
    assert line.inline("sessions", "archive", archived, "--undo").code == 0
    assert {view.label.id for view in its.list_page(SessionPage())} == {going_on, archived}


@pytest.mark.parametrize("way", ["local", "remote"])
def test_a_session_is_resumed_by_its_title(way: str, request: pytest.FixtureRequest, store: Store) -> None:
    line: CommandLine = request.getfixturevalue(way)
    session_id = talked(store, "hello")
    Sessions(store.database).change(session_id, SessionChanges(title="Plan"))

    told = json.loads(line.inline("sessions", "resume", "Plan", "go on", "--detach", "--json").out)

    assert told["session_id"] == session_id
    store.answer(told["run_id"], ModelReply(text="gone on"))
    assert Sessions(store.database).get(session_id).message_count == 4
