"""Composition root: settings in, connected parts out. Nothing else knows how the parts fit together.

What only a worker needs (providers, tools, workspaces) is imported where a worker is built: the SDKs alone take most of
a second, and the API, beat and every short command would pay for it.
"""

from __future__ import annotations

import math
import os
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from hermes_worker import plugins
from hermes_worker.broker.queue import HintPublisher, QueueName, build_redis_client
from hermes_worker.core.hooks import build_observed
from hermes_worker.features.object_storage.build import build_object_parts
from hermes_worker.features.object_storage.parts_files import ObjectParts
from hermes_worker.features.skills.build import build_asked_calls, build_shelf, build_skill_policy
from hermes_worker.features.skills.shelf_files import SkillShelf
from hermes_worker.live_settings import LiveSettings, build_live_settings
from hermes_worker.local.paths import find_broker_url
from hermes_worker.settings import Settings
from hermes_worker.settings.overriding import Overrides
from hermes_worker.store.artifacts.contents import ContentStore
from hermes_worker.store.build import build_database, build_sealer, build_sweep_policy
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.pooler import require_statements_kept
from hermes_worker.store.revisions import require_current
from hermes_worker.store.runs.runs import Runs
from hermes_worker.store.runs.status_reasons import Standings
from hermes_worker.store.runs.trees import Trees
from hermes_worker.store.runs.views import Views
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.runs.writers import RunWriters
from hermes_worker.store.text_keys import check_keys as begin_sealing
from hermes_worker.store.tool_sources import ToolSources
from hermes_worker.store.workers import Workers
from hermes_worker.tracing.beginning import trace_if_wanted
from hermes_worker.tracing.recording import find_traceparent, flush_spans, get_recorder, record_ends

if TYPE_CHECKING:
    from hermes_worker.agent.tools.base import ToolPolicies
    from hermes_worker.agent.tools.catalog import ToolCatalog
    from hermes_worker.core.effects import GatherArtifacts
    from hermes_worker.features.mcp_servers.work import ServerLister
    from hermes_worker.features.retention.rows import Pruner
    from hermes_worker.hosting.host import ResourceHost
    from hermes_worker.store.sweep import Sweeper
    from hermes_worker.tasks.build import SharedParts, WorkerOptions
    from hermes_worker.tasks.context import WorkerContext, WorkerModels
    from hermes_worker.tasks.deliver import DeliveryContext
    from hermes_worker.tasks.heartbeat import NudgeListener, WorkerKeeper
    from hermes_worker.tasks.inbound_files import FetchingContext
    from hermes_worker.tasks.jobs.collect import CollectingContext
    from hermes_worker.tasks.processes import ProcessWatcher
    from hermes_worker.tasks.remote_tasks import TaskCloser
    from hermes_worker.tasks.tool_sources import ToolLister
    from hermes_worker.tasks.workspace_gc import WorkspaceCollector
    from hermes_worker.workspaces.remote.targets import TidiedTarget


_POOL_SIZE = 12
"""Database connections per process: transactions are short, so many more threads than this share them."""
SWITCH_INTERVAL_S = 0.05
"""Seconds that a thread may compute before another one can interrupt it. Each thread that waits for the interpreter
wakes after this time to ask for it; with Python's 5 ms, hundreds of them spend most of the CPU on asking. Ours wait for
sockets all the time and give way by themselves. 500 streams in a process: 184 us of CPU per chunk with 5 ms, 58 with
100 (docs/benchmarks.md).
"""
FEATURES_AT_WORK = (
    "hermes_worker.features.artifacts.build",
    "hermes_worker.features.checkpoints.build",
    "hermes_worker.features.checkpoints.work",
    "hermes_worker.features.forks.work",
    "hermes_worker.features.mcp_servers.build",
    "hermes_worker.features.memory.build",
    "hermes_worker.features.memory.review_work",
    "hermes_worker.features.memory.work",
    "hermes_worker.features.provider_keys.build",
    "hermes_worker.features.retention.build",
    "hermes_worker.features.retention.work",
    "hermes_worker.features.skills.work",
)
"""What the functions here import of features for a worker: a process that forks workers imports it before."""
_COMPUTING_AT_ONCE = 4
"""Model tasks that compute or wait for the database at the same time. One at a time would leave the interpreter idle
while the database works; 2, 4 and 8 were measured with 1,000 calls in flight (docs/benchmarks.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The parts for accepting, watching and controlling runs, without those that run them."""

    settings: Settings
    database: Database
    runs: Runs
    views: Views
    standings: Standings
    trees: Trees
    waits: Waits
    workers: Workers
    tool_sources: ToolSources
    skills: SkillShelf
    live_settings: LiveSettings
    publisher: HintPublisher
    redis: redis.Redis
    objects: ObjectParts

    @property
    def contents(self) -> ContentStore:
        """The store for the contents of files that runs leave."""
        return self.objects.contents

    def close(self) -> None:
        self.database.close()
        self.redis.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcess:
    """The parts of one worker process, with its threads running."""

    pid: int
    parts: WorkerContext
    deliveries: DeliveryContext
    collecting: CollectingContext
    gather_artifacts: Callable[[GatherArtifacts, float], None]
    """Keeps the files that a run left; called with when its message was hinted."""
    fetching: FetchingContext
    runs: Runs
    sweeper: Sweeper
    pruner: Pruner
    prune_files: Callable[[], object]
    """Removes the files of this machine that the rules let go."""
    keeper: WorkerKeeper
    listener: NudgeListener
    lister: ToolLister
    looker: ServerLister | None
    places: WorkspaceCollector
    watcher: ProcessWatcher
    closer: TaskCloser
    database: Database

    def close(self) -> None:
        """Release all claims and end the threads. Idempotent."""
        self.keeper.stop()
        self.listener.stop()
        self.lister.stop()
        if self.looker is not None:
            self.looker.stop()
        self.places.stop()
        self.watcher.stop()
        self.closer.stop()
        self.parts.leases.retire()
        flush_spans()
        self.database.close()


def open_database(settings: Settings, *, home: Path | None = None) -> Database:
    """Open the database of ``settings``, at this version's schema. ``home`` is where the files are that rows name, if
    it is not that of the settings. Raises ``ConfigurationError``, ``UnavailableError``.
    """
    found = plugins.begin_extensions(settings)  # before anything is connected, so that no transaction waits for it
    observed = build_observed((hook.name, hook.events) for hook in found.hooks.values())
    sealer = build_sealer(settings)
    database = build_database(settings, pool_size=_POOL_SIZE, observed=observed, sealer=sealer, home=home)
    require_current(database)
    require_statements_kept(database)
    begin_sealing(database)
    return database


def open_client(settings: Settings) -> Client:
    """Connect to the database and the broker of ``settings``. Raises ``ConfigurationError``, ``UnavailableError``."""
    database = open_database(settings)
    return build_client(settings, database, build_redis_client(find_broker_url(settings)))


def find_object_target(settings: Settings, database: Database) -> TidiedTarget | None:
    """The workspaces in object storage; ``None`` where none is set up."""
    return build_object_parts(settings, database).target


def build_client(settings: Settings, database: Database, broker: redis.Redis) -> Client:
    """Build the client that ``open_client`` does, over existing connections."""
    return Client(
        settings=settings,
        database=database,
        runs=Runs(database),
        views=Views(database),
        standings=Standings(database),
        trees=Trees(database),
        waits=Waits(database),
        workers=Workers(database),
        tool_sources=ToolSources(database),
        skills=build_shelf(settings, database),
        live_settings=build_live_settings(settings, database),
        publisher=HintPublisher(broker, traceparent=find_traceparent),
        redis=broker,
        objects=build_object_parts(settings, database),
    )


def start_worker_process(settings: Settings, options: WorkerOptions | None = None) -> WorkerProcess:
    """Build the parts of a worker and start its threads. Raises ``ConfigurationError``, ``UnavailableError``."""
    from hermes_worker.features.artifacts.build import build_gathering_parts
    from hermes_worker.features.artifacts.work import gather_artifacts
    from hermes_worker.features.mcp_servers.build import build_address_lister
    from hermes_worker.features.retention.build import build_pruner
    from hermes_worker.features.retention.work import prune_files
    from hermes_worker.models.build import build_pricing
    from hermes_worker.store.sweep import Sweeper
    from hermes_worker.tasks import build as steps
    from hermes_worker.tasks.heartbeat import NudgeListener

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    client = open_client(settings)
    # A worker that is frozen in the middle of a transaction would hold its locks until it wakes up.
    client.database.end_idle_transactions(settings.lease.ttl_s)
    shared = _build_shared_parts(client, options or steps.WorkerOptions())
    parts, deliveries = _build_step_parts(shared, client), steps.build_delivery_parts(shared)
    collecting = steps.build_collecting_parts(shared, deliveries.dispatcher, client.skills)
    trace_if_wanted(settings, shared.options.role, client.database)
    tell = None if get_recorder() is None else record_ends
    sweeper = Sweeper(client.database, build_sweep_policy(settings), build_pricing(settings), tell=tell)
    pruner = build_pruner(client.database, settings)
    keeper = steps.build_keeper(shared, sweeper, pruner)
    listener = NudgeListener(client.redis, shared.leases, client.runs.load_nudged)
    lister = steps.build_tool_lister(shared, parts.catalog)
    looker = build_address_lister(shared)
    if looker is not None:
        looker.start()
    places = steps.build_workspace_collector(shared, pruner)
    watcher = steps.build_process_watcher(shared, parts)
    closer = steps.build_task_closer(shared, parts)
    for thread in (keeper, listener, lister, places, watcher, closer):
        thread.start()
    return WorkerProcess(
        pid=os.getpid(),
        parts=parts,
        deliveries=deliveries,
        collecting=collecting,
        gather_artifacts=partial(gather_artifacts, build_gathering_parts(shared, parts)),
        fetching=steps.build_fetching_parts(shared),
        runs=client.runs,
        sweeper=sweeper,
        pruner=pruner,
        prune_files=partial(prune_files, settings.home, pruner, outputs_kept=settings.cron.outputs_kept),
        keeper=keeper,
        listener=listener,
        lister=lister,
        looker=looker,
        places=places,
        watcher=watcher,
        closer=closer,
        database=client.database,
    )


def _build_shared_parts(client: Client, options: WorkerOptions) -> SharedParts:
    """Build the shared parts, and register the process among the workers."""
    from hermes_worker.tasks.build import SharedParts, build_redactor
    from hermes_worker.tasks.leases import Leases
    from hermes_worker.workspaces.build import build_sandbox, make_sharing_check

    settings = client.settings
    sandbox = build_sandbox(settings, make_sharing_check(client.database))
    leases = Leases(
        client.workers,
        name=options.name or f"{socket.gethostname()}:{os.getpid()}",
        queues=",".join(options.queues),
        ttl_s=settings.lease.ttl_s,
        slots=options.slots if QueueName.MODEL in options.queues else None,
        sends_with=options.list_sending_variables(settings),
        sandbox=lambda: sandbox.known_name,
    )
    leases.register()
    return SharedParts(
        settings=settings,
        options=options,
        database=client.database,
        redis=client.redis,
        publisher=client.publisher,
        leases=leases,
        sandbox=sandbox,
        redactor=build_redactor(settings),
        contents=client.contents,
        open_keeper=client.objects.open_keeper,
        fetch_files=client.objects.fetch_files,
        object_target=client.objects.target,
    )


def build_step_parts(client: Client, options: WorkerOptions | None, models: WorkerModels) -> WorkerContext:
    """Build the parts for iterations, tool calls and auxiliary calls over these models, and register the process among
    the workers. Starts no thread: leases are renewed when a step needs them."""
    from hermes_worker.tasks.build import WorkerOptions

    return _build_step_parts(_build_shared_parts(client, options or WorkerOptions()), client, models)


def _build_step_parts(shared: SharedParts, client: Client, models: WorkerModels | None = None) -> WorkerContext:
    """Build the parts for iterations, tool calls and auxiliary calls. The providers of the settings are used unless
    ``models`` is given."""
    from hermes_worker.features.checkpoints.build import build_checkpointing
    from hermes_worker.features.forks.work import ForkedCallRows
    from hermes_worker.features.memory.build import make_memory_check
    from hermes_worker.features.provider_keys.build import build_tenant_watch
    from hermes_worker.store.inbound_files import InboundFiles
    from hermes_worker.store.runs.auxiliary import AuxiliaryCalls
    from hermes_worker.store.runs.calls import ToolCalls
    from hermes_worker.store.runs.processes import Processes
    from hermes_worker.store.runs.remote_tasks import RemoteTasks
    from hermes_worker.store.runs.transcripts import Transcripts
    from hermes_worker.stream.live import Live
    from hermes_worker.tasks import build as steps
    from hermes_worker.tasks.context import RunRules, WorkerContext, WorkerRows
    from hermes_worker.tasks.fair_semaphore import FairSemaphore
    from hermes_worker.workspaces.build import build_copy_rule, make_workspace_opener

    settings, database = shared.settings, client.database
    compactor = steps.build_compactor(shared)
    rules = RunRules(
        delegation=steps.build_delegation_policy(settings),
        approvals=steps.build_approval_rules(settings),
        guardrails=steps.build_guardrail_rules(settings),
        model=steps.build_model_options(settings, compactor=compactor),
        checkpoints=build_checkpointing(settings),
        forks=ForkedCallRows(database),
        **build_rules_of_features(database, settings, {}),
    )
    return WorkerContext(
        rows=WorkerRows(
            runs=client.runs,
            calls=ToolCalls(database),
            waits=client.waits,
            auxiliary_calls=AuxiliaryCalls(database),
            transcripts=Transcripts(database),
            now=database.read_clock,
            files=InboundFiles(database),
            remote_tasks=RemoteTasks(database),
            processes=Processes(database),
        ),
        models=models or steps.build_worker_models(shared, partial(build_tenant_watch, settings, database)),
        rules=rules,
        sender=client.publisher,
        leases=shared.leases,
        live=Live(client.redis),
        catalog=_build_catalog(shared, client.skills),
        workspace=make_workspace_opener(
            settings, shared.sandbox, build_copy_rule(settings, database), shared.open_keeper
        ),
        hooks=steps.build_worker_hooks(shared, make_memory_check(settings, database)),
        fair_semaphore=FairSemaphore(_COMPUTING_AT_ONCE),
        redactor=shared.redactor,
        overridden_by=steps.make_override_builder(shared, compactor, partial(build_rules_of_features, database)),
    )


def build_rules_of_features(database: Database, settings: Settings, said: Overrides) -> dict[str, Any]:
    """Build the fields of ``RunRules`` that features fill. ``said`` holds the settings in which a run differs from its
    process.
    """
    from hermes_worker.features.memory.build import build_review_starter

    found: dict[str, Any] = {"policies": build_tool_policies(settings, said)}
    if not said or any(key.startswith(("memory.", "skills.")) for key in said):
        found["reviewing"] = build_review_starter(database, settings, build_skill_policy(settings))
    return found


def build_tool_policies(settings: Settings, said: Overrides) -> ToolPolicies:
    """The policies for tools under these settings; ``said`` are the settings that differ from those of the process."""
    from hermes_worker.agent.tools.base import ToolPolicies
    from hermes_worker.agent.tools.builtin import COMMAND_S_MAX
    from hermes_worker.features.memory.build import build_memory_policy

    return ToolPolicies(
        of_features=(build_memory_policy(settings), build_skill_policy(settings)),
        asked=build_asked_calls(settings),
        command_s=min(COMMAND_S_MAX, math.ceil(settings.terminal.timeout_s)),
        network=settings.terminal.network if "terminal.network" in said else None,
    )


def _build_catalog(shared: SharedParts, skills: SkillShelf) -> ToolCatalog:
    """Build the catalogue of tools of this process; tools are loaded only where they are called."""
    from hermes_worker.agent.fetching import AddressFetcher
    from hermes_worker.agent.tools.catalog import build_default_catalog
    from hermes_worker.browser.build import build_browser_services
    from hermes_worker.features.mcp_servers.build import build_row_services
    from hermes_worker.features.memory.rows import Memories
    from hermes_worker.features.memory.work import AgentMemories
    from hermes_worker.features.skills.work import AgentSkills
    from hermes_worker.models.build import build_grants_at
    from hermes_worker.net.urls import UrlPolicy
    from hermes_worker.store.jobs.jobs import Jobs
    from hermes_worker.store.outbox.deliveries import Deliveries
    from hermes_worker.store.resources import Resources
    from hermes_worker.tasks.agent_messages import AgentMessages
    from hermes_worker.tasks.agent_sessions import AgentSessions
    from hermes_worker.tasks.build import load_what_runs_here
    from hermes_worker.workspaces.build import list_passed_on
    from scheduler.agent_jobs import AgentJobs

    database = shared.database
    policy = UrlPolicy(allows_private=shared.settings.agent.allow_private_urls)
    catalog = build_default_catalog(
        *shared.options.more_tools,
        services={
            "jobs": AgentJobs(Jobs(database)),
            "memories": AgentMemories(Memories(database), RunWriters(database).load_writers),
            "skills": AgentSkills(
                skills,
                Views(database).load_tools,
                writers_of=RunWriters(database).load_writers,
                variables=list_passed_on(shared.settings),
            ),
            "messages": AgentMessages(
                Deliveries(database), Jobs(database), shared.publisher.send, shared.settings.gateway.rules
            ),
            "fetching": AddressFetcher(policy=policy),
            "past_sessions": AgentSessions(database),
            "resources": Resources(database),
            **build_browser_services(shared.settings, database, policy),
            **build_row_services(shared, policy),
            "grants": partial(build_grants_at, database),
        },
    )
    load_what_runs_here(shared, catalog)
    return catalog


def build_mcp_host(settings: Settings, database: Database, *, name: str, alive_file: Path | None) -> ResourceHost:
    """Build the host of the MCP servers that have a command. Raises ``ConfigurationError``, ``OSError``."""
    from hermes_worker.features.mcp_servers.build import build_row_finder
    from hermes_worker.mcp.build import build_server_host

    find_row = build_row_finder(settings, database)
    return build_server_host(settings, database, find_row, name=name, alive_file=alive_file)


def start_process_lister(settings: Settings, database: Database) -> ServerLister | None:
    """Start the lister of tenants' MCP servers that have a command; ``None`` where the operator allows no commands."""
    from hermes_worker.features.mcp_servers.build import build_process_lister

    lister = build_process_lister(settings, database)
    if lister is not None:
        lister.start()
    return lister


def load_workspace_states(settings: Settings, database: Database, sessions: Collection[str]) -> Mapping[str, str]:
    """Load for each of these sessions that exists whether its workspace is ``at work`` or ``quiet``."""
    from hermes_worker.features.retention.build import build_pruner

    return build_pruner(database, settings).load_workspace_states(sessions)
