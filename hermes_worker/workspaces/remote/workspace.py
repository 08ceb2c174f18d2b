"""A workspace on another host: one implementation for every kind of host.

Theory of operation. Every operation is one program on the host: a script of ``scripts`` and its arguments. Paths are
judged twice, as text here and with their links on the host, just before they are opened. That is a seat belt and not a
wall, for a command can replace a folder in between; the wall is the host itself. What a command leaves behind for the
next one (folder, variables) is kept with the session, as of any workspace.

The first use makes the workspace and learns its *id*, which lies beside it. A session remembers the id. So a worker
that looks in the wrong place, or too late, says that the files are gone, and does not begin anew in silence.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from hermes_worker.workspaces.base import (
    FILE_BYTES_MAX,
    CommandResult,
    Ending,
    ExceededLimit,
    HostLost,
    HostUnreachable,
    PathNotFound,
    ScriptAnswer,
    TerminalSize,
    WorkspaceError,
    WorkspaceReset,
    require_path,
)
from hermes_worker.workspaces.output import OutputBuffer
from hermes_worker.workspaces.processes import LOG_BYTES_MAX, ProcessLook, ProcessOrder
from hermes_worker.workspaces.protection import FileProtection
from hermes_worker.workspaces.remote import scripts
from hermes_worker.workspaces.remote.host import Host
from hermes_worker.workspaces.remote.processes import RemoteProcesses, wrap_in_terminal
from hermes_worker.workspaces.sandbox.network import PEOPLE, RunOrigin
from hermes_worker.workspaces.shell import check_command, parse_state

_PATIENCE_S: Final = 60.0
"""How many seconds a program may take that is no command of an agent."""
_KNOWN_FOR_S: Final = 30.0
"""For so many seconds a workspace that existed is believed to exist."""
_POLL_S: Final = 0.2
_END_GRACE_S: Final = 10.0
"""How many seconds to wait after the order to end everything; the host itself is patient for a second or two."""
_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
_STATE_BYTES_MAX: Final = 2 * 1024 * 1024
_COMPARED_BYTES_MIN: Final = 65_536
"""A larger file is sent only if the host has not the same already."""
_SEND_BYTES: Final = 65_536
_ID: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRules:
    """The installation's settings for workspaces on hosts."""

    bytes_max: int = 0
    """Bytes that one workspace may take on its disk; 0 for no limit."""
    free_bytes_min: int = 0
    umask: int | None = None
    limits: Sequence[str] = ()
    """Shell commands that run before each command, such as ``ulimit -n 1024``."""
    serves_guests: bool = True
    """Whether runs of other tenants may work there."""
    refuses: Callable[[RunOrigin], str | None] = lambda origin: None
    """Returns why a command from an origin is not run, or ``None``."""


class RemoteWorkspace:
    """A workspace on a host. Thread-safe. Nothing is connected before the first use."""

    def __init__(self, host: Host, root: str, rules: RemoteRules | None = None) -> None:
        self._host = host
        self._root = PurePosixPath(root)
        self._rules = rules or RemoteRules()
        self._protection = FileProtection()
        self._lock = threading.Lock()
        self._id: str | None = None
        self._known_at = float("-inf")
        self._expected: str | None = None

    @property
    def root(self) -> str:
        return str(self._root)

    @property
    def identity(self) -> str | None:
        """The id of the files; ``None`` before the first use."""
        return self._id

    def expect(self, identity: str | None) -> None:
        """Say which files the session worked on before; ``None`` for none."""
        if identity is not None and _ID.fullmatch(identity):
            self._expected = identity

    def resolve(self, path: str, *, cwd: str | None = None, for_write: bool = False) -> PurePosixPath:
        """The canonical path by its text alone: links are followed where the path is used."""
        require_path(path)
        folder = self.resolve(cwd) if cwd is not None else self._root
        canonical = _normalize(PurePosixPath(folder, path))
        if not canonical.is_relative_to(self._root):
            raise WorkspaceError(f"{path!r} is outside the workspace {self.root!r}")
        self._require_allowed(path, canonical, for_write=for_write)
        return canonical

    def may_read(self, canonical: str) -> bool:
        return self._protection.find_refusal(PurePosixPath(canonical), for_write=False) is None

    def read_bytes(self, path: str, *, limit: int = FILE_BYTES_MAX) -> bytes:
        canonical = self.resolve(path)
        answer = self._run_in_workspace(scripts.READ, str(canonical), str(limit), bytes_max=limit)
        self._raise_for_answer(path, answer)
        self._require_allowed(path, self._parse_path(answer), for_write=False)
        return answer.output

    def write_bytes(self, path: str, data: bytes) -> None:
        canonical = self._resolve_on_host(path)
        digest = hashlib.sha256(data).hexdigest()
        if len(data) >= _COMPARED_BYTES_MIN:
            there = self._run_in_workspace(scripts.HASH, str(canonical))
            if there.code == 0 and there.output.split()[:1] == [digest.encode()]:
                return
        rules = self._rules
        mask = "" if rules.umask is None else f"{rules.umask:03o}"
        quota = str(rules.bytes_max // 1024)
        self.require_free_space()
        given = (str(canonical), str(len(data)), digest, quota, mask, secrets.token_hex(8))
        answer = self._run_in_workspace(scripts.WRITE, *given, data=data)
        self._raise_for_answer(path, answer)

    def remove(self, path: str) -> None:
        self._raise_for_answer(path, self._run_in_workspace(scripts.UNLINK, str(self._resolve_on_host(path))))

    def require_folder(self, path: str) -> None:
        self._raise_for_answer(path, self._run_in_workspace(scripts.ENTRIES, str(self.resolve(path)), ""))

    def entries(self, path: str) -> tuple[str, ...]:
        answer = self._run_in_workspace(scripts.ENTRIES, str(self.resolve(path)), "list")
        self._raise_for_answer(path, answer)
        return tuple(sorted(name.decode("utf-8", "surrogateescape") for name in answer.output.split(b"\0") if name))

    def require_free_space(self) -> None:
        least = self._rules.free_bytes_min
        if least and self._run_in_workspace(scripts.SPACE, str(least // 1024)).code != 0:
            raise WorkspaceError(
                f"the disk of the workspace on {self._host.name} has less than {least // 1024**2} MB left; somebody "
                "has to make room on it"
            )

    def execute(
        self,
        command: str,
        *,
        cwd: str | None,
        env: Mapping[str, str],
        timeout_s: float,
        output_bytes_max: int,
        should_stop: Callable[[], bool],
        origin: RunOrigin = PEOPLE,
        on_output: Callable[[bytes], None] | None = None,
        terminal: TerminalSize | None = None,
    ) -> CommandResult:
        check_command(command)
        if terminal is not None:
            command = wrap_in_terminal(command, terminal)
        self._require_served(origin)
        folder = self.resolve(cwd) if cwd is not None else self._root
        self._ensure_workspace()
        self.require_folder(str(folder))
        one = _RemoteCommand(self._host, output_bytes_max, on_output)
        variables, text = _render_exports(env), command.encode()
        argv = self._build_supervisor_argv(one, str(folder), (len(variables), len(text)))
        return one.run(argv, variables + text, timeout_s, should_stop)

    def start_process(self, name: str, order: ProcessOrder) -> None:
        check_command(order.command)
        self._require_served(order.origin)
        folder = self.resolve(order.cwd) if order.cwd is not None else self._root
        self._ensure_workspace()
        self.require_folder(str(folder))
        given = (_render_exports(order.env), order.command.encode())
        self._processes.start(name, order, str(folder), given, secrets.token_hex(8))

    def look_at_process(self, name: str) -> ProcessLook:
        return self._processes.read_look(name, LOG_BYTES_MAX)

    def write_to_process(self, name: str, data: bytes, *, is_last: bool = False) -> None:
        self._processes.write_input(name, data, is_last=is_last)

    def end_process(self, name: str) -> None:
        self._processes.end(name)

    def remove_process(self, name: str) -> None:
        self._processes.remove_process(name)

    @property
    def _processes(self) -> RemoteProcesses:
        rules = self._rules

        def run(words: Sequence[str], data: bytes) -> ScriptAnswer:
            return self._run_script(words[0], *words[1:], data=data)

        return RemoteProcesses(
            run=run,
            host=self._host.name,
            wall=self._host.wall,
            network=self._host.network,
            root=self.root,
            quota_kb=rules.bytes_max // 1024,
            umask="" if rules.umask is None else f"{rules.umask:03o}",
            limits="; ".join(rules.limits),
        )

    @property
    def may_hold_kb(self) -> int:
        return self._rules.bytes_max // 1024

    def run_script(self, script: str, *arguments: str, data: bytes = b"", bytes_max: int) -> ScriptAnswer:
        return self._run_script(script, self.root, *arguments, data=data, bytes_max=bytes_max)

    def _require_served(self, origin: RunOrigin) -> None:
        if origin.is_guest and not self._rules.serves_guests:
            raise WorkspaceError(
                f"runs of other tenants do not work on {self._host.name}, because nothing keeps them apart there"
            )
        if refusal := self._rules.refuses(origin):
            raise WorkspaceError(f"the command is not run on {self._host.name}: {refusal}")

    def _build_supervisor_argv(self, one: _RemoteCommand, folder: str, sizes: tuple[int, int]) -> list[str]:
        rules = self._rules
        mask = "" if rules.umask is None else f"{rules.umask:03o}"
        quota, limits = str(rules.bytes_max // 1024), "; ".join(rules.limits)
        given = (one.seal, self.root, folder, str(sizes[0]), quota, mask, one.tag, limits, str(sizes[1]))
        return ["/bin/sh", "-c", scripts.SUPERVISOR, "hermes", *given]

    def _ensure_workspace(self) -> None:
        """Make the workspace, unless it is there. Raises ``WorkspaceReset`` when it is not the one that the session
        worked in."""
        with self._lock:
            if time.monotonic() > self._known_at + _KNOWN_FOR_S:
                made = secrets.token_hex(16)
                answer = self._run_script(scripts.PREPARE, self.root, made)
                found = answer.output.decode("ascii", "replace")
                if answer.code != 0 or not _ID.fullmatch(found):
                    raise WorkspaceError(self._explain_not_made(answer))
                self._id, self._known_at = found, time.monotonic()
            expected, self._expected = self._expected, self._id
            if expected is not None and expected != self._id:
                raise WorkspaceReset(
                    f"the files that this session worked on are not on {self._host.name}: they were removed, or this "
                    "worker reaches another host than the one before. Nothing was done; the next call begins in an "
                    "empty workspace"
                )

    def _explain_not_made(self, answer: ScriptAnswer) -> str:
        where = f"the workspace {self.root!r} cannot be made on {self._host.name}"
        if answer.code == scripts.FOREIGN:
            return f"{where}: the directory belongs to another user"
        if answer.code == 127:
            return f"{where}: it needs a POSIX shell and setsid, readlink, stat, sha256sum and du"
        said = answer.errors.decode("utf-8", "replace").strip()
        return f"{where}: {said[:300] or f'exit code {answer.code}'}"

    def _resolve_on_host(self, path: str) -> PurePosixPath:
        """The canonical path for a write, with links followed on the host. Raises ``WorkspaceError``."""
        canonical = self.resolve(path, for_write=True)
        if canonical == self._root:
            raise WorkspaceError(f"{path!r} is a directory, not a file")
        answer = self._run_in_workspace(scripts.CANONICAL, str(canonical))
        self._raise_for_answer(path, answer)
        found = self._parse_path(answer)
        self._require_allowed(path, found, for_write=True)
        return found

    def _parse_path(self, answer: ScriptAnswer) -> PurePosixPath:
        """The canonical path in a host's answer."""
        below = answer.errors.split(b"\0")[0].decode("utf-8", "surrogateescape")
        return _normalize(PurePosixPath(f"{self._root}{below}"))

    def _require_allowed(self, path: str, canonical: PurePosixPath, *, for_write: bool) -> None:
        if refusal := self._protection.find_refusal(canonical, for_write=for_write):
            raise WorkspaceError(f"{path!r} {refusal}")

    def _raise_for_answer(self, path: str, answer: ScriptAnswer) -> None:
        match answer.code:
            case 0:
                return
            case scripts.MISSING:
                raise PathNotFound(f"{path!r} does not exist")
            case scripts.OUTSIDE:
                raise WorkspaceError(f"{path!r} is outside the workspace {self.root!r}")
            case scripts.FOLDER:
                raise WorkspaceError(f"{path!r} is a directory, not a file")
            case scripts.NO_FILE:
                raise WorkspaceError(f"{path!r} is not a regular file")
            case scripts.NO_FOLDER:
                raise WorkspaceError(f"{path!r} is not a directory, or something on the way to it is not")
            case scripts.READ_ONLY:
                raise WorkspaceError(f"{path!r} cannot be used: it is read-only or closed to us")
            case scripts.BROKEN:
                raise WorkspaceError(
                    f"{path!r} was not written: what arrived on {self._host.name} was not what was sent"
                )
            case scripts.FULL:
                raise WorkspaceError(
                    f"the workspace may hold {self._rules.bytes_max // 1024**2} MB, and {path!r} would not fit; delete "
                    "what is not needed, or ask an operator to raise terminal.workspace_mb_max"
                )
        raise WorkspaceError(f"{path!r} cannot be used on {self._host.name} (exit code {answer.code})")

    def _run_in_workspace(
        self, script: str, *arguments: str, data: bytes = b"", bytes_max: int = _ANSWER_BYTES_MAX
    ) -> ScriptAnswer:
        self._ensure_workspace()
        return self._run_script(script, self.root, *arguments, data=data, bytes_max=bytes_max)

    def _run_script(
        self, script: str, *arguments: str, data: bytes = b"", bytes_max: int = _ANSWER_BYTES_MAX
    ) -> ScriptAnswer:
        """Run a script to its end. Raises ``WorkspaceError``."""
        program = self._host.start(["/bin/sh", "-c", script, "hermes", *arguments])
        collected = {False: bytearray(), True: bytearray()}
        deadline = time.monotonic() + _PATIENCE_S
        try:
            for first in range(0, len(data), _SEND_BYTES):
                program.send(data[first : first + _SEND_BYTES])
            while not program.has_ended:
                if piece := program.receive(_POLL_S):
                    collected[piece.is_error] += piece.data
                if len(collected[False]) > bytes_max or len(collected[True]) > _STATE_BYTES_MAX:
                    raise WorkspaceError(f"{self._host.name} answered more than was asked for")
                if time.monotonic() > deadline:
                    raise HostLost(f"{self._host.name} did not answer within {_PATIENCE_S:.0f} s")
            return ScriptAnswer(code=program.exit_code, output=bytes(collected[False]), errors=bytes(collected[True]))
        finally:
            program.close()


class _RemoteCommand:
    """One command of an agent, from its start to the result."""

    def __init__(self, host: Host, output_bytes_max: int, on_output: Callable[[bytes], None] | None) -> None:
        self._host = host
        self._output = OutputBuffer(output_bytes_max)
        self._state = bytearray()
        self._tell = on_output
        self.seal = f"hermes-{secrets.token_hex(12)}"
        self.tag = secrets.token_hex(8)

    def run(
        self, argv: Sequence[str], given: bytes, timeout_s: float, should_stop: Callable[[], bool]
    ) -> CommandResult:
        self._program = self._host.start(argv)
        deadline = time.monotonic() + timeout_s
        ending = Ending.EXITED
        try:
            self._send_order(given)
            while not self._program.has_ended:
                self._collect()
                if ending is not Ending.EXITED:
                    if time.monotonic() > deadline:
                        raise HostLost(f"{self._host.name} did not say that the command has ended")
                elif time.monotonic() > deadline or should_stop():
                    ending = Ending.TIMED_OUT if time.monotonic() > deadline else Ending.CANCELLED
                    deadline = time.monotonic() + _END_GRACE_S
                    self._program.hang_up()
            return self._build_result(ending)
        finally:
            self._program.close()

    def _send_order(self, given: bytes) -> None:
        """Send the command, and then that it may begin. A connection that is lost before that began nothing."""
        try:
            self._program.send(given)
        except HostLost as error:
            raise HostUnreachable(f"{error}; the command was not begun") from error
        self._program.send(b"go\n")

    def _collect(self) -> None:
        piece = self._program.receive(_POLL_S)
        if piece is None:
            return
        if not piece.is_error:
            self._output.append(piece.data)
            if self._tell is not None:
                self._tell(piece.data)
        elif len(self._state) <= _STATE_BYTES_MAX:
            self._state += piece.data

    def _build_result(self, ending: Ending) -> CommandResult:
        said, seal, rest = bytes(self._state).rpartition(f"\n{self.seal} ".encode())
        words = rest.decode("ascii", "replace").split()
        if not seal or len(words) != 3:
            raise HostLost(f"{self._host.name} did not say how the command ended")
        if words[0] == "folder":
            raise WorkspaceError("the folder in which the command should start cannot be entered")
        first, _, last = said.partition(b"\0\0")
        base = dict(entry.split("=", 1) for entry in first.decode("utf-8", "replace").split("\0") if "=" in entry)
        cwd, exported = parse_state(last, base)
        codes = {Ending.TIMED_OUT: 124, Ending.CANCELLED: 130}
        return CommandResult(
            output=self._output.render(),
            exit_code=codes.get(ending, int(words[0]) if words[0].isdecimal() else 255),
            was_truncated=self._output.was_truncated,
            cwd=cwd,
            ending=ending,
            exported=exported,
            left_running=words[1] == "left" and ending is Ending.EXITED,
            excess=ExceededLimit.WORKSPACE if words[2] == "workspace" else None,
            sandbox=self._host.wall,
            network=self._host.network,
        )


def _render_exports(env: Mapping[str, str]) -> bytes:
    """Variables as shell text."""
    for name, value in env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            raise WorkspaceError("the command could not be started: a variable of the session cannot be passed on")
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items()).encode("utf-8", "replace")


def _normalize(path: PurePosixPath) -> PurePosixPath:
    """The path without ``..``, by its text alone."""
    parts: list[str] = []
    for part in path.parts[1:]:
        if part == "..":
            del parts[-1:]
        else:
            parts.append(part)
    return PurePosixPath("/", *parts)
