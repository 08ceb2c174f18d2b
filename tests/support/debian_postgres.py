"""Debian's PostgreSQL on a port of this machine: with TLS, and with a standby."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hermes_worker.local.process import ServerProcess
from support.pgbouncer import free_port

_INSTALLATIONS = Path("/usr/lib/postgresql")
APPLICATION_NAME = "standby"


def programs() -> Path:
    """The directory of the newest version's programs."""
    found = sorted(_INSTALLATIONS.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    assert found, "install Debian's PostgreSQL: apt-get install postgresql"
    return found[-1].parent


class DebianPostgres:
    """One server, in a directory that its account may enter. It runs as ``postgres`` when we are root."""

    def __init__(self, directory: Path, configuration: Sequence[str] = ()) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.port = free_port()
        self._account = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        directory.mkdir()
        self.own(directory)
        self._configuration = [f"port = {self.port}", "listen_addresses = '127.0.0.1'", *_LINES, *configuration]
        self._process = ServerProcess("PostgreSQL", directory / "postgres.log")

    def own(self, *paths: Path) -> None:
        """Give files to the account of the server."""
        if self._account is not None:
            for path in paths:
                os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def initialise(self, access: Sequence[str], *, encoding: str = "UTF8") -> None:
        """Make an empty cluster. ``access`` are lines of pg_hba.conf."""
        options = ["-U", "postgres", "--auth=trust", f"--encoding={encoding}", "--no-sync", "--no-instructions"]
        self.run("initdb", "-D", str(self.data), *options)
        self._write("pg_hba.conf", access)

    def copy_of(self, primary: DebianPostgres) -> None:
        """Be a streaming standby of ``primary``, which runs."""
        where = f"host=127.0.0.1 port={primary.port} user=postgres application_name={APPLICATION_NAME}"
        self.run("pg_basebackup", "-D", str(self.data), "-d", where, "-R", "-X", "stream", "-c", "fast", "--no-sync")

    def configure(self, *lines: str) -> None:
        """For the next start."""
        self._configuration += lines

    def start(self) -> None:
        argv = [str(programs() / "postgres"), "-D", str(self.data), "-k", str(self.directory)]
        for line in self._configuration:
            name, _, value = line.partition(" = ")
            argv += ["-c", f"{name}={value.strip(chr(39))}"]
        self._process.start(argv, env={"LC_ALL": "C", "PATH": os.defpath}, **self._becomes)
        self._process.wait_until(self._is_ready, 60)

    def kill(self) -> None:
        """End at once, as in a crash."""
        self._process.stop((signal.SIGQUIT, 15.0))

    def stop(self) -> None:
        self._process.stop((signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0))

    def promote(self) -> None:
        self.run("pg_ctl", "promote", "-D", str(self.data), "-w")

    def execute(self, statement: str) -> str:
        """What ``psql`` prints, as the superuser over the socket."""
        options = ["-h", str(self.directory), "-p", str(self.port), "-U", "postgres", "-XAtqc", statement]
        return self.run("psql", *options)

    def run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(programs() / program), *arguments],
            env={"LC_ALL": "C", "PATH": os.defpath},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            **self._becomes,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def _becomes(self) -> dict[str, int]:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid}

    def _write(self, name: str, lines: Sequence[str]) -> None:
        path = self.data / name
        path.write_text("\n".join(lines) + "\n")
        self.own(path)

    def _is_ready(self) -> bool:
        command = [str(programs() / "pg_isready"), "-q", "-h", str(self.directory), "-p", str(self.port)]
        return subprocess.run(command, check=False, **self._becomes).returncode == 0


_LINES = ("fsync = off", "shared_buffers = 32MB", "max_connections = 150", "timezone = UTC", "wal_level = replica")


@contextmanager
def directory_of_postgres() -> Iterator[Path]:
    """One that another account may enter."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-dpg-"))
    directory.chmod(0o711)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
