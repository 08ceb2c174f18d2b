"""OpenSSH's own server, at a port of its own, for the user of the test."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from hermes_worker.workspaces.remote.ssh import SshAccount
from support.patience import PATIENCE_S


def openssh_missing() -> str | None:
    """Why it cannot be started; ``None`` when it can."""
    lacking = [name for name in ("sshd", "ssh-keygen") if _program(name) is None]
    if lacking:
        return f"OpenSSH's server needs {' and '.join(lacking)} (Debian: openssh-server)"
    return None if os.geteuid() == 0 else "OpenSSH's server lets nobody in unless root starts it"


class OpensshServer:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # it refuses to begin without
        self._directory = directory
        for name in ("host", "user"):
            command = [_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
            subprocess.run([part for part in command if part is not None], check=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        lines = (
            "ListenAddress 127.0.0.1",
            f"Port {self.port}",
            f"HostKey {directory}/host",
            f"AuthorizedKeysFile {directory}/user.pub",
            "PidFile none",
            "UsePAM no",
            "StrictModes no",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
        )
        (directory / "sshd_config").write_text("\n".join(lines) + "\n")
        key = (directory / "host.pub").read_text()
        (directory / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {key}")
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [str(_program("sshd")), "-D", "-e", "-f", str(self._directory / "sshd_config")],
            stderr=(self._directory / "log").open("ab"),
        )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.recv(1)
                return
            assert self._process.poll() is None and time.monotonic() < deadline, (self._directory / "log").read_text()
            time.sleep(0.05)

    def account(self) -> SshAccount:
        return SshAccount(
            host="127.0.0.1",
            user=getpass.getuser(),
            port=self.port,
            known_hosts=self._directory / "known_hosts",
            key_file=self._directory / "user",
        )

    def die(self) -> None:
        """It and every process of its sessions but what a command started, by SIGKILL."""
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._process.pid).children(recursive=True)
            for process in (*family, psutil.Process(self._process.pid)):
                with suppress(psutil.Error):
                    if process.name() == "sshd":
                        process.kill()
        self._process.wait()


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def openssh_server(directory: Path) -> Iterator[OpensshServer]:
    server = OpensshServer(directory)
    try:
        yield server
    finally:
        server.die()
