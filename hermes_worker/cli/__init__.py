"""The command line. Each command is a module, imported when it is asked for, so that ``--help`` costs nothing.

The declarations of the commands lie in this package as well, and every process may read them: so importing it imports
no command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process (``cli.entry.main``)."""
    from hermes_worker.cli import entry

    entry.main(arguments)
