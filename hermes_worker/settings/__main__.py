"""``python -m hermes_worker.settings`` prints the table of docs/settings.md."""

from __future__ import annotations

import sys

from hermes_worker.settings import markdown_table

if __name__ == "__main__":
    sys.stdout.write(f"{markdown_table()}\n")
