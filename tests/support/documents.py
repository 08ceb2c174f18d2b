"""The commands that the documents print, for tests that play them."""

from __future__ import annotations

import re
from pathlib import Path

from support.commandline import COMMAND, CommandLine

_ROOT = Path(__file__).parents[2]


def blocks_of(document: str) -> list[str]:
    """The shell blocks of a document, as a reader would paste them."""
    return re.findall(r"^```(?:sh|bash)\n(.*?)^```$", (_ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def shell_environ(hermes: CommandLine) -> dict[str, str]:
    """The environment of a shell in which ``hermes-worker`` is on the path."""
    return {**hermes.environ, "PATH": f"{Path(COMMAND).parent}:{hermes.environ['PATH']}"}
