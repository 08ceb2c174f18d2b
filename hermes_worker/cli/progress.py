"""One line on the terminal that says what a command is doing, and goes when there is something to show."""

from __future__ import annotations

import shutil
import sys

from hermes_worker.settings.loading import is_dumb_terminal


def show_progress(text: str) -> None:
    """Show ``text`` in place of the progress shown before, cut to the width of the terminal. Nothing is written where
    standard error is no terminal, or one that cannot clear a line."""
    if sys.stderr.isatty() and not is_dumb_terminal():
        sys.stderr.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()


def clear_progress() -> None:
    """Clear the line on which progress is shown. Idempotent."""
    show_progress("")
