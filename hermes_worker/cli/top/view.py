"""Lay out ``top``, and decide what a key does. Pure: facts and a state in, lines and actions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hermes_worker.cli.layout import count_columns, fold_text, format_clock, render_table
from hermes_worker.cli.top.fleet import FleetFacts, FleetQuestion, FleetRun

_PAUSED = "paused"
HELP = "↑↓ choose · Enter open · s stop · p pause/resume · a approve · d deny · q quit"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRun:
    run_id: str
    kind: Literal["stop"] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRun:
    run_id: str
    kind: Literal["pause"] = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRun:
    run_id: str
    kind: Literal["resume"] = "resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerApproval:
    """``choice`` is ``once`` or ``deny``."""

    run_id: str
    wait_id: int
    choice: str
    kind: Literal["answer"] = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """Load everything about one run."""

    run_id: str
    kind: Literal["open"] = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveTop:
    kind: Literal["leave"] = "leave"


TopAction = StopRun | PauseRun | ResumeRun | AnswerApproval | OpenRun | LeaveTop


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRun:
    """Everything about one run, as lines."""

    run_id: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopState:
    fleet: FleetFacts = field(default_factory=FleetFacts)
    chosen: str = ""
    """The name of the row to which keys apply: it stays chosen however the rows move."""
    confirming: TopAction | None = None
    """What the next ``y`` does."""
    sure: str = ""
    """What is to be confirmed, in words."""
    opened: OpenedRun | None = None
    scrolled: int = 0
    """How many lines of the opened run have been scrolled past."""
    room: int = 1_000
    """How many characters of what is to be confirmed can be shown."""
    said: str = ""
    """The result of the last action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLine:
    text: str
    style: Literal["", "bold", "dim", "warning", "chosen"] = ""
    row: str = ""
    """The name of the row that it shows."""


def name_question_row(question: FleetQuestion) -> str:
    return f"wait {question.wait_id}"


def name_run_row(run: FleetRun) -> str:
    return f"run {run.run_id}"


def list_rows(fleet: FleetFacts) -> list[str]:
    """List the rows that can be chosen, in order."""
    return [*map(name_question_row, fleet.questions), *map(name_run_row, fleet.runs)]


def update_fleet(state: TopState, fleet: FleetFacts) -> TopState:
    """Update the state after another look. A row that is gone leaves the choice to the row at its place."""
    rows, before = list_rows(fleet), list_rows(state.fleet)
    chosen = state.chosen
    if chosen not in rows:
        at = before.index(chosen) if chosen in before else 0
        chosen = rows[min(at, len(rows) - 1)] if rows else ""
    return replace(state, fleet=fleet, chosen=chosen)


def mark_as_old(fleet: FleetFacts, now: float, patience_s: float) -> FleetFacts:
    """Mark the facts as old at ``now`` if they are older than ``patience_s``."""
    silent_s = now - fleet.at
    if fleet.lost_because or not fleet.at or silent_s <= patience_s:
        return fleet
    return replace(fleet, lost_because=f"the server has not answered for {format_short(silent_s)}")


def press_key(state: TopState, key: str) -> tuple[TopState, TopAction | None]:
    """Decide what a key does: ``up``, ``down``, ``enter``, ``escape`` or a character."""
    if state.confirming is not None:
        asked = replace(state, confirming=None, sure="", said="" if key == "y" else "nothing was done")
        return asked, state.confirming if key == "y" else None
    state = replace(state, said="")
    if key in ("up", "k", "down", "j"):
        by = -1 if key in ("up", "k") else 1
        return _scroll(state, by) if state.opened else _move(state, by), None
    if key == "escape":
        return replace(state, opened=None, scrolled=0), None
    if key == "q":
        return (replace(state, opened=None, scrolled=0), None) if state.opened else (state, LeaveTop())
    decide = {"enter": _open, "s": _stop, "p": _pause, "a": _approve, "d": _deny}.get(key)
    return decide(state) if decide else (state, None)


def _move(state: TopState, by: int) -> TopState:
    rows = list_rows(state.fleet)
    if not rows:
        return state
    at = rows.index(state.chosen) if state.chosen in rows else 0
    return replace(state, chosen=rows[max(0, min(len(rows) - 1, at + by))])


def _scroll(state: TopState, by: int) -> TopState:
    most = len(state.opened.lines) if state.opened else 0
    return replace(state, scrolled=max(0, min(most, state.scrolled + by)))


def _find_chosen_run(state: TopState) -> str | None:
    """Find the run of the chosen row; ``None`` for none."""
    for question in state.fleet.questions:
        if name_question_row(question) == state.chosen:
            return question.run_id
    return next((run.run_id for run in state.fleet.runs if name_run_row(run) == state.chosen), None)


def _find_chosen_approval(state: TopState) -> FleetQuestion | None:
    """Find the approval of the chosen row, or the oldest of its run; ``None`` for none."""
    run_id = _find_chosen_run(state)
    approvals = [each for each in state.fleet.questions if each.is_approval]
    chosen = next((each for each in approvals if name_question_row(each) == state.chosen), None)
    if chosen is None and state.chosen.startswith("run "):
        chosen = next((each for each in approvals if each.run_id == run_id), None)
    return chosen


def _open(state: TopState) -> tuple[TopState, TopAction | None]:
    run_id = _find_chosen_run(state)
    return replace(state, scrolled=0), None if run_id is None else OpenRun(run_id=run_id)


def _stop(state: TopState) -> tuple[TopState, TopAction | None]:
    run_id = _find_chosen_run(state)
    if run_id is None:
        return state, None
    return replace(state, confirming=StopRun(run_id=run_id), sure=f"stop {run_id} and all that it caused?"), None


def _pause(state: TopState) -> tuple[TopState, TopAction | None]:
    run_id = _find_chosen_run(state)
    if run_id is None:
        return state, None
    is_paused = any(run.run_id == run_id and run.status == _PAUSED for run in state.fleet.runs)
    return state, ResumeRun(run_id=run_id) if is_paused else PauseRun(run_id=run_id)


def _approve(state: TopState) -> tuple[TopState, TopAction | None]:
    return _answer(state, "once", "allow")


def _deny(state: TopState) -> tuple[TopState, TopAction | None]:
    return _answer(state, "deny", "deny")


def _answer(state: TopState, choice: str, word: str) -> tuple[TopState, TopAction | None]:
    question = _find_chosen_approval(state)
    if question is None:
        return replace(
            state, said="nothing here waits to be allowed; 'hermes-worker approvals answer' answers questions"
        ), None
    if choice != "deny" and not (question.is_whole and count_columns(question.text) <= state.room):
        # A person allows nothing that they cannot read to its end.
        return replace(
            state, said=f"it is too long to be read here; see 'hermes-worker approvals show {question.wait_id}'"
        ), None
    action = AnswerApproval(run_id=question.run_id, wait_id=question.wait_id, choice=choice)
    return replace(state, confirming=action, sure=f"{word} it once: {question.text}?"), None


# ------------------------------------------------------------------------------------------------------------ the lines


def render_rows(state: TopState) -> list[TopLine]:
    """Render all rows, the chosen one marked."""
    fleet = state.fleet
    if not fleet.at:
        return [TopLine(text=fleet.lost_because or "asking the server", style="dim")]
    shown = [
        *_render_head(fleet),
        *_render_questions(fleet),
        *_render_runs(fleet),
        *_render_workers(fleet),
        *_render_queues(fleet),
        *_render_keys(fleet),
    ]
    return [replace(line, style="chosen") if line.row and line.row == state.chosen else line for line in shown]


def render_foot(state: TopState) -> list[TopLine]:
    """Render the lines at the foot."""
    if state.confirming is not None:
        return [TopLine(text=f"{state.sure} y does it, any other key does not", style="warning")]
    if state.opened is not None:
        return [TopLine(text=state.said or "↑↓ scroll · Esc goes back", style="dim")]
    return [TopLine(text=state.said or HELP, style="warning" if state.said else "dim")]


def render_opened(state: TopState, columns: int) -> list[TopLine]:
    """Render the opened run, its lines folded to ``columns``."""
    if state.opened is None:
        return []
    broken = [TopLine(text=part) for line in state.opened.lines for part in fold_text(line, columns)]
    return [TopLine(text=state.opened.run_id, style="bold"), *broken[min(state.scrolled, len(broken) - 1) :]]


def choose_window(shown: Sequence[TopLine], height: int) -> Sequence[TopLine]:
    """Choose as many lines as there is room for, with the chosen one among them."""
    if len(shown) <= height:
        return shown
    at = next((number for number, line in enumerate(shown) if line.style == "chosen"), 0)
    first = max(0, min(at - height // 2, len(shown) - height))
    return shown[first : first + height]


def _render_head(fleet: FleetFacts) -> list[TopLine]:
    spent = "unknown" if fleet.spent_usd is None else f"${fleet.spent_usd:.4f}"
    rate = "" if fleet.usd_per_minute is None else f", ${fleet.usd_per_minute:.4f} a minute"
    at_work = sum(run.status == "running" for run in fleet.runs)
    counted = f"open runs {len(fleet.runs)}, running {at_work} · questions {len(fleet.questions)}"
    head = TopLine(text=f"{format_clock(fleet.at)} · {counted} · spent today {spent}{rate}", style="bold")
    lost = TopLine(text=f"not connected, this is how it was: {fleet.lost_because}", style="warning")
    return [head, *([lost] if fleet.lost_because else [])]


def _render_section(
    fleet: FleetFacts,
    name: str,
    header: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    names: Sequence[str] = (),
    *,
    ids: Sequence[int] = (),
    whole: Sequence[int] = (),
) -> list[TopLine]:
    untold = fleet.untold.get(name)
    if untold:
        return [TopLine(text=""), TopLine(text=f"{name}: {untold}", style="dim")]
    if not rows:
        return [TopLine(text=""), TopLine(text=f"{name}: none", style="dim")]
    head, *rest = render_table(rows, header, ids=ids, whole=whole).splitlines()
    shown = [TopLine(text=text, row=names[at] if names else "") for at, text in enumerate(rest)]
    return [TopLine(text=""), TopLine(text=head, style="bold"), *shown]


def _render_questions(fleet: FleetFacts) -> list[TopLine]:
    rows = [
        ("approval" if each.is_approval else "question", format_short(each.age_s), each.run_id, each.text or "-")
        for each in fleet.questions
    ]
    names = list(map(name_question_row, fleet.questions))
    return _render_section(fleet, "questions", ("ASKS", "FOR", "RUN", "WHAT"), rows, names, ids=(2,), whole=(0, 1))


def _render_runs(fleet: FleetFacts) -> list[TopLine]:
    rows = [
        (
            f"{'  ' * min(each.depth, 10)}{each.run_id}",
            each.status.replace("_", " "),
            format_short(each.age_s),
            str(each.iteration),
            "-" if each.cost_usd is None else f"${each.cost_usd:.4f}",
            each.model or "-",
            each.about or "-",
        )
        for each in fleet.runs
    ]
    header = ("RUN", "STATUS", "AGE", "CALLS", "COST", "MODEL", "ABOUT")
    return _render_section(
        fleet, "runs", header, rows, list(map(name_run_row, fleet.runs)), ids=(0,), whole=(1, 2, 3, 4)
    )


def _render_workers(fleet: FleetFacts) -> list[TopLine]:
    rows = [
        (each.name, each.queues, "leaving" if each.is_leaving else "at work", each.held, each.oldest or "-")
        for each in fleet.workers
    ]
    return _render_section(fleet, "workers", ("WORKER", "QUEUES", "STATE", "HOLDS", "LONGEST"), rows)


def _render_queues(fleet: FleetFacts) -> list[TopLine]:
    rows = [(each.queue, str(each.due), str(each.claimed), format_short(each.oldest_age_s)) for each in fleet.queues]
    return _render_section(fleet, "queues", ("QUEUE", "WAITING", "AT WORK", "OLDEST"), rows)


def _render_keys(fleet: FleetFacts) -> list[TopLine]:
    rows = [
        (each.key, each.condition.replace("_", " "), format_short(each.since_s), str(each.parked), each.reason or "-")
        for each in fleet.keys
    ]
    return _render_section(fleet, "keys", ("KEY", "CONDITION", "FOR", "RUNS WAIT", "REASON"), rows)


def format_short(seconds: float) -> str:
    """Format a length of time in few characters: ``8s``, ``5m``, ``3h``, ``2d``."""
    for size, sign in _SIZES.items():
        if seconds >= size:
            return f"{int(seconds // size)}{sign}"
    return f"{int(seconds)}s"


_SIZES: Mapping[float, str] = {86_400.0: "d", 3_600.0: "h", 60.0: "m"}
