"""What ``top`` shows of what the API says, and what its keys mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.cli import layout
from hermes_worker.cli.top.fleet import (
    FleetFacts,
    FleetQuestion,
    FleetRun,
    ListedEntry,
    TopTab,
    compute_usd_per_minute,
    parse_keys,
    parse_parents,
    parse_questions,
    parse_queues,
    parse_runs,
    parse_workers,
    render_tree,
    sum_spent,
)
from hermes_worker.cli.top.view import (
    AnswerApproval,
    AnswerWords,
    LeaveTop,
    OpenedRun,
    OpenListed,
    OpenRun,
    PauseRun,
    ResumeRun,
    ShowTab,
    StopRun,
    TopAction,
    TopLine,
    TopState,
    choose_window,
    fold_lines,
    list_rows,
    mark_as_old,
    press_key,
    render_foot,
    render_opened,
    render_rows,
    update_fleet,
)
from hermes_worker.cli.wording import strip_controls
from hermes_worker.schemas.approvals import WaitObject
from hermes_worker.schemas.fleet import BacklogObject, HeldStepObject, KeyStateObject, QueueBacklogObject, WorkerObject
from hermes_worker.schemas.runs import RunObject, TreeObject, TreeRunObject

NOW = 1_000.0
HOSTILE = "x\x1b[2J\u202ey\nz"


def document(run_id: str, **more: Any) -> RunObject:
    usual = {"status": "running", "created_at": NOW - 90, "iteration": 3, "model": "m", "title": f"about {run_id}"}
    return RunObject.model_construct(run_id=run_id, **{**usual, **more})


def waiting(**told: Any) -> list[WaitObject]:
    return [WaitObject.model_construct(**{"kind": "approval", "created_at": NOW, "choices": [], **told})]


RUN = FleetRun(run_id="run_a", status="running", age_s=90, iteration=3, cost_usd=0.5, model="m", about="about")
APPROVAL = FleetQuestion(wait_id=7, run_id="run_a", is_approval=True, text="rm -rf build", age_s=5)
QUESTION = FleetQuestion(wait_id=8, run_id="run_b", is_approval=False, text="Which?", age_s=4)
FLEET = FleetFacts(at=NOW, questions=[APPROVAL, QUESTION], runs=[RUN, replace(RUN, run_id="run_b", status="paused")])


def at(row: str, fleet: FleetFacts = FLEET) -> TopState:
    return replace(update_fleet(TopState(), fleet), chosen=row)


# -------------------------------------------------------------------------------------------------------------- facts


def test_a_child_stands_below_the_run_that_delegated_to_it() -> None:
    parents = {"run_c": "run_a", "run_d": "run_c", "run_e": "run_gone"}
    found = parse_runs([document(f"run_{name}") for name in "deabc"], parents, NOW)
    assert [(run.run_id, run.depth) for run in found] == [
        ("run_e", 0),
        ("run_a", 0),
        ("run_c", 1),
        ("run_d", 2),
        ("run_b", 0),
    ]


@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("abcdefgh"), max_size=6))
def test_every_open_run_is_shown_once_whoever_is_said_to_have_delegated(parents: dict[str, str]) -> None:
    found = parse_runs([document(name) for name in "abcdef"], parents, NOW)
    assert sorted(run.run_id for run in found) == list("abcdef")


def test_texts_of_the_api_are_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "find_terminal_width", lambda: None)  # no cell is cut
    documents = {"title": HOSTILE, "model": HOSTILE, "status": HOSTILE}
    run = parse_runs([document(HOSTILE, **documents)], {}, NOW)
    question = parse_questions(waiting(id=1, run_id=HOSTILE, command=HOSTILE), NOW)
    step = HeldStepObject(
        kind="tool", run_id=HOSTILE, tenant=HOSTILE, iteration=1, position=0, tool=HOSTILE, claimed_at=NOW
    )
    worker = WorkerObject.model_construct(
        name=HOSTILE, queues=[HOSTILE], held={HOSTILE: 1}, steps=[step], draining_at=None
    )
    queue = QueueBacklogObject(due=1, claimed=0, oldest_age_s=1.0, step_s=1.0, capacity_needed=1)
    key = KeyStateObject.model_construct(
        provider=HOSTILE, credential=HOSTILE, condition=HOSTILE, since=1.0, parked=2, reason=HOSTILE
    )
    fleet = FleetFacts(
        at=NOW,
        runs=run,
        questions=question,
        workers=parse_workers([worker], NOW),
        queues=parse_queues(BacklogObject(queues={HOSTILE: queue})),
        keys=parse_keys([key], NOW),
    )
    shown = render_rows(update_fleet(TopState(), fleet))
    assert all(line.text == strip_controls(line.text) and "\n" not in line.text for line in shown)
    assert sum("x<U+001B>[2J<U+202E>y" in line.text for line in shown) == 5, shown


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([(0.0, 1.0)], None),
        ([(0.0, 1.0), (60.0, 3.0)], 2.0),
        ([(0.0, 1.0), (1_000.0, 5.0), (1_030.0, 6.0)], 2.0),
        ([(0.0, 5.0), (60.0, 1.0)], 0.0),
    ],
)
def test_spending_is_told_by_the_minute(samples: list[tuple[float, float]], expected: float | None) -> None:
    assert compute_usd_per_minute(samples) == expected


def test_unknown_spending_is_not_nothing() -> None:
    assert sum_spent([None]) is None
    assert sum_spent([]) == 0.0
    assert sum_spent([None, 0.25, 0.5]) == 0.75
    assert "spent today no price known" in render_rows(TopState(fleet=FleetFacts(at=NOW)))[0].text


def test_a_tree_is_shown_by_depth() -> None:
    nodes = [
        TreeRunObject.model_construct(run=document(run_id, **more), parent_run_id=parent)
        for run_id, parent, more in (
            ("run_a", None, {"estimated_cost_usd": 0.5}),
            ("run_b", "run_a", {}),
            ("run_c", "run_a", {}),
            ("run_d", "run_b", {}),
        )
    ]
    tree = TreeObject(root_run_id="run_a", total=4, data=nodes)
    assert render_tree(tree) == [
        "about run_a  running  $0.5000  run_a",
        "  about run_b  running  run_b",
        "    about run_d  running  run_d",
        "  about run_c  running  run_c",
    ]
    assert render_tree(tree.model_copy(update={"total": 6}))[-1] == "and 2 more"
    assert parse_parents(tree) == {"run_b": "run_a", "run_c": "run_a", "run_d": "run_b"}


# --------------------------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("row", "key", "action"),
    [
        ("run run_a", "enter", OpenRun(run_id="run_a")),
        ("wait 8", "enter", OpenRun(run_id="run_b")),
        ("run run_a", "p", PauseRun(run_id="run_a")),
        ("run run_b", "p", ResumeRun(run_id="run_b")),
        ("run run_a", "q", LeaveTop()),
        ("run run_a", "x", None),
        ("", "enter", None),
    ],
)
def test_what_harms_nothing_is_done_at_once(row: str, key: str, action: TopAction | None) -> None:
    assert press_key(at(row), key)[1] == action


@pytest.mark.parametrize(
    ("row", "key", "action", "asked"),
    [
        ("run run_a", "s", StopRun(run_id="run_a"), "stop run_a and all that it caused?"),
        ("wait 7", "a", AnswerApproval(run_id="run_a", wait_id=7, choice="once"), "allow it once: rm -rf build?"),
        ("run run_a", "a", AnswerApproval(run_id="run_a", wait_id=7, choice="once"), "allow it once: rm -rf build?"),
        ("wait 7", "d", AnswerApproval(run_id="run_a", wait_id=7, choice="deny"), "deny it once: rm -rf build?"),
    ],
)
def test_what_cannot_be_taken_back_is_confirmed(row: str, key: str, action: TopAction, asked: str) -> None:
    state, now = press_key(at(row), key)
    assert now is None
    assert asked in render_foot(state)[0].text
    moved = update_fleet(state, replace(FLEET, questions=[], runs=[replace(RUN, run_id="run_z")]))
    assert press_key(moved, "y")[1] == action, "what was asked about, whatever stands there now"
    for other in ("n", "enter", "s", "escape"):
        after, nothing = press_key(state, other)
        assert (nothing, after.confirming, after.said) == (None, None, "nothing was done")


def pressed(state: TopState, *keys: str) -> tuple[TopState, TopAction | None]:
    action = None
    for key in keys:
        state, action = press_key(state, key)
    return state, action


@pytest.mark.parametrize("row", ["wait 8", "run run_b"])
def test_a_question_is_answered_with_words_below_its_text(row: str) -> None:
    asked = replace(QUESTION, choices=("red", "blue"))
    state, action = press_key(at(row, replace(FLEET, questions=[APPROVAL, asked])), "a")
    assert (action, state.confirming) == (None, None)
    assert [line.text for line in render_foot(state)][:3] == ["? Which?", "  1 red", "  2 blue"]
    assert pressed(state, *"2x", "backspace", "enter")[1] == AnswerWords(run_id="run_b", wait_id=8, text="2")
    done, action = pressed(state, *"sq y", "escape")
    assert (done.answering, action, done.typed) == (None, None, "")
    assert pressed(state, " ", "enter")[0].said == "nothing was answered"


def test_a_question_that_is_answered_with_words_cannot_be_denied() -> None:
    state, action = press_key(at("wait 8"), "d")
    assert (action, state.confirming, state.said) == (None, None, "nothing here waits for that answer")


def test_a_filter_shows_what_holds_its_text() -> None:
    state, _ = pressed(at("run run_a"), "/", *"PAUS")
    assert list_rows(state.fleet) == ["run run_b"] and state.chosen == "run run_b"
    assert "open runs 2" in render_rows(state)[0].text, "the head counts what the filter hides as well"
    kept, _ = pressed(state, "enter")
    assert list_rows(update_fleet(kept, FLEET).fleet) == ["run run_b"], "the next look is filtered as well"
    assert "/PAUS" in render_foot(kept)[0].text
    assert list_rows(pressed(kept, "escape")[0].fleet) == list_rows(FLEET)
    assert list_rows(pressed(state, "escape")[0].fleet) == list_rows(FLEET)


def test_runs_are_sorted_by_a_key() -> None:
    dear = replace(RUN, run_id="run_c", cost_usd=9.0, age_s=1, depth=1, status="queued")
    state = at("run run_a", replace(FLEET, questions=[], runs=[RUN, dear]))
    orders = []
    for _ in range(4):
        state, _ = press_key(state, "o")
        orders.append((state.said, [run.run_id for run in state.fleet.runs], [run.depth for run in state.fleet.runs]))
    assert orders == [
        ("runs by age", ["run_a", "run_c"], [0, 0]),
        ("runs by cost", ["run_c", "run_a"], [0, 0]),
        ("runs by status", ["run_c", "run_a"], [0, 0]),
        ("runs by tree", ["run_a", "run_c"], [0, 1]),
    ]


def test_a_question_says_why_it_is_asked() -> None:
    questions = parse_questions(waiting(id=7, run_id="run_a", command="rm x", description="deletes", choices=[]), NOW)
    state, _ = press_key(at("wait 7", replace(FLEET, questions=questions)), "a")
    assert state.sure == "allow it once (deletes): rm x?"


def test_a_question_says_in_which_directory_its_command_would_run() -> None:
    told = {"id": 7, "run_id": "run_a", "command": "rm x", "description": "deletes", "choices": []}
    for directory, shown in (("/srv/shop", "/srv/shop"), (f"/srv/{'x' * 50}/shop", f"…{'x' * 35}/shop")):
        questions = parse_questions(waiting(**told, directory=directory), NOW)
        state, _ = press_key(at("wait 7", replace(FLEET, questions=questions)), "a")
        assert state.sure == f"allow it once (deletes, in {shown}): rm x?"


@pytest.mark.parametrize(
    ("asked", "room", "is_shown"),
    [("rm -rf build", 12, True), ("rm -rf build", 11, False), ("x" * 2_000, 9_999, True), ("x" * 2_001, 9_999, False)],
)
def test_nobody_allows_what_they_cannot_read_to_its_end(asked: str, room: int, is_shown: bool) -> None:
    questions = parse_questions(waiting(id=7, run_id="run_a", command=asked), NOW)
    state = replace(at("wait 7", replace(FLEET, questions=questions)), room=room)
    allowed, denied = press_key(state, "a")[0], press_key(state, "d")[0]
    assert (allowed.confirming is not None, "too long" in allowed.said) == (is_shown, not is_shown)
    assert denied.confirming == AnswerApproval(run_id="run_a", wait_id=7, choice="deny")


def test_a_command_of_two_lines_is_not_read_as_one() -> None:
    questions = parse_questions(waiting(id=7, run_id="r", command="echo a #\nrm -rf /\n"), NOW)
    assert [each.text for each in questions] == ["echo a # ⏎ rm -rf /"]


def test_an_opened_run_is_broken_to_the_width_and_scrolled() -> None:
    state = replace(at("run run_a"), opened=OpenedRun(run_id="run_a", lines=["first line", "二二二", ""]))
    assert [line.text for line in render_opened(state, 5)] == ["run_a", "first", " line", "二二", "二", ""]
    down = press_key(press_key(state, "down")[0], "j")[0]
    assert [line.text for line in render_opened(down, 5)] == ["run_a", "二二", "二", ""]
    assert down.chosen == state.chosen
    assert [line.text for line in render_opened(press_key(down, "up")[0], 5)][1] == " line"
    for _ in range(9):
        down = press_key(down, "down")[0]
    assert len(render_opened(down, 99)) == 2, "the last line stays"
    assert press_key(down, "escape")[0].scrolled == 0


def test_the_choice_stays_with_its_row_and_goes_to_the_next_when_that_is_gone() -> None:
    state = at("run run_b")
    assert list_rows(FLEET) == ["wait 7", "wait 8", "run run_a", "run run_b"]
    assert update_fleet(state, replace(FLEET, questions=[])).chosen == "run run_b"
    assert update_fleet(state, replace(FLEET, runs=[RUN])).chosen == "run run_a"
    assert update_fleet(state, FleetFacts()).chosen == ""
    assert press_key(at("run run_b"), "down")[0].chosen == "run run_b"
    assert press_key(at("run run_b"), "k")[0].chosen == "run run_a"
    assert press_key(update_fleet(TopState(), FLEET), "up")[0].chosen == "wait 7"


def test_what_was_opened_is_closed_before_top_is_left() -> None:
    state = replace(at("run run_a"), opened=OpenedRun(run_id="run_a", lines=["all"]))
    closed, action = press_key(state, "q")
    assert (closed.opened, action) == (None, None)
    assert press_key(closed, "q")[1] == LeaveTop()


# -------------------------------------------------------------------------------------------------------------- lines


def test_nothing_is_told_of_a_fleet_that_was_not_seen_yet() -> None:
    assert [line.text for line in render_rows(TopState())] == ["asking the server"]
    assert [line.text for line in render_rows(TopState(fleet=FleetFacts(lost_because="it is away")))] == ["it is away"]


def test_the_chosen_row_is_marked_and_one_line_each() -> None:
    shown = render_rows(at("run run_b"))
    assert [line.row for line in shown if line.row] == list_rows(FLEET)
    [chosen] = [line for line in shown if line.style == "chosen"]
    assert "run_b" in chosen.text and "paused" in chosen.text


def test_a_section_that_is_not_told_says_why() -> None:
    fleet = replace(FLEET, untold={"workers": "this key lacks the scope"}, lost_because="nobody is at home")
    text = "\n".join(line.text for line in render_rows(TopState(fleet=fleet)))
    assert "workers: this key lacks the scope" in text
    assert "queues: none" in text
    assert "not connected, this is how it was: nobody is at home" in text


@pytest.mark.parametrize(("now", "is_old"), [(NOW + 9, False), (NOW + 11, True)])
def test_what_a_silent_server_said_is_told_to_be_old(now: float, is_old: bool) -> None:
    assert ("has not answered for" in mark_as_old(FLEET, now, 10).lost_because) == is_old
    assert mark_as_old(FleetFacts(), now, 10) == FleetFacts(), "nothing was seen yet"
    lost = replace(FLEET, lost_because="it is away")
    assert mark_as_old(lost, now, 10) == lost


@given(st.integers(1, 60), st.integers(0, 59), st.integers(1, 70))
def test_the_chosen_line_is_always_among_those_shown(count: int, chosen: int, height: int) -> None:
    shown = [TopLine(text=str(n), style="chosen" if n == chosen % count else "") for n in range(count)]
    seen = choose_window(shown, height)
    assert len(seen) == min(count, height)
    assert any(line.style == "chosen" for line in seen)


def test_a_key_shows_sessions_and_jobs_whose_rows_open() -> None:
    state, action = press_key(at("run run_a"), "tab")
    assert action == ShowTab(tab=TopTab.SESSIONS)
    entries = [ListedEntry(id=name, cells=(f"talk {name}", "-", "now", "7", "$0.10", name)) for name in ("s1", "s2")]
    state = update_fleet(state, FleetFacts(at=NOW, tab=TopTab.SESSIONS, listed=entries, runs=[RUN]))
    texts = [line.text for line in render_rows(state)]
    assert any("talk s1" in text for text in texts) and not any("run_a" in text for text in texts)
    down, _ = press_key(state, "j")
    assert press_key(down, "enter")[1] == OpenListed(tab=TopTab.SESSIONS, id="s2")
    assert press_key(down, "s")[1] is None, "nothing there is a run"
    found = press_key(press_key(press_key(state, "/")[0], "2")[0], "enter")[0]
    assert [entry.id for entry in found.fleet.listed] == ["s2"]
    assert press_key(press_key(state, "tab")[0], "tab")[1] == ShowTab(tab=TopTab.FLEET)


@pytest.mark.parametrize(
    ("row", "has", "lacks"),
    [
        ("run run_a", ["a allow", "d deny", "l logs", "s stop", "p pause", "o order"], ["a answer", "p go on"]),
        ("run run_b", ["a answer", "p go on"], ["d deny", "p pause"]),
        ("", ["/ filter", "Tab sessions", "? keys", "q quit"], ["Enter open", "s stop", "l logs"]),
    ],
)
def test_the_foot_tells_the_keys_that_do_something_here(row: str, has: list[str], lacks: list[str]) -> None:
    told = render_foot(at(row))[0].text.replace("\N{NO-BREAK SPACE}", " ").split(" · ")
    assert set(has) <= set(told)
    assert set(lacks).isdisjoint(told)


@pytest.mark.parametrize("row", ["run run_a", "run run_b", "wait 7", ""])
def test_the_keys_of_the_foot_have_room_on_one_line(row: str) -> None:
    [line] = render_foot(at(row), 80)
    assert layout.count_columns(line.text) <= 80
    assert "?\N{NO-BREAK SPACE}keys" in line.text


def test_a_key_tells_what_all_keys_do_and_escape_goes_back() -> None:
    state, action = press_key(at("run run_a"), "?")
    assert (action, render_opened(state, 80)[0].text) == (None, "keys")
    assert any("stops a run" in line.text for line in render_opened(state, 80))
    assert press_key(state, "escape")[0].opened is None


def test_a_key_opens_what_the_calls_of_a_run_said() -> None:
    assert press_key(at("run run_a"), "l")[1] == OpenRun(run_id="run_a", has_logs=True)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_word_of_head_and_foot_is_broken_on_a_narrow_terminal(columns: int) -> None:
    fleet = FleetFacts(
        at=NOW, spent_usd=123.45, usd_per_minute=1.25, lost_because="the server has not answered for 9 s"
    )
    state = update_fleet(TopState(), fleet)
    for shown in (render_rows(state)[:2], render_foot(state)):
        folded = fold_lines(shown, columns)
        assert all(layout.count_columns(line.text.rstrip()) <= columns for line in folded)
        assert " ".join(line.text.strip() for line in folded) == " ".join(line.text for line in shown)
