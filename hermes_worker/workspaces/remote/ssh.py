"""Hosts that are reached by ssh (``asyncssh``, the extra ``ssh``).

Theory of operation. A process has one event loop for all its connections, in a thread of its own, and one connection
for each account on a host. A program is a channel of it. The key of the host must be in the file of known hosts: a host
that shows another key, or whose key is not written down there, is refused. No agent, no configuration of the user and
no forwarding is used.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from hermes_worker.core.errors import format_reason
from hermes_worker.system.background_loop import BackgroundLoop
from hermes_worker.workspaces.base import HostLost, HostUnreachable
from hermes_worker.workspaces.remote.host import WrittenPiece

if TYPE_CHECKING:
    import asyncssh

_CONNECT_S: Final = 15.0
_KEEPALIVE_S: Final = 5.0
_KEEPALIVES_MAX: Final = 3
"""A host that is silent for so many intervals counts as lost."""
_READ_BYTES: Final = 65_536
_SEND_S: Final = 60.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SshAccount:
    """The SSH account and host to log in to."""

    host: str
    user: str
    port: int = 22
    known_hosts: Path
    key_file: Path


_loop = BackgroundLoop("hermes-ssh")


class SshHost:
    """One account on one host. Thread-safe; connects when it is first used, and again after it was lost."""

    network: Final = None
    wall: Final = "none"

    def __init__(self, account: SshAccount) -> None:
        self._account = account
        self._lock = threading.Lock()
        self._connection: asyncssh.SSHClientConnection | None = None
        self._pid = 0

    @property
    def name(self) -> str:
        return f"ssh host {self._account.host}"

    def start(self, argv: Sequence[str]) -> SshProgram:
        import asyncssh

        for is_last in (False, True):
            connection = self._get_connection()
            try:
                opened = connection.create_process(shlex.join(argv), encoding=None)
                return SshProgram(self.name, _loop.run_work(opened, _CONNECT_S))
            except (OSError, asyncssh.Error) as error:
                # A connection that was lost while it was idle, perhaps. Nothing that we start does anything
                # before it is sent its input, so we may try again.
                self._drop_connection(connection)
                if is_last:
                    raise HostUnreachable(f"{self.name} starts nothing: {format_reason(error)}") from error
        raise AssertionError("the second try returns or raises")

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.abort()
            self._connection = None

    def _get_connection(self) -> asyncssh.SSHClientConnection:
        with self._lock:
            if self._connection is None or self._pid != os.getpid() or self._connection.is_closed():
                self._connection, self._pid = self._connect(), os.getpid()
            return self._connection

    def _drop_connection(self, connection: asyncssh.SSHClientConnection) -> None:
        with self._lock:
            if self._connection is connection:
                self._connection = None

    def _connect(self) -> asyncssh.SSHClientConnection:
        import asyncssh

        account = self._account
        if not account.known_hosts.is_file():
            raise HostUnreachable(f"{self.name} is not asked: {self._explain_known_hosts()}")
        try:
            return _loop.run_work(
                asyncssh.connect(
                    account.host,
                    account.port,
                    username=account.user,
                    client_keys=[self._load_key()],
                    known_hosts=str(account.known_hosts),
                    config=None,
                    agent_path=None,
                    preferred_auth="publickey",
                    connect_timeout=_CONNECT_S,
                    login_timeout=_CONNECT_S,
                    keepalive_interval=_KEEPALIVE_S,
                    keepalive_count_max=_KEEPALIVES_MAX,
                ),
                2 * _CONNECT_S,
            )
        except asyncssh.HostKeyNotVerifiable as error:
            raise HostUnreachable(
                f"{self.name} is refused, because its key is not the one that is known: {self._explain_known_hosts()}"
            ) from error
        except asyncssh.PermissionDenied as error:
            raise HostUnreachable(
                f"{self.name} does not let {account.user!r} in with our key: add its public half to authorized_keys "
                "there"
            ) from error
        except (OSError, asyncssh.Error) as error:
            raise HostUnreachable(f"{self.name} cannot be reached: {format_reason(error)}") from error

    def _explain_known_hosts(self) -> str:
        account = self._account
        port = "" if account.port == 22 else f"-p {account.port} "
        return (
            f"compare the key that 'ssh-keyscan {port}{account.host}' shows with the host's own, and write its line "
            f"into {account.known_hosts}"
        )

    def _load_key(self) -> asyncssh.SSHKey:
        import asyncssh

        account = self._account
        try:
            return asyncssh.read_private_key(str(account.key_file))
        except (OSError, ValueError, asyncssh.KeyImportError) as error:
            raise HostUnreachable(
                f"the private key in {account.key_file} cannot be used: {format_reason(error)}"
            ) from error


class SshProgram:
    """A program on the host: a channel."""

    def __init__(self, name: str, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._name = name
        self._process = process
        self._reading: dict[asyncio.Task[bytes], bool] = {}
        self._ended = False
        self._is_begun = False

    @property
    def has_ended(self) -> bool:
        return self._ended

    @property
    def exit_code(self) -> int:
        status = self._process.exit_status
        if status is None or status < 0:
            raise HostLost(f"{self._name} was lost before it said how the program ended")
        return status

    def send(self, data: bytes) -> None:
        import asyncssh

        async def write() -> None:
            self._process.stdin.write(data)
            await self._process.stdin.drain()

        try:
            _loop.run_work(write(), _SEND_S)
        except BrokenPipeError:
            pass  # it ended without reading; its exit code says why
        except (OSError, asyncssh.Error) as error:
            raise HostLost(f"{self._name} was lost while it was sent something: {format_reason(error)}") from error

    def receive(self, timeout_s: float) -> WrittenPiece | None:
        import asyncssh

        try:
            return _loop.run_work(self._receive_next(timeout_s), timeout_s + _SEND_S)
        except (OSError, asyncssh.Error) as error:
            raise HostLost(f"{self._name} was lost while something ran there: {format_reason(error)}") from error

    async def _receive_next(self, timeout_s: float) -> WrittenPiece | None:
        if not self._is_begun:
            self._is_begun = True
            for is_error in (False, True):
                self._read(is_error)
        done, _ = await asyncio.wait(self._reading, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            is_error = self._reading.pop(task)
            if data := task.result():
                self._read(is_error)
                return WrittenPiece(is_error, data)
        if not self._reading:
            await self._process.wait_closed()
            self._ended = True
            if self._process.exit_status is None:
                raise OSError("the connection ended")
        return None

    def _read(self, is_error: bool) -> None:
        stream = self._process.stderr if is_error else self._process.stdout
        self._reading[asyncio.ensure_future(stream.read(_READ_BYTES))] = is_error

    def hang_up(self) -> None:
        async def write_end() -> None:
            with suppress(OSError):
                self._process.stdin.write_eof()

        with suppress(TimeoutError):
            _loop.run_work(write_end(), _SEND_S)

    def close(self) -> None:
        async def cancel_and_close() -> None:
            for task in self._reading:
                task.cancel()
            await asyncio.gather(*self._reading, return_exceptions=True)
            self._process.close()

        with suppress(TimeoutError, OSError):
            _loop.run_work(cancel_and_close(), _SEND_S)
