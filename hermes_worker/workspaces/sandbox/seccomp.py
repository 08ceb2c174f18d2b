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

_X86_64_SOCKETS: Final = {"connect": 42, "sendto": 44, "sendmsg": 46, "bind": 49, "listen": 50, "sendmmsg": 307}
_AARCH64_SOCKETS: Final = {"connect": 203, "sendto": 206, "sendmsg": 211, "bind": 200, "listen": 201, "sendmmsg": 269}
_SOCKET_CALLS: Final = {"x86_64": _X86_64_SOCKETS, "aarch64": _AARCH64_SOCKETS}
"""What is judged besides where connections are somebody else's to make."""
_FLAGS_AT: Final = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
"""Which argument holds the flags."""
_FAST_OPEN: Final = 0x20000000
"""MSG_FASTOPEN: a way to connect without ``connect``."""
_X86_64_OTHERS: Final = {
    "setpriority": 141,
    "sched_setparam": 142,
    "sched_setscheduler": 144,
    "sched_setaffinity": 203,
    "ioprio_set": 251,
    "prlimit64": 302,
    "sched_setattr": 314,
}
_AARCH64_OTHERS: Final = {
    "ioprio_set": 30,
    "sched_setparam": 118,
    "sched_setscheduler": 119,
    "sched_setaffinity": 122,
    "setpriority": 140,
    "prlimit64": 261,
    "sched_setattr": 274,
}
_OTHERS: Final = {"x86_64": _X86_64_OTHERS, "aarch64": _AARCH64_OTHERS}
"""What changes another process of the user that is named by its number: a limit of processor time ends it. Landlock
does not look at these, and a filter cannot know whose number it is; so each may only mean the calling thread (0)."""
_OF_PROCESSES: Final = {"setpriority": 0, "ioprio_set": 1}
"""The kind of number that means a process: PRIO_PROCESS, IOPRIO_WHO_PROCESS."""
_TCP_PROTOCOLS: Final = (0, 6)
"""The protocols of a stream socket that are TCP. MPTCP, SCTP and SMC connect elsewhere and otherwise."""
_MPTCP: Final = 262
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_RAW, _TYPE_MASK = 1, 2, 3, 0xF
_INTERNET_ADDRESS_BYTES: Final = 16
"""``struct sockaddr_in``, the shortest that the kernel takes for an internet address."""

_NOT_THERE: Final = frozenset({"clone3", "io_uring_enter", "io_uring_register", "io_uring_setup"})
"""Libraries do without these when the kernel says it does not have them. ``clone3`` hides its flags from a filter."""
_JUDGED: Final = frozenset({"clone", "socket"})
"""Allowed or not by their arguments."""
_NEW_NAMESPACES: Final = 0x7E020000
"""CLONE_NEWUSER, NEWNS, NEWPID, NEWNET, NEWIPC, NEWUTS and NEWCGROUP."""

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_ALLOW: Final = 0x7FFF0000
_ASK: Final = 0x7FC00000
_ERRNO: Final = 0x00050000
_NUMBER_AT, _ARCH_AT, _ARGUMENT_AT = 0, 4, 16
_Instruction = tuple[int, int, int, int]


def is_known_machine() -> bool:
    return platform.machine() in _MACHINES


def build_program(families: Iterable[int], machine: str | None = None, *, spares_others: bool = False) -> bytes:
    """The filter, as ``struct sock_filter[]``. ``families`` are the address families that sockets may have.
    ``spares_others`` keeps limits and priorities of other processes as they are; it is for commands that see the
    numbers of others.

    Raises ``KeyError`` for a machine whose system calls are not known here.
    """
    name = machine or platform.machine()
    socket = [(_LOAD, 0, 0, _ARGUMENT_AT)]
    for family in families:
        socket += [(_EQUAL, 0, 1, family), _allow()]
    socket.append(_refuse(errno.EACCES))
    if not spares_others:
        return _assemble_program(name, {"socket": socket})
    return _assemble_program(name, {"socket": socket, **_build_own_thread_rules()}, _OTHERS[name])


def build_proxied_program(machine: str | None = None) -> bytes:
    """The filter for sockets that lead to the proxy only: TCP, and the holder of the filter's listener answers
    ``connect``. Raises ``KeyError`` as ``build_program``."""
    name = machine or platform.machine()
    calls = {**_SOCKET_CALLS[name], **_OTHERS[name]}
    bodies: dict[str, list[_Instruction]] = {
        "socket": _build_tcp_rules(),
        "connect": [_ask()],
        # What listens on the machine's own loopback, others could connect to.
        "bind": [_refuse(errno.EACCES)],
        "listen": [_refuse(errno.EACCES)],
    }
    for call in _FLAGS_AT:
        bodies[call] = [*_refuse_fast_open(call), _allow()]
    return _assemble_program(name, {**bodies, **_build_own_thread_rules()}, calls)


def build_connecting_program(machine: str | None = None) -> bytes:
    """The filter for a network whose addresses are judged: the holder of its listener answers each ``connect`` and
    ``sendto`` that may name an internet address. It refuses nothing else, so ``build_program`` belongs beside it.

    It does not see addresses of ``sendmsg``, which stand in the memory of the command; what is left of that are
    datagrams, because nothing else connects by it. Raises ``KeyError`` as ``build_program``.
    """
    name = machine or platform.machine()
    bodies: dict[str, list[_Instruction]] = {
        "socket": _refuse_strange_transports(),
        "connect": _ask_about_an_address(2),
        "sendto": [
            *_refuse_fast_open("sendto"),
            (_LOAD, 0, 0, _ARGUMENT_AT + 8 * 4),
            (_EQUAL, 0, 3, 0),
            (_LOAD, 0, 0, _ARGUMENT_AT + 8 * 4 + 4),
            (_EQUAL, 0, 1, 0),
            _allow(),
            *_ask_about_an_address(5),
        ],
        "sendmsg": [*_refuse_fast_open("sendmsg"), _allow()],
        "sendmmsg": [*_refuse_fast_open("sendmmsg"), _allow()],
    }
    return _pack_program(
        [*_refuse_foreign_numbers(name), *_build_judgement(bodies, {**_MACHINES[name].numbers, **_SOCKET_CALLS[name]})]
    )


def _ask_about_an_address(length_at: int) -> list[_Instruction]:
    """``length_at`` says which argument holds its length. No family of the internet takes a shorter one, and netlink's
    are: every look for the addresses of a host makes such a call."""
    return [(_LOAD, 0, 0, _ARGUMENT_AT + 8 * length_at), (_AT_LEAST, 1, 0, _INTERNET_ADDRESS_BYTES), _allow(), _ask()]


def _refuse_fast_open(call: str) -> list[_Instruction]:
    flags = (_LOAD, 0, 0, _ARGUMENT_AT + 8 * _FLAGS_AT[call])
    return [flags, (_ANY_BIT, 0, 1, _FAST_OPEN), _refuse(errno.EOPNOTSUPP)]


def _refuse_strange_transports() -> list[_Instruction]:
    """SCTP and DCCP connect by ``sendmsg`` and ``setsockopt``, too."""
    stream = [(_LOAD, 0, 0, _ARGUMENT_AT + 16)]
    for protocol in (*_TCP_PROTOCOLS, _MPTCP):
        stream += [(_EQUAL, 0, 1, protocol), _allow()]
    stream.append(_refuse(errno.EPROTONOSUPPORT))
    return [
        (_LOAD, 0, 0, _ARGUMENT_AT),
        (_EQUAL, 2, 0, AF_INET),
        (_EQUAL, 1, 0, AF_INET6),
        _allow(),
        (_LOAD, 0, 0, _ARGUMENT_AT + 8),
        (_AND, 0, 0, _TYPE_MASK),
        (_EQUAL, 0, len(stream), _SOCK_STREAM),
        *stream,
        (_EQUAL, 2, 0, _SOCK_DGRAM),
        (_EQUAL, 1, 0, _SOCK_RAW),
        _refuse(errno.EPROTONOSUPPORT),
        _allow(),
    ]


def _build_own_thread_rules() -> dict[str, list[_Instruction]]:
    """Bodies for the calls of ``_OTHERS``."""
    refused = _refuse(errno.EPERM)
    first, second = (_LOAD, 0, 0, _ARGUMENT_AT), (_LOAD, 0, 0, _ARGUMENT_AT + 8)
    bodies: dict[str, list[_Instruction]] = {}
    for call in _X86_64_OTHERS:
        bodies[call] = [first, (_EQUAL, 1, 0, 0), refused, _allow()]
    for call, kind in _OF_PROCESSES.items():
        bodies[call] = [first, (_EQUAL, 0, 2, kind), second, (_EQUAL, 1, 0, 0), refused, _allow()]
    # Without new limits it only asks for those that hold.
    new = _ARGUMENT_AT + 16
    bodies["prlimit64"] = [
        first,
        (_EQUAL, 4, 0, 0),
        (_LOAD, 0, 0, new),
        (_EQUAL, 0, 3, 0),
        (_LOAD, 0, 0, new + 4),
        (_EQUAL, 0, 1, 0),
        _allow(),
        refused,
    ]
    return bodies


def _build_tcp_rules() -> list[_Instruction]:
    refused = _refuse(errno.EACCES)
    lines: list[_Instruction] = [
        (_LOAD, 0, 0, _ARGUMENT_AT),
        (_EQUAL, 2, 0, AF_INET),
        (_EQUAL, 1, 0, AF_INET6),
        refused,
        (_LOAD, 0, 0, _ARGUMENT_AT + 8),
        (_AND, 0, 0, _TYPE_MASK),
        (_EQUAL, 1, 0, _SOCK_STREAM),
        refused,
        (_LOAD, 0, 0, _ARGUMENT_AT + 16),
    ]
    for protocol in _TCP_PROTOCOLS:
        lines += [(_EQUAL, 0, 1, protocol), _allow()]
    return [*lines, refused]


def _assemble_program(
    machine: str, judged: Mapping[str, list[_Instruction]], more_numbers: Mapping[str, int] = MappingProxyType({})
) -> bytes:
    """``judged`` says what becomes of the system calls that are allowed or not by their arguments."""
    known = _MACHINES[machine].numbers
    lines = _refuse_foreign_numbers(machine)
    for name, number in sorted(known.items()):
        if name not in _JUDGED:
            lines += [(_EQUAL, 0, 1, number), _refuse(errno.ENOSYS if name in _NOT_THERE else errno.EPERM)]
    clone = [(_LOAD, 0, 0, _ARGUMENT_AT), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), _refuse(errno.EPERM), _allow()]
    return _pack_program([*lines, *_build_judgement({"clone": clone, **judged}, {**known, **more_numbers})])


def _refuse_foreign_numbers(machine: str) -> list[_Instruction]:
    """Refuse other kinds of system calls, whose numbers mean others, and load the number."""
    return [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, _MACHINES[machine].audit),
        _refuse(errno.EPERM),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32_BIT),
        _refuse(errno.ENOSYS),
    ]


def _build_judgement(judged: Mapping[str, list[_Instruction]], numbers: Mapping[str, int]) -> list[_Instruction]:
    lines: list[_Instruction] = []
    for name, body in judged.items():
        lines += [(_EQUAL, 0, len(body), numbers[name]), *body]
    return [*lines, _allow()]


def _pack_program(lines: Iterable[_Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _refuse(number: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _allow() -> _Instruction:
    return (_RETURN, 0, 0, _ALLOW)


def _ask() -> _Instruction:
    return (_RETURN, 0, 0, _ASK)
