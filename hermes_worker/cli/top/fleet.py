"""The facts about a fleet that ``top`` shows, from the API's documents. Pure; every text in them is clean and on one
line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hermes_worker.cli.layout import format_age, iterate_tree
from hermes_worker.cli.wording import flatten_text, strip_controls
from hermes_worker.core.consent import summarise
from hermes_worker.core.invisible_characters import show_invisible
from hermes_worker.core.pricing import CostStatus, format_cost
from hermes_worker.core.run import WaitKind

if TYPE_CHECKING:
    from hermes_worker.schemas.approvals import WaitObject
    from hermes_worker.schemas.fleet import BacklogObject, KeyStateObject, WorkerObject
    from hermes_worker.schemas.jobs import JobSheet
    from hermes_worker.schemas.runs import LedgerEntryObject, RunObject, TreeObject
    from hermes_worker.schemas.sessions import SessionObject

_TEXT_CHARS_MAX = 2_000
_PLACE_CHARS_MAX = 40
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
    is_draining: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    run_id: str
    status: str
    age_s: float
    iteration: int
    cost_usd: float | None
    cost_status: CostStatus | None = None
    model: str
    about: str
    depth: int = 0
    """How many runs stand above it in its tree."""

    @property
    def cost(self) -> str:
        return format_cost(self.cost_usd, self.cost_status)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetQuestion:
    wait_id: int
    run_id: str
    is_approval: bool
    title: str = ""
    """The title of its run."""
    text: str
    """On one line; a sign stands where a line began."""
    is_whole: bool = True
    """Whether nothing of the text was cut off."""
    why: str = ""
    """Why it is asked; empty where that is not said."""
    choices: tuple[str, ...] = ()
    """The answers that are offered."""
    age_s: float


class TopTab(StrEnum):
    """What fills the screen, in the order in which a key chooses."""

    FLEET = "fleet"
    SESSIONS = "sessions"
    JOBS = "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEntry:
    """A session or a job, as a row."""

    id: str
    cells: tuple[str, ...]


LISTED_HEADERS: Mapping[TopTab, tuple[str, ...]] = {
    TopTab.SESSIONS: ("TITLE", "STATUS", "ACTIVE", "MESSAGES", "COST", "SESSION"),
    TopTab.JOBS: ("NAME", "STATE", "NEXT", "LAST", "FAILURES", "JOB"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetKey:
    """A provider's key that failed at least once."""

    key: str
    condition: str
    since_s: float | None
    """``None`` where it is not known."""
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
    tab: TopTab = TopTab.FLEET
    """Which list ``listed`` is; ``fleet`` for none."""
    listed: Sequence[ListedEntry] = ()
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
        is_draining=worker.draining_at is not None,
    )


def _compute_seconds(now: float, since: float) -> float:
    """Compute how long something has lasted, at least 0: clocks of two machines differ."""
    return max(0.0, now - float(since))


def parse_runs(found: Sequence[RunObject], parents: Mapping[str, str], now: float) -> list[FleetRun]:
    """List open runs, newest first, each behind the one that delegated to it. ``parents`` may name runs that have
    ended."""
    by_id = {each.run_id: each for each in found}
    placed = iterate_tree({run_id: parents.get(run_id) for run_id in by_id})
    return [_parse_run(by_id[run_id], depth, now) for run_id, depth in placed]


def _parse_run(run: RunObject, depth: int, now: float) -> FleetRun:
    return FleetRun(
        run_id=clean_text(run.run_id, 64),
        status=clean_text(run.status, 40),
        age_s=_compute_seconds(now, run.created_at),
        iteration=run.iteration,
        cost_usd=run.estimated_cost_usd,
        cost_status=run.cost_status,
        model=clean_text(run.model, 60),
        about=clean_text(run.title or run.last_event, 200),
        depth=depth,
    )


def parse_parents(tree: TreeObject) -> dict[str, str]:
    """Find who delegated to whom."""
    return {each.run.run_id: each.parent_run_id for each in tree.data if each.parent_run_id is not None}


def parse_questions(waits: Sequence[WaitObject], now: float) -> list[FleetQuestion]:
    """List questions, the oldest first."""
    return [_parse_question(each, now) for each in waits]


def _parse_question(wait: WaitObject, now: float) -> FleetQuestion:
    asked = wait.command or wait.question or wait.description or ""
    shown, is_whole = summarise(strip_controls(show_invisible(asked)), _TEXT_CHARS_MAX)
    return FleetQuestion(
        wait_id=wait.id,
        run_id=clean_text(wait.run_id, 64),
        title=clean_text(wait.title, 200),
        is_approval=wait.kind == WaitKind.APPROVAL,
        text=shown,
        is_whole=is_whole,
        why=_explain_question(wait) if wait.command else "",
        choices=tuple(clean_text(each, 200) for each in wait.choices),
        age_s=_compute_seconds(now, wait.created_at),
    )


def _explain_question(wait: WaitObject) -> str:
    """Say why a command is asked about and, where that is known, in which directory it would run."""
    place = clean_text(wait.directory, 1_000)
    end = f"…{place[-_PLACE_CHARS_MAX:]}" if len(place) > _PLACE_CHARS_MAX else place
    return ", ".join(filter(None, (clean_text(wait.description, 200), f"in {end}" if end else "")))


def parse_keys(states: Sequence[KeyStateObject], now: float) -> list[FleetKey]:
    return [
        FleetKey(
            key=f"{clean_text(each.provider, 40)}/{clean_text(each.credential, 60)}",
            condition=clean_text(each.condition, 40),
            since_s=None if each.since is None else _compute_seconds(now, each.since),
            parked=each.parked,
            reason=clean_text(each.reason, 200),
        )
        for each in states
    ]


def parse_sessions(found: Sequence[SessionObject]) -> list[ListedEntry]:
    return [
        ListedEntry(
            id=clean_text(each.id, 80),
            cells=(
                clean_text(each.title or each.preview or "-", 120),
                "at work" if each.is_at_work else "-",
                format_age(each.last_active),
                str(each.message_count),
                format_cost(each.estimated_cost_usd, CostStatus.UNKNOWN if each.has_unknown_cost else None),
                clean_text(each.id, 80),
            ),
        )
        for each in found
    ]


def parse_jobs(found: Sequence[JobSheet]) -> list[ListedEntry]:
    return [
        ListedEntry(
            id=clean_text(each.job_id, 80),
            cells=(
                clean_text(each.name, 120),
                clean_text(each.state, 40),
                format_age(each.next_slot),
                clean_text(each.last_status or "-", 40),
                str(each.consecutive_failures),
                clean_text(each.job_id, 80),
            ),
        )
        for each in found
    ]


def filter_fleet(fleet: FleetFacts, text: str, order: str) -> FleetFacts:
    """Keep the runs and questions that hold ``text``, and sort the runs by one of ``ORDERS``; runs that are sorted do
    not stand below the one that delegated to them."""
    wanted = text.lower()
    questions = [each for each in fleet.questions if wanted in f"{each.run_id} {each.title} {each.text}".lower()]
    runs = [
        each
        for each in fleet.runs
        if wanted in f"{each.run_id} {each.status.replace('_', ' ')} {each.model} {each.about}".lower()
    ]
    if order != TREE_ORDER:
        key = ORDERS[order]
        runs = [replace(each, depth=0) for each in sorted(runs, key=key)]
    listed = [each for each in fleet.listed if wanted in " ".join(each.cells).lower()]
    return replace(fleet, questions=questions, runs=runs, listed=listed)


TREE_ORDER = "tree"
ORDERS: Mapping[str, Callable[[FleetRun], Any]] = {
    TREE_ORDER: lambda run: 0,
    "age": lambda run: -run.age_s,
    "cost": lambda run: -(run.cost_usd or 0.0),
    "status": lambda run: run.status,
}
"""How runs may be sorted, in the order in which a key chooses."""


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


def render_tree(tree: TreeObject) -> list[str]:
    """Render a tree of runs, one line for each."""
    lines = []
    by_id = {each.run.run_id: each.run for each in tree.data}
    parents = {each.run.run_id: each.parent_run_id for each in tree.data}
    for run_id, level in iterate_tree(parents):
        run = by_id[run_id]
        spent = "" if run.estimated_cost_usd is None else f"  {format_cost(run.estimated_cost_usd, run.cost_status)}"
        indent = "  " * min(level, 20)
        about = clean_text(run.title or run.model, 60)
        lines.append(f"{indent}{about}  {clean_text(run.status, 40)}{spent}  {clean_text(run.run_id, 64)}")
    left_out = tree.total - len(tree.data)
    return [*lines, *([f"and {left_out} more"] if left_out > 0 else [])]


def render_calls(calls: Sequence[LedgerEntryObject]) -> list[str]:
    """Render tool calls of a run, one line for each."""
    lines = []
    for each in calls:
        parts = [
            clean_text(each.call, 20),
            clean_text(each.tool, 60),
            clean_text(each.about, 100),
            clean_text(each.status, 40),
            clean_text(each.effect, 20),
        ]
        if each.attempts > 1:
            parts.append(f"attempt {each.attempts}")
        lines.append("  ".join(part for part in parts if part))
    return lines
