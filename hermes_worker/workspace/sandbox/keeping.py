"""How a confined command is started: by a keeper, which is handed its plan through a descriptor."""

from __future__ import annotations

import marshal
import os
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hermes_worker.workspace.sandbox.base import DOOR_FD, SECCOMP_FD, Confinement
from hermes_worker.workspace.sandbox.helper import keeper
from hermes_worker.workspace.sandbox.policy import Limits

OOM_SCORE: Final = 500
"""Added for commands, so that the kernel ends one of them before the worker when memory is short."""
_HELPERS: Final = str(Path(keeper.__file__).parent)
# By this name the keeper is compiled once, not for every command.
_START: Final = f"import sys; sys.path.insert(0, {_HELPERS!r}); import keeper; keeper.main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a keeper had to do beside waiting."""

    left_running: bool = False
    has_too_many_processes: bool = False
    unconfined: str | None = None
    """Why the command was not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A command that can be started: by ``argv``, with these ``descriptors`` and ``variables``."""

    argv: Sequence[str]
    descriptors: tuple[int, ...]
    variables: Mapping[str, str]
    _verdict: int

    def verdict(self) -> Verdict:
        """To be asked once, after the keeper's end."""
        os.set_blocking(self._verdict, False)
        try:
            said = os.read(self._verdict, 4096)
        except BlockingIOError:
            said = b""
        _, _, reason = said.partition(keeper.UNCONFINED)
        return Verdict(
            left_running=keeper.LEFT_RUNNING in said,
            has_too_many_processes=keeper.TOO_MANY in said,
            unconfined=reason.decode("utf-8", "replace") if keeper.UNCONFINED in said else None,
        )


@contextmanager
def kept(
    confinement: Confinement,
    argv: Sequence[str],
    *,
    entrance: int,
    tag: str,
    limits: Limits | None = None,
    for_command: Sequence[int] = (),
) -> Iterator[Kept]:
    """Prepare ``argv`` to be started under ``confinement``, while the block runs.

    ``entrance`` is the guardian's, ``for_command`` are the descriptors that the command itself is given.
    """
    with ExitStack() as stack:
        stack.callback(_remove, confinement.private_tmp)
        read_end, write_end = os.pipe()
        stack.callback(os.close, read_end)
        stack.callback(os.close, write_end)
        program = [_memory(stack, confinement.program)] if confinement.program else []
        door = [stack.enter_context(confinement.door.opened())] if confinement.door else []
        plan = _memory(stack, b"")
        document = {
            "parent": os.getpid(),
            "entrance": entrance,
            "tag": tag,
            "verdict": write_end,
            "for_command": [*for_command, *program, *door],
            "processes_max": (limits.processes if limits else None) or 0,
            "limits": rlimits(limits) if limits else [],
            "oom_score": OOM_SCORE,
            "drops_capabilities": False,
            "landlock": None,
            "seccomp": b"",
            "door": door[0] if door else None,
            **confinement.plan,
        }
        os.write(plan, marshal.dumps(document))
        os.lseek(plan, 0, os.SEEK_SET)
        numbers = {SECCOMP_FD: program, DOOR_FD: door}
        prefix = [str(numbers[word][0]) if word in numbers else word for word in confinement.prefix]
        yield Kept(
            argv=[sys.executable, "-I", "-S", "-c", _START, str(plan), *prefix, *argv],
            descriptors=(plan, write_end, entrance, *program, *door, *for_command),
            variables=confinement.variables,
            _verdict=read_end,
        )


def rlimits(limits: Limits) -> list[tuple[int, int]]:
    wanted = (
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_CORE, 0),
    )
    return [(kind, value) for kind, value in wanted if value is not None]


def _memory(stack: ExitStack, data: bytes) -> int:
    descriptor = os.memfd_create("hermes-plan")
    stack.callback(os.close, descriptor)
    if data:
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _remove(directory: str | None) -> None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
