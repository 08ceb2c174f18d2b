"""What the kernel would make of a seccomp filter, as far as ours go."""

from __future__ import annotations

import struct

ALLOW, ASK, ERRNO = 0x7FFF0000, 0x7FC00000, 0x00050000


def verdict(program: bytes, *, number: int, arch: int, arguments: tuple[int, ...] = ()) -> int:
    """What the filter returns for a system call; ``arguments`` are those that are not 0."""
    words = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("=IIQ6Q", number, arch, 0, *(word & (1 << 64) - 1 for word in words))
    lines = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, value = lines[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, value)
            case 0x54:
                accumulator &= value
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x45:
                at += if_true if accumulator & value else if_false
            case 0x06:
                return int(value)
            case _:
                raise AssertionError(f"{code:#x} at {at - 1}")
