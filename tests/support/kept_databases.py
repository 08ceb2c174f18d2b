"""Databases of PostgreSQL that one test after the other uses, each as if it were new.

To make one and to drop it takes longer than most tests that need one: the server copies and removes some 700 files. So
the database that a test has left is emptied and kept, and gets another name for the next test, so that nobody whom a
test has left behind finds it. One whose tables, rights or settings a test has changed is dropped.
"""

from __future__ import annotations

import itertools
import os
from contextlib import closing
from functools import cached_property
from typing import Any, LiteralString

import psycopg

from hermes_worker.local.postgres import EmbeddedPostgres
from support.emptying import EMPTY_DATABASE
from support.migrated import copy_template, find_template

_TERMINATED_WITHIN_MS = 10_000
# What a test may change beside rows. Copies of one template have the same numbers for the same objects.
_FINGERPRINT: LiteralString = """
select md5(string_agg(line, '|' order by line)) from (
    select concat_ws(' ', 'class', relname, relkind, relpersistence, relrowsecurity, reloptions, relacl) as line
        from pg_class where relnamespace = 'public'::regnamespace
    union all
    select concat_ws(' ', 'column', c.relname, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.atthasdef)
        from pg_attribute a join pg_class c on c.oid = a.attrelid
        where c.relnamespace = 'public'::regnamespace and a.attnum > 0
    union all
    select concat_ws(' ', 'index', c.relname, i.indkey, i.indisunique, i.indisvalid)
        from pg_index i join pg_class c on c.oid = i.indexrelid where c.relnamespace = 'public'::regnamespace
    union all
    select concat_ws(' ', 'constraint', conname, contype, convalidated)
        from pg_constraint where connamespace = 'public'::regnamespace
    union all
    select concat_ws(' ', 'trigger', tgname, tgenabled) from pg_trigger where not tgisinternal
    union all
    select concat_ws(' ', 'view', c.relname, md5(r.ev_action::text))
        from pg_rewrite r join pg_class c on c.oid = r.ev_class where c.relnamespace = 'public'::regnamespace
    union all
    select concat_ws(' ', 'function', proname, md5(prosrc)) from pg_proc where pronamespace = 'public'::regnamespace
    union all
    select concat_ws(' ', 'schema', nspname, nspacl) from pg_namespace where nspname not like 'pg\\_%'
    union all
    select concat_ws(' ', 'database', datconnlimit, datallowconn, datacl, s.setconfig)
        from pg_database d left join pg_db_role_setting s on s.setdatabase = d.oid where datname = current_database()
) as lines
"""


class KeptDatabases:
    """Of one server, which outlives them."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server
        self._kept: list[str] = []
        self._numbers = itertools.count(1)

    def hand_out(self) -> str:
        """Return the name of a database at the newest schema, without rows."""
        name = f"m{os.getpid()}_{next(self._numbers)}"
        if self._kept:
            self._execute("postgres", f'alter database "{self._kept.pop()}" rename to "{name}"')
        else:
            copy_template(self._server.build_url(), name)
        return name

    def take_back(self, name: str) -> None:
        """Empty the database and keep it, or drop it if it is not as it was but for its rows."""
        kept = f"kept_{name}"
        try:
            with closing(self._connect("postgres")) as connection:
                connection.execute(
                    "select pg_terminate_backend(pid, %s) from pg_stat_activity where datname = %s",
                    (_TERMINATED_WITHIN_MS, name),
                )
                connection.execute(f'alter database "{name}" rename to "{kept}"'.encode())
            with closing(self._connect(kept)) as connection:
                if connection.execute(_FINGERPRINT).fetchone() != self._fingerprint:
                    raise ValueError("its tables, rights or settings were changed")
                connection.execute(EMPTY_DATABASE.encode())
        except (psycopg.Error, ValueError):
            for each in (name, kept):
                self._server.drop_database(each)
        else:
            self._kept.append(kept)

    @cached_property
    def _fingerprint(self) -> Any:
        with closing(self._connect(find_template(self._server.build_url()))) as connection:
            return connection.execute(_FINGERPRINT).fetchone()

    def _execute(self, database: str, statement: str) -> None:
        with closing(self._connect(database)) as connection:
            connection.execute(statement.encode())

    def _connect(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self._server.build_url(database).replace("+psycopg", ""), autocommit=True)
