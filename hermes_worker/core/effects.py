"""Effects: what must be done now. An effect becomes one Celery message; the message is a hint and carries nothing else
(I1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hermes_worker.core.run import Call, CallStatus, Run, RunStatus

StepKind = Literal["model", "tool", "delivery", "firing", "artifacts", "hook"]
"""What a worker holds while it does what an effect asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterate:
    """Make model call ``iteration`` (1-based) of the run."""

    run_id: str
    iteration: int
    attempt: int
    is_suspect: bool = False
    """The step is to be done apart from all other work; see ``Run.deaths``."""
    kind: Literal["ask_model"] = "ask_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Complete the prompt of the run's session from its workspace, before the first model call of its first run."""

    run_id: str
    attempt: int
    is_suspect: bool = False
    """The step is to be done apart from all other work; see ``Run.deaths``."""
    kind: Literal["prepare"] = "prepare"

    @property
    def iteration(self) -> int:
        """The model call that waits for the preparation, which is the first."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTool:
    """Run the tool call at ``position`` of ``iteration``."""

    run_id: str
    iteration: int
    position: int
    attempt: int
    is_suspect: bool = False
    """The step is to be done apart from all other work; see ``Run.deaths``."""
    kind: Literal["run_tool"] = "run_tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskAuxiliary:
    """Ask a model the question that the tool call at ``position`` of ``iteration`` waits for."""

    run_id: str
    iteration: int
    position: int
    attempt: int
    is_suspect: bool = False
    """The step is to be done apart from all other work; see ``Run.deaths``."""
    kind: Literal["ask_auxiliary"] = "ask_auxiliary"


CallEffect = RunTool | AskAuxiliary
"""The effects of a tool call."""
Effect = Iterate | Prepare | CallEffect
TurnEffect = Iterate | Prepare
"""The effects of a run itself, and not of one of its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDelivery:
    """Make attempt ``attempt`` (1-based) at a delivery. It belongs to no run: it follows from the end of one."""

    run_id: str
    """The run it reports on, or the delivery's own id; for logs."""
    delivery_id: str
    attempt: int
    is_suspect: bool = False
    """The attempt is to be made apart from all other work."""
    kind: Literal["send_delivery"] = "send_delivery"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """Collect what a job's run needs before it can be built: its script's output, its skills. There is no run yet."""

    run_id: str
    """A name of the firing, for logs."""
    firing_id: int
    kind: Literal["collect"] = "collect"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHook:
    """Call an observer about a committed event. It is no step of the run: it follows from one."""

    run_id: str
    event_id: str
    hook: str
    attempt: int
    """1 for the first."""
    kind: Literal["call_hook"] = "call_hook"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherArtifacts:
    """Store the files that a run left in its workspace. It is no step of the run: it follows from its end."""

    run_id: str
    attempt: int
    """1 for the first."""
    kind: Literal["gather_artifacts"] = "gather_artifacts"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFile:
    """Fetch a file of a message from its platform. It is no step: the run that it belongs to has not begun."""

    run_id: str
    file_id: int
    attempt: int
    """1 for the first."""
    kind: Literal["fetch_file"] = "fetch_file"


def list_outstanding(run: Run) -> frozenset[Effect]:
    """Everything that has to happen next and is not claimed, read from the state alone.

    A step sends what an event *added* to this set; the sweeper sends again what is in it and stays unclaimed. They
    cannot disagree, because there is no second definition of what is due.
    """
    if run.status.is_terminal or run.status.is_parked:
        return frozenset()
    due = run.open_segment
    if due:
        return frozenset(build_call_effect(run, call) for call in due if call.status is CallStatus.PENDING)
    if run.is_asking or run.status is RunStatus.STOPPING:
        return frozenset()
    return frozenset({build_turn_effect(run)})


def build_turn_effect(run: Run) -> TurnEffect:
    """The effect that continues ``run`` when none of its calls is open, whether or not it is due."""
    if run.wants_preparing:
        return Prepare(run_id=run.run_id, attempt=run.attempt, is_suspect=run.is_suspect)
    return Iterate(run_id=run.run_id, iteration=run.iteration + 1, attempt=run.attempt, is_suspect=run.is_suspect)


def build_call_effect(run: Run, call: Call) -> CallEffect:
    """The effect that continues ``call``, whether or not it is due."""
    effect = AskAuxiliary if call.asks else RunTool
    return effect(
        run_id=run.run_id,
        iteration=run.iteration,
        position=call.position,
        attempt=call.attempt,
        is_suspect=call.is_suspect,
    )


def build_first_effect(run_id: str, *, prepares: bool) -> TurnEffect:
    """The effect of a run that begins."""
    return build_turn_effect(Run(run_id=run_id, is_prepared=not prepares))
