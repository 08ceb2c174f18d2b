"""Which calls of a command with an open network are asked about, and which addresses are refused: pure, no kernel."""

from __future__ import annotations

import errno
import socket
import struct
import sys

import pytest
from support.seccomp_machine import ALLOW, ASK, ERRNO, verdict

from hermes_worker.net.urls import METADATA_SPELLINGS, UrlPolicy, find_address_refusal
from hermes_worker.workspaces.sandbox import seccomp
from hermes_worker.workspaces.sandbox.helper.connector import is_refused

METADATA = (
    *("169.254.169.254", "169.254.0.0", "169.254.255.255", "169.254.170.2", "100.100.100.200", "192.0.0.192"),
    *("168.63.129.16", "::ffff:169.254.169.254", "::ffff:0:169.254.169.254", "::169.254.169.254"),
    *("64:ff9b::a9fe:a9fe", "64:ff9b:1:a9fe:a9:fe00::", "2002:a9fe:a9fe::", "2002:a9fe:a9fe:1::5"),
    *("2001:0:a9fe:a9fe::", "2001::5601:5601", "2600::5efe:a9fe:a9fe", "2600::200:5efe:a9fe:101"),
    *("2600:1234::a9fe:a9fe", "fd00:ec2::254", "fd20:ce::254", "fd00:42::42", "fe80::1", "febf::a9fe:a9fe"),
)
OTHERS = (
    *("127.0.0.1", "0.0.0.0", "10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1", "169.253.255.255"),
    *("169.255.0.0", "8.8.8.8", "224.0.0.251", "239.255.255.250", "255.255.255.255", "::1", "::", "fd00::1"),
    *("fec0::1", "fe7f::1", "ff02::fb", "2600::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"),
)


def inet(address: str, port: int = 80) -> bytes:
    if ":" in address:
        return struct.pack("=H", socket.AF_INET6) + struct.pack(
            ">HI16sI", port, 0, socket.inet_pton(socket.AF_INET6, address), 0
        )
    return struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", port, socket.inet_aton(address))


@pytest.mark.parametrize("address", METADATA)
def test_a_metadata_address_is_refused_in_every_spelling_but_for_names(address: str) -> None:
    assert is_refused(inet(address), METADATA_SPELLINGS)
    assert find_address_refusal(address, UrlPolicy(allows_private=True)) is not None
    assert not is_refused(inet(address, 53), METADATA_SPELLINGS), "clouds have their resolvers there"


@pytest.mark.parametrize("address", OTHERS)
def test_other_addresses_are_not(address: str) -> None:
    assert not is_refused(inet(address), METADATA_SPELLINGS)


_V4, _V6 = inet("169.254.169.254"), inet("fe80::1")


@pytest.mark.parametrize(
    ("address", "is_one"),
    {
        "longer": (_V4.ljust(128, b"\xff"), True),
        "longer-6": (_V6.ljust(128, b"\xff"), True),
        "scope": (_V6[:24] + b"\7\0\0\0", True),
        "old-short-6": (_V6[:24], True),
        "short": (_V4[:8], True),
        "without-a-family": (struct.pack("=H", 0) + _V4[2:], True),
        "cut-before-the-address": (_V4[:4], False),
        "family-alone": (_V4[:2], False),
        "one-byte": (_V4[:1], False),
        "nothing": (b"", False),
        "unspecified": (struct.pack("=H", 0).ljust(16, b"\0"), False),
        "path": (struct.pack("=H", 1) + b"/tmp/169.254.169.254\0", False),
        "other-family": (struct.pack("=H", 16) + _V4[2:], False),
        "other-byte-order": (struct.pack(">H" if sys.byteorder == "little" else "<H", 2) + _V4[2:], False),
    }.values(),
)
def test_addresses_of_odd_lengths_and_families(address: bytes, is_one: bool) -> None:
    assert is_refused(address, METADATA_SPELLINGS) is is_one


MACHINES = {
    "x86_64": (0xC000003E, {"socket": 41, "connect": 42, "sendto": 44, "sendmsg": 46, "sendmmsg": 307, "read": 0}),
    "aarch64": (
        0xC00000B7,
        {"socket": 198, "connect": 203, "sendto": 206, "sendmsg": 211, "sendmmsg": 269, "read": 63},
    ),
}
_FAST_OPEN = 0x20000000
CALLS = {
    "connect": ("connect", (3, 0x7000, 16), ASK),
    "connect-6": ("connect", (3, 0x7000, 28), ASK),
    "connect-by-a-long-address": ("connect", (3, 0x7000, 128), ASK),
    "connect-by-a-negative-length": ("connect", (3, 0x7000, -1), ASK),
    "connect-by-a-length-with-a-high-half": ("connect", (3, 0x7000, 16 | 1 << 40), ASK),
    "connect-of-netlink": ("connect", (3, 0x7000, 12), ALLOW),
    "connect-by-a-short-address": ("connect", (3, 0x7000, 15), ALLOW),
    "connect-by-a-short-address-with-a-high-half": ("connect", (3, 0x7000, 12 | 1 << 32), ALLOW),
    "send": ("sendto", (3, 0x7000, 5), ALLOW),
    "send-to": ("sendto", (3, 0x7000, 5, 0, 0x7100, 16), ASK),
    "send-to-a-high-address": ("sendto", (3, 0x7000, 5, 0, 1 << 32, 28), ASK),
    "send-to-netlink": ("sendto", (3, 0x7000, 5, 0, 0x7100, 12), ALLOW),
    "fast-open": ("sendto", (3, 0x7000, 5, _FAST_OPEN, 0x7100, 16), ERRNO | errno.EOPNOTSUPP),
    "fast-open-by-message": ("sendmsg", (3, 0x7000, _FAST_OPEN | 1), ERRNO | errno.EOPNOTSUPP),
    "fast-open-by-messages": ("sendmmsg", (3, 0x7000, 1, _FAST_OPEN), ERRNO | errno.EOPNOTSUPP),
    "message": ("sendmsg", (3, 0x7000, 0x4000), ALLOW),
    "messages": ("sendmmsg", (3, 0x7000, 2, 0x4000), ALLOW),
    "tcp": ("socket", (2, 1 | 0o2004000, 0), ALLOW),
    "tcp-6": ("socket", (10, 1, 6), ALLOW),
    "multipath": ("socket", (2, 1, 262), ALLOW),
    "udp": ("socket", (2, 2, 17), ALLOW),
    "icmp": ("socket", (2, 2, 1), ALLOW),
    "unix": ("socket", (1, 5, 0), ALLOW),
    "netlink": ("socket", (16, 3, 0), ALLOW),
    "sctp": ("socket", (2, 1, 132), ERRNO | errno.EPROTONOSUPPORT),
    "sctp-of-packets": ("socket", (10, 5, 0), ERRNO | errno.EPROTONOSUPPORT),
    "dccp": ("socket", (2, 6, 33), ERRNO | errno.EPROTONOSUPPORT),
    "other": ("read", (3, 0x7000, 16), ALLOW),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", CALLS)
def test_what_may_name_an_address_is_asked_about(machine: str, name: str) -> None:
    arch, numbers = MACHINES[machine]
    call, arguments, expected = CALLS[name]
    program = seccomp.build_connecting_program(machine)
    assert verdict(program, number=numbers[call], arch=arch, arguments=arguments) == expected


def test_system_calls_of_other_kinds_are_refused() -> None:
    program = seccomp.build_connecting_program("x86_64")
    x86_64, i386, connect = 0xC000003E, 0x40000003, (3, 0x7000, 16)
    assert verdict(program, number=362, arch=i386, arguments=connect) == ERRNO | errno.EPERM
    assert verdict(program, number=42 | 1 << 30, arch=x86_64, arguments=connect) == ERRNO | errno.ENOSYS
