"""The facts about a fleet that ``top`` shows, from the API's documents. Pure; every text in them is clean and on one
line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hermes_worker.cli.layout import iterate_tree
from hermes_worker.cli.wording import flatten_text, strip_controls
from hermes_worker.core.consent import summarise
from hermes_worker.core.invisible_characters import show_invisible

if TYPE_CHECKING:
    from hermes_worker.schemas.fleet import BacklogObject, KeyStateObject, WorkerObject

_TEXT_CHARS_MAX = 2_000
_RATE_OVER_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetQueue:
    queue: str
    due: int
    claimed: int
    oldest_age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetWorker:
    name: str
    queues: str
    held: str
    """Claims by kind."""
    oldest: str
    """The step that it has held longest."""
    is_leaving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    run_id: str
    status: str
    age_s: float
    iteration: int
    cost_usd: float | None
    model: str
    about: str
    depth: int = 0
    """How many runs stand above it in its tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetQuestion:
    wait_id: int
    run_id: str
    is_approval: bool
    text: str
    """On one line; a sign stands where a line began."""
    is_whole: bool = True
    """Whether nothing of the text was cut off."""
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetKey:
    """A provider's key that failed at least once."""

    key: str
    condition: str
    since_s: float
    parked: int
    """Runs that wait for it."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFacts:
    """One look at a fleet."""

    at: float = 0.0
    """Epoch seconds, by the clock of this machine."""
    queues: Sequence[FleetQueue] = ()
    workers: Sequence[FleetWorker] = ()
    runs: Sequence[FleetRun] = ()
    """The open runs, each below the one that delegated to it."""
    questions: Sequence[FleetQuestion] = ()
    keys: Sequence[FleetKey] = ()
    spent_usd: float | None = None
    """The cost of the runs that were accepted today (UTC)."""
    usd_per_minute: float | None = None
    """``None`` until two looks are a while apart."""
    untold: Mapping[str, str] = field(default_factory=dict)
    """Sections that the API did not give, and why."""
    lost_because: str = ""
    """Why the server does not answer; empty while it does."""


def clean_text(value: object, width: int = _TEXT_CHARS_MAX) -> str:
    return flatten_text(str(value), width) if value is not None else ""


def parse_queues(backlog: BacklogObject) -> list[FleetQueue]:
    return [
        FleetQueue(queue=clean_text(name, 40), due=each.due, claimed=each.claimed, oldest_age_s=each.oldest_age_s)
        for name, each in backlog.queues.items()
    ]


def parse_workers(workers: Sequence[WorkerObject], now: float) -> list[FleetWorker]:
    return [_parse_worker(each, now) for each in workers]


def _parse_worker(worker: WorkerObject, now: float) -> FleetWorker:
    held = ", ".join(f"{count} {clean_text(kind, 40)}" for kind, count in worker.held.items() if count)
    oldest = ""
    if worker.steps:
        step = worker.steps[0]
        what = clean_text(step.tool, 60) or "model call"
        oldest = f"{what} of {clean_text(step.run_id, 40)} for {_compute_seconds(now, step.claimed_at):.0f} s"
    return FleetWorker(
        name=clean_text(worker.name, 80),
        queues=",".join(clean_text(queue, 40) for queue in worker.queues),
        held=held or "-",
        oldest=oldest,
        is_leaving=worker.draining_at is not None,
    )


def _compute_seconds(now: float, since: float) -> float:
    """Compute how long something has lasted, at least 0: clocks of two machines differ."""
    return max(0.0, now - float(since))


def parse_runs(documents: Sequence[Mapping[str, Any]], parents: Mapping[str, str], now: float) -> list[FleetRun]:
    """List open runs, newest first, each behind the one that delegated to it. ``parents`` may name runs that have
    ended."""
    by_id = {str(each["run_id"]): each for each in documents}
    placed = iterate_tree({run_id: parents.get(run_id) for run_id in by_id})
    return [_parse_run(by_id[run_id], depth, now) for run_id, depth in placed]


def _parse_run(document: Mapping[str, Any], depth: int, now: float) -> FleetRun:
    cost = document.get("estimated_cost_usd")
    return FleetRun(
        run_id=clean_text(document["run_id"], 64),
        status=clean_text(document["status"], 40),
        age_s=_compute_seconds(now, document["created_at"]),
        iteration=int(document["iteration"]),
        cost_usd=None if cost is None else float(cost),
        model=clean_text(document["model"], 60),
        about=clean_text(document.get("title") or document.get("last_event"), 200),
        depth=depth,
    )


def parse_parents(tree: Mapping[str, Any]) -> dict[str, str]:
    """Find who delegated to whom, from the document of a tree."""
    links = ((each["run"]["run_id"], each["parent_run_id"]) for each in tree["data"])
    return {str(run_id): str(parent) for run_id, parent in links if parent is not None}


def parse_questions(documents: Sequence[Mapping[str, Any]], now: float) -> list[FleetQuestion]:
    """List questions, the oldest first."""
    return [_parse_question(each, now) for each in documents]


def _parse_question(document: Mapping[str, Any], now: float) -> FleetQuestion:
    asked = document.get("command") or document.get("question") or document.get("description") or ""
    shown, is_whole = summarise(strip_controls(show_invisible(str(asked))), _TEXT_CHARS_MAX)
    return FleetQuestion(
        wait_id=int(document["id"]),
        run_id=clean_text(document["run_id"], 64),
        is_approval=document["kind"] == "approval",
        text=shown,
        is_whole=is_whole,
        age_s=_compute_seconds(now, document["created_at"]),
    )


def parse_keys(states: Sequence[KeyStateObject], now: float) -> list[FleetKey]:
    return [
        FleetKey(
            key=f"{clean_text(each.provider, 40)}/{clean_text(each.credential, 60)}",
            condition=clean_text(each.condition, 40),
            since_s=0.0 if each.since is None else _compute_seconds(now, each.since),
            parked=each.parked,
            reason=clean_text(each.reason, 200),
        )
        for each in states
    ]


def sum_spent(costs: Sequence[float | None]) -> float | None:
    """What groups cost together, as far as it is known; nothing where there are no groups, because nothing ran."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known or not costs else None


def compute_usd_per_minute(samples: Sequence[tuple[float, float]]) -> float | None:
    """Compute how fast money is spent, from sums at times (seconds), the oldest first: over the last five minutes of
    them."""
    recent = [sample for sample in samples if sample[0] >= samples[-1][0] - _RATE_OVER_S]
    if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
        return None
    (began_at, before), (at, now) = recent[0], recent[-1]
    return max(0.0, now - before) / (at - began_at) * 60.0


def render_tree(tree: Mapping[str, Any]) -> list[str]:
    """Render a tree of runs, one line for each."""
    lines = []
    by_id = {str(each["run"]["run_id"]): each["run"] for each in tree["data"]}
    parents = {str(each["run"]["run_id"]): each["parent_run_id"] for each in tree["data"]}
    for run_id, level in iterate_tree(parents):
        run = by_id[run_id]
        cost = run.get("estimated_cost_usd")
        spent = "" if cost is None else f"  ${float(cost):.4f}"
        indent = "  " * min(level, 20)
        about = clean_text(run.get("title") or run.get("model"), 60)
        lines.append(f"{indent}{clean_text(run['run_id'], 64)}  {clean_text(run['status'], 40)}{spent}  {about}")
    left_out = int(tree["total"]) - len(tree["data"])
    return [*lines, *([f"and {left_out} more"] if left_out > 0 else [])]


def render_calls(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Render tool calls of a run, one line for each."""
    lines = []
    for each in documents:
        parts = [
            clean_text(each["call"], 20),
            clean_text(each["tool"], 60),
            clean_text(each["status"], 40),
            each["effect"],
        ]
        if each.get("attempts", 1) > 1:
            parts.append(f"attempt {each['attempts']}")
        lines.append("  ".join(map(str, parts)))
    return lines
