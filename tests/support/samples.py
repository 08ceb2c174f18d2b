"""Which cases of a repeated test a usual run plays. The night plays all others (marker ``nightly``, .ci/run)."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def take_turns(kinds: Sequence[Any], cases: Sequence[Any]) -> list[Any]:
    """Pairs of a kind and a case: by day each case with one kind, the kinds taking turns, at night with the others."""
    return [
        pytest.param(kind, case, marks=[] if (place + number) % len(kinds) == 0 else [pytest.mark.nightly])
        for place, kind in enumerate(kinds)
        for number, case in enumerate(cases)
    ]


KINDS_OF_DATABASE = ("sqlite", "postgresql")
_LEFT_OUT = ("nightly", "slow", "machine")


def leave_one_database_to_the_night(items: Iterable[pytest.Item]) -> None:
    """Tests that are there for both kinds of database take turns: by day each with one, at night with the other."""
    twins: dict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        callspec = getattr(item, "callspec", None)
        kinds = (
            [value for value in callspec.params.values() if isinstance(value, str) and value in KINDS_OF_DATABASE]
            if callspec
            else []
        )
        if len(kinds) == 1 and not any(item.get_closest_marker(name) for name in _LEFT_OUT):
            twins[item.nodeid.replace(kinds[0], "*")][kinds[0]] = item
    for name, pair in twins.items():
        if len(pair) == len(KINDS_OF_DATABASE):
            pair[KINDS_OF_DATABASE[zlib.crc32(name.encode()) % 2]].add_marker("nightly")


def leave_to_the_night(cases: Sequence[Any], *, but: int) -> list[Any]:
    """By day the first ``but`` cases of a test that is dear, at night the others."""
    return [pytest.param(case, marks=[] if place < but else [pytest.mark.nightly]) for place, case in enumerate(cases)]


def sample_seeds(by_day: int, in_all: int) -> list[Any]:
    """The first seeds by day, the others at night."""
    return [pytest.param(seed, marks=[] if seed < by_day else [pytest.mark.nightly]) for seed in range(in_all)]
