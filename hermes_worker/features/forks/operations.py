"""The operations of the API about forks."""

from __future__ import annotations

from typing import Literal

from hermes_worker.features.forks.schema import ForkObject
from hermes_worker.operation import ApiRequest, build_post, make_reader


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
    idempotency_key: str | None = None,
) -> ApiRequest[ForkObject]:
    """Begin a run that goes on behind iteration ``step`` of another one; 0 is before its first reply. ``tools`` says
    what answers its calls: what was recorded, the tools themselves, or only those without effects."""
    said = {
        "model": model,
        "prompt": prompt,
        "max_iterations": max_iterations,
        "max_total_tokens": max_total_tokens,
        "max_cost_usd": max_cost_usd,
    }
    body = {"at": step, "tools": tools, "match": match, **{name: each for name, each in said.items() if each}}
    read = make_reader(ForkObject)
    return build_post("/v1/runs/{run_id}/fork", read, {"run_id": run_id}, body=body, key=idempotency_key)
