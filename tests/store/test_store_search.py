"""Search in messages: the same ids in the same order on both databases, and nothing of what is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.plans import statements
from support.store import Store, asks, new_run, settlement
from support.word_index import matches_words

from hermes_worker.core.messages import ModelReply, Role
from hermes_worker.core.replay import Replay
from hermes_worker.core.retention_rules import DEFAULT_RULES, RetentionKind, RetentionRule
from hermes_worker.core.search_queries import (
    WORDS_MADE_BY,
    build_filters,
    count_hits,
    extract_text,
    fold_text,
    make_words,
    parse_query,
)
from hermes_worker.features.retention.erasure_rows import Erasures
from hermes_worker.features.retention.erasure_rules import Person
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.sealing import Sealer, build_text_keys
from hermes_worker.store.kept_conversations import KeptConversations
from hermes_worker.store.runs.runs import SessionNotFound
from hermes_worker.store.search import finding, indexing
from hermes_worker.store.search.finding import MessageSearch, Search, SearchOrder
from hermes_worker.store.search.index_queue import clear_index, delete_from_index, mark_due
from hermes_worker.store.search.indexing import Indexer, count_indexed
from hermes_worker.store.sessions import Sessions
from hermes_worker.store.statistics import count_ended_rows
from hermes_worker.store.tables import maintenance, messages, search_due, search_rows, sessions


def told(store: Store, *texts: str, session_id: str = "s", tenant: str = "default", answer: str = "") -> None:
    """Turns that are over, and found to be."""
    for text in texts:
        run_id = store.submit(input=text, session_id=session_id, source="api", tenant=tenant).run_id
        store.answer(run_id, ModelReply(text=answer))
    while count_ended_rows(store.database):
        pass


def indexed(store: Store) -> int:
    return Indexer(store.database).index_due(60.0, pause_s=0.0)


def found(store: Store, text: str, tenant: str = "default", **more: object) -> list[tuple[str | None, int]]:
    result = Search(store.database, tenant).find(MessageSearch(text=text, **more))  # type: ignore[arg-type]
    return [(each.session.name, each.seq) for each in result.found]


def test_what_was_said_is_found_once_its_turn_is_over(store: Store) -> None:
    told(store, "Deploy the heron to Kyoto", answer="The heron is there.")
    assert found(store, "heron") == []
    assert not Search(store.database).find(MessageSearch(text="heron")).is_complete
    assert indexed(store) == 2
    assert found(store, "heron") == [("s", 2), ("s", 1)]
    assert found(store, "heron kyoto") == [("s", 1)]
    assert found(store, "HERON NOT kyoto") == [("s", 2)]
    assert Search(store.database).find(MessageSearch(text="heron")).is_complete
    assert found(store, "") == found(store, "...") == []


@pytest.mark.parametrize("query", ["cafe", "CAFÉ", "cafe\u0301", "strasse lodz"])
def test_accents_and_their_composition_make_no_difference(store: Store, query: str) -> None:
    told(store, "Die Straße und das Café in Łódź", "Die Stra\u00dfe und das Cafe\u0301 in Lo\u0301dz", "Kaffee")
    indexed(store)
    assert {seq for _, seq in found(store, query)} == {1, 3}


def test_an_index_that_another_version_made_is_made_anew(store: Store) -> None:
    told(store, "Das Café")
    indexed(store)
    with store.database.write() as connection:
        connection.execute(sa.delete(maintenance).where(maintenance.c.name == WORDS_MADE_BY))
        if store.database.is_sqlite:
            connection.exec_driver_sql("insert into search_words (search_words) values ('delete-all')")
        else:
            connection.exec_driver_sql("update search_rows set words = '''café'''")
    assert found(store, "cafe") == []
    assert Indexer(store.database).claim_interval(0.0)
    indexed(store)
    assert found(store, "cafe") == [("s", 1)]
    assert indexed(store) == 0


def test_hits_come_before_recency_and_other_orders_are_there(store: Store) -> None:
    told(store, "owl", "owl owl owl", "owl owl", answer="-")
    indexed(store)
    assert found(store, "owl") == [("s", 3), ("s", 5), ("s", 1)]
    assert found(store, "owl", order=SearchOrder.NEWEST) == [("s", 5), ("s", 3), ("s", 1)]
    assert found(store, "owl", order=SearchOrder.OLDEST, limit=2) == [("s", 1), ("s", 3)]


def test_names_and_arguments_of_tools_and_their_results_are_found(store: Store) -> None:
    run_id = store.submit(input="go", session_id="s", source="api").run_id
    store.ask_tools(run_id, asks(Replay.PURE))
    store.calls.settle(store.call(run_id), settlement("a pelican"))
    store.answer(run_id)
    told(store)
    indexed(store)
    assert found(store, "tool0") == [("s", 2)]
    assert found(store, "pelican") == []
    assert found(store, "pelican", roles=(Role.TOOL,)) == [("s", 3)]


def test_a_session_is_searched_whole_whether_it_is_indexed_or_not(store: Store) -> None:
    told(store, "ibis one", "ibis two", session_id="a")
    told(store, "ibis three", session_id="b")
    assert found(store, "ibis", session="a") == [("a", 3), ("a", 1)]
    with pytest.raises(SessionNotFound):
        found(store, "ibis", session="nobody")


def test_nobody_finds_what_another_tenant_said(store: Store) -> None:
    told(store, "the stork is ours")
    told(store, "the stork is theirs", tenant="acme")
    indexed(store)
    assert found(store, "stork") == [("s", 1)]
    assert found(store, "theirs") == found(store, "t-acme") == found(store, '".t-acme"') == []
    assert found(store, "theirs", "acme") == [("s", 1)]
    assert found(store, "ours", "acme") == []
    with pytest.raises(SessionNotFound):
        told(store, "x", session_id="mine")
        found(store, "x", "acme", session="mine")


def test_who_may_see_one_principals_sessions_sees_no_others(store: Store) -> None:
    for name, who in (("a", "api:alice/k"), ("b", "api:bert/k"), ("c", None)):
        run_id = store.runs.create(new_run(input="a crane", session_id=name, source="api", principal=who)).run_id
        store.answer(run_id)
    told(store)
    indexed(store)
    assert found(store, "crane", principal="api:alice/k") == [("a", 1)]
    assert len(found(store, "crane")) == 3


# --- no gap, no double -----------------------------------------------------------------------------------------------


def rows_of_index(store: Store) -> list[tuple[int, int]]:
    with store.database.read() as connection:
        wanted = sa.select(search_rows.c.session_pk, search_rows.c.seq).order_by(search_rows.c.pk)
        return [tuple(row) for row in connection.execute(wanted)]


def test_an_indexer_that_is_killed_anywhere_leaves_no_gap_and_no_double(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "_MESSAGES_AT_ONCE", 3)
    monkeypatch.setattr(indexing, "_DUE_AT_ONCE", 2)
    for name in "abc":
        told(store, *(f"{name} says gull {n}" for n in range(4)), session_id=name, answer="yes")
    add, kills = indexing._add_rows, iter(range(10**6))

    def killed(connection: sa.Connection, rows: Sequence[object]) -> int:
        added = add(connection, rows)  # type: ignore[arg-type]
        if next(kills) % 3 == 1:
            raise KeyboardInterrupt
        return added

    monkeypatch.setattr(indexing, "_add_rows", killed)
    for _ in range(100):
        try:
            if Indexer(store.database).index_batch() is None:
                break
        except KeyboardInterrupt:
            continue
    rows = rows_of_index(store)
    assert sorted(rows) == [(pk, seq) for pk in sorted({pk for pk, _ in rows}) for seq in range(1, 9)]
    assert len(set(rows)) == len(rows) == 24
    assert count_indexed(store.database)["due"] == 0
    assert len(found(store, "gull", order=SearchOrder.OLDEST)) == 12


def test_two_indexers_at_once_add_each_message_once(store: Store) -> None:
    told(store, *(f"tern {n}" for n in range(5)), answer="yes")
    with store.database.read() as connection:
        rows = indexing._load_new_rows(connection, [1])
    indexed(store)
    with store.database.write() as connection:  # of somebody who read before that
        assert indexing._add_rows(connection, [(row, ["tern"]) for row in rows]) == 0
    assert len(found(store, "tern")) == 5


def test_behind_a_gap_the_index_waits_for_the_end_of_the_run(store: Store) -> None:
    told(store, "one avocet")
    run_id = store.submit(input="two avocets", session_id="s", source="api").run_id
    store.ask_tools(run_id, asks(Replay.PURE, Replay.PURE))
    first = store.call(run_id, position=0)
    store.calls.settle(store.call(run_id, position=1), settlement("second avocet"))
    indexed(store)
    assert [seq for _, seq in rows_of_index(store)] == [1, 2, 3, 4]
    store.calls.settle(first, settlement("first avocet"))
    store.answer(run_id)
    told(store)
    indexed(store)
    assert [seq for _, seq in rows_of_index(store)] == [1, 2, 3, 4, 5, 6, 7]


def test_a_session_that_went_between_reading_and_adding_is_not_added(store: Store) -> None:
    told(store, "a bittern")
    with store.database.read() as connection:
        rows = indexing._load_new_rows(connection, [1])
    Erasures(store.database)
    _erase(store, Person(sessions=(_id_of(store, "s"),)))
    with store.database.write() as connection:
        assert indexing._add_rows(connection, [(row, ["bittern"]) for row in rows]) == 0


def _id_of(store: Store, name: str) -> str:
    with store.database.read() as connection:
        return str(connection.execute(sa.select(sessions.c.session_id).where(sessions.c.name == name)).scalar_one())


# --- what is gone is gone --------------------------------------------------------------------------------------------


def _erase(store: Store, person: Person) -> None:
    erasures = Erasures(store.database)
    erasure = erasures.begin("default", person, by="test")
    for _ in erasures.delete_stepwise(erasure, patience_s=0.0):
        pass
    erasures.finish(erasure)


def _words_there(store: Store) -> set[str]:
    """What the index could find by itself, without our looking at texts again."""
    if not store.database.is_sqlite:
        listed = "select distinct unnest(tsvector_to_array(words)) from search_rows"
        with store.database.read() as connection:
            return set(connection.exec_driver_sql(listed).scalars())
    with store.database.write() as connection:
        connection.exec_driver_sql("create virtual table temp.listed using fts5vocab(main, search_words, row)")
        found = set(connection.exec_driver_sql("select term from temp.listed").scalars())
        connection.exec_driver_sql("drop table temp.listed")
    return found


def test_an_erased_session_leaves_no_word_and_others_stay(store: Store) -> None:
    told(store, "canaryone sings", session_id="hers")
    told(store, "canarytwo sings", session_id="his")
    indexed(store)
    assert {"canaryone", "canarytwo"} <= _words_there(store)
    _erase(store, Person(sessions=(_id_of(store, "hers"),)))
    indexed(store)
    words = _words_there(store)
    assert "canaryone" not in words
    assert {"canarytwo", "sings"} <= words
    assert found(store, "sings") == [("his", 1)]
    assert found(store, "canaryone") == []


def test_after_an_erasure_sqlites_file_holds_no_word(sqlite_store: Store) -> None:
    told(sqlite_store, *(f"canary{n} sings" for n in range(30)), session_id="hers")
    told(sqlite_store, "somebody else sings", session_id="his")
    indexed(sqlite_store)
    _erase(sqlite_store, Person(sessions=(_id_of(sqlite_store, "hers"),)))
    indexed(sqlite_store)
    with sqlite_store.database.read() as connection:
        parts = list(connection.exec_driver_sql("select block from search_words_data").scalars())
        left = sa.select(maintenance.c.name).where(maintenance.c.name == "search_forgotten")
        assert connection.execute(left).first() is None
    assert not [part for part in parts if b"anary" in part]
    assert [part for part in parts if b"sings" in part]


def test_a_search_looks_up_the_sessions_of_its_candidates_and_never_reads_them_all(store: Store) -> None:
    said = [{"role": "user", "content": "the heron sings"}] * 200  # of a hundred it would begin with them in any case
    new = new_run(source="api", session_id="s", history=said)
    Sessions(store.database).open(new, title=None, model=None)
    indexed(store)
    read: list[tuple[str, Any]] = []

    def note(_: object, __: object, statement: str, parameters: object, *___: object) -> None:
        if "search_rows" in statement and "messages" in statement:
            read.append((statement, parameters))

    with store.database.read() as connection:
        engine = connection.engine
    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        assert len(found(store, '"heron sings"', limit=100)) == 100
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)
    [(statement, parameters)] = read
    how = "explain query plan" if store.database.is_sqlite else "explain"
    with store.database.read() as connection:
        plan = [str(row[-1]).strip() for row in connection.exec_driver_sql(f"{how} {statement}", parameters)]
    if store.database.is_sqlite:
        assert plan[0].startswith("SEARCH search_rows USING INTEGER PRIMARY KEY")
        assert not [step for step in plan if "sessions USING INDEX" in step]
    else:
        lookups = next(number for number, step in enumerate(plan) if step.startswith("SubPlan"))
        assert [number for number, step in enumerate(plan) if "on sessions" in step] > [lookups]


def test_no_step_of_a_run_touches_the_index_or_what_is_due(store: Store) -> None:
    with statements(store.database) as seen:
        run_id = store.submit(input="a heron", session_id="s", source="api").run_id
        store.ask_tools(run_id, asks(Replay.PURE))
        store.calls.settle(store.call(run_id), settlement("a pelican"))
        store.answer(run_id)
        steps = len(seen)
        told(store)  # whoever counts what is over says that it is due
    touched = [number for number, (statement, _) in enumerate(seen) if "search_" in statement]
    assert touched and min(touched) >= steps


def test_retention_takes_words_with_the_transcript(store: Store) -> None:
    told(store, "canary of yesterday")
    indexed(store)
    store.let_pass(100 * 86_400.0)
    told(store, "what is newest stays", session_id="later")
    rules = {
        **DEFAULT_RULES,
        **dict.fromkeys((RetentionKind.RUNS, RetentionKind.TRANSCRIPTS), RetentionRule(age_s=1.0)),
    }
    for _ in Pruner(store.database, rules).prune_stepwise():
        pass
    assert rows_of_index(store) == []
    assert "canary" not in _words_there(store)


def test_a_message_that_a_client_takes_back_is_not_found(store: Store) -> None:
    told(store, "a rail")
    conversations = KeptConversations(store.database, "default")
    conversations.append("s", [{"role": "user", "content": "a corncrake"}])
    indexed(store)
    assert found(store, "corncrake") == [("s", 3)]
    conversations.delete_item("s", 3)
    assert found(store, "corncrake") == []
    conversations.append("s", [{"role": "user", "content": "a spoonbill"}])
    indexed(store)
    assert found(store, "spoonbill") == [("s", 3)]
    assert "corncrake" not in _words_there(store)


def test_a_fork_is_found_beside_its_source(store: Store) -> None:
    told(store, "a dunlin")
    Sessions(store.database).fork("s", name="fork")
    indexed(store)
    assert found(store, "dunlin", order=SearchOrder.OLDEST) == [("s", 1), ("fork", 1)]


# --- encrypted texts -------------------------------------------------------------------------------------------------


@contextmanager
def encrypted(store: Store) -> Iterator[Store]:
    """The same rows, for a process with a key."""
    sealer = Sealer(build_text_keys(["a key of texts with more than 32 characters"]))
    database = Database(store.database.url.render_as_string(hide_password=False), sealer=sealer)
    try:
        yield Store.over(database)
    finally:
        database.close()


def test_where_texts_are_encrypted_the_index_holds_no_word_and_a_search_says_what_it_left_out(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(store, "canary in clear", session_id="before")
    indexed(store)
    with encrypted(store) as other:
        told(other, "canary under a key", session_id="after")
        assert indexed(other) == 0
        assert _words_there(other) == set()
        assert found(other, "canary", order=SearchOrder.OLDEST) == [("before", 1), ("after", 1)]
        assert Search(other.database).find(MessageSearch(text="canary")).is_complete
        monkeypatch.setattr(finding, "_READ_SEALED_MAX", 1)
        monkeypatch.setattr(finding, "_CANDIDATES_AT_ONCE", 1)
        assert not Search(other.database).find(MessageSearch(text="canary")).is_complete
        assert not clear_index(other.database)


# --- the same on both ------------------------------------------------------------------------------------------------

CASES = (
    ("docker networking", ["How do I set up docker networking?"]),
    ("chat-send", ["The chat-send button", "chat_send", "send chat"]),
    ("my_app.config.ts", ["Open src/my_app.config.ts now", "my app config ts"]),
    ("a-b.c_d", ["x a-b.c_d y", "a b c d", "xa-b.c_d"]),
    ('"exact phrase"', ["an exact phrase here", "phrase exact", "exact, phrase"]),
    ("记忆", ["昨天的记忆断裂问题", "记 忆"]),
    ("断裂", ["昨天的记忆断裂问题"]),
    ("东京", ["我们去东京旅行", "京东商城"]),
    ("Python编程", ["学习Python编程语言", "python 编程"]),
    ("記憶 OR 断裂", ["昨天的記憶", "断裂问题", "别的"]),
    ("go OR up OR is", ["go", "up there", "it is", "gone"]),
    ("메모리", ["한국어 메모리 문제"]),
    ("カタカナ", ["これはカタカナです", "ｶﾀｶﾅ"]),
    ("猫", ["黒猫", "猫舌", "犬"]),
    ("deploy*", ["deploying things", "redeploy", "deploy"]),
    ("hello AND", ["hello world"]),
    ("OR x", ["x marks"]),
    ("*foo", ["a foo"]),
    ("python NOT java", ["python and java", "python"]),
    ('cat NOT "black dog"', ["cat black", "cat and a black dog"]),
    ("ＦＯＯ", ["foo", "ｆｏｏ"]),
    ("straße", ["STRASSE", "strasse"]),
    ("don't", ["don't", "dont", "don t"]),
    ("हिन्दी", ["यह हिन्दी है"]),
    ("3.11", ["python 3.11", "3 11"]),
    ("me@example.org", ["write to me@example.org", "me example org", "example me org"]),
    ("'; drop table messages; --", ["drop table messages"]),
    ('unbalanced "quote here', ["an unbalanced quote here"]),
    ("a" * 200, ["a" * 200, "a" * 199]),
)
"""Queries of the original's tests in words of our own, and those of issues about it; texts of which some match."""


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [text for _, several in CASES for text in several]


def test_the_cases_are_found_alike_on_both_databases(
    sqlite_store: Store, postgres_store: Store, texts: list[str]
) -> None:
    for store in (sqlite_store, postgres_store):
        told(store, *texts)
        indexed(store)
    for query, _ in CASES:
        asked = parse_query(query)
        assert asked is not None, query
        matching = {2 * n + 1 for n, text in enumerate(texts) if count_hits(asked, fold_text(text))}
        ours = [found(store, query, limit=100) for store in (sqlite_store, postgres_store)]
        assert ours[0] == ours[1], query
        assert {seq for _, seq in ours[0]} == matching, query
        assert matching, query


PIECES = st.sampled_from(
    [
        "a",
        "b",
        "ab",
        "a-b",
        "b.c",
        "a-b.c_d",
        "foo",
        "Foo_bar",
        "数据",
        "据库",
        "数据库",
        "数",
        "py数",
        "é",
        "é",
        "3.1",
        "x__y",
        "'",
        '"',
        "*",
        ",",
        "-",
        "(",
        "語",
        "ｶﾅ",
        "かな",
        "ß",
    ]
)
SPACES = st.sampled_from(["", " ", " ", ", "])
TEXTS = st.lists(st.lists(st.tuples(PIECES, SPACES), max_size=7), min_size=1, max_size=5)
QUERIES = st.lists(
    st.tuples(st.one_of(PIECES, st.sampled_from(["AND", "OR", "NOT", '"a b"', '"数据 a', "a*", "数*"])), st.just(" ")),
    min_size=1,
    max_size=5,
)


def _joined(parts: Sequence[tuple[str, str]]) -> str:
    return "".join(piece + space for piece, space in parts)


@settings(max_examples=400, deadline=None)
@given(TEXTS, QUERIES)
def test_an_index_finds_everything_that_matches(
    texts: list[list[tuple[str, str]]], query: list[tuple[str, str]]
) -> None:
    asked = parse_query(_joined(query))
    if asked is None:
        return
    filters = build_filters(asked)
    for parts in texts:
        text = fold_text(_joined(parts))
        if count_hits(asked, text):
            assert matches_words(filters, make_words(text)), (text, asked)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS, st.lists(QUERIES, min_size=4, max_size=4))
def test_both_databases_find_the_same_ids_in_the_same_order(
    sqlite_store: Store,
    postgres_store: Store,
    texts: list[list[tuple[str, str]]],
    queries: list[list[tuple[str, str]]],
) -> None:
    stores = (sqlite_store, postgres_store)
    for store in stores:
        store.submit(input="-")
        _replace_transcript(store, [_joined(parts) for parts in texts])
    for query in map(_joined, queries):
        asked = parse_query(query)
        ours = [found(store, query, limit=100) for store in stores]
        assert ours[0] == ours[1], (query, texts)
        expected = {
            n
            for n, parts in enumerate(texts, start=1)
            if asked is not None and count_hits(asked, fold_text(_joined(parts)))
        }
        assert {seq for _, seq in ours[0]} == expected, (query, texts)


def _replace_transcript(store: Store, texts: Sequence[str]) -> None:
    with store.database.write() as connection:
        delete_from_index(connection, 1)
        connection.execute(sa.delete(search_due))
        connection.execute(sa.delete(messages).where(messages.c.session_pk == 1))
        for seq, text in enumerate(texts, start=1):
            body = json.dumps({"role": "user", "content": text}, ensure_ascii=False)
            row = {"session_pk": 1, "seq": seq, "run_pk": 1, "role": "user", "body": body, "created_at": float(seq)}
            connection.execute(sa.insert(messages).values(**row))
        mark_due(connection, 1)
    indexed(store)
    assert extract_text('{"content":null}') == ""


def test_behind_the_first_page_of_candidates_the_index_is_asked_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL finds and sorts all of them each time, to give the next part."""
    told(store, "blue heron", *["heron of blue"] * 5, answer="-")
    indexed(store)
    asked: list[int] = []

    def counted(connection: sa.Connection, text: str, limit: int, *, before: int) -> list[int]:
        asked.append(limit)
        return indexed_rows(connection, text, limit, before=before)

    indexed_rows = finding.list_indexed_rows
    monkeypatch.setattr(finding, "list_indexed_rows", counted)
    monkeypatch.setattr(finding, "_CANDIDATES_AT_ONCE", 2)
    monkeypatch.setattr(finding, "_CANDIDATES_MAX", 6)
    assert found(store, '"blue heron"') == [("s", 1)]
    assert Search(store.database).find(MessageSearch(text='"blue heron"')).is_complete is False
    assert asked == [2, 4, 2, 4]
    monkeypatch.setattr(finding, "_CANDIDATES_MAX", 7)
    assert Search(store.database).find(MessageSearch(text='"blue heron"')).is_complete
