"""Hand secrets from one process to the next, by descriptor: ``ps`` and ``/proc`` show an environment or an argument for
as long as the process lives.

Theory of operation. The process that starts one of ours puts the secrets into a file without a name, in memory and
sealed against changes, which the child inherits; a variable, ``HERMES_SECRETS_FD``, says which descriptor it is.
``settings`` reads it once, closes it and forgets the variable, so nothing that the process starts later has it.

A process that was started with secrets in its environment, as a container is, cannot take them back: the kernel shows
the environment of its start. So it starts itself again, once, as the same process (``exec``): with a clean environment
and the secrets behind a descriptor. ``begin_program`` does that, before anything else is done.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings.role_secrets import is_secret

SECRETS_FD = "HERMES_SECRETS_FD"
"""Which descriptor holds the secrets."""
STARTED_UMASK = "HERMES_STARTED_UMASK"
"""The permissions that the user who started us keeps from new files, in octal digits; ours are stricter."""
_READ_BYTES = 65_536
_PR_SET_DUMPABLE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """What one process hands to another."""

    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """Values by environment variable."""
    is_complete: bool = False
    """Together with the environment this is all there is: no file is read beside it."""
    withheld: frozenset[str] = frozenset()
    """Settings that exist and are not for this process."""
    origins: Mapping[str, tuple[str, str]] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """The origin of each setting of the process that started this one: a layer, and its place in words."""

    def to_bytes(self) -> bytes:
        document = {
            "variables": dict(self.variables),
            "is_complete": self.is_complete,
            "withheld": sorted(self.withheld),
            "origins": dict(self.origins),
        }
        return json.dumps(document).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Handover:
        """Read what ``to_bytes`` wrote. Raises ``ValueError`` for anything else."""
        match json.loads(data):
            case {
                "variables": dict(variables),
                "is_complete": bool(is_complete),
                "withheld": list(withheld),
                "origins": dict(origins),
            }:
                return cls(
                    variables=variables,
                    is_complete=is_complete,
                    withheld=frozenset(withheld),
                    origins={key: (layer, place) for key, (layer, place) in origins.items()},
                )
        raise ValueError("not what one of our processes hands over")


@contextlib.contextmanager
def open_sealed(data: bytes) -> Iterator[int]:
    """A descriptor from which ``data`` can be read and nothing else be done, closed at the end of the block. Programs
    that are started do not inherit it unless they are meant to."""
    descriptor = _open_nameless_file()
    try:
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
        _seal(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def take_handover(environ: MutableMapping[str, str]) -> Handover | None:
    """What was handed to this process, the first time it is asked for; ``None`` when there is nothing (more). The
    descriptor is closed. Raises ``ConfigurationError``."""
    number = environ.pop(SECRETS_FD, "")
    if not number:
        return None
    try:
        return Handover.from_bytes(read_sealed(int(number)))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{SECRETS_FD} does not name a descriptor with secrets of ours; it is for processes that hermes-worker "
            "starts: remove it from the environment."
        ) from error


def read_sealed(descriptor: int) -> bytes:
    """Read what ``open_sealed`` wrote, and close the descriptor. Raises ``OSError``."""
    try:
        return b"".join(_read_pieces(descriptor))
    finally:
        os.close(descriptor)


def begin_program() -> None:
    """What every program of ours does first: keep its files and its memory to itself, and start again without the
    secrets of its environment if there are any. Not for a process that does other things as well."""
    keep_files_private()
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # none is ours, and to look for them takes 15 ms
    if SECRETS_FD not in os.environ:  # there are no settings yet
        _restart_without_secrets(os.environ)
    hide_memory()


def keep_files_private() -> None:
    """What this process makes from now on is for its user alone. What the user is used to is kept for commands."""
    started_with = os.umask(0o077)
    os.environ.setdefault(STARTED_UMASK, f"{started_with:03o}")


def hide_memory() -> None:
    """Keep other processes of this user from reading our memory, descriptors and environment, and the kernel from
    writing them to a file (Linux; never against root). Forked children inherit it, programs that are started do not.
    """
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _set_dumpable(0)


def show_memory() -> None:
    """The opposite, for who wants to debug or profile a process."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    _set_dumpable(1)


def _restart_without_secrets(environ: Mapping[str, str]) -> None:
    secrets = {name: value for name, value in environ.items() if is_secret(name, value)}
    if not secrets or not sys.executable or not sys.orig_argv or sys.platform == "win32":
        return
    rest = {name: value for name, value in environ.items() if name not in secrets}
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with open_sealed(Handover(variables=secrets).to_bytes()) as descriptor:
        os.set_inheritable(descriptor, True)
        os.execve(sys.executable, sys.orig_argv, {**rest, SECRETS_FD: str(descriptor)})


def _open_nameless_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("hermes-secrets", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _seal(descriptor: int) -> None:
    if sys.platform == "linux":
        import fcntl

        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


def _read_pieces(descriptor: int) -> Iterator[bytes]:
    # By position: siblings may share one.
    position = 0
    while data := os.pread(descriptor, _READ_BYTES, position):
        position += len(data)
        yield data


def _set_dumpable(value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, value, 0, 0, 0)
