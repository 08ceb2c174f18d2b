"""``top``'s calls of the API: a look at everything, again and again, and the actions of keys."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar, assert_never

from hermes_worker.cli.top.fleet import (
    FleetFacts,
    clean_text,
    compute_usd_per_minute,
    parse_keys,
    parse_parents,
    parse_questions,
    parse_queues,
    parse_runs,
    parse_workers,
    render_calls,
    render_tree,
    sum_spent,
)
from hermes_worker.cli.top.view import (
    AnswerApproval,
    LeaveTop,
    OpenedRun,
    OpenRun,
    PauseRun,
    ResumeRun,
    StopRun,
    TopAction,
)
from hermes_worker.client import HermesClient, RefusedError
from hermes_worker.client.exchange import AnswerMismatch
from hermes_worker.core.errors import HermesError, UnavailableError
from hermes_worker.core.run import RunStatus

T = TypeVar("T")

_OPEN = [status.value for status in RunStatus if not status.is_terminal]
_RUNS_MAX = 100
_TREES_AT_A_LOOK = 5
_CALLS_SHOWN = 30
_SAMPLES_MAX = 600
_DAY_S = 86_400.0
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)
"""What reading a document raises that has another form than ours."""
_UNREADABLE = "the server's answer cannot be read: use the same version on both sides"


class FleetWatch:
    """Looks at a fleet over its API. One thread looks; actions may come from another."""

    def __init__(self, client: HermesClient) -> None:
        self._client = client
        self._parents: dict[str, str] = {}
        self._treed: set[str] = set()
        """Runs whose tree was loaded; who delegated to whom does not change."""
        self._spent: deque[tuple[float, float]] = deque(maxlen=_SAMPLES_MAX)
        self._last = FleetFacts()

    def poll_once(self) -> FleetFacts:
        """Look at the fleet once. A section that the key may not see, or the server does not have, is reported as such;
        of a server that is away, the last facts are returned."""
        now = time.time()
        untold: dict[str, str] = {}

        def asked(name: str, ask: Callable[[], Sequence[T]]) -> Sequence[T]:
            try:
                return ask()
            except RefusedError as error:
                untold[name] = clean_text(error, 300)
            except (AnswerMismatch, *_MALFORMED):
                untold[name] = _UNREADABLE
            return ()

        client = self._client
        try:
            spent = self._load_spent(now)
            self._last = FleetFacts(
                at=now,
                questions=asked("questions", lambda: parse_questions(client.approvals(), now)),
                runs=asked("runs", lambda: self._load_runs(now)),
                workers=asked("workers", lambda: parse_workers(client.workers(), now)),
                queues=asked("queues", lambda: parse_queues(client.backlog())),
                keys=asked("keys", lambda: parse_keys(client.provider_states(), now)),
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
            case OpenRun() | LeaveTop():
                raise AssertionError(f"{action.kind} changes nothing")
            case _:
                assert_never(action)

    def open_run(self, run_id: str) -> OpenedRun:
        """Load everything about one run: why it is where it is, its tree, its calls. Raises ``HermesError``."""
        try:
            return OpenedRun(run_id=run_id, lines=self._render_run(run_id))
        except _MALFORMED:
            raise UnavailableError(_UNREADABLE) from None

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
        if run.output:
            found += ["", "answer", f"  {clean_text(run.output, 1_000)}"]
        return found

    def _load_runs(self, now: float) -> Sequence[Any]:
        found = list(islice(self._client.runs(status=_OPEN, limit=_RUNS_MAX), _RUNS_MAX))
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


def format_error(error: HermesError) -> str:
    """Write what went wrong, on one line."""
    return clean_text(error, 300)
