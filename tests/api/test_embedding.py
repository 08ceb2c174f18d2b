"""Runs that are submitted inside transactions of other libraries: there if and only if those commit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
import sqlmodel
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from support.migrated import bring_up
from support.rig import until

import hermes_worker
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.principals import Principal
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.services import embedding
from hermes_worker.services.embedding import Submitter, UnusableTransaction
from hermes_worker.services.submission import InvalidSubmission
from hermes_worker.settings import Settings, load_settings
from hermes_worker.store.access.idempotency_keys import IdempotencyConflict
from hermes_worker.store.access.principals import TenantDisabled, TenantNotFound, Tenants
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.sealing import MARK
from hermes_worker.store.tables import audit_log, runs
from hermes_worker.wiring import open_database

KEY = "a" * 43 + "="
WHO = {"tenant": "default", "principal": "shop"}


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    bring_up(database_url)
    return load_settings(
        {
            "HERMES_HOME": str(tmp_path / "home"),
            "HERMES_DATABASE_URL": database_url,
            "HERMES_BROKER_URL": "redis://127.0.0.1:1/0",
            "HERMES_MODEL": "scripted",
        }
    )


@pytest.fixture
def submitter(settings: Settings) -> Submitter:
    return Submitter(settings)


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    found = open_database(settings)
    yield found
    found.close()


@pytest.fixture
def engine(settings: Settings, database_url: str) -> Iterator[sa.Engine]:
    """The engine of a shop, beside ours."""
    found = sa.create_engine(database_url)
    with found.begin() as connection:
        connection.execute(sa.text("create table orders (number integer primary key)"))
    yield found
    found.dispose()


def list_runs(database: Database) -> list[str]:
    with database.read() as connection:
        return list(connection.execute(sa.select(runs.c.run_id)).scalars())


def put_order(target: Any) -> None:
    target.execute(sa.text("insert into orders values (17)"))


def count_orders(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(sa.text("select count(*) from orders")).scalar_one())


# --- SQLAlchemy and SQLModel ----------------------------------------------------------------------------------------


def test_a_run_exists_with_the_order_once_the_caller_commits(
    engine: sa.Engine, submitter: Submitter, database: Database
) -> None:
    with Session(engine) as session:
        put_order(session)
        run = submitter.submit(session, "Pack order 17", **WHO, tags=["order"])
        assert list_runs(database) == []
        session.commit()

    assert list_runs(database) == [run.run_id]
    assert count_orders(engine) == 1
    with database.read() as connection:
        row = connection.execute(sa.select(runs.c.tenant, runs.c.principal, runs.c.hinted_at)).one()
        acts = connection.execute(sa.select(audit_log.c.act, audit_log.c.actor)).all()
    assert row[:2] == ("default", "app:shop")
    assert row.hinted_at is not None, "the sweeper would not find it"
    assert [tuple(act) for act in acts] == [("run.submit", "app:shop")]


@pytest.mark.parametrize("is_first", [True, False], ids=["before the order", "after the order"])
def test_a_rollback_leaves_neither_run_nor_order(
    engine: sa.Engine, submitter: Submitter, database: Database, is_first: bool
) -> None:
    with engine.connect() as connection:
        if not is_first:
            put_order(connection)
        submitter.submit(connection, "Pack order 17", **WHO)
        if is_first:
            put_order(connection)
        connection.rollback()

    assert (list_runs(database), count_orders(engine)) == ([], 0)


def test_a_rollback_to_a_savepoint_removes_the_run_and_keeps_the_rest(
    engine: sa.Engine, submitter: Submitter, database: Database
) -> None:
    with engine.begin() as connection:
        put_order(connection)
        kept = submitter.submit(connection, "first", **WHO)
        with connection.begin_nested() as savepoint:
            submitter.submit(connection, "second", **WHO)
            savepoint.rollback()

    assert (list_runs(database), count_orders(engine)) == ([kept.run_id], 1)


def test_a_refused_submission_leaves_the_transaction_usable(
    engine: sa.Engine, submitter: Submitter, database: Database
) -> None:
    with engine.begin() as connection:
        put_order(connection)
        run = submitter.submit(connection, "Pack", **WHO, idempotency_key="order-17")
        with pytest.raises(IdempotencyConflict):
            submitter.submit(connection, "Something else", **WHO, idempotency_key="order-17")
        again = submitter.submit(connection, "Pack", **WHO, idempotency_key="order-17")

    assert (again.run_id, again.was_replayed) == (run.run_id, True)
    assert (list_runs(database), count_orders(engine)) == ([run.run_id], 1)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_two_transactions_with_one_key_make_one_run(postgres_url: str, tmp_path: Path, isolation: str) -> None:
    """The second waits for the first, and finds its run; where it must not see it, the server says to try again."""
    bring_up(postgres_url)
    settings = load_settings(
        {"HERMES_HOME": str(tmp_path), "HERMES_DATABASE_URL": postgres_url, "HERMES_MODEL": "scripted"}
    )
    submitter, engine = Submitter(settings), sa.create_engine(postgres_url, isolation_level=isolation)
    waits = sa.text("select count(*) from pg_stat_activity where wait_event_type = 'Lock'")

    def submit_second() -> str:
        with engine.begin() as connection:
            connection.execute(sa.text("select count(*) from runs"))  # takes the snapshot
            return submitter.submit(connection, "Pack", **WHO, idempotency_key="one").run_id

    with ThreadPoolExecutor(1) as pool, engine.connect() as connection, engine.connect() as watching:
        first = submitter.submit(connection, "Pack", **WHO, idempotency_key="one").run_id
        second = pool.submit(submit_second)
        until(lambda: watching.execute(waits).scalar_one() or watching.rollback(), "the second to wait")
        connection.commit()
        if isolation == "READ COMMITTED":
            assert second.result() == first
        else:
            with pytest.raises(sa.exc.OperationalError, match="could not serialize"):
                second.result()
            assert submit_second() == first
    engine.dispose()


def test_a_session_of_sqlmodel_is_one_of_sqlalchemy(
    engine: sa.Engine, submitter: Submitter, database: Database
) -> None:
    with sqlmodel.Session(engine) as session:
        run = submitter.submit(session, "Pack order 17", **WHO)
        session.commit()

    assert list_runs(database) == [run.run_id]


@pytest.mark.parametrize("kind", [AsyncSession, AsyncConnection])
@pytest.mark.parametrize("driver", ["usual", "asyncpg"])
def test_a_run_in_an_async_transaction(
    database_url: str,
    submitter: Submitter,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Any],
    driver: str,
) -> None:
    url = sa.make_url(database_url)
    usual = "sqlite+aiosqlite" if database.is_sqlite else "postgresql+psycopg_async"
    if driver == "asyncpg" and database.is_sqlite:
        driver = "usual"
    url = url.set(drivername=usual if driver == "usual" else "postgresql+asyncpg")
    monkeypatch.setattr(embedding, "_find_submitter", lambda: submitter)

    async def submit_both() -> str:
        engine = create_async_engine(url)
        target = AsyncSession(engine) if kind is AsyncSession else await engine.connect()
        await hermes_worker.submit_async(target, "not to be", **WHO)
        await target.rollback()
        run = await hermes_worker.submit_async(target, "Pack order 17", **WHO, cost_usd_max=None, session_id="shop")
        await target.commit()
        await target.close()
        await engine.dispose()
        return run.run_id

    run_id = asyncio.run(submit_both())

    assert list_runs(database) == [run_id]


# --- psycopg --------------------------------------------------------------------------------------------------------


def test_a_connection_of_psycopg_keeps_its_own_ways(postgres_url: str, tmp_path: Path) -> None:
    bring_up(postgres_url)
    submitter = Submitter(
        load_settings({"HERMES_HOME": str(tmp_path), "HERMES_DATABASE_URL": postgres_url, "HERMES_MODEL": "scripted"})
    )
    url = sa.make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, row_factory=dict_row) as connection:
        submitter.submit(connection, "not to be", **WHO)
        connection.rollback()
        with connection.transaction():
            run = submitter.submit(connection, "Pack order 17", **WHO)
        assert connection.execute("select run_id from runs").fetchall() == [{"run_id": run.run_id}]

    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(UnusableTransaction, match="autocommit"):
            submitter.submit(connection, "loose", **WHO)
        with connection.transaction():
            submitter.submit(connection, "bound", **WHO)
        with pytest.raises(psycopg.errors.UndefinedTable), connection.transaction():
            try:
                connection.execute("select * from nowhere")
            except psycopg.Error:
                with pytest.raises(UnusableTransaction, match="has failed"):
                    submitter.submit(connection, "too late", **WHO)
                raise
    with pytest.raises(UnusableTransaction, match="is closed"):
        submitter.submit(connection, "too late", **WHO)


# --- Django ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def django_connection(database_url: str) -> Iterator[Any]:
    import django
    from django.conf import settings as of_django
    from django.db import connections

    url = sa.make_url(database_url)
    engine = "sqlite3" if url.get_backend_name() == "sqlite" else "postgresql"
    named = {"NAME": url.database, "HOST": url.host or url.query.get("host", ""), "PORT": url.port or ""}
    used = {
        "ENGINE": f"django.db.backends.{engine}",
        **named,
        "USER": url.username or "",
        "PASSWORD": url.password or "",
    }
    if not of_django.configured:
        of_django.configure(DATABASES={"default": used})
        django.setup()
    connections.databases["default"] = connections.configure_settings({"default": used})["default"]
    connection = connections.create_connection("default")
    yield connection
    connection.close()


def test_a_run_in_a_transaction_of_django(
    settings: Settings, database: Database, django_connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connections, transaction

    connections["default"] = django_connection
    submitter = Submitter(settings)
    announced: list[str] = []
    monkeypatch.setattr(embedding.SubmittedRun, "announce", lambda run: announced.append(run.run_id))
    with pytest.raises(UnusableTransaction, match="Django"):
        submitter.submit(django_connection, "loose", **WHO)

    with transaction.atomic():
        run = submitter.submit(django_connection, "Pack order 17", **WHO)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            submitter.submit(django_connection, "not to be", **WHO)
            raise ZeroDivisionError
        assert announced == []

    assert list_runs(database) == [run.run_id] == announced


# --- hints, tenants, texts ------------------------------------------------------------------------------------------


def test_workers_are_told_after_the_outermost_commit_and_only_then(
    engine: sa.Engine, submitter: Submitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[str] = []
    monkeypatch.setattr(embedding.SubmittedRun, "announce", lambda run: announced.append(run.run_id))
    with Session(engine) as session:
        submitter.submit(session, "not to be", **WHO)
        session.rollback()
        with session.begin_nested():
            run = submitter.submit(session, "Pack", **WHO)
        assert announced == []
        session.commit()
        assert announced == [run.run_id]
        put_order(session)
        session.commit()

    assert announced == [run.run_id]


def test_the_hint_of_a_committed_run_is_in_the_queue(
    engine: sa.Engine, settings: Settings, own_valkey: EmbeddedValkey
) -> None:
    from dataclasses import replace

    from hermes_worker.broker.queue import build_redis_client

    submitter = Submitter(replace(settings, broker=replace(settings.broker, url=own_valkey.url)))
    with Session(engine) as session:
        submitter.submit(session, "Pack", **WHO)
        session.commit()

    with build_redis_client(own_valkey.url) as client:
        assert client.llen("hermes:model") == 1


def test_tenants_and_principals_are_checked(engine: sa.Engine, submitter: Submitter, database: Database) -> None:
    Tenants(database).create_tenant("acme")
    Tenants(database).create_tenant("gone")
    Tenants(database).disable_tenant("gone")
    refused: list[tuple[type[Exception], dict[str, Any]]] = [
        (TenantNotFound, {"tenant": "nobody", "principal": "shop"}),
        (TenantDisabled, {"tenant": "gone", "principal": "shop"}),
        (InvalidSubmission, {"tenant": "acme", "principal": Principal(tenant="default")}),
        (InvalidSubmission, {"tenant": "acme", "principal": "shop", "colour": "red"}),
        (InvalidSubmission, {"tenant": "acme", "principal": "shop", "session_id": "run_" + "0" * 32}),
    ]
    with engine.begin() as connection:
        for error, said in refused:
            with pytest.raises(error):
                submitter.submit(connection, "Pack", **said)
        run = submitter.submit(connection, "Pack", tenant="acme", principal="shop")

    assert Tenants(database).require_run("acme", run.run_id) == run.run_id
    assert len(list_runs(database)) == 1


def test_texts_are_sealed_as_by_the_api(engine: sa.Engine, settings: Settings, database: Database) -> None:
    sealing = load_settings({**settings.environ, "HERMES_ENCRYPTION_KEYS": "k" * 43})
    with engine.begin() as connection:
        Submitter(sealing).submit(connection, "the secret order", **WHO)

    with engine.connect() as connection:
        [stored] = connection.execute(sa.text("select spec from run_inputs")).scalars()
        assert stored.startswith(MARK)
        with pytest.raises(ConfigurationError, match="HERMES_ENCRYPTION_KEYS"):
            Submitter(settings).submit(connection, "without the key", **WHO)


# --- other databases and transactions -------------------------------------------------------------------------------


def test_another_database_is_refused_with_what_to_do(engine: sa.Engine, settings: Settings, tmp_path: Path) -> None:
    other = sa.create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with other.begin() as connection, pytest.raises(ConfigurationError, match="HERMES_DATABASE_URL"):
        Submitter(settings).submit(connection, "Pack", **WHO)
    with engine.begin() as connection:
        connection.execute(sa.text("update alembic_version set version_num = '0100'"))
        with pytest.raises(ConfigurationError, match="data migrate"):
            Submitter(settings).submit(connection, "Pack", **WHO)
        connection.rollback()


def test_a_transaction_that_is_over_is_refused(engine: sa.Engine, submitter: Submitter) -> None:
    with engine.connect() as connection, connection.begin() as transaction:
        transaction.commit()
        with pytest.raises(UnusableTransaction, match="cannot be used any more"):
            submitter.submit(connection, "Pack", **WHO)
    with pytest.raises(UnusableTransaction, match="is closed"):
        submitter.submit(connection, "Pack", **WHO)
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as loose:  # noqa: SIM117
        with pytest.raises(UnusableTransaction, match="autocommit"):
            submitter.submit(loose, "Pack", **WHO)
    for target in (object(), "postgresql://localhost"):
        with pytest.raises(UnusableTransaction, match="pass a Connection or Session"):
            submitter.submit(target, "Pack", **WHO)
