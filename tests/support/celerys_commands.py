"""A program of a test: runs lines of Celery's command line, one after the other, and writes what each answers as JSON.

One process for all of them, because the import of Celery's command line costs more than what most of them do.
"""

from __future__ import annotations

import json
import sys

from celery.bin.celery import celery
from click.testing import CliRunner


def answer(line: str) -> tuple[int, str]:
    result = CliRunner().invoke(celery, ["-A", "hermes_worker.tasks.app", *line.split()])
    return result.exit_code, f"{result.output}{result.exception or ''}"


if __name__ == "__main__":
    print(json.dumps({line: answer(line) for line in sys.argv[1:]}))
