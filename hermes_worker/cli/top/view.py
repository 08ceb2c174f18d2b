"""Lay out ``top``, and decide what a key does. Pure: facts and a state in, lines and actions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hermes_worker.cli.layout import count_columns, fold_text, format_clock, format_duration, render_table
from hermes_worker.cli.top.fleet import (
    LISTED_HEADERS,
    ORDERS,
    TREE_ORDER,
    FleetFacts,
    FleetQuestion,
    FleetRun,
    ListedEntry,
    TopTab,
    filter_fleet,
)
from hermes_worker.core.pricing import NO_PRICE, format_usd

_PAUSED = "paused"
_HELP = (
    "j, k and the arrows choose a row, or scroll what is open",
    "Enter opens a run, a session or a job; Esc and q go back",
    "l shows what the last calls of a run said",
    "a answers a question, or allows a command once; d denies it; both ask before",
    "s stops a run and all that it caused, and asks before; p pauses it, or lets it go on",
    "/ shows only rows with a text; o changes the order of the runs",
    "Tab goes to the sessions, the jobs, and back to the fleet",
    "q leaves",
)
"""What keys do, for ``?``."""
_SPARED_KEYS = ("j/k", "o ", "Tab", "q ", "/")
"""Beginnings of the keys that the foot leaves out first where there is no room."""


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
class AnswerWords:
    """The answer to a question: words, or the number of a choice."""

    run_id: str
    wait_id: int
    text: str
    kind: Literal["words"] = "words"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """Load everything about one run, or what its last calls said."""

    run_id: str
    has_logs: bool = False
    kind: Literal["open"] = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenListed:
    """Load what was said in a session, or what became of a job."""

    tab: TopTab
    id: str
    kind: Literal["open_listed"] = "open_listed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowTab:
    """Look at another list."""

    tab: TopTab
    kind: Literal["show_tab"] = "show_tab"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveTop:
    kind: Literal["leave"] = "leave"


TopAction = StopRun | PauseRun | ResumeRun | AnswerApproval | AnswerWords | OpenRun | OpenListed | ShowTab | LeaveTop


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRun:
    """Everything about one run, one session or one job, as lines."""

    run_id: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopState:
    fleet: FleetFacts = field(default_factory=FleetFacts)
    """What is shown: the facts that the filter lets through."""
    everything: FleetFacts = field(default_factory=FleetFacts)
    filter: str = ""
    order: str = TREE_ORDER
    tab: TopTab = TopTab.FLEET
    is_filtering: bool = False
    """Whether keys write the filter."""
    answering: FleetQuestion | None = None
    """The question whose answer keys write."""
    typed: str = ""
    """What was typed of the answer."""
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


def name_listed_row(entry: ListedEntry) -> str:
    return f"entry {entry.id}"


def list_rows(fleet: FleetFacts) -> list[str]:
    """List the rows that can be chosen, in order."""
    if fleet.tab is not TopTab.FLEET:
        return list(map(name_listed_row, fleet.listed))
    return [*map(name_question_row, fleet.questions), *map(name_run_row, fleet.runs)]


def update_fleet(state: TopState, fleet: FleetFacts) -> TopState:
    """Update the state after another look. A row that is gone leaves the choice to the row at its place."""
    state = replace(state, everything=fleet)
    fleet = filter_fleet(fleet, state.filter, state.order)
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
    return replace(fleet, lost_because=f"the server has not answered for {format_duration(silent_s)}")


def press_key(state: TopState, key: str) -> tuple[TopState, TopAction | None]:
    """Decide what a key does: ``up``, ``down``, ``enter``, ``escape``, ``backspace`` or a character."""
    if state.is_filtering or state.answering is not None:
        return _enter_key(state, key)
    if state.confirming is not None:
        asked = replace(state, confirming=None, sure="", said="" if key == "y" else "nothing was done")
        return asked, state.confirming if key == "y" else None
    state = replace(state, said="")
    if key in ("up", "k", "down", "j"):
        by = -1 if key in ("up", "k") else 1
        return _scroll(state, by) if state.opened else _move(state, by), None
    if key == "escape":
        closed = replace(state, opened=None, scrolled=0)
        return (closed if state.opened else _apply_filter(closed, "")), None
    if key == "q":
        return (replace(state, opened=None, scrolled=0), None) if state.opened else (state, LeaveTop())
    decide = {
        "enter": _open,
        "tab": _show_next_tab,
        "l": _open_logs,
        "s": _stop,
        "p": _pause,
        "a": _approve,
        "d": _deny,
        "/": _begin_filter,
        "o": _change_order,
        "?": _show_help,
    }.get(key)
    return decide(state) if decide else (state, None)


def _enter_key(state: TopState, key: str) -> tuple[TopState, TopAction | None]:
    """Write the filter or an answer: Enter ends it, Esc gives it up."""
    question = state.answering
    ended = replace(state, is_filtering=False, answering=None, typed="")
    if key == "escape":
        return ended if question else _apply_filter(ended, ""), None
    if key == "enter":
        if question is None:
            return ended, None
        text = state.typed.strip()
        action = AnswerWords(run_id=question.run_id, wait_id=question.wait_id, text=text)
        return (ended, action) if text else (replace(ended, said="nothing was answered"), None)
    if question is None:
        return _apply_filter(state, _edit(state.filter, key)), None
    return replace(state, typed=_edit(state.typed, key)), None


def _edit(text: str, key: str) -> str:
    """Change a text at its end by a key."""
    if key == "backspace":
        return text[:-1]
    return text + key if len(key) == 1 and key.isprintable() else text


def _apply_filter(state: TopState, text: str) -> TopState:
    return update_fleet(replace(state, filter=text), state.everything)


def _begin_filter(state: TopState) -> tuple[TopState, TopAction | None]:
    return replace(state, is_filtering=True, opened=None), None


def _show_help(state: TopState) -> tuple[TopState, TopAction | None]:
    return replace(state, opened=OpenedRun(run_id="keys", lines=_HELP), scrolled=0), None


def _change_order(state: TopState) -> tuple[TopState, TopAction | None]:
    names = list(ORDERS)
    order = names[(names.index(state.order) + 1) % len(names)]
    return update_fleet(replace(state, order=order, said=f"runs by {order}"), state.everything), None


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
    if state.fleet.tab is not TopTab.FLEET:
        return None
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


def _show_next_tab(state: TopState) -> tuple[TopState, TopAction | None]:
    tabs = list(TopTab)
    tab = tabs[(tabs.index(state.tab) + 1) % len(tabs)]
    return replace(state, tab=tab, opened=None, scrolled=0, said=f"looking at {tab.value}"), ShowTab(tab=tab)


def _open_logs(state: TopState) -> tuple[TopState, TopAction | None]:
    run_id = _find_chosen_run(state)
    return replace(state, scrolled=0), None if run_id is None else OpenRun(run_id=run_id, has_logs=True)


def _open(state: TopState) -> tuple[TopState, TopAction | None]:
    entry = next((each for each in state.fleet.listed if name_listed_row(each) == state.chosen), None)
    if entry is not None:
        return replace(state, scrolled=0), OpenListed(tab=state.fleet.tab, id=entry.id)
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


def _find_chosen_words(state: TopState) -> FleetQuestion | None:
    """Find the question of the chosen row, or the oldest of its run, that is answered with words; ``None`` for none."""
    run_id = _find_chosen_run(state)
    asked = [each for each in state.fleet.questions if not each.is_approval and each.run_id == run_id]
    chosen = next((each for each in asked if name_question_row(each) == state.chosen), None)
    return chosen or next(iter(asked), None)


def _approve(state: TopState) -> tuple[TopState, TopAction | None]:
    question = _find_chosen_words(state) if _find_chosen_approval(state) is None else None
    if question is not None:
        return replace(state, answering=question, typed=""), None
    return _answer(state, "once", "allow")


def _deny(state: TopState) -> tuple[TopState, TopAction | None]:
    return _answer(state, "deny", "deny")


def _answer(state: TopState, choice: str, word: str) -> tuple[TopState, TopAction | None]:
    question = _find_chosen_approval(state)
    if question is None:
        return replace(state, said="nothing here waits for that answer"), None
    why = f" ({question.why})" if question.why else ""
    if choice != "deny" and not (question.is_whole and count_columns(f"{question.text}{why}") <= state.room):
        # A person allows nothing that they cannot read to its end.
        return replace(
            state, said=f"it is too long to be read here; see 'hermes-worker approvals show {question.wait_id}'"
        ), None
    action = AnswerApproval(run_id=question.run_id, wait_id=question.wait_id, choice=choice)
    return replace(state, confirming=action, sure=f"{word} it once{why}: {question.text}?"), None


# ------------------------------------------------------------------------------------------------------------ the lines


def render_rows(state: TopState) -> list[TopLine]:
    """Render all rows, the chosen one marked."""
    fleet = state.fleet
    if not fleet.at:
        return [TopLine(text=fleet.lost_because or "asking the server", style="dim")]
    shown = (
        [
            *_render_head(fleet, state.everything),
            *_render_listed(fleet),
        ]
        if fleet.tab is not TopTab.FLEET
        else [
            *_render_head(fleet, state.everything),
            *_render_questions(fleet),
            *_render_runs(fleet),
            *_render_workers(fleet),
            *_render_queues(fleet),
            *_render_keys(fleet),
        ]
    )
    return [replace(line, style="chosen") if line.row and line.row == state.chosen else line for line in shown]


def render_foot(state: TopState, columns: int = 1_000) -> list[TopLine]:
    """Render the lines at the foot. Of the keys those are told that have room on one line of ``columns``."""
    if state.confirming is not None:
        return [TopLine(text=f"{state.sure} y does it, any other key does not", style="warning")]
    if (asked := state.answering) is not None:
        choices = [f"  {number} {choice}" for number, choice in enumerate(asked.choices, start=1)]
        how = "Enter sends the words or the number, Esc gives it up" if choices else "Enter sends it, Esc gives it up"
        typed = TopLine(text=f"answer > {state.typed}_", style="bold")
        above = (f"? {asked.text}", *choices, how)
        return [*(TopLine(text=text, style="warning") for text in above), typed]
    if state.is_filtering:
        return [TopLine(text=f"/{state.filter}_  Enter keeps the filter, Esc removes it", style="bold")]
    if state.opened is not None:
        return [TopLine(text=state.said or _join_keys(["j/k scroll", "Esc back", "? keys"]), style="dim")]
    shown = [f"/{state.filter}", "Esc show all"] if state.filter else []
    said = state.said or _join_keys([*shown, *_choose_keys(_list_keys(state), columns)])
    return [TopLine(text=said, style="warning" if state.said else "dim")]


def _list_keys(state: TopState) -> list[str]:
    """List the keys that do something where the person is."""
    keys = ["j/k choose", "Enter open"] if state.chosen else []
    if run_id := _find_chosen_run(state):
        is_paused = any(run.run_id == run_id and run.status == _PAUSED for run in state.fleet.runs)
        answers = ["a allow", "d deny"] if _find_chosen_approval(state) else []
        words = ["a answer"] if not answers and _find_chosen_words(state) else []
        keys += [*answers, *words, "l logs", "s stop", "p go on" if is_paused else "p pause"]
    order = ["o order"] if state.fleet.tab is TopTab.FLEET and len(state.fleet.runs) > 1 else []
    tabs = list(TopTab)
    following = tabs[(tabs.index(state.tab) + 1) % len(tabs)]
    return [*keys, *order, "/ filter", f"Tab {following.value}", "? keys", "q quit"]


def _choose_keys(keys: Sequence[str], columns: int) -> list[str]:
    """Choose the keys that have room on one line: ``?`` tells the others."""
    chosen = list(keys)
    for spared in (key for beginning in _SPARED_KEYS for key in keys if key.startswith(beginning)):
        if count_columns(_join_keys(chosen)) <= columns:
            break
        chosen.remove(spared)
    return chosen


def _join_keys(keys: Sequence[str]) -> str:
    """Join keys so that a narrow terminal folds between two of them."""
    return " · ".join(each.replace(" ", "\N{NO-BREAK SPACE}") for each in keys)


def render_opened(state: TopState, columns: int) -> list[TopLine]:
    """Render the opened run, its lines folded to ``columns``."""
    if state.opened is None:
        return []
    broken = fold_lines([TopLine(text=line) for line in state.opened.lines], columns)
    return [TopLine(text=state.opened.run_id, style="bold"), *broken[min(state.scrolled, len(broken) - 1) :]]


def fold_lines(shown: Sequence[TopLine], columns: int) -> list[TopLine]:
    """Fold lines to ``columns``, between words where that is possible."""
    return [replace(line, text=part) for line in shown for part in fold_text(line.text, columns)]


def choose_window(shown: Sequence[TopLine], height: int) -> Sequence[TopLine]:
    """Choose as many lines as there is room for, with the chosen one among them."""
    if len(shown) <= height:
        return shown
    at = next((number for number, line in enumerate(shown) if line.style == "chosen"), 0)
    first = max(0, min(at - height // 2, len(shown) - height))
    return shown[first : first + height]


def _render_head(fleet: FleetFacts, everything: FleetFacts) -> list[TopLine]:
    """Render the line above the sections, which counts everything, whatever a filter leaves of it."""
    spent = NO_PRICE if fleet.spent_usd is None else format_usd(fleet.spent_usd)
    rate = "" if fleet.usd_per_minute is None else f", {format_usd(fleet.usd_per_minute)} a minute"
    at_work = sum(run.status == "running" for run in everything.runs)
    counted = f"open runs {len(everything.runs)}, running {at_work} · questions {len(everything.questions)}"
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
    spared: Sequence[int] = (),
) -> list[TopLine]:
    untold = fleet.untold.get(name)
    if untold:
        return [TopLine(text=""), TopLine(text=f"{name}: {untold}", style="dim")]
    if not rows:
        return [TopLine(text=""), TopLine(text=f"{name}: none", style="dim")]
    head, *rest = render_table(rows, header, ids=ids, whole=whole, spared=spared).splitlines()
    shown = [TopLine(text=text, row=names[at] if names else "") for at, text in enumerate(rest)]
    return [TopLine(text=""), TopLine(text=head, style="bold"), *shown]


def _render_listed(fleet: FleetFacts) -> list[TopLine]:
    """Render the sessions or the jobs."""
    rows, names = [each.cells for each in fleet.listed], list(map(name_listed_row, fleet.listed))
    header = LISTED_HEADERS[fleet.tab]
    return _render_section(
        fleet, fleet.tab.value, header, rows, names, ids=(len(header) - 1,), whole=(1, 2, 3, 4), spared=(3, 4)
    )


def _render_questions(fleet: FleetFacts) -> list[TopLine]:
    rows = [
        (
            each.text or "-",
            each.title or "-",
            "approval" if each.is_approval else "question",
            format_duration(each.age_s),
            each.run_id,
        )
        for each in fleet.questions
    ]
    names = list(map(name_question_row, fleet.questions))
    header = ("ASKS", "OF", "KIND", "FOR", "RUN")
    return _render_section(fleet, "questions", header, rows, names, ids=(4,), whole=(2, 3), spared=(4, 2))


def _render_runs(fleet: FleetFacts) -> list[TopLine]:
    rows = [
        (
            f"{'  ' * min(each.depth, 10)}{each.about or '-'}",
            each.status.replace("_", " "),
            format_duration(each.age_s),
            str(each.iteration),
            each.cost,
            each.model or "-",
            each.run_id,
        )
        for each in fleet.runs
    ]
    header = ("TITLE", "STATUS", "AGE", "CALLS", "COST", "MODEL", "RUN")
    return _render_section(
        fleet, "runs", header, rows, list(map(name_run_row, fleet.runs)), ids=(6,), whole=(1, 2, 3, 4), spared=(5, 3, 6)
    )


def _render_workers(fleet: FleetFacts) -> list[TopLine]:
    rows = [
        (each.name, each.queues, "draining" if each.is_draining else "alive", each.held, each.oldest or "-")
        for each in fleet.workers
    ]
    return _render_section(fleet, "workers", ("WORKER", "QUEUES", "STATE", "HOLDS", "LONGEST"), rows)


def _render_queues(fleet: FleetFacts) -> list[TopLine]:
    rows = [(each.queue, str(each.due), str(each.claimed), format_duration(each.oldest_age_s)) for each in fleet.queues]
    return _render_section(fleet, "queues", ("QUEUE", "WAITING", "AT WORK", "OLDEST"), rows)


def _render_keys(fleet: FleetFacts) -> list[TopLine]:
    rows = [
        (
            each.key,
            each.condition.replace("_", " "),
            "-" if each.since_s is None else format_duration(each.since_s),
            str(each.parked),
            each.reason or "-",
        )
        for each in fleet.keys
    ]
    return _render_section(fleet, "keys", ("KEY", "CONDITION", "FOR", "RUNS WAIT", "REASON"), rows)
