"""The parts that a task body works with. The simulation passes other objects with the same methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hermes_worker.agent.tools.base import Tool, ToolPolicies, ToolResult
from hermes_worker.agent.tools.catalog import ToolCatalog
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.delegation import DelegationPolicy
from hermes_worker.core.guardrails import GuardrailRules
from hermes_worker.core.hooks import NOT_OBSERVED, Observed
from hermes_worker.core.pricing import Price
from hermes_worker.core.sources import EVALUATION_SOURCE
from hermes_worker.models.chain import ModelRoute
from hermes_worker.models.credentials import FirstKey, KeyPool
from hermes_worker.models.governor import CallGovernor, NoGovernor
from hermes_worker.models.key_watch import KeyStateLookup, NoKeyStates
from hermes_worker.safety.redaction import Redactor
from hermes_worker.store.hooks.calls import HookCalls
from hermes_worker.store.inbound_files import InboundFiles
from hermes_worker.store.rows import Hint, RunRecord
from hermes_worker.store.runs.auxiliary import AuxiliaryCalls
from hermes_worker.store.runs.calls import CallClaim, ToolCalls
from hermes_worker.store.runs.processes import Processes
from hermes_worker.store.runs.remote_tasks import RemoteTasks
from hermes_worker.store.runs.runs import IterationClaim, Runs, SessionContext
from hermes_worker.store.runs.transcripts import Transcripts
from hermes_worker.store.runs.waits import Waits
from hermes_worker.stream.live import Live
from hermes_worker.tasks.calls.approval_rules import ApprovalRules
from hermes_worker.tasks.hooks.running import HookRunner
from hermes_worker.tasks.iteration.requests import ModelOptions
from hermes_worker.tasks.leases import Leases
from hermes_worker.workspaces.base import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHooks:
    """The hooks of a worker process, and the store that records their outcomes."""

    runner: HookRunner = field(default_factory=HookRunner)
    store: HookCalls | None = None
    """``None`` where there are no hooks."""
    observed: Observed = field(default_factory=lambda: NOT_OBSERVED)
    may_remember: Callable[[str], bool] = lambda run_id: True
    """Whether a run may write memories: memory providers are asked about such runs only."""
    memory_tools: frozenset[str] = frozenset()
    """The tools of the memory provider."""


class ModelChain(Protocol):
    """``models.chain.ProviderChain``."""

    def __len__(self) -> int: ...

    def list_credentials(self, model: str, position: int) -> Sequence[str]: ...

    def resolve_route(self, model: str, position: int, credential: str = "") -> ModelRoute: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantModels:
    """The providers that a tenant's model calls go to."""

    chain: ModelChain
    auxiliary: Mapping[str, ModelChain]
    """Providers for single tasks beside the conversation."""


class TenantModelLookup(Protocol):
    """The providers of tenants that have provider keys of their own. Implemented by
    ``models.tenant_watch.TenantKeyWatch``.
    """

    @property
    def is_empty(self) -> bool: ...

    def find(self, tenant: str) -> TenantModels | None: ...


class NoTenantKeys:
    """No tenant has keys of its own."""

    is_empty = True

    def find(self, tenant: str) -> TenantModels | None:
        return None


class Sender(Protocol):
    """Sends hints and reads the depths of queues, as ``queue.HintPublisher`` does."""

    def send(self, hints: Sequence[Hint]) -> int: ...

    def count_waiting(self) -> Mapping[str, int] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAtWork:
    """A claimed tool call that is about to run."""

    claim: CallClaim
    session: SessionContext
    workspace: Workspace
    tool: Tool
    arguments: Mapping[str, Any]


class CheckpointKeeper(Protocol):
    """Keeps the files of a workspace before a call. Implemented by ``features.checkpoints.work.Checkpointing``."""

    def keep_checkpoint(self, call: CallAtWork, abort: AbortSignal) -> None:
        """Keep what the call may change. Raises nothing."""
        ...


class ReviewBeginner(Protocol):
    """Begins reviews behind runs. Implemented by ``features.memory.review_work.ReviewStarter``."""

    def begin_review(self, claim: IterationClaim, session: SessionContext) -> list[Hint]:
        """Begin the review that is due behind a run that has just answered, and return what to send. Raises nothing
        for a database that is away."""
        ...


class ForkedCalls(Protocol):
    """Answers the calls of forks from rows. Implemented by ``features.forks.work.ForkedCallRows``."""

    def find_answer(self, claim: CallClaim) -> ToolResult | None:
        """Find the result that stands in for a call of a session that was forked; ``None`` when the call may run.
        Raises ``UnavailableError``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRows:
    """The rows that the steps of runs read and write."""

    runs: Runs
    calls: ToolCalls
    waits: Waits
    auxiliary_calls: AuxiliaryCalls
    transcripts: Transcripts
    now: Callable[[], float]
    """Epoch seconds by the database's clock."""
    files: InboundFiles | None = None
    """Files of messages that belong into workspaces."""
    remote_tasks: RemoteTasks | None = None
    """The rows of tasks that servers work on."""
    processes: Processes | None = None
    """The rows of background processes; ``None`` where none can be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerModels:
    """The providers that model calls go to, and the keys that they use."""

    chain: ModelChain
    """The providers of the conversation; empty (``NoChain``) in a worker that makes no model calls."""
    auxiliary: Mapping[str, ModelChain] = field(default_factory=dict)
    """Providers for calls beside the conversation, by the name of their task."""
    of_tenants: TenantModelLookup = field(default_factory=NoTenantKeys)
    """The providers of tenants that have provider keys of their own, in place of ``chain`` and ``auxiliary``."""
    governor: CallGovernor = field(default_factory=NoGovernor)
    """Decides when a model may be asked, over all workers."""
    pool: KeyPool = field(default_factory=FirstKey)
    """Decides which of a provider's several keys a turn uses."""
    keys: KeyStateLookup = field(default_factory=NoKeyStates)
    """The states of keys: a key without money, or whose server is down, is not used."""
    prices: Mapping[tuple[str, str], Price] = field(default_factory=dict)
    """The installation's own prices, by provider and model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRules:
    """What the settings decide about the steps of a run. A run that overrides settings has its own."""

    delegation: DelegationPolicy = field(default_factory=DelegationPolicy)
    approvals: ApprovalRules = field(default_factory=ApprovalRules)
    """The rules by which commands need permission."""
    guardrails: GuardrailRules = field(default_factory=GuardrailRules)
    """The rules about an agent that repeats itself in vain."""
    policies: ToolPolicies = field(default_factory=ToolPolicies)
    """What the settings decide for tools."""
    model: ModelOptions = field(default_factory=ModelOptions)
    calls_max: int = 64
    """Tool calls one reply may ask for."""
    reviewing: ReviewBeginner | None = None
    """Begins reviews of conversations behind their turns; ``None`` where there are none."""
    checkpoints: CheckpointKeeper | None = None
    """Where the files of a workspace are kept before a call changes them; ``None`` where they are not."""
    forks: ForkedCalls | None = None
    """Judges the calls of forks; ``None`` in a worker that has no rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """Everything a worker process needs to run tasks."""

    rows: WorkerRows
    models: WorkerModels
    rules: RunRules = field(default_factory=RunRules)
    sender: Sender
    leases: Leases
    live: Live
    catalog: ToolCatalog
    workspace: Callable[[str], Workspace]
    """Opens the workspace a session's stored description names."""
    hooks: WorkerHooks = field(default_factory=WorkerHooks)
    """Foreign code that is asked before a step is written."""
    fair_semaphore: AbstractContextManager[None] = field(default_factory=nullcontext)
    """Entered by a model task for what it computes and writes, never while it waits for a model or sleeps."""
    redactor: Redactor = field(default_factory=Redactor)
    """Hides secrets in what tools return."""
    overridden_by: Callable[[WorkerContext, str], WorkerContext] = lambda parts, overrides: parts
    """Builds the context for a run that overrides settings, from ``RunSpec.overrides`` in canonical JSON."""
    commit_patience_s: float = 600.0
    """How many seconds a result is kept in memory for a database that is away, while its claim is not known to be lost.
    """

    def for_run(self, run: RunRecord) -> WorkerContext:
        """These parts, with the settings that the run was accepted with. An evaluation has no hooks, no reviews and no
        checkpoints."""
        parts = self if run.overrides is None else self.overridden_by(self, run.overrides)
        if run.origin != EVALUATION_SOURCE:
            return parts
        return replace(parts, hooks=WorkerHooks(), rules=replace(parts.rules, reviewing=None, checkpoints=None))

    def find_models(self, session_pk: int) -> TenantModels:
        """The providers that model calls of a session go to."""
        if not self.models.of_tenants.is_empty:
            own = self.models.of_tenants.find(self.rows.runs.load_session_context(session_pk).tenant)
            if own is not None:
                return own
        return TenantModels(chain=self.models.chain, auxiliary=self.models.auxiliary)
