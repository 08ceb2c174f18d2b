"""Forks and replays, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from hermes_worker.resource import Resource


class ComparisonObject(Resource):
    """Where two runs part: the first step in which one of them did otherwise."""

    object: Literal["hermes.comparison"] = "hermes.comparison"
    run_id: str
    other_run_id: str
    differs_at: int | None
    """The step, from 1; ``null`` while none differs."""
    does: str | None
    """What the run does in that step, in words; ``null`` where it did nothing more."""
    other_does: str | None
    calls: Sequence[str] = ()
    """The places of the calls that the run makes in that step (``3.0``), for ``GET /v1/runs/{run_id}/calls/{call}``. A
    step that a fork took over from its original has none of its own."""
    other_calls: Sequence[str] = ()
    steps: int
    """How many steps the run made, in a fork with those of its original up to its point."""
    other_steps: int


class ForkObject(Resource):
    """A run that goes on from an earlier point of another one."""

    object: Literal["hermes.fork"] = "hermes.fork"
    run_id: str
    session_id: str
    forked_from: str
    """The run that it goes on from."""
    step: int
    """How many iterations of that run stand before it."""
    tools: str


class ReplayedRun(Resource):
    """A run beside its replay."""

    run_id: str
    title: str | None = None
    """What was asked, in one line."""
    replay_run_id: str | None = None
    """``None`` for a run that could not be played again."""
    problem: str | None = None
    """Why it could not, or why the replay has no answer."""
    differs_at: int | None = None
    """The first step that differs, from 1; ``None`` where none does."""
    answer_before: str
    answer_after: str = ""
    steps_before: int
    steps_after: int = 0
    cost_before_usd: float | None = None
    """``None`` where it is not known."""
    cost_after_usd: float | None = None
    grades: Mapping[str, bool]
    """What each grader found of the new answer, by its name."""


class ReplayObject(Resource):
    """Recorded runs that were played again, each beside its original."""

    object: Literal["hermes.replay"] = "hermes.replay"
    name: str
    against: Mapping[str, str]
    """What the replay does otherwise than its originals, as a command said it; empty in answers of the API."""
    runs: int
    not_played: int
    differing: int
    good: Mapping[str, int]
    """How many answers each grader found good, by its name."""
    steps_before: int
    steps_after: int
    cost_before_usd: float | None
    """In US dollars; ``None`` where the cost of one run is not known."""
    cost_after_usd: float | None
    data: Sequence[ReplayedRun]


class ReplaySummary(Resource):
    """A replay in the list of them."""

    object: Literal["hermes.replay_summary"] = "hermes.replay_summary"
    name: str
    runs: int
    began_at: float
    """When its first run was accepted, in epoch seconds."""
