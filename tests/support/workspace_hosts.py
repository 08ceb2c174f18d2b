"""Hosts for tests: this machine's own shells, and an ssh server that asyncssh serves."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

import asyncssh

from hermes_worker.workspaces.base import HostLost
from hermes_worker.workspaces.remote.host import WrittenPiece
from hermes_worker.workspaces.remote.ssh import SshAccount


class ShellHost:
    """Programs of this machine, by the shell under test. ``kill`` is the end of the host."""

    name = "the shell"
    wall = "none"
    network = None

    def __init__(self, shell: Sequence[str] = ("/bin/sh",), env: dict[str, str] | None = None) -> None:
        self._shell = tuple(shell)
        self._env = env or {"PATH": os.environ["PATH"], "HOME": "/tmp", "LANG": "C.UTF-8"}
        self.programs: list[ShellProgram] = []

    def start(self, argv: Sequence[str]) -> ShellProgram:
        assert argv[0] == "/bin/sh"
        program = ShellProgram([*self._shell, *argv[1:]], self._env)
        self.programs.append(program)
        return program


class ShellProgram:
    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._streams = {self._process.stdout.fileno(): False, self._process.stderr.fileno(): True}
        self.has_ended = False
        self._is_cut = False

    @property
    def exit_code(self) -> int:
        return self._process.returncode

    def send(self, data: bytes) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except BrokenPipeError:
            pass

    def receive(self, timeout_s: float) -> WrittenPiece | None:
        ready = wait(list(self._streams), timeout_s)
        if self._is_cut:
            raise HostLost("the way to the shell is gone")
        for descriptor in ready:
            if data := os.read(descriptor, 65_536):
                return WrittenPiece(self._streams[descriptor], data)
            del self._streams[descriptor]
        if not self._streams:
            self._process.wait()
            self.has_ended = True
            if self._process.returncode < 0:
                raise HostLost("the shell was killed")
        return None

    def hang_up(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()

    def kill(self) -> None:
        """The way to the host is gone, and what we started there with it."""
        self._is_cut = True
        self._process.kill()

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        self._process.wait()


async def _pump(source: IO[bytes] | None, to: asyncssh.SSHWriter[bytes]) -> None:
    """Copy until the end of ``source``, or until the connection is gone."""
    assert source is not None
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    try:
        while data := await reader.read(65_536):
            to.write(data)
            await to.drain()
    except (BrokenPipeError, asyncssh.Error):
        pass
    finally:
        transport.close()


class SshServer:
    """An ssh server that runs what it is asked for as this user."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.user_key = asyncssh.generate_private_key("ssh-ed25519")
        self.key_file = directory / "id_ed25519"
        self.key_file.write_bytes(self.user_key.export_private_key())
        self.key_file.chmod(0o600)
        self.known_hosts = directory / "known_hosts"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.connections: list[asyncssh.SSHServerConnection] = []
        self.port = 0
        self.start()

    def start(self) -> None:
        """At the same port as before."""
        authorized = self._directory / "authorized_keys"
        authorized.write_bytes(self.user_key.export_public_key())
        server = self

        class Session(asyncssh.SSHServer):
            def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
                server.connections.append(conn)

        listening = asyncssh.listen(
            "127.0.0.1",
            self.port,
            server_host_keys=[self.host_key],
            authorized_client_keys=str(authorized),
            server_factory=Session,
            process_factory=self._serve,
            encoding=None,
            reuse_address=True,
        )
        self._acceptor = self.run(listening)
        self.port = self._acceptor.get_port()
        line = f"[127.0.0.1]:{self.port} ".encode() + self.host_key.export_public_key()
        self.known_hosts.write_bytes(line)

    def run(self, work: Any) -> Any:
        async def awaited() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(20)

    async def _serve(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        assert process.command is not None
        pipe, env = subprocess.PIPE, {"PATH": os.environ["PATH"], "HOME": str(self._directory), "LANG": "C.UTF-8"}
        child = subprocess.Popen(
            ["/bin/sh", "-c", process.command], env=env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self.processes.append(child)
        await process.redirect_stdin(child.stdin)
        # asyncssh's own redirection of outputs gives up what was not read yet when the process is known to have ended.
        await asyncio.gather(_pump(child.stdout, process.stdout), _pump(child.stderr, process.stderr))
        code = await asyncio.get_running_loop().run_in_executor(None, child.wait)
        if code < 0:
            process.exit_with_signal("KILL")
        else:
            process.exit(code)
        await process.wait_closed()

    def account(self, **changed: Any) -> SshAccount:
        given: dict[str, Any] = {
            "host": "127.0.0.1",
            "user": "agent",
            "port": self.port,
            "known_hosts": self.known_hosts,
            "key_file": self.key_file,
        }
        return SshAccount(**{**given, **changed})

    def die(self) -> None:
        """As when its machine loses power: all that runs there ends, and every connection."""
        self._loop.call_soon_threadsafe(self._acceptor.close)
        for child in self.processes:
            if child.poll() is None:
                child.kill()

        async def cut() -> None:
            for connection in self.connections:
                connection.abort()

        self.run(cut())
        self.connections.clear()

    def close(self) -> None:
        self.die()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


@contextmanager
def ssh_server(directory: Path) -> Iterator[SshServer]:
    server = SshServer(directory)
    try:
        yield server
    finally:
        server.close()
