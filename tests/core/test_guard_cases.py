"""The sample of commands that a real bash runs: what must be asked about, and the look-alikes that must pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from hermes_worker.core.approvals import Allow, Policy, assess

_SAMPLE: Final = json.loads((Path(__file__).parents[1] / "cases" / "commands.json").read_text())
_QUIET_SHARE_MAX: Final = 1 / 60
"""How many of the harmless look-alikes may be asked about."""


@pytest.mark.xfail(strict=False, reason="the reader and the table are mended in the commits that follow")
@pytest.mark.parametrize("case", _SAMPLE["asks"], ids=lambda case: case["what"])
def test_a_command_of_the_sample_does_not_pass_unasked(case: dict[str, str]) -> None:
    assert not isinstance(assess(case["command"], Policy()), Allow)


@pytest.mark.xfail(strict=False, reason="the reader and the table are mended in the commits that follow")
def test_the_harmless_look_alikes_of_the_sample_pass() -> None:
    asked = [command for command in _SAMPLE["quiet"] if not isinstance(assess(command, Policy()), Allow)]
    assert len(asked) <= _QUIET_SHARE_MAX * len(_SAMPLE["quiet"]), asked
