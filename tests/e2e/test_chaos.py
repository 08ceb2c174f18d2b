"""The crash lab from the command line, as docs/crash-lab.md shows it."""

from __future__ import annotations

import json
import subprocess

import pytest
from support.commandline import COMMAND

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.nightly]


def test_it_breaks_a_postgresql_of_its_own_and_says_what_it_found() -> None:
    argv = [COMMAND, "dev", "chaos", "--own-postgres", "--json", "--runs", "2", "--steps", "2", "--kills", "1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["is_green"]
