"""The task bodies under every kind of trouble, by the thousand, and what the simulation would notice."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from simulation.database import SqlStore
from simulation.memory import (
    AskingForGood,
    ChargingAttempts,
    CountingArrivals,
    ForgettingAnswers,
    GivingFreshLimits,
    JoiningAnswersOnly,
    JoiningTheFirst,
    KeepingStrays,
    LeavingOrphans,
    LettingChainsGoOn,
    MemoryStore,
    PayingLosers,
    ReadingAgain,
    Report,
    RerunningOnce,
    WithoutFence,
    WithoutReservation,
    WithoutSweeper,
)
from simulation.world import PEACE, TREES, USUAL, Trouble, Violation, World

SEEDS = 2_000
_CHUNK = 250
_WORLDS_KEPT = 50
"""Worlds that are over and not collected yet, at most."""
WORSE = Trouble(
    drop=0.3,
    duplicate=0.4,
    crash=0.03,
    freeze=0.03,
    unknown=0.05,
    outages=4,
    flushes=4,
    stops=0.4,
    defect=0.02,
    drain=0.8,
)
LOOKING = (1, 1, 1, 1, 1, 12, 2, 1)
"""Models that ask for little but what needs a model."""
LEFT_ALONE = Trouble(silence=0.9, stops=0.9)
"""Nobody answers, and everything is stopped."""


def play(seed: int, **more: Any) -> World:
    """One world; its number says how many runs there are in it as well, and what they like to do."""
    facts: dict[str, Any] = {"runs": 1 + seed % 2, "habits": TREES if seed % 4 == 0 else USUAL, **more}
    return World(seed=seed, **facts).run()


def portion(first: int, count: int, **more: Any) -> Counter[str]:
    """What was seen in some worlds."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        seen += play(seed, **more).seen
        if seed % _WORLDS_KEPT == 0:
            gc.collect()
    return seen


@pytest.fixture(scope="module", autouse=True)
def collected_in_bulk() -> Iterator[None]:
    """A world is made of many small things and ends as a whole; to look for garbage while it is played takes an eighth
    of the time."""
    gc.disable()
    yield
    gc.enable()


def worlds(sample: int, whole: int) -> list[Any]:
    """How many worlds a usual run plays, and how many are played at night."""
    return [sample, pytest.param(whole, marks=pytest.mark.nightly)]


def portions(count: int, size: int) -> list[Any]:
    """Where the portions of so many worlds begin: a usual run plays the first, every second one is left to
    ``-m slow``, and the others to the night."""
    left = [[pytest.mark.nightly], [pytest.mark.slow]]
    return [
        pytest.param(first, marks=left[number % 2] if first else [])
        for number, first in enumerate(range(0, count, size))
    ]


@pytest.mark.parametrize("first", portions(SEEDS, _CHUNK))
def test_whatever_goes_wrong_every_run_ends_and_nothing_is_done_or_counted_twice(first: int) -> None:
    seen = portion(first, _CHUNK)

    # A simulation in which nothing happened would prove nothing.
    rare = {"drop", "duplicate", "crash", "freeze", "unknown", "stop", "half", "flush", "outage", "left"}
    effects = {"refused", "interrupted", "place lost", "stray", "repaired", "repeated deeds"}
    trees = {"child", "turn", "exhausted", "question", "answer", "answer in vain"}
    guilt = {"blown up in company", "blown up alone", "condemned"}
    auxiliary_calls = {"aside", "unanswered"}
    assert all(seen[kind] > 5 for kind in rare | effects | trees | guilt | auxiliary_calls), seen


@pytest.mark.parametrize("count", worlds(60, 200))
def test_however_much_goes_wrong(count: int) -> None:
    assert portion(100_000, count, trouble=WORSE)["crash"] > 2.5 * count


@pytest.mark.parametrize(("first", "count"), [(4, 8), pytest.param(0, 20, marks=pytest.mark.nightly)])
def test_the_real_store_holds_as_well(first: int, count: int) -> None:
    """The same worlds over SQLite, with the database's own clock replaced by the world's."""
    seen = portion(first, count, make=SqlStore, sweep_s=2.0)
    assert seen["child"] > 5
    assert seen["turn"] > 0


@pytest.mark.parametrize(
    ("first", "count"),
    [
        (0, 6),
        *(pytest.param(first, 25, marks=pytest.mark.nightly) for first in (0, 50)),
        *(pytest.param(first, 25, marks=pytest.mark.slow) for first in (25, 75)),
    ],
)
def test_the_real_store_reports_what_the_simulated_one_does(first: int, count: int) -> None:
    """Worlds of one run each, in which both stores send the same hints in the same order. In a few, mostly trees, two
    hints of one moment change places, and another history begins."""
    alike = 0
    for seed in range(first, first + count):
        simulated, real = (play(seed, runs=1, sweep_s=2.0, make=make) for make in (MemoryStore, SqlStore))
        if simulated.trace == real.trace:
            alike += 1
            assert _told(real) == _told(simulated), f"seed {seed}"
        gc.collect()
    assert alike >= 0.7 * count


_TOLD_BY_BOTH = {"message.completed", "tool.completed", "run.completed", "run.failed", "run.cancelled"}


def _told(world: World) -> list[tuple[Any, ...]]:
    """What a store says of a world's runs, but for what the simulated one leaves out: progress, texts, tokens."""
    return sorted((_told_of(report) for report in world.reports), key=repr)


def _told_of(report: Report) -> tuple[Any, ...]:
    budget = report.budget
    said = [
        (body["role"], body.get("tool_call_id"), [call["id"] for call in body.get("tool_calls") or ()])
        for body in report.bodies
    ]
    return (
        # The real store names the runs that background answers begin by itself.
        report.root if report.is_turn else report.run_id,
        report.root,
        report.status,
        report.exit_reason,
        report.iteration,
        (report.charged, report.asides_charged, report.asides_answered),
        [event for event in report.events if event in _TOLD_BY_BOTH],
        said,
        # In the simulated store each run has a transcript of its own.
        [seq - report.seqs[0] for seq in report.seqs],
        budget and (budget.limits, budget.spent.iterations, budget.reserved.iterations),
    )


@pytest.mark.parametrize("count", worlds(30, 80))
def test_a_session_is_asked_about_with_one_prompt_that_its_workspace_was_read_for(count: int) -> None:
    """Whoever reads it, however often, and whatever happens to them: the notes say something else each time."""
    seen = portion(0, count, prepares=True, trouble=WORSE)
    assert seen["read"] > 1.5 * count, "it is tried again, or nothing went wrong"


@pytest.mark.parametrize("count", worlds(6, 20))
def test_the_real_store_keeps_one_prompt_as_well(count: int) -> None:
    assert portion(0, count, prepares=True, make=SqlStore, sweep_s=2.0)["read"] >= count


def test_who_reads_a_workspace_twice_and_believes_the_second_is_caught() -> None:
    with pytest.raises(Violation, match=r"the prompt of .* changed"):
        for seed in range(_SEEDS_TO_NOTICE):
            play(seed, make=ReadingAgain, prepares=True, trouble=WORSE)


def test_in_peace_a_workspace_is_read_once() -> None:
    for seed in range(20):
        world = play(seed, trouble=PEACE, make=WithoutSweeper, prepares=True)
        claims = sum(what in ("claim", "claim_iteration", "claim_preparation") for _, what in world.trace)
        assert (world.sent, world.seen["read"]) == (claims, 1 + seed % 2)


@pytest.mark.parametrize("count", worlds(30, 100))
def test_in_peace_no_run_needs_the_sweeper_and_every_message_is_needed(count: int) -> None:
    for seed in range(count):
        world = play(seed, trouble=PEACE, make=WithoutSweeper)
        assert not set(+world.seen) - {"child", "turn", "exhausted", "question", "answer", "answer in vain", "aside"}
        claims = sum(what in ("claim", "claim_iteration") for _, what in world.trace)
        assert world.sent == claims


def test_the_same_seed_gives_the_same_history() -> None:
    for seed in range(10):
        assert play(seed).trace == play(seed).trace
    assert play(1).trace != play(3).trace


BROKEN: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (WithoutFence, {}, "corrupt|not at rest|charged|replies|result|holes|nobody (holds|runs|asks)|StopIteration"),
    (WithoutSweeper, {}, "has not ended"),
    (CountingArrivals, {}, "has not ended|lacks the results|corrupt|missing|out of its place"),
    (ChargingAttempts, {}, "were charged for"),
    (ForgettingAnswers, {"habits": LOOKING}, "auxiliary calls were charged for|has not ended"),
    (PayingLosers, {"habits": LOOKING, "trouble": WORSE}, "auxiliary calls were charged for"),
    (RerunningOnce, {}, "took effect 2 times"),
    (KeepingStrays, {}, "has not ended"),
    (JoiningAnswersOnly, {"trouble": LEFT_ALONE, "habits": TREES}, "has not ended"),
    (JoiningTheFirst, {"habits": TREES}, "has not ended"),
    (LeavingOrphans, {"trouble": LEFT_ALONE, "habits": TREES}, "was stopped|has not ended"),
    (AskingForGood, {"habits": TREES}, "has not ended"),
    (WithoutReservation, {"habits": TREES}, "the tree spent"),
    (GivingFreshLimits, {"habits": TREES}, "runs began something"),
    (LettingChainsGoOn, {"trouble": LEFT_ALONE, "habits": TREES}, "was stopped|has not ended"),
]
"""A store that leaves something out, worlds in which that shows, and as what."""
_SEEDS_TO_NOTICE = 300


@pytest.mark.parametrize(("make", "world", "noticed"), BROKEN, ids=[case[0].__name__ for case in BROKEN])
def test_a_store_that_leaves_something_out_is_caught(
    make: Callable[..., Any], world: dict[str, Any], noticed: str
) -> None:
    with pytest.raises(Violation, match=noticed):
        for seed in range(_SEEDS_TO_NOTICE):
            play(seed, make=make, **world)


@pytest.mark.parametrize("count", worlds(_SEEDS_TO_NOTICE // 10, _SEEDS_TO_NOTICE // 4))
def test_the_store_that_leaves_nothing_out_is_not(count: int) -> None:
    assert portion(0, count, make=MemoryStore, trouble=LEFT_ALONE, habits=TREES)["stopped child"] > 5
