"""Submit runs inside a transaction of another program, on the same database (docs/embedding.md).

The one path of submissions is used, over a client whose database is the caller's connection: it reads and writes what
the API would, seals texts with the same keys, and begins, commits and rolls back nothing (``store.engine.lent``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import redis
import sqlalchemy as sa

from hermes_worker import plugins
from hermes_worker.broker.queue import build_home_client, build_redis_client
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.hooks import build_observed
from hermes_worker.core.principals import KeyScope, Principal, format_program, require_holder_name, require_tenant_name
from hermes_worker.local.paths import build_embedded_database_url, find_embedded_broker_url, list_spellings
from hermes_worker.observe import count, log
from hermes_worker.services.signed_tasks import TaskRefused, read_signed_task
from hermes_worker.services.submission import InvalidSubmission, Submission, prepare_run
from hermes_worker.settings import Settings, load_settings
from hermes_worker.store.access.audit import Actor, set_actor
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.build import build_sealer
from hermes_worker.store.engine.lent import Lending, LentDatabase, UnusableTransaction, lend_connection
from hermes_worker.store.revisions import require_current
from hermes_worker.store.runs.runs import Created, SessionNotFound
from hermes_worker.store.text_keys import check_keys, record_key_use
from hermes_worker.wiring import Client, build_client

__all__ = ["SubmittedRun", "Submitter", "TaskRefused", "UnusableTransaction", "submit", "submit_async", "submit_signed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedRun:
    """A run that exists if and only if the caller commits."""

    run_id: str
    session_id: str
    """How later submissions name the session."""
    was_replayed: bool
    """An earlier submission with the same idempotency key made this run; nothing new was written."""
    _client: Client = field(repr=False)
    _created: Created = field(repr=False)

    def announce(self) -> None:
        """Send the hint for the run to the workers. Call it after the commit where the database library has no hook for
        commits; without it the sweeper finds the run within seconds. Does not raise when the broker is away.
        Idempotent."""
        self._client.publisher.send(self._created.hints)


class Submitter:
    """Submits runs in transactions of others, with one configuration. Thread-safe; build it after a fork."""

    def __init__(self, settings: Settings | None = None) -> None:
        """``None`` reads the settings as every process does: from the environment, ``.env`` and ``config.yaml``.
        Connects to nothing. Raises ``ConfigurationError``."""
        self.settings = load_settings() if settings is None else settings
        found = plugins.begin_extensions(self.settings)
        self._observed = build_observed((hook.name, hook.events) for hook in found.hooks.values())
        self._sealer = build_sealer(self.settings)
        self._broker = _build_broker(self.settings)

    def submit(
        self, target: Any, text: str, *, tenant: str, principal: str | Principal, **options: Any
    ) -> SubmittedRun:
        """Submit a run in the transaction of ``target``: a ``Connection`` or ``Session`` of SQLAlchemy or SQLModel, a
        ``Connection`` of psycopg 3, or Django's ``connection``. Idempotent under ``idempotency_key``.

        ``principal`` is the name of the program or person that acts for ``tenant``, which has to exist. ``options`` are
        the fields of ``services.submission.Submission``, such as ``session_id``, ``model``, ``deliver``, ``tags``,
        ``iterations_max`` and ``idempotency_key``. Raises ``UnusableTransaction``, ``ConfigurationError`` for another
        database or schema, ``TenantNotFound``, ``TenantDisabled``, ``InvalidName``, the errors of
        ``services.submission.submit``, and what the caller's library raises.
        """
        submission = _build_submission(text, _build_principal(tenant, principal), options)
        lending = lend_connection(target)
        database = self._open_database(lending)
        Tenants(database).require_enabled(tenant)
        return self._submit(lending, database, submission)

    def submit_signed(self, target: Any, task: Mapping[str, object]) -> SubmittedRun:
        """Submit the run that the arguments of a signed task ask for (``services.signed_tasks``), in the transaction of
        ``target``: for the tenant and the holder of the key that signed it. A task that comes again makes no other run.
        Raises ``TaskRefused``, which is logged, and as ``submit``."""
        lending = lend_connection(target)
        database = self._open_database(lending)
        try:
            principal, said = read_signed_task(Tenants(database), task)
        except TaskRefused as error:
            log.warning("signed_task.refused", reason=str(error), key_id=str(task.get("key_id"))[:40])
            raise
        return self._submit(lending, database, _build_submission(said.text, principal, said.list_options()))

    def _open_database(self, lending: Lending) -> LentDatabase:
        database = LentDatabase(
            lending, observed=self._observed, sealer=self._sealer, homes=list_spellings(self.settings.home)
        )
        self._require_own_database(database)
        check_keys(database)
        record_key_use(database)
        return database

    def _submit(self, lending: Lending, database: LentDatabase, submission: Submission) -> SubmittedRun:
        actor = submission.principal
        client = build_client(self.settings, database, self._broker)
        with set_actor(Actor(tenant=actor.tenant, name=actor.display_name)):
            created = _write_run(client, submission)
        run = SubmittedRun(
            run_id=created.run_id,
            session_id=created.session_id,
            was_replayed=created.was_replayed,
            _client=client,
            _created=created,
        )
        if lending.after_commit is not None and not created.was_replayed:
            lending.after_commit(run.announce)
        return run

    def _require_own_database(self, database: LentDatabase) -> None:
        """Raise ``ConfigurationError`` for a database that is not that of the settings, or has another schema."""
        ours = sa.make_url(self.settings.database.url or build_embedded_database_url(self.settings.home))
        is_sqlite = ours.get_backend_name() == "sqlite"
        if is_sqlite is not database.is_sqlite:
            there = "SQLite" if database.is_sqlite else "PostgreSQL"
            raise ConfigurationError(
                f"the connection is to a database of {there}, and runs are stored in {ours.get_backend_name()!r}: set "
                "HERMES_DATABASE_URL to the database of the connection"
            )
        with database.read() as connection:
            if is_sqlite:
                name = str(connection.exec_driver_sql("pragma database_list").first()[2])  # type: ignore[index]
            else:
                name = str(connection.exec_driver_sql("select current_database()").scalar_one())
        if name != ours.database and not (is_sqlite and _is_same_file(name, ours.database)):
            raise ConfigurationError(
                f"the connection is to the database {name!r}, and HERMES_DATABASE_URL names {ours.database!r}: a run "
                "can only be submitted in the transaction of the database that it is stored in"
            )
        require_current(database)


def _is_same_file(path: str, other: str | None) -> bool:
    try:
        return Path(path).samefile(other or "")
    except OSError:
        return False


def _build_broker(settings: Settings) -> redis.Redis:
    url = settings.broker.url
    return build_redis_client(url) if url else build_home_client(lambda: find_embedded_broker_url(settings.home))


def _build_principal(tenant: str, principal: str | Principal) -> Principal:
    if isinstance(principal, Principal):
        if principal.tenant != tenant:
            raise InvalidSubmission("principal", f"the principal acts for the tenant {principal.tenant!r}")
        return principal
    name = format_program(require_holder_name(principal))
    return Principal(tenant=require_tenant_name(tenant), name=name, scopes=frozenset({KeyScope.RUNS_WRITE}))


def _build_submission(text: str, actor: Principal, options: Mapping[str, Any]) -> Submission:
    try:
        return Submission(input=text, principal=actor, **options)
    except TypeError as error:  # of the constructor: a name that is no field
        raise InvalidSubmission("options", f"{error}; the fields of 'Submission' are known") from None


def _write_run(client: Client, submission: Submission) -> Created:
    try:
        created = client.runs.create_unplaced(prepare_run(client, submission))
    except SessionNotFound as error:
        raise InvalidSubmission("session_id", str(error)) from None
    if not created.was_replayed:
        count("run.submitted")
        log.info("run.submitted", run_id=created.run_id, session_id=created.session_id, source=submission.source)
    return created


@cache
def _find_submitter() -> Submitter:
    """The submitter of this process, with the settings from its environment."""
    return Submitter()


def submit(target: Any, text: str, *, tenant: str, principal: str | Principal, **options: Any) -> SubmittedRun:
    """Submit a run in your own transaction, with the settings of this process's environment. See
    ``Submitter.submit``."""
    return _find_submitter().submit(target, text, tenant=tenant, principal=principal, **options)


def submit_signed(target: Any, task: Mapping[str, object]) -> SubmittedRun:
    """Submit the run of a signed task in your own transaction, with the settings of this process's environment. See
    ``Submitter.submit_signed``."""
    return _find_submitter().submit_signed(target, task)


async def submit_async(
    target: Any, text: str, *, tenant: str, principal: str | Principal, **options: Any
) -> SubmittedRun:
    """Submit a run in the transaction of an ``AsyncConnection`` or ``AsyncSession`` of SQLAlchemy or SQLModel. See
    ``Submitter.submit``."""
    if not hasattr(target, "run_sync"):
        raise UnusableTransaction(
            f"{type(target).__name__!r} is not asynchronous: call 'hermes_worker.submit' without 'await'"
        )
    put = partial(_find_submitter().submit, tenant=tenant, principal=principal, **options)
    run: SubmittedRun = await target.run_sync(put, text)
    return run
