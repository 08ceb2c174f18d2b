"""A worker that cannot begin yet waits: it is not ready, says why where others look, and leaves when it is told to."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.migrated import bring_up
from support.patience import PATIENCE_S
from support.rig import until
from support.valkey import administrator
from support.warm_commands import WarmProcess

from hermes_worker import settings as settings_module
from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.local.readiness import read_cause, read_causes
from hermes_worker.local.valkey import EmbeddedValkey

pytestmark = pytest.mark.faults


@contextmanager
def command(directory: Path, *arguments: str, **environ: str) -> Iterator[WarmProcess]:
    """A command of ours; killed with the block if it is still there."""
    given = {name: value for name, value in settings_module.load_settings().environ.items() if name in ("PATH", "LANG")}
    given |= {"HERMES_HOME": str(directory / "home"), "HERMES_BASE_URL": "http://127.0.0.1:9/v1"}
    with (directory / "said.log").open("w") as log, Path(os.devnull).open() as nothing:
        process = WarmProcess(arguments, {**given, **environ}, None, (nothing, log, log))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def worker(directory: Path, ready: Path, **environ: str):  # type: ignore[no-untyped-def]
    return command(directory, "start", "worker", "--queues", "tools", "--ready-file", str(ready), **environ)


def stop_it(postgres: EmbeddedPostgres, url: str) -> Callable[[], None]:
    postgres.stop()
    return postgres.start


def forbid_writes(postgres: EmbeddedPostgres, url: str) -> Callable[[], None]:
    """As on a standby; for connections that are made from now on."""
    name = sa.make_url(url).database

    def set_to(value: str) -> None:
        engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f'alter database "{name}" set default_transaction_read_only = {value}')
        engine.dispose()

    def allow() -> None:
        engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql("set default_transaction_read_only = off")
            connection.exec_driver_sql(f'alter database "{name}" reset default_transaction_read_only')
        engine.dispose()

    set_to("on")
    return allow


@pytest.mark.parametrize(
    ("break_it", "words"), [(stop_it, "the database did not answer"), (forbid_writes, "the database is a read-only")]
)
def test_a_worker_that_cannot_register_waits_and_says_why(
    tmp_path: Path,
    own_postgres: EmbeddedPostgres,
    own_valkey: EmbeddedValkey,
    break_it: Callable[[EmbeddedPostgres, str], Callable[[], None]],
    words: str,
) -> None:
    url, ready = own_postgres.create_database("waiting"), tmp_path / "tools.ready"
    bring_up(url)
    mend = break_it(own_postgres, url)
    servers = {"HERMES_DATABASE_URL": url, "HERMES_BROKER_URL": own_valkey.url}
    with worker(tmp_path, ready, **servers) as process:
        assert words in until(lambda: read_cause(ready), "it to say what it waits for")
        assert read_causes(tmp_path).keys() == {"tools"}
        assert process.poll() is None and not ready.exists()
        mend()
        until(lambda: ready.exists() or None, "it to be ready")
        assert read_cause(ready) is None


@pytest.mark.parametrize("waits_for", ["the database", "the broker"])
def test_a_worker_that_waits_leaves_when_it_is_told_to(
    tmp_path: Path, own_valkey: EmbeddedValkey, waits_for: str
) -> None:
    file, ready = tmp_path / "state.db", tmp_path / "tools.ready"
    bring_up(f"sqlite:///{file}")
    nowhere = "postgresql://nobody@127.0.0.1:9/none" if waits_for == "the database" else f"sqlite:///{file}"
    with administrator(own_valkey) as admin:
        if waits_for == "the broker":
            admin.config_set("min-replicas-to-write", 1)
        with worker(tmp_path, ready, HERMES_DATABASE_URL=nowhere, HERMES_BROKER_URL=own_valkey.url) as process:
            assert waits_for in until(lambda: read_cause(ready), "it to say what it waits for")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
    assert not ready.exists() and read_cause(ready) is None


@pytest.mark.parametrize(
    "role", [("start", "beat"), ("start", "api", "--port", "0"), ("start", "gateway")], ids=lambda words: words[1]
)
def test_a_role_begins_when_its_database_is_there_and_leaves_when_it_is_told_to(
    tmp_path: Path, own_postgres: EmbeddedPostgres, own_valkey: EmbeddedValkey, role: tuple[str, ...]
) -> None:
    bring_up(url := own_postgres.create_database("waiting"))
    own_postgres.stop()
    folders = [tmp_path / name for name in ("leaves", "begins")]
    for folder in folders:
        folder.mkdir()
    servers = {"HERMES_DATABASE_URL": url, "HERMES_BROKER_URL": own_valkey.url}
    environ = {**servers, "HERMES_GATEWAY": "true", "HERMES_API_KEY": "k", "EMAIL_ADDRESS": "a@example.org"}
    leaves_log, begins_log = (folder / "said.log" for folder in folders)
    with command(folders[0], *role, **environ) as leaves, command(folders[1], *role, **environ) as begins:
        for log in (leaves_log, begins_log):
            until(lambda: "the database did not answer" in log.read_text() or None, "it to say what it waits for")  # noqa: B023
        assert "worker.started" not in leaves_log.read_text()
        leaves.send_signal(signal.SIGTERM)
        assert leaves.wait(PATIENCE_S) == 0
        own_postgres.start()
        until(lambda: "worker.started" in begins_log.read_text() or None, "it to begin")
        assert begins.poll() is None
        begins.send_signal(signal.SIGTERM)
        assert begins.wait(PATIENCE_S) == 0


def test_a_worker_whose_broker_goes_is_not_ready_until_it_is_back(tmp_path: Path, own_valkey: EmbeddedValkey) -> None:
    ready, url = tmp_path / "tools.ready", f"sqlite:///{tmp_path / 'state.db'}"
    bring_up(url)
    with worker(tmp_path, ready, HERMES_DATABASE_URL=url, HERMES_BROKER_URL=own_valkey.url) as process:
        until(lambda: ready.exists() or None, "it to be ready")
        own_valkey.stop()
        assert "the broker does not answer" in until(lambda: read_cause(ready), "it to say what it waits for")
        assert not ready.exists()
        own_valkey.start()
        until(lambda: ready.exists() or None, "it to be ready again")
        assert process.poll() is None


def test_a_server_that_is_no_redis_ends_the_worker(tmp_path: Path) -> None:
    """No waiting makes a web server a broker."""
    url = f"sqlite:///{tmp_path / 'state.db'}"
    bring_up(url)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.recv(1024)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        broker = f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        with worker(tmp_path, tmp_path / "ready", HERMES_DATABASE_URL=url, HERMES_BROKER_URL=broker) as process:
            assert process.wait(PATIENCE_S) != 0


def test_up_that_never_worked_says_what_its_workers_wait_for(tmp_path: Path, own_valkey: EmbeddedValkey) -> None:
    with administrator(own_valkey) as admin:
        admin.config_set("min-replicas-to-write", 1)
        with command(tmp_path, "up", "--port", "0", HERMES_BROKER_URL=own_valkey.url) as process:
            assert process.wait(PATIENCE_S) != 0
    said = (tmp_path / "said.log").read_text()
    assert "could not be started: it was not ready after 20 s: the broker has too few replicas to take writes" in said
