"""What the end of a child costs must not depend on how many siblings it has (issue 4: the join is O(1) per child)."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from support.plans import plan_of, statements
from support.store import ANSWER, Store

from hermes_worker.core.replay import Replay
from hermes_worker.store.tables import runs, tool_calls

CHILDREN = 600
AT_ONCE = 4
ENDED = 250


@pytest.fixture
def family(postgres_store: Store) -> tuple[Store, str]:
    """A run with children that have ended, work and wait, on a database that knows nothing about its tables yet."""
    store = postgres_store
    parent = store.with_tools(Replay.PURE)
    children = store.delegate(parent, CHILDREN, children_max=ENDED + AT_ONCE)
    store.change(tool_calls, parent, children_max=AT_ONCE)
    with store.database.write() as connection:
        ended = sa.update(runs).where(runs.c.run_id.in_(children[:ENDED]))
        connection.execute(
            ended.values(hinted_at=None, status="completed", exit_reason="text_response", message_seq=2, iteration=1)
        )
    return store, children[ENDED]


def test_the_end_of_a_child_reads_a_few_rows_of_a_large_family(family: tuple[Store, str]) -> None:
    store, child = family
    claim = store.turn(child)
    with statements(store.database) as seen:
        [hint] = store.runs.commit_reply(claim, ANSWER, ())
    assert hint.effect.run_id != child  # the next of those who wait

    read = {text: rows_read(store, text, parameters) for text, parameters in seen if text.startswith("SELECT")}
    assert len(read) >= 5
    assert {text: rows for text, rows in read.items() if rows > AT_ONCE} == {}


def rows_read(store: Store, statement: str, parameters: Any) -> int:
    """The runs that a statement looks at, those included that a filter throws away."""
    rows = 0
    for node in plan_of(store.database, statement, parameters, executes=True):
        if node.get("Relation Name") == "runs":
            removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
            rows += int((node["Actual Rows"] + removed) * node["Actual Loops"])
    return rows
