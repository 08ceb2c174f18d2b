"""Which alerts are raised, and which are over, as a decision."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.alert_rules import (
    SETTLED_S,
    AlertKind,
    AlertSteps,
    OpenAlert,
    Trouble,
    decide_alert_steps,
    remove_target,
)

BROKE = Trouble(kind=AlertKind.PROVIDER, subject="key1", epoch=1, text="no money")
OPEN = OpenAlert(pk=7, kind="provider", subject="key1", clear_since=None)
GONE = replace(OPEN, clear_since=100.0)


@pytest.mark.parametrize(
    ("troubles", "alerts", "now", "wanted"),
    [
        ([], [], 0, AlertSteps()),
        ([BROKE], [], 0, AlertSteps(raised=(BROKE,))),
        ([BROKE], [OPEN], 0, AlertSteps()),
        ([replace(BROKE, epoch=2)], [OPEN], 0, AlertSteps()),
        ([], [OPEN], 100, AlertSteps(cleared=(7,))),
        ([], [GONE], 100 + SETTLED_S - 1, AlertSteps()),
        ([], [GONE], 100 + SETTLED_S, AlertSteps(ended=(7,))),
        ([BROKE], [GONE], 100 + SETTLED_S, AlertSteps(returned=(7,))),
    ],
)
def test_a_trouble_is_said_once_and_so_is_its_end(
    troubles: list[Trouble], alerts: list[OpenAlert], now: float, wanted: AlertSteps
) -> None:
    assert decide_alert_steps(troubles, alerts, now) == wanted


@given(st.lists(st.booleans(), max_size=200))
def test_whatever_comes_and_goes_alerts_and_ends_alternate_and_flapping_is_damped(wrong: list[bool]) -> None:
    alert: OpenAlert | None = None
    said: list[tuple[str, int]] = []
    for second, is_wrong in enumerate(wrong):
        found = decide_alert_steps([BROKE] if is_wrong else [], [alert] if alert else [], second * 10)
        if found.raised:
            alert = OPEN
            said.append(("raised", second * 10))
        elif found.cleared:
            assert alert is not None
            alert = replace(alert, clear_since=second * 10)
        elif found.returned:
            assert alert is not None
            alert = replace(alert, clear_since=None)
        elif found.ended:
            alert = None
            said.append(("ended", second * 10))
    assert [what for what, _ in said] == ["raised", "ended"] * (len(said) // 2) + ["raised"] * (len(said) % 2)
    assert all(later - earlier >= SETTLED_S for (what, earlier), (_, later) in pairwise(said) if what == "raised")


@pytest.mark.parametrize(
    ("dead", "told"),
    [
        (None, ("telegram:1", "email:a@b.c", "telegram", "all")),
        ("telegram:1", ("email:a@b.c",)),
        ("email:A@b.c", ("telegram:1", "telegram")),
    ],
)
def test_an_alert_about_a_dead_target_does_not_go_there(dead: str | None, told: tuple[str, ...]) -> None:
    assert remove_target(["telegram:1", "email:a@b.c", "telegram", "all", "telegram:1"], dead) == told
