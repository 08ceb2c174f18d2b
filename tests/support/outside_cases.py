"""The facts from outside below ``tests/cases``, as parameters of tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

_CASES = Path(__file__).parent.parent / "cases"


def original_cases(area: str) -> pytest.MarkDecorator:
    """Give a test each case of an area of the original's own tests as ``case``, by its id."""
    return _parametrized(json.loads((_CASES / "original" / f"{area}.json").read_text())["cases"])


def reported_cases(*ids: str) -> pytest.MarkDecorator:
    """Give a test the named cases made after public reports as ``case``."""
    known = {case["id"]: case for case in json.loads((_CASES / "reports.json").read_text())}
    return _parametrized([known[each] for each in ids])


def _parametrized(cases: list[Mapping[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case["id"] for case in cases])
