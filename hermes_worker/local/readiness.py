"""Whether a role does its work: how it says so, in two files that others look at, and how a supervisor asks.

The questions are values, so that they can be handed to another process.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_WAITING_SUFFIX = ".waiting"


def get_waiting_file(ready_file: Path) -> Path:
    """The file in which a worker with this ready file says what it waits for."""
    return ready_file.with_name(ready_file.name + _WAITING_SUFFIX)


def read_cause(ready_file: Path) -> str | None:
    """What the worker with this ready file waits for, as a sentence; ``None`` when it waits for nothing."""
    try:
        return get_waiting_file(ready_file).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def read_causes(directory: Path) -> dict[str, str]:
    """What the workers with ready files in ``directory`` wait for, by the names of these files without their
    endings.
    """
    found = directory.glob(f"*{_WAITING_SUFFIX}")
    ready_files = sorted(path.with_name(path.name.removesuffix(_WAITING_SUFFIX)) for path in found)
    return {path.stem: cause for path in ready_files if (cause := read_cause(path)) is not None}


class ReadyMark:
    """The ready file of one process. A disk on which it cannot be written costs the mark and not the worker."""

    def __init__(self, ready_file: Path | None = None) -> None:
        self.ready_file = ready_file

    def declare_ready(self) -> None:
        """Say that the process consumes."""
        if self.ready_file is not None:
            with suppress(OSError):
                self.ready_file.touch()
            get_waiting_file(self.ready_file).unlink(missing_ok=True)

    def declare_waiting(self, cause: str) -> None:
        """Say that the process consumes nothing until ``cause`` has passed."""
        if self.ready_file is not None:
            self.ready_file.unlink(missing_ok=True)
            with suppress(OSError):
                get_waiting_file(self.ready_file).write_text(f"{cause}\n", encoding="utf-8")

    def withdraw(self) -> None:
        """Say that the process does not consume, and waits for nothing: it has not begun, or leaves. Idempotent."""
        if self.ready_file is not None:
            self.ready_file.unlink(missing_ok=True)
            get_waiting_file(self.ready_file).unlink(missing_ok=True)


readiness = ReadyMark()
"""The ready mark of this process."""


@dataclass(frozen=True)
class FilesExist:
    """Asks whether all these files are there."""

    paths: Sequence[Path]

    def __call__(self) -> bool:
        return all(path.exists() for path in self.paths)


@dataclass(frozen=True)
class PortAnswers:
    """Asks whether somebody listens on a port."""

    host: str
    port: int

    def __call__(self) -> bool:
        try:
            with socket.create_connection((self.host.strip("[]"), self.port), timeout=0.2):
                return True
        except OSError:
            return False


@dataclass(frozen=True)
class ApiIsWell:
    """Asks whether an API reports that it is well. A client library would take longer to import than this to ask."""

    host: str
    port: int
    certificate: Path | None

    def __call__(self) -> bool:
        request = f"GET /health HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nConnection: close\r\n\r\n".encode()
        try:
            with (
                socket.create_connection((self.host.strip("[]"), self.port), timeout=0.5) as plain,
                self._tls.wrap_socket(plain) if self._tls is not None else nullcontext(plain) as connection,
            ):
                connection.sendall(request)
                return connection.recv(64).startswith(b"HTTP/1.1 200 ")
        except OSError:
            return False

    @cached_property
    def _tls(self) -> ssl.SSLContext | None:
        if self.certificate is None:
            return None
        from hermes_worker.settings.tls import trust_certificate  # its imports take time, and few need it

        return trust_certificate(self.certificate)
