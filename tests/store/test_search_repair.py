"""A damaged index of messages is made anew by whoever meets it, and nobody is shown a statement of SQL."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from support.logs import kept_log
from support.store import Store

from hermes_worker.agent.tools.results import build_exception_result
from hermes_worker.core.errors import UnavailableError
from hermes_worker.store.runs.listing import Listing, RunFilter
from hermes_worker.store.search.finding import MessageSearch, Search
from hermes_worker.store.search.index_queue import delete_from_index
from hermes_worker.store.search.index_repair import call_with_repair, rebuild_index
from hermes_worker.store.search.indexing import Indexer, find_index_damage
from hermes_worker.store.statistics import count_ended_rows
from hermes_worker.store.tables import sessions

DAMAGES = {
    "blocks that hold nothing": "update search_words_data set block = x'ffffffffffffffffffff'",
    "blocks that are gone": "delete from search_words_data",
    "no configuration": "drop table search_words_config",
    "no index": "drop table search_words",
}


def say(store: Store, text: str) -> None:
    store.answer(store.submit(input=text, session_id="s", source="api").run_id)
    while count_ended_rows(store.database):
        pass


def index(store: Store) -> None:
    Indexer(store.database).index_due(60.0, pause_s=0.0)


def find(store: Store, text: str) -> tuple[list[int], bool]:
    result = Search(store.database).find(MessageSearch(text=text))
    return [each.seq for each in result.found], result.is_complete


def damage(store: Store, how: str) -> None:
    with store.database.write() as connection:
        connection.exec_driver_sql(DAMAGES[how])
    store.database.close()  # another process opens the file


@pytest.fixture(params=DAMAGES)
def damaged(request: pytest.FixtureRequest, sqlite_store: Store) -> Store:
    say(sqlite_store, "the heron of Kyoto")
    index(sqlite_store)
    assert find(sqlite_store, "heron") == ([1], True)
    damage(sqlite_store, request.param)
    return sqlite_store


def test_a_search_that_meets_damage_has_the_index_made_anew(damaged: Store) -> None:
    with kept_log() as lines:
        first = find(damaged, "heron")
    index(damaged)

    assert first == ([], False)
    assert find(damaged, "heron") == ([1], True)
    assert find_index_damage(damaged.database) is None
    assert lines.getvalue().count("search.rebuilt") == 1


def test_an_indexer_that_meets_damage_makes_the_index_anew(damaged: Store) -> None:
    say(damaged, "a stork")
    index(damaged)

    assert find(damaged, "stork") == ([3], True)
    assert find(damaged, "heron") == ([1], True)


def test_a_list_of_runs_by_their_text_meets_damage_as_well(damaged: Store) -> None:
    page = Listing(damaged.database).list_page(RunFilter(tenant="default", text="heron"))

    assert len(page.views) == 1


def test_messages_can_be_deleted_although_the_index_is_damaged(damaged: Store) -> None:
    with damaged.database.write() as connection:
        session_pk = connection.execute(sa.select(sessions.c.pk)).scalar_one()
        delete_from_index(connection, session_pk)
    index(damaged)

    assert find(damaged, "heron") == ([1], True)


def test_the_doctor_sees_each_damage(damaged: Store) -> None:
    assert find_index_damage(damaged.database) == "the index that messages are searched by is damaged"


def test_words_that_are_missing_from_a_sound_index_are_seen(sqlite_store: Store) -> None:
    say(sqlite_store, "the heron of Kyoto")
    index(sqlite_store)
    with sqlite_store.database.write() as connection:
        connection.exec_driver_sql("insert into search_words (search_words) values ('delete-all')")

    assert "lacks 2" in (find_index_damage(sqlite_store.database) or "")
    say(sqlite_store, "a stork")
    index(sqlite_store)
    assert find(sqlite_store, "heron") == ([1], True)


def test_an_index_that_is_made_anew_finds_what_the_old_one_found(store: Store) -> None:
    say(store, "the heron of Kyoto")
    index(store)
    assert find_index_damage(store.database) is None
    with store.database.write() as connection:
        rebuild_index(connection)
    assert find(store, "heron") == ([], False)
    index(store)

    assert find(store, "heron") == ([1], True)


def test_damage_that_a_new_index_does_not_mend_is_told_with_what_to_do(damaged: Store) -> None:
    def act() -> None:
        Indexer(damaged.database).index_batch()
        damage(damaged, "blocks that hold nothing")
        with damaged.database.read() as connection:
            connection.exec_driver_sql("select rowid from search_words where search_words match 'heron'").all()

    with damaged.database.write() as connection:
        rebuild_index(connection)
    with pytest.raises(UnavailableError, match="restore it from a backup"):
        call_with_repair(damaged.database, act)


def test_a_model_is_shown_no_statement(sqlite_store: Store) -> None:
    with pytest.raises(sa.exc.IntegrityError) as raised, sqlite_store.database.write() as connection:
        connection.execute(sa.insert(sessions).values(pk=1, session_id=None))

    text = build_exception_result(raised.value).text
    assert "insert" not in text.lower()
    assert "NOT NULL constraint failed" in text
