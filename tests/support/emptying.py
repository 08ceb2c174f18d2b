"""A migrated PostgreSQL database that one test after the other uses: each finds it as if it were new."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from hermes_worker.store.engine.database import Database
from hermes_worker.store.whole_schema import load_schema

_BYTES_MAX = 4_000_000
"""Rows that were deleted stay in their pages. From so many bytes on the tables are made anew, which takes longer."""
_KNOWN = ", ".join(f"'{name}'" for name in (*load_schema().tables, "alembic_version"))
EMPTY_DATABASE = f"""
do $$
declare
    name text;
    filled oid[];
begin
    -- Whoever is in the middle of something was left behind by the test.
    perform pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle';
    for name in select tablename from pg_tables where schemaname = 'public' and tablename not in ({_KNOWN}) loop
        execute format('drop table %I', name);
    end loop;
    -- The file of a table says that it never had a row, without the table being opened.
    select array_agg(oid) into filled from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace
        and relname <> 'alembic_version' and (pg_stat_file(pg_relation_filepath(oid))).size > 0;
    if (select sum(pg_table_size(each)) from unnest(filled) as each) > {_BYTES_MAX} then
        truncate {", ".join(load_schema().tables)} restart identity;
    else
        -- Rows may go in any order: what refers to them goes as well.
        set local session_replication_role = replica;
        for name in select relname from pg_class where oid = any(filled) loop
            execute format('delete from %I', name);
        end loop;
        perform setval(d.objid::regclass, 1, false) from pg_depend d join pg_class c on c.oid = d.objid
            where d.refobjid = any(filled) and d.deptype in ('a', 'i') and c.relkind = 'S';
    end if;
    perform pg_stat_reset();
end $$
"""


def empty_database(connection: sa.Connection) -> None:
    """Delete all rows, of PostgreSQL. The tables must be those of the newest schema; others are dropped."""
    connection.exec_driver_sql(EMPTY_DATABASE.replace("%", "%%"))


@contextmanager
def emptied_database(database: Database) -> Iterator[None]:
    """Empty ``database`` when the block ends."""
    try:
        yield
    finally:
        with database.write() as connection:
            empty_database(connection)
        database.remembered.forget()
