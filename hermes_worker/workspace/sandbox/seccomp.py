"""A seccomp filter (classic BPF) that refuses system calls which no ordinary work needs.

Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux 6.18.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

_COMMON: Final = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "open_tree_attr": 467,
}
_X86_64: Final = _COMMON | {
    "socket": 41,
    "clone": 56,
    "ptrace": 101,
    "syslog": 103,
    "vhangup": 153,
    "modify_ldt": 154,
    "pivot_root": 155,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "clock_settime": 227,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "move_pages": 279,
    "perf_event_open": 298,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "clock_adjtime": 305,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
}
_AARCH64: Final = _COMMON | {
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "chroot": 51,
    "vhangup": 58,
    "quotactl": 60,
    "acct": 89,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "clock_settime": 112,
    "syslog": 116,
    "ptrace": 117,
    "reboot": 142,
    "sethostname": 161,
    "setdomainname": 162,
    "settimeofday": 170,
    "socket": 198,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "clone": 220,
    "swapon": 224,
    "swapoff": 225,
    "move_pages": 239,
    "perf_event_open": 241,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "clock_adjtime": 266,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
}


class _Machine(NamedTuple):
    audit: int
    """AUDIT_ARCH_... of linux/audit.h."""
    numbers: Mapping[str, int]


_MACHINES: Final[Mapping[str, _Machine]] = MappingProxyType(
    {"x86_64": _Machine(0xC000003E, _X86_64), "aarch64": _Machine(0xC00000B7, _AARCH64)}
)
_X32_BIT: Final = 0x40000000

_NOT_THERE: Final = frozenset({"clone3", "io_uring_enter", "io_uring_register", "io_uring_setup"})
"""Libraries do without these when the kernel says it does not have them. ``clone3`` hides its flags from a filter."""
_JUDGED: Final = frozenset({"clone", "socket"})
"""Allowed or not by their arguments."""
_NEW_NAMESPACES: Final = 0x7E020000
"""CLONE_NEWUSER, NEWNS, NEWPID, NEWNET, NEWIPC, NEWUTS and NEWCGROUP."""

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_NUMBER_AT, _ARCH_AT, _ARGUMENT_AT = 0, 4, 16
_Instruction = tuple[int, int, int, int]


def is_known_machine() -> bool:
    return platform.machine() in _MACHINES


def program(families: Iterable[int], machine: str | None = None) -> bytes:
    """The filter, as ``struct sock_filter[]``. ``families`` are the address families that sockets may have.

    Raises ``KeyError`` for a machine whose system calls are not known here.
    """
    audit, numbers = _MACHINES[machine or platform.machine()]
    lines: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, audit),
        _refuse(errno.EPERM),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32_BIT),
        _refuse(errno.ENOSYS),
    ]
    for name, number in sorted(numbers.items()):
        if name not in _JUDGED:
            lines += [(_EQUAL, 0, 1, number), _refuse(errno.ENOSYS if name in _NOT_THERE else errno.EPERM)]
    clone = [(_LOAD, 0, 0, _ARGUMENT_AT), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), _refuse(errno.EPERM), _allow()]
    socket = [(_LOAD, 0, 0, _ARGUMENT_AT)]
    for family in families:
        socket += [(_EQUAL, 0, 1, family), _allow()]
    socket.append(_refuse(errno.EACCES))
    for number, body in ((numbers["clone"], clone), (numbers["socket"], socket)):
        lines += [(_EQUAL, 0, len(body), number), *body]
    lines.append(_allow())
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _refuse(number: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _allow() -> _Instruction:
    return (_RETURN, 0, 0, _ALLOW)
