"""When a step of the database's clock is believed, and by whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hermes_worker.core.clock_steps import ClockLook, decide_step

LAST = ClockLook(at=50_000.0, began=100.0, ended=100.1, shifted_s=0.0, swept_at=50_000.0)
HOUR = 3600.0


def look(*, at: float, own: float, swept_at: float, shifted_s: float = 0.0, took_s: float = 0.1) -> ClockLook:
    """A look ``at`` seconds by the database's clock after ``LAST``, and ``own`` by the process's own."""
    began = LAST.began + own
    return ClockLook(
        at=LAST.at + at, began=began, ended=began + took_s, shifted_s=shifted_s, swept_at=LAST.at + swept_at
    )


@pytest.mark.parametrize(
    ("seen", "step_s"),
    [
        pytest.param(look(at=1, own=1, swept_at=0), 0.0, id="nothing happened"),
        pytest.param(look(at=6, own=1, swept_at=0), 0.0, id="a correction too small to matter"),
        pytest.param(look(at=HOUR, own=HOUR, swept_at=0), 0.0, id="this process was frozen, or the database away"),
        pytest.param(look(at=HOUR, own=1, took_s=HOUR, swept_at=HOUR - 1), 0.0, id="it was frozen while it asked"),
        pytest.param(look(at=1 + HOUR, own=1, swept_at=0), HOUR, id="set ahead"),
        pytest.param(look(at=1 - HOUR, own=1, swept_at=0), -HOUR, id="set back"),
        pytest.param(look(at=1 + HOUR, own=1, swept_at=HOUR), 0.0, id="our machine was halted, others were not"),
        pytest.param(look(at=1 + HOUR, own=1, swept_at=HOUR, shifted_s=HOUR), 0.0, id="ahead, and corrected"),
        pytest.param(look(at=1 - HOUR, own=1, swept_at=-HOUR, shifted_s=-HOUR), 0.0, id="back, and corrected"),
        pytest.param(look(at=1, own=1, swept_at=-HOUR, shifted_s=HOUR), -HOUR, id="ahead, corrected, and back again"),
    ],
)
def test_a_step_is_what_the_two_clocks_went_apart_by_and_nobody_corrected(seen: ClockLook, step_s: float) -> None:
    found = decide_step(LAST, seen, swept_every_s=1.0)
    assert found is not None
    assert found == pytest.approx(step_s, abs=0.5)


@pytest.mark.parametrize("swept_at", [-HOUR, HOUR])
def test_a_process_without_a_memory_lets_others_look_first(swept_at: float) -> None:
    first = replace(LAST, swept_at=LAST.at + swept_at)
    assert decide_step(None, first, swept_every_s=1.0) is None
    again = replace(first, at=first.at + 1, began=first.began + 1, ended=first.ended + 1)
    assert decide_step(first, again, swept_every_s=1.0) == pytest.approx(min(0.0, -swept_at), abs=1.1)


def test_a_process_without_a_memory_sweeps_at_once_where_others_do() -> None:
    assert decide_step(None, LAST, swept_every_s=1.0) == 0.0
    assert decide_step(None, replace(LAST, swept_at=0.0), swept_every_s=1.0) == 0.0
