"""Control groups (cgroup v2): limits for the sum of what a command's processes use, where we may make groups.

Theory of operation. The manager of the machine gives ("delegates") a part of the tree to a service or a container. In
that part a group that limits others may hold no processes itself, so the worker's own processes go into a leaf
(``LEAF``) and each command gets a group beside it. The command's first process enters its group before it does anything
else (``helper/keeper.py``); whatever it starts is born there and, without write access to the tree, stays there.

Only what was delegated is touched, and a group that holds processes that are not ours is left alone: it has another
owner. Proof of delegation is systemd's mark, a cgroup namespace of our own, or that from there on the tree belongs to
our user (https://systemd.io/CGROUP_DELEGATION, https://docs.kernel.org/admin-guide/cgroup-v2.html). Version 1 is
deprecated and not used.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hermes_worker.core.errors import format_reason
from hermes_worker.observe import log
from hermes_worker.workspaces.sandbox.policy import CommandLimits

LEAF: Final = "hermes-processes"
"""The name of the group with the product's own processes."""
_CONTROLLERS: Final = ("memory", "pids")
_OPTIONAL: Final = frozenset({"memory.swap.max", "memory.oom.group"})
"""Files that kernels without swap, or before 4.19, do not have."""
_COMMAND: Final = re.compile(r"hermes-command-(?P<namespace>\d+)-(?P<pid>\d+)-(?P<began>\d+)-\w+")
_REMOVAL_PATIENCE_S: Final = 1.0
_TICK_S: Final = 0.002
_ROUNDS_MAX: Final = 10


def group_settings(limits: CommandLimits) -> Mapping[str, str]:
    """The values for the files of a command's group."""
    settings: dict[str, str] = {}
    if limits.memory_bytes is not None:
        # One process that is ended leaves a broken command behind; swap would make the limit a matter of patience.
        settings |= {"memory.max": str(limits.memory_bytes), "memory.swap.max": "0", "memory.oom.group": "1"}
    if limits.processes is not None:
        settings["pids.max"] = str(limits.processes)
    return settings


@dataclass(frozen=True, slots=True)
class GroupParent:
    """The part of the tree in which this process may make groups."""

    base: Path | None
    reason: str = ""
    """The reason why there is none."""


class CommandGroup:
    """The group of one command."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bounds_processes = False

    def limit(self, settings: Mapping[str, str]) -> None:
        """Write the settings. Raises ``OSError``."""
        for name, text in settings.items():
            if name not in _OPTIONAL or (self.path / name).exists():
                _write_setting(self.path / name, text)
        self.bounds_processes = "pids.max" in settings

    def was_out_of_memory(self) -> bool:
        """Whether the kernel ended something in it because its memory was used up."""
        with suppress(OSError):  # a kernel that does not count it
            events = dict(line.split() for line in (self.path / "memory.events").read_text().splitlines())
            return int(events.get("oom_kill", 0)) > 0
        return False

    def remove(self) -> None:
        """End the processes left in the group, and remove it."""
        deadline = time.monotonic() + _REMOVAL_PATIENCE_S
        while True:
            try:
                self.path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError as error:
                # Stuck in the kernel, perhaps: the next worker that starts here tries again.
                if error.errno != errno.EBUSY or time.monotonic() >= deadline:
                    log.warning("sandbox.group_left", group=str(self.path), error=format_reason(error))
                    return
            self._kill()
            time.sleep(_TICK_S)

    def _kill(self) -> None:
        try:
            _write_setting(self.path / "cgroup.kill", "1")
        except OSError:  # Linux before 5.14
            for pid in _list_members(self.path):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


class GroupMaker:
    """The groups that this process makes. Thread-safe: what is done twice does no harm."""

    def __init__(self, controllers: Sequence[str] = _CONTROLLERS) -> None:
        """``controllers`` must be delegated; only their files are written."""
        self._controllers = controllers
        self._ground: GroupParent | None = None
        self._has_warned = False

    def find_parent(self) -> GroupParent:
        """The ground, found by trying when it is first asked for; forked children know it. Moves this process into the
        leaf of its group, if the group is ours alone, and removes what dead workers left.
        """
        if self._ground is None:
            self._ground = self._try_parent()
            if self._ground.base is not None:
                log.info("sandbox.grouped", base=str(self._ground.base))
        return self._ground

    def make_group(self, tag: str, limits: CommandLimits) -> CommandGroup | None:
        """A group for the command that is known by ``tag``, to be removed with it; ``None`` where none can be made."""
        base = self.find_parent().base
        if base is None:
            return None
        try:
            return self._make_group(base, tag, limits)
        except OSError as error:
            # The limits of single processes hold all the same, and a worker without commands would be of no use.
            if not self._has_warned:
                log.warning("sandbox.group_refused", base=str(base), error=format_reason(error))
            self._has_warned = True
            return None

    def _make_group(self, base: Path, tag: str, limits: CommandLimits) -> CommandGroup:
        wanted = group_settings(limits)
        settings = {name: text for name, text in wanted.items() if name.partition(".")[0] in self._controllers}
        namespace, began = _read_pid_namespace(), _read_start_ticks(os.getpid())
        group = CommandGroup(base / f"hermes-command-{namespace}-{os.getpid()}-{began}-{tag}")
        group.path.mkdir()
        try:
            group.limit(settings)
        except OSError:
            group.remove()
            raise
        return group

    def _try_parent(self) -> GroupParent:
        try:
            base = self._find_base(*_find_own_group())
            _enable_controllers(base, self._controllers)
            self._make_group(base, f"probe{time.monotonic_ns()}", CommandLimits()).remove()
            _sweep_dead_groups(base)
        except _NotOurs as refusal:
            return GroupParent(None, str(refusal))
        except OSError as error:
            return GroupParent(None, f"{error.filename or 'the hierarchy'} cannot be used: {format_reason(error)}")
        return GroupParent(base)

    def _find_base(self, own: Path, top: Path) -> Path:
        """The group that gets children. ``top`` is where the part of the tree that we see begins."""
        is_leaf = own.name == LEAF or _is_marked(own.parent)
        if own != top and is_leaf and _is_delegated(own.parent, top) and not _list_members(own.parent):
            _require_controllers(own.parent, self._controllers)
            return own.parent
        if not _is_delegated(own, top):
            raise _NotOurs(
                f"its group {str(own)!r} is not delegated to it (systemd: Delegate=yes; in a container: a writable "
                "cgroup namespace)"
            )
        _require_controllers(own, self._controllers)
        _move_to_leaf(own)
        return own


groups = GroupMaker()


class _NotOurs(Exception):
    """No groups can be made here; the message says why."""


def _find_own_group() -> tuple[Path, Path]:
    """The directory of this process's group, and the topmost one of that hierarchy that is seen here."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    if path is None:
        raise _NotOurs("the kernel has no cgroup v2")
    for root, mounted_at in _list_mounts():
        if path == root or path.startswith(f"{root.rstrip('/')}/"):
            top = Path(mounted_at)
            return top / path[len(root) :].lstrip("/"), top
    raise _NotOurs("no cgroup v2 hierarchy that holds this process is mounted")


def _list_mounts() -> Iterator[tuple[str, str]]:
    """The mounts of cgroup v2: the root of each, and where it is (proc_pid_mountinfo(5))."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            root, mounted_at = before.split()[3:5]
            yield root, re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), mounted_at)


def _is_delegated(group: Path, top: Path) -> bool:
    """Whether children may be made in it, and its owner meant that."""
    if not (group / "cgroup.events").exists():
        return False  # the machine's root group
    files = (group, group / "cgroup.procs", group / "cgroup.subtree_control")
    if not all(os.access(file, os.W_OK) for file in files):
        return False
    if group == top or _is_marked(group):
        return True
    return group.stat().st_uid == os.geteuid() != group.parent.stat().st_uid


def _is_marked(group: Path) -> bool:
    """Whether systemd says that it is delegated."""
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def _require_controllers(group: Path, controllers: Sequence[str]) -> None:
    there = (group / "cgroup.controllers").read_text().split()
    if missing := [name for name in controllers if name not in there]:
        raise _NotOurs(f"its group {str(group)!r} has no controller {' and '.join(missing)}")


def _enable_controllers(group: Path, controllers: Sequence[str]) -> None:
    enabled = (group / "cgroup.subtree_control").read_text().split()
    if missing := [name for name in controllers if name not in enabled]:
        _write_setting(group / "cgroup.subtree_control", " ".join(f"+{name}" for name in missing))


def _move_to_leaf(group: Path) -> None:
    """Move our processes to a group of their own below ours. Raises ``_NotOurs`` before anything foreign is moved."""
    for _ in range(_ROUNDS_MAX):  # a process may start another one meanwhile
        members = _list_members(group)
        if not members:
            return
        if not all(_is_ours(pid) for pid in members):
            raise _NotOurs(f"its group {str(group)!r} holds other processes, too (systemd: DelegateSubgroup=worker)")
        (group / LEAF).mkdir(exist_ok=True)
        for pid in members:
            with suppress(ProcessLookupError):
                _write_setting(group / LEAF / "cgroup.procs", str(pid))
    raise _NotOurs(f"its group {str(group)!r} does not become empty")


def _list_members(group: Path) -> list[int]:
    return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]


def _is_ours(pid: int) -> bool:
    """Return whether a process is this one or descends from it."""
    while pid > 1 and pid != os.getpid():
        try:
            pid = int(_read_stat_fields(pid)[1])
        except OSError:
            return False
    return pid == os.getpid()


def _sweep_dead_groups(base: Path) -> None:
    """Remove the groups of dead workers; those of other process namespaces cannot be judged from here."""
    for path in base.iterdir():
        name = _COMMAND.fullmatch(path.name)
        if (
            name is None
            or name["namespace"] != str(_read_pid_namespace())
            or _is_alive(int(name["pid"]), name["began"])
        ):
            continue
        CommandGroup(path).remove()


def _is_alive(pid: int, began: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is another user's
    try:
        return _read_start_ticks(pid) == began
    except OSError:
        return True  # it hides from us


def _read_start_ticks(pid: int) -> str:
    """When the process began, in ticks since the machine did."""
    return _read_stat_fields(pid)[19]


def _read_stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold anything: state, parent ..."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()


def _read_pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _write_setting(file: Path, text: str) -> None:
    """Write the text at once, into a file that exists: the kernel takes one setting per write."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
