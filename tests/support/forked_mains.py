"""What children of a zygote are told to do, by name (``tests/embedded/test_forked.py``)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")


def talk(arguments: Sequence[str]) -> None:
    print("to stdout", *arguments)
    os.write(2, b"to stderr\n")
    sys.exit(7)


def fail(_: Sequence[str]) -> None:
    raise ValueError("broken")


def show_environment(_: Sequence[str]) -> None:
    print({name: value for name, value in os.environ.items() if name not in ("PATH", "PYTHONPATH")})
    print("SECRET" in subprocess.check_output(["/usr/bin/env"], text=True))


def list_descriptors(_: Sequence[str]) -> None:
    print(*sorted(path.name for path in _DESCRIPTORS.iterdir()))


def name_descriptors(numbers: Sequence[str]) -> None:
    print(len(list(_DESCRIPTORS.iterdir())), *((_DESCRIPTORS / number).readlink().name for number in numbers))


def note_exit(arguments: Sequence[str]) -> None:
    print("hook:", *arguments)


def show_session(_: Sequence[str]) -> None:
    print(os.getpid(), os.getppid(), os.getsid(0), Path("/proc/self/comm").read_text())


def sleep(_: Sequence[str]) -> None:
    time.sleep(60)
