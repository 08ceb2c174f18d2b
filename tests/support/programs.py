"""Programs that documents and agents use, on machines that lack them.

``rg`` comes from a wheel. ``git`` and ``curl`` are the machine's where it has them; elsewhere small programs of ours
stand in (``git_program`` over dulwich, ``curl_program``), which know what README, the tour and the survey ask of them.
``psql`` and ``redis-cli`` are an operator's, for docs/operations.md.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

STAND_INS = ("git", "curl", "psql", "redis-cli")


def ripgrep() -> Path:
    """The program of the wheel, whatever else is installed."""
    path = Path(sysconfig.get_path("scripts")) / "rg"
    assert path.exists(), "the extra 'test' brings ripgrep: pip install -e '.[test]'"
    return path


def is_on_machine(name: str) -> bool:
    """Whether the machine has the program itself, and not only what stands in for it."""
    found = shutil.which(name)
    return found is not None and _program_of(name).name.encode() not in Path(found).read_bytes()


def add_missing_programs(directory: Path) -> None:
    """Put whatever is missing into ``directory`` and at the end of this process's PATH."""
    missing = [name for name in STAND_INS if shutil.which(name) is None]
    if not missing:
        return
    directory.mkdir(parents=True, exist_ok=True)
    for name in missing:
        install_stand_in(directory, name)
    os.environ["PATH"] = f"{os.environ['PATH']}:{directory}"


def install_stand_in(directory: Path, name: str) -> Path:
    """Our program of that name, as a command in ``directory``."""
    program = _program_of(name)
    command = directory / name
    draft = directory / f"{name}.{os.getpid()}"
    draft.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(program)])} "$@"\n')
    draft.chmod(0o755)
    draft.rename(command)
    return command


def _program_of(name: str) -> Path:
    return Path(__file__).with_name(f"{name.replace('-', '_')}_program.py")
