"""Workers, the backlog and the states of provider keys, as the API answers them, the client returns them and commands
print them."""

from __future__ import annotations

from typing import Literal

from hermes_worker.core.effects import StepKind
from hermes_worker.resource import ListOf, Resource


class HeldStepObject(Resource):
    """A model call or a tool call that a worker is at work on."""

    kind: StepKind
    run_id: str
    tenant: str
    iteration: int
    position: int | None
    """The place of a tool call in its reply."""
    tool: str | None
    claimed_at: float
    """Epoch seconds."""


class WorkerObject(Resource):
    """A worker process that is alive. Times are epoch seconds."""

    object: Literal["hermes.worker"] = "hermes.worker"
    worker_id: str
    name: str
    queues: list[str]
    started_at: float
    expires_at: float
    """When its claims lapse, unless it renews them."""
    version: str | None
    """The version of its code, with the revision of the schema that it is written for."""
    slots: int | None
    """How many model calls it makes at once; ``null`` for one that makes none."""
    draining_at: float | None
    """When it began to leave, or was asked to; ``null`` while it takes work."""
    sandbox: str | None
    """The sandbox of its commands; ``null`` while it has run none."""
    held: dict[StepKind, int]
    """Claims by kind."""
    steps: list[HeldStepObject]
    """Model calls and tool calls among them, the oldest first; of a large fleet the oldest of all workers."""


class WorkerList(ListOf[WorkerObject]):
    """Live workers, in the order in which they came."""


class Draining(Resource):
    """A worker that was asked to leave."""

    object: Literal["hermes.worker.draining"] = "hermes.worker.draining"
    worker_id: str


class QueueBacklogObject(Resource):
    """The steps that wait for the workers of one queue, and the steps at work."""

    due: int
    """Steps that a worker could take now."""
    claimed: int
    """Steps at work."""
    oldest_age_s: float
    """How long the oldest due step has waited, in seconds; 0 when nothing is due."""
    step_s: float
    """What a step is taken to last, in seconds."""
    capacity_needed: int
    """How many steps should be at work at the same time; never fewer than ``claimed``."""


class BacklogObject(Resource):
    """What waits in the whole installation, by queue."""

    object: Literal["backlog"] = "backlog"
    queues: dict[str, QueueBacklogObject]


class KeyStateObject(Resource):
    """The state of one key of a provider. The key itself is never shown."""

    credential: str
    """A name for the key that reveals nothing of it."""
    provider: str
    condition: Literal["open", "no_money", "refused", "down"]
    since: float | None
    """Epoch seconds; ``null`` for a key that was never closed."""
    epoch: int
    """How often it was closed."""
    probes: int
    """How many calls have tried it in vain since it was closed."""
    probe_at: float | None
    """When the next one may; ``null`` while it is open."""
    is_probed: bool
    """A call is trying it now."""
    parked: int
    """Runs that wait for it."""
    reason: str | None
    """What the provider said, redacted and cut."""


class KeyStateList(ListOf[KeyStateObject]):
    """Keys of providers of which something is known; a key that never failed is not there."""
