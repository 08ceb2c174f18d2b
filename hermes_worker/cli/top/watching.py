"""``top``'s calls of the API: a look at everything, again and again, and the actions of keys."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar, assert_never

from hermes_worker.cli.chat.call_output import fold_output
from hermes_worker.cli.chat.listings import render_messages
from hermes_worker.cli.layout import format_age
from hermes_worker.cli.story import name_call
from hermes_worker.cli.top.fleet import (
    FleetFacts,
    ListedEntry,
    TopTab,
    clean_text,
    compute_usd_per_minute,
    parse_jobs,
    parse_keys,
    parse_parents,
    parse_questions,
    parse_queues,
    parse_runs,
    parse_sessions,
    parse_workers,
    render_calls,
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
)
from hermes_worker.client import HermesClient, RefusedError
from hermes_worker.core.errors import HermesError, UnavailableError
from hermes_worker.core.run import OPEN_STATUSES, RunKind, RunStatus
from hermes_worker.operation import AnswerMismatch

T = TypeVar("T")

_RUNS_MAX = 100
_KINDS = [kind.value for kind in RunKind if not kind.is_beside_work]
"""The kinds of runs that somebody asked for, or that came of those."""
_TREES_AT_A_LOOK = 5
_CALLS_SHOWN = 30
_MESSAGES_SHOWN = 30
_LOGGED_CALLS = 10
_SAMPLES_MAX = 600
_DAY_S = 86_400.0
_FAULTS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What a fault of this program raises. An answer of another form is an ``AnswerMismatch``."""
_UNREADABLE = "the server's answer cannot be read: use the same version on both sides"


class FleetWatch:
    """Looks at a fleet over its API. One thread looks; actions may come from another."""

    def __init__(self, client: HermesClient, *, has_all: bool = False) -> None:
        self._client = client
        self._kinds = [] if has_all else _KINDS
        self._parents: dict[str, str] = {}
        self._treed: set[str] = set()
        """Runs whose tree was loaded; who delegated to whom does not change."""
        self._spent: deque[tuple[float, float]] = deque(maxlen=_SAMPLES_MAX)
        self._last = FleetFacts()
        self.tab = TopTab.FLEET
        """Which list is looked at beside the fleet."""

    def poll_once(self) -> FleetFacts:
        """Look at the fleet once. A section that the key may not see, or the server does not have, is reported as such;
        of a server that is away, the last facts are returned."""
        now = time.time()
        untold: dict[str, str] = {}

        def read_section(name: str, ask: Callable[[], Sequence[T]]) -> Sequence[T]:
            try:
                return ask()
            except RefusedError as error:
                untold[name] = clean_text(error, 300)
            except AnswerMismatch:
                untold[name] = _UNREADABLE
            except _FAULTS as error:
                untold[name] = _describe_fault(error)
            return ()

        client = self._client
        tab = self.tab
        try:
            spent = self._load_spent(now)
            self._last = FleetFacts(
                at=now,
                tab=tab,
                listed=read_section(tab.value, lambda: self._load_listed(tab)),
                questions=read_section("questions", lambda: parse_questions(client.approvals(), now)),
                runs=read_section("runs", lambda: self._load_runs(now)),
                workers=read_section("workers", lambda: parse_workers(client.workers(), now)),
                queues=read_section("queues", lambda: parse_queues(client.backlog())),
                keys=read_section("keys", lambda: parse_keys(client.provider_states(), now)),
                spent_usd=spent,
                usd_per_minute=compute_usd_per_minute(list(self._spent)),
                untold=untold,
            )
        except UnavailableError as error:
            self._last = replace(self._last, lost_because=format_error(error))
        return self._last

    def do(self, action: TopAction) -> str:
        """Do an action. Returns its result in words. Raises ``HermesError``."""
        match action:
            case StopRun():
                self._client.stop(action.run_id)
                return f"{action.run_id} was asked to stop"
            case PauseRun():
                return f"{action.run_id} {clean_text(self._client.pause(action.run_id).status, 40)}"
            case ResumeRun():
                return f"{action.run_id} {clean_text(self._client.resume(action.run_id).status, 40)}"
            case AnswerApproval():
                self._client.approve(action.run_id, action.choice, wait_id=action.wait_id)
                return "denied" if action.choice == "deny" else "allowed"
            case AnswerWords():
                self._client.answer(action.run_id, action.text, wait_id=action.wait_id)
                return "answered"
            case OpenRun() | OpenListed() | ShowTab() | LeaveTop():
                raise AssertionError(f"{action.kind} changes nothing")
            case _:
                assert_never(action)

    def open(self, action: OpenRun | OpenListed) -> OpenedRun:
        """Load everything about one run (why it is where it is, its tree, its calls), or what its last calls said; what
        was said in a session; or what became of a job. Raises ``HermesError``."""
        try:
            if isinstance(action, OpenRun):
                render = self._render_logs if action.has_logs else self._render_run
                return OpenedRun(run_id=action.run_id, lines=render(action.run_id))
            return OpenedRun(run_id=action.id, lines=self._render_listed(action))
        except AnswerMismatch:
            raise UnavailableError(_UNREADABLE) from None
        except _FAULTS as error:
            raise HermesError(_describe_fault(error)) from error

    def _render_run(self, run_id: str) -> list[str]:
        run = self._client.run(run_id)
        calls = list(islice(self._client.calls(run_id), 10_000))[-_CALLS_SHOWN:]
        found = [
            f"{clean_text(run.status, 40)}, {run.iteration} model calls of at most {run.iterations_max}",
            clean_text(self._client.explain(run_id).text, 400),
            "",
            "tree",
            *(f"  {line}" for line in render_tree(self._client.tree(run_id))),
            "",
            "calls",
            *(f"  {line}" for line in render_calls(calls) or ["none"]),
        ]
        said = render_messages(list(self._client.messages(run.session_id)), _MESSAGES_SHOWN)
        return [*found, "", "conversation", *(f"  {line}" for line in said or ["nothing was said yet"])]

    def _render_logs(self, run_id: str) -> list[str]:
        """Render the last calls of a run with the first lines of what they said."""
        lines = []
        for each in list(islice(self._client.calls(run_id), 10_000))[-_LOGGED_CALLS:]:
            lines += render_calls([each])
            lines += [
                f"    {line.text}"
                for line in fold_output(self._client.call(run_id, each.call), name_call(run_id, each.call)).lines
            ]
        return lines or ["it called no tool yet"]

    def _render_listed(self, action: OpenListed) -> list[str]:
        if action.tab is TopTab.SESSIONS:
            return render_messages(list(self._client.messages(action.id)), _MESSAGES_SHOWN) or ["nothing was said yet"]
        return [
            clean_text(f"{format_age(each.slot)}  {each.outcome}  {each.reason or ''}  {each.run_id or ''}".rstrip())
            for each in self._client.job_history(action.id)
        ] or ["no slot of it was due yet"]

    def _load_listed(self, tab: TopTab) -> Sequence[ListedEntry]:
        match tab:
            case TopTab.SESSIONS:
                return parse_sessions(list(islice(self._client.sessions(limit=_RUNS_MAX), _RUNS_MAX)))
            case TopTab.JOBS:
                return parse_jobs(self._client.job_sheets())
            case TopTab.FLEET:
                return ()

    def _load_runs(self, now: float) -> Sequence[Any]:
        found = list(islice(self._client.runs(status=OPEN_STATUSES, kind=self._kinds, limit=_RUNS_MAX), _RUNS_MAX))
        delegating = [each.run_id for each in found if each.status is RunStatus.WAITING_FOR_CHILDREN]
        for run_id in [each for each in delegating if each not in self._treed][:_TREES_AT_A_LOOK]:
            self._parents |= parse_parents(self._client.tree(run_id))
            self._treed.add(run_id)
        self._forget_ended({each.run_id for each in found})
        return parse_runs(found, self._parents, now)

    def _forget_ended(self, is_open: set[str]) -> None:
        """Forget runs that have ended."""
        self._treed &= is_open
        self._parents = {run_id: parent for run_id, parent in self._parents.items() if run_id in is_open}

    def _load_spent(self, now: float) -> float | None:
        """Load what was spent today; ``None`` where that is not known, or not given: then there is no rate, either."""
        try:
            groups = self._client.spend(by="day", created_after=now - now % _DAY_S)
            spent = sum_spent([group.cost_usd for group in groups])
        except RefusedError:
            spent = None
        if spent is None:
            self._spent.clear()
        else:
            self._spent.append((now, spent))
        return spent


def _describe_fault(error: Exception) -> str:
    return clean_text(f"a fault of hermes-worker, please report it: {type(error).__name__}: {error}", 300)


def format_error(error: HermesError) -> str:
    """Write what went wrong, on one line."""
    return clean_text(error, 300)
