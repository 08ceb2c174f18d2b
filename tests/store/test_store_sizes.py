"""How large a database is, what of it holds nothing, and what gives that back."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.store import whole_database
from hermes_worker.store.tables import maintenance


def is_bloated(found: whole_database.DatabaseSize) -> bool:
    """Connections that other tests left to a server report the dead rows of their tables when they like."""
    return "maintenance" in found.dead_rows if found.dead_rows else found.is_bloated


def test_what_holds_nothing_is_told_and_given_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    database = store.database
    monkeypatch.setattr(whole_database, "_FREE_BYTES_NOTED", 1_000_000)
    monkeypatch.setattr(whole_database, "_DEAD_ROWS_NOTED", 20)
    whole_database.reclaim_space(database)  # what others did in this database
    assert not is_bloated(whole_database.measure_size(database))
    with database.write() as connection:
        # Few enough for autovacuum to leave them alone, and long only where their pages count.
        words = "x" * 100_000 if database.is_sqlite else ""
        rows = [{"name": f"{number} {words}", "ran_at": 0.0} for number in range(50)]
        connection.execute(sa.insert(maintenance), rows)
    with database.write() as connection:
        connection.execute(sa.delete(maintenance).where(maintenance.c.ran_at == 0.0))
        if not database.is_sqlite:
            connection.execute(sa.text("select pg_stat_force_next_flush()"))
    before = whole_database.measure_size(database)
    assert before.is_bloated
    assert ("maintenance" in dict(before.dead_rows)) is not database.is_sqlite
    whole_database.reclaim_space(database)
    after = whole_database.measure_size(database)
    assert not is_bloated(after)
    assert after.free_bytes == 0
    if database.is_sqlite:
        assert after.total_bytes < before.total_bytes
