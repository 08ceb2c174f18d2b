"""``python -m hermes_worker.metrics`` prints the table of docs/metrics.md."""

from __future__ import annotations

import sys

from hermes_worker.metrics.catalogue import markdown_table

if __name__ == "__main__":
    sys.stdout.write(f"{markdown_table()}\n")
