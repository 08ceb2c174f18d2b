"""Fault points: harmless until armed, exact when they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import timeit
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.patience import PATIENCE_S

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.system import faults
from hermes_worker.system.faults import Fault, FaultAction, FaultInjected, FaultPoint, parse_faults

POINT = FaultPoint.ITERATE_AFTER_CLAIM
OTHER = FaultPoint.CALL_TOOL_AFTER_RUN


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faults.disarm_faults()


def test_a_plan_names_points_actions_and_conditions() -> None:
    assert parse_faults("iterate.after_claim=kill@3; call_tool.after_run=stall:0.5!/tmp/x ;") == (
        Fault(point=POINT, action=FaultAction.KILL, hit=3),
        Fault(point=OTHER, action=FaultAction.STALL, seconds=0.5, latch="/tmp/x"),
    )
    assert parse_faults("") == ()


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("iterate.after_lunch=kill", "names no fault point; the points are iterate.after_claim, "),
        ("iterate.after_claim=explode", "names no action; the actions are kill, stop, stall, raise"),
        ("iterate.after_claim=stall", "stall takes seconds"),
        ("iterate.after_claim=kill:5", "stall takes seconds"),
        ("iterate.after_claim=kill@0", "must have the form"),
        ("iterate.after_claim", "must have the form"),
    ],
)
def test_a_plan_that_would_not_do_what_it_says_is_refused(plan: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        parse_faults(plan)


def test_an_unarmed_point_costs_next_to_nothing() -> None:
    runs = 20_000
    took = min(timeit.repeat(lambda: faults.pass_point(POINT), number=runs, repeat=5)) / runs

    # Measured: 70 ns with the call of the lambda. The bound leaves room for a busy machine.
    assert took < 1e-6


def test_an_armed_point_acts_on_its_hit_only() -> None:
    faults.arm_faults("iterate.after_claim=raise@2")

    faults.pass_point(POINT)
    faults.pass_point(OTHER)
    with pytest.raises(FaultInjected, match=r"iterate\.after_claim"):
        faults.pass_point(POINT)
    faults.pass_point(POINT)


def test_without_a_number_it_acts_every_time_until_disarmed() -> None:
    faults.arm_faults("iterate.after_claim=raise")

    for _ in range(2):
        with pytest.raises(FaultInjected):
            faults.pass_point(POINT)
    faults.disarm_faults()
    faults.pass_point(POINT)


def test_arming_again_starts_the_count_anew() -> None:
    faults.arm_faults("iterate.after_claim=raise@2")
    faults.pass_point(POINT)
    faults.arm_faults("iterate.after_claim=raise@2")
    faults.pass_point(POINT)

    with pytest.raises(FaultInjected):
        faults.pass_point(POINT)


def test_a_stall_lasts_its_seconds() -> None:
    faults.arm_faults("call_tool.after_run=stall:0.05")
    began = time.monotonic()

    faults.pass_point(OTHER)

    assert time.monotonic() - began >= 0.05


def test_a_latch_lets_one_process_of_the_fleet_act(tmp_path: Path) -> None:
    faults.arm_faults(f"iterate.after_claim=raise!{tmp_path}/latch")

    with pytest.raises(FaultInjected):
        faults.pass_point(POINT)
    faults.pass_point(POINT)
    faults.arm_faults(f"iterate.after_claim=raise!{tmp_path}/latch")
    faults.pass_point(POINT)
    assert (tmp_path / "latch").read_text() == str(os.getpid())


SCRIPT = textwrap.dedent(
    """
    import sys
    from hermes_worker.system import faults
    faults.arm_faults(sys.argv[1])
    for _ in range(2):
        print("passing", flush=True)
        faults.pass_point(faults.FaultPoint.ITERATE_AFTER_CLAIM)
    print("passed", flush=True)
    """
)


def test_kill_is_a_sigkill_at_that_very_point() -> None:
    argv = [sys.executable, "-c", SCRIPT, "iterate.after_claim=kill@2"]

    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)

    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "passing\npassing\n")


def test_stop_freezes_the_process_until_it_is_continued() -> None:
    argv = [sys.executable, "-c", SCRIPT, "iterate.after_claim=stop@1"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

        process.send_signal(signal.SIGCONT)

        assert process.communicate(timeout=PATIENCE_S)[0] == "passing\npassing\npassed\n"
        assert process.returncode == 0
