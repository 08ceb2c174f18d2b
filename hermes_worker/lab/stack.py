"""The servers of the crash lab: a broker, a database, a model. All ours, so that they may be broken."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import sqlalchemy as sa

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.lab.outside import DeliverySink
from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.models.scripted.server import ScriptedOptions, ScriptedServer
from hermes_worker.settings.kinds import DATABASE_URL
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.pooler import require_statements_kept
from hermes_worker.store.migrate import migrate

_APPEND_ONLY = "appendonlydir"
PRICES_USD = (3, 15)
"""US dollars for a million tokens, of input and of output: cached input costs the same here, so that the bill of a run
follows from the provider's own count."""


class LabStack:
    """The servers, as a context manager: everything that was started is stopped at the end of the block."""

    def __init__(
        self,
        directory: Path,
        *,
        database_url: str | None,
        own_postgres: bool,
        ttl_s: float,
        prepares: bool = True,
        keeps_bodies: bool = False,
    ) -> None:
        """``prepares``: ``database.prepared_statements`` of the settings, for a pooler in front of the database.
        ``keeps_bodies``: the model remembers every request byte for byte."""
        self._directory = directory
        self._given_url = None if database_url is None else _require_usable(database_url)
        self._ttl_s = ttl_s
        self._prepares = prepares
        self._exit = ExitStack()
        self._valkey = EmbeddedValkey(directory / "valkey", has_administrator=True)
        self._postgres = EmbeddedPostgres(directory / "postgres") if own_postgres else None
        self._model = ScriptedServer(options=ScriptedOptions(keeps_usage=True, keeps_bodies=keeps_bodies))
        self.sink = DeliverySink()
        self.database_url = ""

    def __enter__(self) -> LabStack:
        # The model answers workers that were killed meanwhile; asyncio would write a line for each onto the terminal.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        try:
            self._exit.enter_context(self._valkey)
            self._exit.enter_context(self._model)
            self._exit.enter_context(self.sink)
            self.database_url = self._prepare_database()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    @property
    def may_restart_database(self) -> bool:
        return self._postgres is not None

    @property
    def broker_url(self) -> str:
        return self._valkey.url

    @property
    def breaking_url(self) -> str:
        """The broker's URL for the code that breaks it."""
        return self._valkey.administrator_url

    def build_environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of the workers: of ``base`` only what every process needs."""
        kept = {name: base[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV") if name in base}
        return {
            **kept,
            "HOME": str(self._directory),
            "HERMES_HOME": str(self._directory / "home"),
            "HERMES_DATABASE_URL": self.database_url,
            "HERMES_DATABASE_PREPARED_STATEMENTS": str(self._prepares).lower(),
            "HERMES_BROKER_URL": self.broker_url,
            "HERMES_BASE_URL": self._model.base_url,
            "HERMES_PROVIDER": "custom",
            "HERMES_MODEL": "scripted",
            "HERMES_MODEL_PRICES": f"custom:scripted={PRICES_USD[0]}/{PRICES_USD[1]}",
            "HERMES_DELIVERY_ALLOW_PRIVATE_URLS": "true",
            "HERMES_LEASE_TTL_S": str(self._ttl_s),
            "HERMES_SWEEP_INTERVAL_S": "1",
            "HERMES_RESEND_GRACE_S": "1",
            "HERMES_DRAIN_S": "5",
            "HERMES_MAX_CONCURRENT_CHILDREN": "8",
            "HERMES_APPROVALS_TIMEOUT_S": "0",  # whoever answers may be slow here
        }

    @property
    def model_requests(self) -> int:
        """The number of requests to the model."""
        return self._model.requests.completions

    @property
    def model_usage(self) -> Mapping[tuple[str, int], set[tuple[int, int]]]:
        """The provider's own count of tokens (``ScriptedServer.usage``)."""
        return self._model.usage

    @property
    def model_bodies(self) -> Mapping[str, list[bytes]]:
        """The requests to the model, byte for byte (``ScriptedServer.bodies``)."""
        return self._model.bodies

    def open_database(self) -> Database:
        """Open the database to look at it; the caller closes it."""
        return Database(self.database_url, prepares=self._prepares)

    def wipe_broker(self) -> None:
        """Kill the broker and start it again with nothing on disk."""
        self._valkey.kill()
        shutil.rmtree(self._valkey.directory / _APPEND_ONLY, ignore_errors=True)
        self._valkey.start()

    def restart_database(self, away_s: float) -> None:
        """Kill PostgreSQL, leave it down for ``away_s`` seconds, and start it again. Does nothing to a database that is
        not the lab's own."""
        if self._postgres is not None:
            self._postgres.kill()
            time.sleep(away_s)
            self._postgres.start()

    def _prepare_database(self) -> str:
        """Return the URL of the database. Raises ``ConfigurationError`` when it is not empty, or cannot be used."""
        if self._postgres is not None:
            self._exit.enter_context(self._postgres)
            url = self._postgres.create_database("chaos")
        else:
            url = self._given_url or f"sqlite:///{self._directory / 'chaos.db'}"
        _require_no_file(url)
        database = Database(url, prepares=self._prepares)
        try:
            _require_empty(database)
            require_statements_kept(database)
            migrate(database)
        finally:
            database.close()
        return url


def _require_usable(url: str) -> str:
    """Return the URL of a database that can be used. Raises ``ConfigurationError``."""
    try:
        return DATABASE_URL.parse(url)
    except (ValueError, TypeError):
        raise ConfigurationError(f"the database of the crash lab must be {DATABASE_URL.allowed}") from None


def _require_no_file(url: str) -> None:
    """Raise ``ConfigurationError`` for an SQLite file that holds anything: only to open one may change it."""
    parsed = sa.make_url(url)
    path = Path(parsed.database or "")
    if parsed.get_backend_name() == "sqlite" and path.exists() and path.stat().st_size > 0:
        raise _refusal_error(f"{str(path)!r} is not an empty file")


def _require_empty(database: Database) -> None:
    """Raise ``ConfigurationError`` when the database holds anything."""
    with database.read() as connection:
        tables = sa.inspect(connection).get_table_names()
    if tables:
        raise _refusal_error(f"it holds {len(tables)} tables (such as {tables[0]!r})")


def _refusal_error(why: str) -> ConfigurationError:
    """The error for a database that is not the lab's own: only its own is broken."""
    return ConfigurationError(
        f"the crash lab refuses to touch this database: {why}; give it an empty database of its own"
    )
