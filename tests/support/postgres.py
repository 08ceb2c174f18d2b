"""PostgreSQL servers and fresh databases for tests."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path

import psycopg

from hermes_worker.local.postgres import EmbeddedPostgres
from support.kept_databases import KeptDatabases
from support.patience import PATIENCE_S


class PostgresFarm:
    """Servers cut from one template, which is made once, and databases of the one that most tests share.

    Everything is made when it is first asked for: a test session without PostgreSQL does not pay for it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count(1)

    @cached_property
    def shared(self) -> EmbeddedPostgres:
        """The server whose databases are handed out. Tests do not stop it."""
        server = self._server("shared")
        server.start()
        return server

    @contextmanager
    def own_server(self) -> Iterator[EmbeddedPostgres]:
        """A running server for one test, which may stop, kill and start it."""
        server = self._server(f"own{next(self._numbers)}")
        try:
            server.start()
            yield server
        finally:
            server.stop()
            shutil.rmtree(server.directory, ignore_errors=True)

    @contextmanager
    def documented_server(self, *, archives: bool) -> Iterator[DocumentedServer]:
        """A running server with the surroundings that docs/backup.md supposes; it ``archives`` its log, or does not."""
        server = EmbeddedPostgres(self._directory / f"documented{next(self._numbers)}", is_durable=archives)
        try:
            server.initialise()
            documented = DocumentedServer(server)
            if archives:
                documented.archive()
            server.start()
            yield documented
        finally:
            server.stop()
            shutil.rmtree(server.directory, ignore_errors=True)

    @contextmanager
    def migrated_database(self) -> Iterator[str]:
        """URL of a database on the shared server that has the newest schema and no rows."""
        name = self._kept.hand_out()
        try:
            yield self.shared.build_url(name)
        finally:
            self._kept.take_back(name)

    @contextmanager
    def database(self) -> Iterator[str]:
        """URL of a fresh, empty database on the shared server, without tables."""
        name = f"t{os.getpid()}_{next(self._numbers)}"
        url = self.shared.create_database(name)
        try:
            yield url
        finally:
            self.shared.drop_database(name)

    def stop(self) -> None:
        if "shared" in self.__dict__:
            self.shared.stop()

    @cached_property
    def _kept(self) -> KeptDatabases:
        return KeptDatabases(self.shared)

    def _server(self, name: str) -> EmbeddedPostgres:
        server = EmbeddedPostgres(self._directory / name, is_durable=False)
        server.copy_from(self._template)
        return server

    @cached_property
    def _template(self) -> EmbeddedPostgres:
        template = EmbeddedPostgres(self._directory / "template", is_durable=False)
        template.initialise()
        return template


class DocumentedServer:
    """A server, and the shell of whoever administers it: the commands of the document are played as they are written,
    but for the directory of the backups."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.server = server
        self._account = server._account
        self._backups = server.directory / "backups"
        (self._backups / "wal").mkdir(parents=True)
        if self._account:
            for path in (server.directory, self._backups, self._backups / "wal"):
                os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def archive(self) -> None:
        """Configure it as the document says, before it starts."""
        command = f"test ! -f {self._backups}/wal/%f && cp %p {self._backups}/wal/%f"
        with (self.server._data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(f"\nfsync = off\narchive_mode = on\narchive_command = '{command}'\n")

    def play(self, block: str, **environ: str) -> None:
        programs = self.server._find_binary("psql").parent
        done = subprocess.run(
            ["bash", "-euc", block.replace("/backups", str(self._backups))],
            env={
                "PATH": f"{programs}:{os.defpath}",
                "LC_ALL": "C",
                "PGHOST": str(self.server._socket_directory),
                "PGUSER": "postgres",
                "PGDATA": str(self.server._data),
                **environ,
            },
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            user=self._account.pw_uid if self._account else None,
            group=self._account.pw_gid if self._account else None,
            extra_groups=[] if self._account else None,
        )
        assert done.returncode == 0, done.stderr

    def ask(self, question: str) -> str:
        """The one value that the server answers, as text."""
        with closing(psycopg.connect(self.server.build_url().replace("+psycopg", ""), autocommit=True)) as connection:
            found = connection.execute(question.encode()).fetchone()
        assert found is not None
        return str(found[0])

    def archive_all(self) -> None:
        """Have everything archived that was committed."""
        segment = self.ask("select pg_walfile_name(pg_current_wal_lsn())")
        self.ask("select pg_switch_wal()")
        deadline = time.monotonic() + PATIENCE_S
        while not (self._backups / "wal" / segment).exists():
            assert time.monotonic() < deadline, f"{segment} was not archived"
            time.sleep(0.05)


@contextmanager
def postgres_farm() -> Iterator[PostgresFarm]:
    """A farm in a directory of its own, not pytest's: as root the server runs under another account, which may not
    enter pytest's directories."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-pg-"))
    directory.chmod(0o711)
    farm = PostgresFarm(directory)
    try:
        yield farm
    finally:
        farm.stop()
        shutil.rmtree(directory, ignore_errors=True)
