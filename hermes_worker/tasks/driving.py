"""Do the steps of runs one after the other in the caller's thread, without a broker: in tests and rehearsals."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from hermes_worker.broker.queue import QueueName
from hermes_worker.core.effects import AskAuxiliary, CallHook, Iterate, Prepare, RunTool
from hermes_worker.store.rows import Hint
from hermes_worker.store.sweep import Sweeper
from hermes_worker.tasks.calls.ask_auxiliary import ask_auxiliary
from hermes_worker.tasks.calls.call_tool import call_tool
from hermes_worker.tasks.context import WorkerContext
from hermes_worker.tasks.hooks.observing import call_hook
from hermes_worker.tasks.iteration.iterate import iterate
from hermes_worker.tasks.prepare import prepare

_SWEEPS_IN_VAIN_MAX = 3


class HintList:
    """Messages in the place of a broker. ``broker.queue.HintPublisher``."""

    def __init__(self) -> None:
        self._waiting: deque[Hint] = deque()

    def send(self, hints: Sequence[Hint]) -> int:
        self._waiting.extend(hints)
        return len(hints)

    def publish_stops(self, run_ids: Sequence[str], hints: Sequence[Hint]) -> None:
        self.send(hints)

    def nudge(self, *_: object) -> None:
        """Do nothing: no step is at work while another is done, so there is none to interrupt."""

    def count_waiting(self) -> Mapping[str, int]:
        return dict.fromkeys(QueueName, 0)

    def take(self) -> Hint | None:
        return self._waiting.popleft() if self._waiting else None


def drive_steps(hints: HintList, sweeper: Sweeper, do: Callable[[Hint], None], *, steps_max: int) -> bool:
    """Do all steps that are due until nothing is left but waits for people and times; ``False`` when they are not done
    after ``steps_max`` steps."""
    in_vain = 0
    for _ in range(steps_max):
        if (hint := hints.take()) is not None:
            in_vain = 0
            do(hint)
        elif in_vain < _SWEEPS_IN_VAIN_MAX:
            in_vain += 1
            swept = sweeper.sweep(hints.count_waiting())
            hints.send(swept.hints if swept is not None else ())
        else:
            return True
    return False


def do_step(parts: WorkerContext, hint: Hint) -> None:
    """Do the step that a hint names. Deliveries and files go outside, so they are left."""
    match hint.effect:
        case Iterate():
            iterate(parts, hint.effect, hint.at)
        case Prepare():
            prepare(parts, hint.effect, hint.at)
        case RunTool():
            call_tool(parts, hint.effect, hint.at)
        case AskAuxiliary():
            ask_auxiliary(parts, hint.effect, hint.at)
        case CallHook():
            call_hook(parts, hint.effect, hint.at)
        case _:
            pass
