"""The operations of the API about forks and replays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hermes_worker.features.forks.schema import ComparisonObject, ForkObject, ReplayObject, ReplaySummary
from hermes_worker.operation import ApiRequest, build_get, build_post, build_put, make_reader, read_nothing


def compare_runs(run_id: str, other_run_id: str) -> ApiRequest[ComparisonObject]:
    """Find the first step in which two runs did not do the same."""
    read = make_reader(ComparisonObject)
    return build_get("/v1/runs/{run_id}/comparison", read, {"run_id": run_id}, **{"with": other_run_id})


def fork_run(
    run_id: str,
    step: int,
    *,
    model: str | None = None,
    prompt: str | None = None,
    tools: Literal["recorded", "live", "deny", "offline"] = "recorded",
    match: Literal["strict", "order"] = "strict",
    max_iterations: int | None = None,
    max_total_tokens: int | None = None,
    max_cost_usd: float | None = None,
    replay: str | None = None,
    idempotency_key: str | None = None,
) -> ApiRequest[ForkObject]:
    """Begin a run that goes on behind iteration ``step`` of another one; 0 is before its first reply. ``tools`` says
    what answers its calls: what was recorded, the tools themselves, or only those without effects. ``replay`` names the
    replay that the fork is part of."""
    said = {
        "model": model,
        "prompt": prompt,
        "max_iterations": max_iterations,
        "max_total_tokens": max_total_tokens,
        "max_cost_usd": max_cost_usd,
        "replay": replay,
    }
    body = {"at": step, "tools": tools, "match": match, **{name: each for name, each in said.items() if each}}
    read = make_reader(ForkObject)
    return build_post("/v1/runs/{run_id}/fork", read, {"run_id": run_id}, body=body, key=idempotency_key)


def replays(*, limit: int = 100) -> ApiRequest[list[ReplaySummary]]:
    """The newest replays."""
    return build_get("/v1/replays", make_reader(list[ReplaySummary], "data"), limit=limit)


def replay(name: str) -> ApiRequest[ReplayObject]:
    """The report of a replay: its runs, each beside its original."""
    return build_get("/v1/replays/{replay}", make_reader(ReplayObject), {"replay": name})


def grade_replay(name: str, grades: Mapping[str, Mapping[str, bool]]) -> ApiRequest[None]:
    """Keep what graders found of the answers of a replay: by the id of the run that was made, and the grader's name."""
    return build_put("/v1/replays/{replay}/grades", read_nothing, {"replay": name}, grades=grades)
