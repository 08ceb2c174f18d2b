"""A workspace that is a directory of this machine, or of a volume that many machines mount.

Theory of operation of the paths. A path is made canonical first (links followed), then judged, then opened from the
root down, one component at a time and without following links. What was judged is therefore what is opened, even when
a command replaces a folder by a link in between.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

from hermes_worker.core.errors import format_reason
from hermes_worker.system.plainfiles import NotPlain, read_plain
from hermes_worker.workspaces import shell
from hermes_worker.workspaces.base import (
    FILE_BYTES_MAX,
    CommandResult,
    PathNotFound,
    TerminalSize,
    WorkspaceError,
    require_path,
)
from hermes_worker.workspaces.descriptors import FOLDER_FLAGS, write_new_file
from hermes_worker.workspaces.env_files import read_env_texts
from hermes_worker.workspaces.environment import filter_environment
from hermes_worker.workspaces.process_daemon import client
from hermes_worker.workspaces.processes import ProcessLook, ProcessOrder
from hermes_worker.workspaces.protection import FileProtection
from hermes_worker.workspaces.quota import WorkspaceQuota
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.helper.space import measure_free_bytes
from hermes_worker.workspaces.sandbox.kept_command import WatchedDirectory
from hermes_worker.workspaces.sandbox.network import PEOPLE, RunOrigin
from hermes_worker.workspaces.shell import TerminalPair


class LocalWorkspace:
    """Files and commands inside one directory. Thread-safe: it holds nothing that changes.

    ``base_env`` may be the whole environment of the worker; commands get what the allow-list lets through. Without a
    ``sandbox`` they can do what the worker's user can.
    Raises ``WorkspaceError`` when ``root`` is not a directory.
    """

    def __init__(
        self,
        root: str,
        *,
        base_env: Mapping[str, str],
        env_passthrough: Collection[str] = (),
        hermes_home: str | None = None,
        sandbox: Sandbox | None = None,
        free_bytes_min: int = 0,
        bytes_max: int = 0,
        umask: int | None = None,
        processes_dir: str | None = None,
    ) -> None:
        """``bytes_max`` limits the bytes it may hold, 0 for no limit. ``umask`` holds for what commands and the methods
        here write; ``None`` for the worker's own. ``processes_dir`` is the directory for the state of background
        processes, hidden from commands; ``None`` for a directory beside the workspace.
        """
        self._again = partial(
            LocalWorkspace,
            root,
            base_env=filter_environment(base_env, passthrough=env_passthrough),
            env_passthrough=tuple(env_passthrough),
            hermes_home=hermes_home,
            sandbox=sandbox,
            free_bytes_min=free_bytes_min,
            bytes_max=bytes_max,
            umask=umask,
            processes_dir=processes_dir,
        )
        self._sandbox = sandbox
        self._umask = umask
        self._free_bytes_min = free_bytes_min
        self._root = PurePosixPath(os.path.realpath(root))
        if not Path(self._root).is_dir():
            raise WorkspaceError(f"the workspace {root!r} is not a directory")
        self._processes = Path(processes_dir or self._root.parent / f".{self._root.name}.processes")
        self._base_env = filter_environment(base_env, passthrough=env_passthrough)
        self._quota = WorkspaceQuota(self.root, bytes_max) if bytes_max else None
        self._home = self._base_env.get("HOME")
        self._protection = FileProtection(
            home=os.path.realpath(self._home) if self._home else None,
            hermes_home=os.path.realpath(hermes_home) if hermes_home else None,
        )

    @property
    def root(self) -> str:
        return str(self._root)

    def resolve(self, path: str, *, cwd: str | None = None, for_write: bool = False) -> PurePosixPath:
        require_path(path)
        folder = self.resolve(cwd) if cwd is not None else self._root
        named = PurePosixPath(folder, self._expand_home(path))
        canonical = PurePosixPath(os.path.realpath(named))
        if not canonical.is_relative_to(self._root):
            raise WorkspaceError(f"{path!r} is outside the workspace {self.root!r}")
        # The name as given counts too: a link called .env may lead to a file that is kept elsewhere.
        for candidate in (canonical, named):
            refusal = self._protection.find_refusal(candidate, for_write=for_write)
            if refusal:
                raise WorkspaceError(f"{path!r} {refusal}")
        return canonical

    def may_read(self, canonical: str) -> bool:
        try:
            is_link = stat.S_ISLNK(os.lstat(canonical).st_mode)
        except OSError:
            return False
        return not is_link and self._protection.find_refusal(PurePosixPath(canonical), for_write=False) is None

    def read_bytes(self, path: str, *, limit: int = FILE_BYTES_MAX) -> bytes:
        canonical = self.resolve(path)
        with _translate_errors(path), self._open_parent(canonical) as (folder, name):
            try:
                return read_plain(name, folder=folder, bytes_max=limit, follows_links=False)
            except NotPlain:
                raise _not_regular(path) from None

    def write_bytes(self, path: str, data: bytes) -> None:
        canonical = self.resolve(path, for_write=True)
        self.require_free_space()
        if self._quota is not None:
            self._quota.require_room(len(data))
        with _translate_errors(path), self._open_parent(canonical, create=True) as (folder, name):
            mode = _read_mode_to_keep(path, name, folder)
            temporary = f".{name[:100]}.{secrets.token_hex(6)}.hermes-tmp"
            try:
                write_new_file(temporary, [data], self._compute_masked_mode(0o666) if mode is None else mode, folder)
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    def remove(self, path: str) -> None:
        canonical = self.resolve(path, for_write=True)
        with _translate_errors(path), self._open_parent(canonical) as (folder, name):
            _require_regular(path, os.stat(name, dir_fd=folder, follow_symlinks=False))
            os.unlink(name, dir_fd=folder)

    def require_folder(self, path: str) -> None:
        canonical = self.resolve(path)
        with _translate_errors(path), self._open_folder(canonical):
            pass

    def entries(self, path: str) -> tuple[str, ...]:
        canonical = self.resolve(path)
        with _translate_errors(path), self._open_folder(canonical) as folder, os.scandir(folder) as found:
            return tuple(sorted(f"{entry.name}/" if _is_folder(entry) else entry.name for entry in found))

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
        has_own_errors: bool = False,
        stdin: int | None = None,
        terminal: TerminalSize | TerminalPair | None = None,
    ) -> CommandResult:
        """Run a command, see ``Workspace``. ``terminal`` may be one that is open; it stays the caller's, and so does
        ``stdin``.
        """
        folder = self.resolve(cwd) if cwd is not None else self._root
        # Opening it says in good words what starting the shell there would say in bad ones.
        self.require_folder(cwd or ".")
        try:
            confined = self._sandbox.plan_confinement(self.root, origin) if self._sandbox else None
        except OSError as error:
            raise WorkspaceError(f"the command could not be confined: {format_reason(error)}") from error
        wanted = shell.RunningCommand(
            text=command,
            cwd=str(folder),
            base_env=self._base_env,
            env=env,
            timeout_s=timeout_s,
            output_bytes_max=output_bytes_max,
            confinement=confined.confinement if confined else None,
            limits=self._sandbox.limits if self._sandbox else None,
            has_own_errors=has_own_errors,
            watched=(self._build_watched_directory(),),
            umask=self._umask,
            may_call_us=self.may_call_us,
            on_output=on_output,
            stdin=stdin,
        )
        result = _run_command(wanted, terminal, should_stop)
        if self._sandbox is None:
            return result
        refusals = confined.door.refusals if confined and confined.door else ()
        return replace(
            result,
            sandbox=self._sandbox.find_backend().name,
            network=confined.network.value if confined else None,
            refused=tuple(f"{refusal.target}: {refusal.reason}" for refusal in refusals),
        )

    def read_env_texts(self) -> tuple[str, ...]:
        return read_env_texts(self.root)

    def confines(self, origin: RunOrigin) -> bool:
        return self._sandbox is not None and self._sandbox.confines(self.root, origin)

    def converse(
        self,
        command: str,
        *,
        channel: int,
        cwd: str | None,
        env: Mapping[str, str],
        timeout_s: float,
        output_bytes_max: int,
        should_stop: Callable[[], bool],
        origin: RunOrigin = PEOPLE,
    ) -> CommandResult:
        return self.execute(
            command,
            cwd=cwd,
            env=env,
            timeout_s=timeout_s,
            output_bytes_max=output_bytes_max,
            should_stop=should_stop,
            origin=origin,
            has_own_errors=True,
            stdin=channel,
        )

    def __reduce__(self) -> tuple[Callable[[], LocalWorkspace], tuple[()]]:
        return self._again, ()

    @property
    def may_call_us(self) -> bool:
        """Whether ``hermes-worker`` does its work when a command here calls it."""
        return self._sandbox is not None and self._sandbox.may_call_us

    def start_process(self, name: str, order: ProcessOrder) -> None:
        self.require_folder(order.cwd or ".")
        client.start_daemon(self._processes / name, self, order)

    def look_at_process(self, name: str) -> ProcessLook:
        return client.read_look(self._processes / name)

    def write_to_process(self, name: str, data: bytes, *, is_last: bool = False) -> None:
        client.write_input(self._processes / name, data, is_last=is_last)

    def end_process(self, name: str) -> None:
        client.order_end(self._processes / name)

    def remove_process(self, name: str) -> None:
        client.remove_process(self._processes / name)

    def _build_watched_directory(self) -> WatchedDirectory:
        allowed = self._quota.compute_allowed_bytes() if self._quota else 0
        return WatchedDirectory(path=self.root, bytes_max=allowed, free_bytes_min=self._free_bytes_min)

    def require_free_space(self) -> None:
        try:
            free = measure_free_bytes(self.root)
        except OSError as error:
            raise WorkspaceError(f"the disk of the workspace cannot be looked at: {format_reason(error)}") from error
        if free < self._free_bytes_min:
            raise WorkspaceError(
                f"the disk of the workspace has only {free // 1024**2} MB left, and at least "
                f"{self._free_bytes_min // 1024**2} MB are kept free; somebody has to make room on it"
            )

    def _expand_home(self, path: str) -> str:
        is_in_home = self._home is not None and (path == "~" or path.startswith("~/"))
        return f"{self._home}{path[1:]}" if is_in_home else path

    @contextmanager
    def _open_folder(self, canonical: PurePosixPath, *, create: bool = False) -> Iterator[int]:
        """A descriptor of the folder, opened from the root down without following links."""
        descriptor = os.open(self._root, FOLDER_FLAGS)
        try:
            for name in canonical.relative_to(self._root).parts:
                is_new = create and _make_folder(name, descriptor)
                inner = os.open(name, FOLDER_FLAGS, dir_fd=descriptor)
                if is_new and (mode := self._compute_masked_mode(0o777)) is not None:
                    os.fchmod(inner, mode | os.fstat(inner).st_mode & (stat.S_ISGID | stat.S_ISVTX))
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _compute_masked_mode(self, mode: int) -> int | None:
        """The permissions of a new file under the umask; ``None`` when the umask of the worker decides."""
        return None if self._umask is None else mode & ~self._umask

    @contextmanager
    def _open_parent(self, canonical: PurePosixPath, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """The folder that holds ``canonical``, and its name there."""
        if canonical == self._root:
            raise IsADirectoryError
        with self._open_folder(canonical.parent, create=create) as folder:
            yield folder, canonical.name


def _run_command(
    wanted: shell.RunningCommand, terminal: TerminalSize | TerminalPair | None, should_stop: Callable[[], bool]
) -> CommandResult:
    """Run a command, with a terminal of its own where only a size is given."""
    if not isinstance(terminal, TerminalSize):
        return shell.run_command(replace(wanted, terminal=terminal), should_stop=should_stop)
    try:
        opened = TerminalPair.open(terminal)
    except OSError as error:
        raise WorkspaceError(f"no terminal can be opened: {format_reason(error)}") from error
    with closing(opened):
        return shell.run_command(replace(wanted, terminal=opened), should_stop=should_stop)


def _make_folder(name: str, folder: int) -> bool:
    """Make a folder unless there is one; return whether it was made."""
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        return False
    return True


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one. A link that leads nowhere, or round in a loop, is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


@contextmanager
def _translate_errors(path: str) -> Iterator[None]:
    """Turn the system's errors about ``path`` into ``WorkspaceError``, without naming anything but ``path``."""
    try:
        yield
    except FileNotFoundError as error:
        raise PathNotFound(f"{path!r} does not exist") from error
    except IsADirectoryError as error:
        raise WorkspaceError(f"{path!r} is a directory, not a file") from error
    except NotADirectoryError as error:
        raise WorkspaceError(f"{path!r} is not a directory, or something on the way to it is not") from error
    except OSError as error:
        raise WorkspaceError(f"{path!r} cannot be used: {error.strerror}") from error


def _require_regular(path: str, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError
    if not stat.S_ISREG(status.st_mode):
        raise _not_regular(path)


def _not_regular(path: str) -> WorkspaceError:
    return WorkspaceError(f"{path!r} is not a regular file")


def _read_mode_to_keep(path: str, name: str, folder: int) -> int | None:
    """The permissions of the file that is about to be replaced; ``None`` when there is none."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _require_regular(path, status)
    # A rename needs no permission on the file itself, but a file that was made read-only should stay as it is.
    if not os.access(name, os.W_OK, dir_fd=folder):
        raise PermissionError(13, "it is read-only")
    return stat.S_IMODE(status.st_mode)
