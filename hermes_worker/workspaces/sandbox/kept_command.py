"""How a confined command is started: by a keeper, which is handed its plan through a pipe."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from hermes_worker.workspaces.base import ExceededLimit
from hermes_worker.workspaces.sandbox.base import DOOR_FD, ENVIRON_FD, SECCOMP_FD, Confinement
from hermes_worker.workspaces.sandbox.groups import CommandGroup, groups
from hermes_worker.workspaces.sandbox.helper import keeper
from hermes_worker.workspaces.sandbox.keeper_starter import KeeperProcess, starter
from hermes_worker.workspaces.sandbox.policy import CommandLimits

OOM_SCORE: Final = 500
"""Added for commands, so that the kernel ends one of them before the worker when memory is short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeeperVerdict:
    """What a keeper had to do beside waiting."""

    left_running: bool = False
    excess: ExceededLimit | None = None
    bounds_processes: bool = False
    """Whether the kernel bounded their number."""
    unconfined: str | None = None
    """Why the command was not started."""


_EXCESSES: Final = {
    keeper.TOO_MANY: ExceededLimit.PROCESSES,
    keeper.FULL: ExceededLimit.DISK,
    keeper.OVER: ExceededLimit.WORKSPACE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedDirectory:
    """A directory that must not become too full while a command runs. 0 is no limit."""

    path: str
    bytes_max: int = 0
    free_bytes_min: int = 0
    """Bytes that stay free on its disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Where a command starts, and with what."""

    cwd: str
    env: Mapping[str, str]
    outputs: tuple[int, int]
    """Descriptors for its output and its errors."""
    entrance: int
    """The guardian's descriptor."""
    for_command: Sequence[int] = ()
    """Descriptors that the command itself is given, numbered from ``keeper.FIRST_DESCRIPTOR`` on."""
    umask: int | None = None
    """``None`` for that of the worker when it started its first command."""


class KeptCommand:
    """A command that can be started, once."""

    def __init__(
        self,
        confinement: Confinement,
        *,
        tag: str,
        limits: CommandLimits | None,
        more_limits: Sequence[tuple[int, int]],
        watched: Sequence[WatchedDirectory],
        group: CommandGroup | None,
        stack: ExitStack,
    ) -> None:
        self._group = group
        self._watched = watched
        self._more_limits = more_limits
        self._door = [stack.enter_context(confinement.door.serve())] if confinement.door else []
        self.variables = confinement.variables
        self._confinement = confinement
        self._tag = tag
        self._limits = limits
        self._verdict, self._verdict_end = os.pipe()
        stack.callback(os.close, self._verdict)
        stack.callback(os.close, self._verdict_end)

    def start(self, argv: Sequence[str], launch: LaunchOptions) -> KeeperProcess:
        """Start ``argv``. Raises ``OSError``, ``ValueError`` for text that cannot be passed on."""
        with ExitStack() as stack:
            given = {
                word: _open_memory_file(stack, data)
                for word, data in _build_descriptor_data(self._confinement, launch.env).items()
            }
            for_command = [*launch.for_command, *given.values(), *self._door]
            numbers = {
                descriptor: number for number, descriptor in enumerate(for_command, start=keeper.FIRST_DESCRIPTOR)
            }
            door = numbers[self._door[0]] if self._door else None
            named = {word: str(numbers[descriptor]) for word, descriptor in given.items()} | {DOOR_FD: str(door)}
            words = [named.get(word, word) for word in self._confinement.prefix]
            plan = keeper.frame_plan(self._build_plan([*words, *argv], launch, door))
            read_end, write_end = os.pipe()
            stack.callback(os.close, write_end)
            try:
                process = KeeperProcess(
                    starter.fork([read_end, self._verdict_end, launch.entrance, *launch.outputs, *for_command])
                )
            finally:
                os.close(read_end)
            while plan:
                plan = plan[os.write(write_end, plan) :]
            return process

    def read_verdict(self) -> KeeperVerdict:
        """Read which limit ended the command, if any, and whether it left processes running. Call it once, after the
        keeper has ended."""
        os.set_blocking(self._verdict, False)
        try:
            said = os.read(self._verdict, 4096)
        except BlockingIOError:
            said = b""
        _, _, reason = said.partition(keeper.UNCONFINED)
        excess = next((excess for word, excess in _EXCESSES.items() if word in said), None)
        if excess is None and self._group is not None and self._group.was_out_of_memory():
            excess = ExceededLimit.MEMORY
        return KeeperVerdict(
            left_running=keeper.LEFT_RUNNING in said,
            excess=excess,
            bounds_processes=keeper.BOUNDED in said,
            unconfined=reason.decode("utf-8", "replace") if keeper.UNCONFINED in said else None,
        )

    def _build_plan(self, argv: Sequence[str], launch: LaunchOptions, door: int | None) -> dict[str, Any]:
        return {
            "parent": os.getpid(),
            "tag": self._tag,
            "argv": [_encode_text(word) for word in argv],
            "env": {} if ENVIRON_FD in self._confinement.prefix else _encode_environment(launch.env),
            "cwd": _encode_text(launch.cwd),
            "umask": launch.umask,
            "processes_max": (self._limits.processes if self._limits else None) or 0,
            "limits": [*(list_rlimits(self._limits) if self._limits else []), *self._more_limits],
            "watched": [(_encode_text(one.path), one.bytes_max, one.free_bytes_min) for one in self._iterate_watched()],
            "group": os.fsencode(self._group.path) if self._group else b"",
            "bounds_processes": self._group is not None and self._group.bounds_processes,
            "oom_score": OOM_SCORE,
            "drops_capabilities": False,
            "domain": None,
            "connector": None,
            "landlock": None,
            "seccomp": b"",
            "door": door,
            **self._confinement.plan,
        }

    def _iterate_watched(self) -> Iterator[WatchedDirectory]:
        yield from self._watched
        if (tmp := self._confinement.private_tmp) is not None:
            # Other rungs give the command a /tmp whose size the kernel bounds.
            free_bytes_min = max((one.free_bytes_min for one in self._watched), default=0)
            tmp_bytes = self._limits.tmp_bytes if self._limits else 0
            yield WatchedDirectory(path=tmp, bytes_max=tmp_bytes, free_bytes_min=free_bytes_min)


@contextmanager
def hold_command(
    confinement: Confinement,
    *,
    tag: str,
    limits: CommandLimits | None = None,
    more_limits: Sequence[tuple[int, int]] = (),
    watched: Sequence[WatchedDirectory] = (),
) -> Iterator[KeptCommand]:
    """Hold what a command under ``confinement`` needs while the block runs. ``more_limits`` are kinds of resources and
    how much of each it may have."""
    with ExitStack() as stack:
        stack.callback(_remove, confinement.private_tmp)
        group = groups.make_group(tag, limits) if limits else None
        if group is not None:
            stack.callback(group.remove)
        yield KeptCommand(
            confinement, tag=tag, limits=limits, more_limits=more_limits, watched=watched, group=group, stack=stack
        )


def _build_descriptor_data(confinement: Confinement, environ: Mapping[str, str]) -> dict[str, bytes]:
    """What the words of the prefix stand for that are numbers of descriptors."""
    settings = (b"--setenv\0%s\0%s\0" % entry for entry in _encode_environment(environ).items())
    wanted = {SECCOMP_FD: confinement.program, ENVIRON_FD: b"".join(settings)}
    return {word: data for word, data in wanted.items() if word in confinement.prefix}


def _encode_environment(environ: Mapping[str, str]) -> dict[bytes, bytes]:
    return {_encode_text(name): _encode_text(value) for name, value in environ.items()}


def list_rlimits(limits: CommandLimits) -> list[tuple[int, int]]:
    wanted = (
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_CORE, 0),
    )
    return [(kind, value) for kind, value in wanted if value is not None]


def _encode_text(text: str) -> bytes:
    data = os.fsencode(text)
    if b"\0" in data:
        raise ValueError("embedded null byte")
    return data


def _open_memory_file(stack: ExitStack, data: bytes) -> int:
    descriptor = os.memfd_create("hermes-program")
    stack.callback(os.close, descriptor)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _remove(directory: str | None) -> None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
