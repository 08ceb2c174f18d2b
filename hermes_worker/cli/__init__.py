"""The command line. Each command is a module, imported when it is asked for, so that ``--help`` costs nothing."""

from __future__ import annotations

from hermes_worker.cli.entry import main

__all__ = ["main"]
