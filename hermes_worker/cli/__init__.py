"""The command line. Each command is a module, imported when it is asked for, so that ``--help`` costs nothing.

The declarations of the commands lie in this package as well, and every process may read them: so importing it imports
no command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from hermes_worker import __version__

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process (``cli.entry.main``)."""
    if arguments is None and sys.argv[1:] == ["--version"]:  # without what the command line imports
        print(f"hermes-worker {__version__}")
        sys.exit(0)
    if arguments is None and sys.argv[1:] in (["--help"], ["-h"]):
        from hermes_worker.cli.help_page import show_page

        if show_page(os.environ):
            os._exit(0)  # not by the interpreter's own end, which complains of a reader that went away
    from hermes_worker.cli import entry

    entry.main(arguments)
