"""Rung 2: Landlock and seccomp. Files by an allow-list; no namespaces are needed.

Landlock only grants. "Everything but" is therefore spelled out: a directory that holds something hidden is not granted
itself, but each of its other entries is. It cannot take anything out of the workspace; such a policy is refused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hermes_worker.system.own_folders import make_temporary_folder
from hermes_worker.workspaces.sandbox import probing, seccomp
from hermes_worker.workspaces.sandbox.base import Confinement
from hermes_worker.workspaces.sandbox.connecting import plan_connector, tell_open_addresses, try_with_connector
from hermes_worker.workspaces.sandbox.helper.keeper import find_landlock_abi
from hermes_worker.workspaces.sandbox.network import PROXY_VARIABLES, Network
from hermes_worker.workspaces.sandbox.policy import (
    COMMAND_CACHES,
    KEPT_OF_RUN,
    SYSTEM_DIRECTORIES,
    Profile,
    SandboxPolicy,
    find_hidden_inside,
    is_within,
)

_EXECUTE, _WRITE, _READ, _LIST = 0x1, 0x2, 0x4, 0x8
_MAKE_CHARACTER_DEVICE, _MAKE_BLOCK_DEVICE = 0x40, 0x800
_TRUNCATE, _IOCTL = 0x4000, 0x8000
_RIGHTS_OF_ABI = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}
_RIGHTS = 0xFFFF
_SEEING = _EXECUTE | _READ | _LIST
_OWNING = _RIGHTS & ~(_MAKE_CHARACTER_DEVICE | _MAKE_BLOCK_DEVICE | _IOCTL)
_DEVICE = _READ | _WRITE | _TRUNCATE | _IOCTL
_TCP = 0x1 | 0x2
_SCOPES = 0x1 | 0x2

# No terminals: Landlock could not tell a command's own from that of the worker's starter.
_DEVICES = ("/dev/full", "/dev/null", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero")
_OF_PROC = tuple(
    f"/proc/{name}"
    for name in ("cpuinfo", "filesystems", "loadavg", "meminfo", "stat", "sys", "uptime", "version", "vmstat")
)
"""The files of /proc that programs look at. Landlock knows no "own" process, so the rest of /proc is not granted."""
_SHARED = ("/dev", "/proc", "/run", "/tmp", "/var/run", "/var/tmp")
"""Places where other processes' files and secrets are."""
# Landlock does not look at sockets with a path, so none can be made; a pair of connected ones can.
_FAMILIES = (seccomp.AF_INET, seccomp.AF_INET6, seccomp.AF_NETLINK)


class LandlockRung:
    """Confines commands by Landlock and seccomp."""

    name = "landlock"

    def __init__(self) -> None:
        self._sight = _AllowListCache()
        self._no_connector: str | None = None
        """Why addresses are not judged; known once a command was tried."""

    def find_unavailable(self) -> str | None:
        if not hasattr(self, "_unavailable"):
            self._unavailable = self._try_confinement()
        return self._unavailable

    def find_refusal(self, policy: SandboxPolicy) -> str | None:
        inside = next((path for path in find_hidden_inside(policy) if Path(path).exists()), None)
        if inside is not None:
            root = next(root for root in policy.writable if is_within(inside, root))
            return (
                f"{inside!r} lies in the workspace {root!r} and must not be seen by commands, which Landlock cannot "
                "arrange: work in a directory without it, or install bubblewrap"
            )
        if policy.network is Network.PROXY and (reason := self._explain_without_proxy()):
            return (
                f"Landlock cannot lead this command's network through the proxy here: {reason}. Install bubblewrap, "
                "or let an operator choose another network (terminal.network and the settings beside it)"
            )
        return None

    def plan_confinement(self, policy: SandboxPolicy) -> Confinement:
        return self._build_plan(policy, has_connector=self._no_connector is None)

    def _build_plan(self, policy: SandboxPolicy, *, has_connector: bool) -> Confinement:
        abi = find_landlock_abi()
        tmp = make_temporary_folder("command-")
        is_open = policy.network is Network.OPEN
        has_proxy = policy.network is Network.PROXY
        families = _FAMILIES if is_open else ()
        rules = [*_build_rules(policy, self._sight), (tmp, _OWNING)]
        return Confinement(
            plan={
                "landlock": {
                    "abi": abi,
                    "files": _RIGHTS_OF_ABI.get(abi, _RIGHTS),
                    "network": _TCP if abi >= 4 and not is_open else 0,
                    "scopes": _SCOPES if abi >= 6 else 0,
                    "rules": rules,
                },
                "seccomp": seccomp.build_proxied_program()
                if has_proxy
                else seccomp.build_program(families, spares_others=True),
                "connector": plan_connector(serves_paths=False) if has_connector and is_open else None,
                "drops_capabilities": True,
            },
            variables={
                "TMPDIR": tmp,
                **{name: f"{tmp}/{folder}" for name, folder in COMMAND_CACHES.items()},
                **(PROXY_VARIABLES if has_proxy else {}),
            },
            needs_door=has_proxy,
            private_tmp=tmp,
        )

    def list_gaps(self) -> Sequence[str]:
        abi = find_landlock_abi()
        return [
            "names, sizes and times of hidden files, and who runs what",
            tell_open_addresses(self._no_connector),
            *(["truncating files of others that the user may write"] if abi < 3 else []),
            *(["signals to other processes of the user"] if abi < 6 else []),
        ]

    def _explain_without_proxy(self) -> str | None:
        """The reason why a proxy cannot be used here; ``None`` when it can. Found by installing such a filter; another
        one around this process may forbid that.
        """
        if not hasattr(self, "_no_proxy"):
            self._no_proxy = probing.probe_confinement(self.plan_confinement(SandboxPolicy(network=Network.PROXY)))
        return self._no_proxy

    def _try_confinement(self) -> str | None:
        if find_landlock_abi() == 0:
            return "the kernel has no Landlock, or it is switched off (lsm= on its command line)"
        if not seccomp.is_known_machine():
            return "the system calls of this processor are not known to the seccomp filter"
        try:
            reason, self._no_connector = try_with_connector(
                lambda has_connector: self._build_plan(SandboxPolicy(), has_connector=has_connector)
            )
        except OSError as error:
            reason = str(error)
        return f"Landlock does not work here: {reason}" if reason else None


class _AllowListCache:
    """The allow-list for the machine's directories, kept until one of those that were listed has changed."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Profile, tuple[str, ...]], tuple[_Changes, tuple[str, ...]]] = {}

    def list_paths(self, policy: SandboxPolicy) -> tuple[str, ...]:
        key = (policy.profile, policy.hidden)
        kept = self._kept.get(key)
        if kept is not None and kept[0] == {directory: _read_modification_time_ns(directory) for directory in kept[0]}:
            return kept[1]
        changes: _Changes = {}
        began = time.time_ns()
        found = tuple(_list_all_visible(policy, changes))
        # A change within a tick of the file system's clock could not be told from the one before.
        if all(changed_at is not None and changed_at < began - _TICK_NS for changed_at in changes.values()):
            self._kept = {key: (changes, found)}
        return found


_Changes = dict[str, int | None]
_TICK_NS = 1_000_000_000


def _read_modification_time_ns(directory: str) -> int | None:
    try:
        return os.stat(directory).st_mtime_ns  # noqa: PTH116 - called for every command
    except OSError:
        return None


def _build_rules(policy: SandboxPolicy, sight: _AllowListCache) -> Iterator[tuple[str, int]]:
    yield from ((path, _SEEING) for path in sight.list_paths(policy))
    yield from ((path, _SEEING) for path in (*policy.readable, *KEPT_OF_RUN, *_OF_PROC))
    yield from ((path, _DEVICE | _LIST) for path in _DEVICES)
    yield from ((path, _OWNING) for path in policy.writable)


def _list_all_visible(policy: SandboxPolicy, changes: _Changes) -> Iterator[str]:
    refused = (*policy.hidden, *_SHARED)
    roots = ("/",) if policy.profile is Profile.WORKSTATION else SYSTEM_DIRECTORIES
    for root in roots:
        if not Path(root).is_symlink():
            yield from _list_visible(root, refused, changes)


def _list_visible(directory: str, refused: Sequence[str], changes: _Changes) -> Iterator[str]:
    """``directory``, or those of its entries that remain without what is refused. ``changes`` gets the time of the last
    change of each directory that was listed.
    """
    inside = [path for path in refused if is_within(path, directory)]
    if not inside:
        yield directory
        return
    if directory in inside:
        return
    changes[directory] = _read_modification_time_ns(directory)
    try:
        with os.scandir(directory) as entries:
            # A link counts as what it leads to, which is judged where it is.
            names = [entry.path for entry in entries if not entry.is_symlink()]
    except OSError:
        return
    for path in names:
        yield from _list_visible(path, inside, changes)
