"""One cache of compiled statements for all databases of a test session.

Every test has a database of its own, every engine a cache of its own, and filling it anew took a sixth of the time of
the tests that use a store. What SQLAlchemy compiles depends on the dialect's class and on the server's version, and the
servers of a session are all alike.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Engine
from sqlalchemy.util import LRUCache

from hermes_worker.store.engine.sealing import PLAIN

_STATEMENTS_MAX = 5_000


def share_compiled_statements() -> None:
    """From now on engines of the same dialect find what any of them has compiled. Idempotent."""
    for dialect in (PGDialect_psycopg, SQLiteDialect_pysqlite):
        dialect.__eq__ = _is_alike  # type: ignore[assignment,method-assign]
        dialect.__hash__ = _hash_of_class  # type: ignore[assignment,method-assign]
    if not hasattr(Engine.__init__, "__wrapped__"):
        Engine.__init__ = _sharing(Engine.__init__)  # type: ignore[method-assign]


def _is_alike(dialect: object, other: object) -> bool:
    return type(dialect) is type(other) and _sealer(dialect) is _sealer(other) and _homes(dialect) == _homes(other)


def _sealer(dialect: object) -> object:
    """How texts are encrypted, which a compiled statement remembers."""
    return getattr(dialect, "hermes_sealer", PLAIN)


def _homes(dialect: object) -> object:
    """Where the home is, which a compiled statement remembers too."""
    return getattr(dialect, "hermes_homes", ())


def _hash_of_class(dialect: object) -> int:
    return hash(type(dialect))


def _sharing(initialise: Any) -> Any:
    cache: LRUCache[Any, Any] = LRUCache(_STATEMENTS_MAX)

    def initialise_and_share(engine: Engine, *args: Any, **more: Any) -> None:
        initialise(engine, *args, **more)
        engine._compiled_cache = cache

    initialise_and_share.__wrapped__ = initialise  # type: ignore[attr-defined]
    return initialise_and_share
