"""Rows of tool sources: what workers say of them, once for each change."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from support.store import Store

from hermes_worker.store.tool_sources import EVERY_TENANT, ToolSources

ONE = ['{"function":{"name":"a"},"type":"function"}']
TWO = [*ONE, '{"function":{"name":"b"},"type":"function"}']


def test_a_change_is_news_once_and_counts(store: Store) -> None:
    rows = ToolSources(store.database)
    assert rows.list_sources("default") == []
    assert rows.write("shop", ONE)
    [first] = rows.list_sources("default")
    assert (first.source, first.tenant, first.version, list(first.definitions)) == ("shop", EVERY_TENANT, 1, ONE)
    assert not rows.write("shop", ONE), "any number of workers say the same"
    [again] = rows.list_sources("default")
    assert (again.version, again.changed_at) == (1, first.changed_at)
    assert again.listed_at >= first.listed_at
    assert rows.write("shop", TWO)
    [changed] = rows.list_sources("default")
    assert (changed.version, list(changed.definitions)) == (2, TWO)
    assert rows.write("shop", [])
    assert [row.definitions for row in rows.list_sources("default")] == [[]]


def test_a_tenant_has_its_own_row_before_that_of_all(store: Store) -> None:
    rows = ToolSources(store.database)
    rows.write("shop", ONE)
    rows.write("shop", TWO, tenant="acme")
    rows.write("own", ONE, tenant="acme")
    assert [(row.source, row.tenant) for row in rows.list_sources("acme")] == [("own", "acme"), ("shop", "acme")]
    assert [(row.source, row.tenant) for row in rows.list_sources("default")] == [("shop", EVERY_TENANT)]


def test_workers_that_say_the_same_at_once_make_one_row(store: Store) -> None:
    rows = ToolSources(store.database)
    with ThreadPoolExecutor(4) as workers:
        news = list(workers.map(lambda _: rows.write("shop", TWO), range(12)))
    assert news.count(True) == 1
    assert [row.version for row in rows.list_sources("default")] == [1]
