"""A migrated PostgreSQL database that one test after the other uses: each finds it as if it were new."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hermes_worker.store.engine.database import Database
from hermes_worker.store.tables import metadata

_BYTES_MAX = 4_000_000
"""Rows that were deleted stay in their pages. From so many bytes on the tables are made anew, which takes longer."""
_KNOWN = ", ".join(f"'{name}'" for name in (*metadata.tables, "alembic_version"))
_EMPTY = f"""
do $$
declare
    name text;
    is_filled boolean;
begin
    -- Whoever is in the middle of something was left behind by the test.
    perform pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle';
    for name in select tablename from pg_tables where schemaname = 'public' and tablename not in ({_KNOWN}) loop
        execute format('drop table %I', name);
    end loop;
    if (select sum(pg_table_size(c.oid)) from pg_class c
        where c.relkind = 'r' and c.relnamespace = 'public'::regnamespace) > {_BYTES_MAX} then
        truncate {", ".join(metadata.tables)} restart identity;
    else
        -- Rows may go in any order: what refers to them goes as well.
        set local session_replication_role = replica;
        foreach name in array array[{", ".join(f"'{name}'" for name in metadata.tables)}] loop
            execute format('select exists (select from %I)', name) into is_filled;
            if is_filled then
                execute format('delete from %I', name);
            end if;
        end loop;
        perform setval(format('%I', sequencename)::regclass, 1, false)
            from pg_sequences where schemaname = 'public' and last_value is not null;
    end if;
end $$
"""


@contextmanager
def emptied_database(database: Database) -> Iterator[None]:
    """Empty ``database`` when the block ends. The tables must be those of the newest schema; others are dropped."""
    try:
        yield
    finally:
        with database.write() as connection:
            connection.exec_driver_sql(_EMPTY.replace("%", "%%"))
            connection.exec_driver_sql("select pg_stat_reset()")
        database.remembered.forget()
