"""The commands that the documents print, for tests that play them, and the programs that write parts of them."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from support.commandline import COMMAND, CommandLine
from support.warm_commands import warm_programs

_ROOT = Path(__file__).parents[2]


def load_maker(name: str) -> ModuleType:
    """Load ``docs/NAME.py``, a program that writes a part of the documents."""
    spec = importlib.util.spec_from_file_location(name, _ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks_of(document: str) -> list[str]:
    """The shell blocks of a document, as a reader would paste them."""
    return re.findall(r"^```(?:sh|bash)\n(.*?)^```$", (_ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def shell_environ(hermes: CommandLine) -> dict[str, str]:
    """The environment of a shell in which ``hermes-worker`` is on the path."""
    return {**hermes.environ, "PATH": f"{find_programs()}:{hermes.environ['PATH']}"}


def find_programs() -> str:
    """The beginning of a PATH: a ``hermes-worker`` that a warm process forks, and Python with what is installed."""
    return f"{warm_programs()}:{Path(COMMAND).parent}"
