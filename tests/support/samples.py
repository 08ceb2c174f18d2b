"""Which cases of a repeated test a usual run plays. The night plays all others (marker ``nightly``, .ci/run)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def take_turns(kinds: Sequence[Any], cases: Sequence[Any]) -> list[Any]:
    """Pairs of a kind and a case: by day each case with one kind, the kinds taking turns, at night with the others."""
    return [
        pytest.param(kind, case, marks=[] if (place + number) % len(kinds) == 0 else [pytest.mark.nightly])
        for place, kind in enumerate(kinds)
        for number, case in enumerate(cases)
    ]


def sample_seeds(by_day: int, in_all: int) -> list[Any]:
    """The first seeds by day, the others at night."""
    return [pytest.param(seed, marks=[] if seed < by_day else [pytest.mark.nightly]) for seed in range(in_all)]
