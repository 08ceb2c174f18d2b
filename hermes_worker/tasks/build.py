"""Build from the settings what the bodies of tasks decide by."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis

from hermes_worker import installed, plugins
from hermes_worker.broker.queue import STANDING_QUEUES, HintPublisher, QueueName, list_lane_queues
from hermes_worker.channels.build import (
    FETCH_S,
    build_dispatcher,
    build_file_outbox,
    build_learnt_chats,
    make_transcriber,
)
from hermes_worker.core.budget import BudgetMode
from hermes_worker.core.credentials import Strategy
from hermes_worker.core.delegation import CHILD_TIMEOUT_S_MIN, DelegationPolicy
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.guardrails import GuardLimits, GuardrailRules
from hermes_worker.core.hooks import HOOK_EVENTS, MODEL_EVENTS, expand_events
from hermes_worker.core.pricing import parse_own_price
from hermes_worker.local.paths import get_processes_dir
from hermes_worker.models.build import (
    build_auxiliary_chains,
    build_chain,
    build_configured_limits,
    build_grants,
    build_key_rules,
    build_model_choice,
    build_named_choices,
    list_auxiliary_names,
)
from hermes_worker.models.credentials import CredentialPool, FirstKey
from hermes_worker.models.governor import Governor
from hermes_worker.models.key_watch import KeyWatch
from hermes_worker.role_needs import require_role_needs
from hermes_worker.safety.redaction import Redactor, is_secret_name
from hermes_worker.settings import Settings
from hermes_worker.settings.overriding import Overrides, override_settings
from hermes_worker.settings.role_secrets import ProcessRole
from hermes_worker.store.engine.database import Database
from hermes_worker.store.key_states import KeyStates
from hermes_worker.store.restore_detection import is_copy
from hermes_worker.store.runs.runs import Runs
from hermes_worker.store.runs.views import Views
from hermes_worker.store.sweep import Sweeper
from hermes_worker.store.tool_sources import ToolSources
from hermes_worker.workspaces.build import (
    build_command_limits,
    build_copy_rule,
    find_workspace_target,
    make_workspace_opener,
)

if TYPE_CHECKING:
    from hermes_worker.agent.prompt.compactors import Compactor
    from hermes_worker.agent.tools.base import Tool
    from hermes_worker.agent.tools.catalog import ToolCatalog
    from hermes_worker.channels.dispatcher import Dispatcher
    from hermes_worker.core.offered_skills import SkillLibrary
    from hermes_worker.models.chain import ModelChoice
    from hermes_worker.models.tenant_watch import TenantKeyWatch
    from hermes_worker.store.artifacts.contents import ContentStore
    from hermes_worker.tasks.calls.approval_rules import ApprovalRules
    from hermes_worker.tasks.context import TenantModels, WorkerContext, WorkerHooks, WorkerModels
    from hermes_worker.tasks.deliver import DeliveryContext
    from hermes_worker.tasks.heartbeat import LaneStarter, RowPruner, WorkerKeeper
    from hermes_worker.tasks.inbound_files import FetchingContext
    from hermes_worker.tasks.iteration.requests import ModelOptions
    from hermes_worker.tasks.jobs.collect import CollectingContext
    from hermes_worker.tasks.leases import Leases
    from hermes_worker.tasks.processes import ProcessWatcher
    from hermes_worker.tasks.remote_tasks import TaskCloser
    from hermes_worker.tasks.tool_sources import ToolLister
    from hermes_worker.tasks.workspace_gc import WorkspaceCollector, WorkspaceNeeds
    from hermes_worker.workspaces.base import FileKeeper
    from hermes_worker.workspaces.remote.targets import TidiedTarget
    from hermes_worker.workspaces.sandbox.backends import Sandbox


_OVERRIDES_KNOWN_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options in which worker processes differ under the same settings."""

    name: str | None = None
    """Shown to people, and known to a supervisor; ``None`` for host and process number."""
    queues: Sequence[str] = tuple(name.value for name in STANDING_QUEUES)
    """The queues this process consumes."""
    slots: int = 1
    """Tasks that it does at once."""
    alive_file: Path | None = None
    """Touched at every heartbeat, for a liveness probe that only looks at its age."""
    ready_file: Path | None = None
    """Made when it begins to consume, and removed when it begins to leave."""
    more_tools: Sequence[Tool] = ()
    """Tools beside the installed ones; the crash lab brings its own."""
    has_beat: bool = False
    """Whether a scheduler lives in the same process."""
    lanes: LaneStarter | None = None
    """Starts lanes for this process's suspects. ``None`` in a lane."""

    @property
    def is_lane(self) -> bool:
        """Whether this process does suspects, one at a time, and nothing else."""
        return any(QueueName(queue).is_for_lanes for queue in self.queues)

    @property
    def role(self) -> str:
        """The first of its queues, for those who tell roles apart; ``worker`` for one that consumes all."""
        if set(self.queues) >= {name.value for name in STANDING_QUEUES}:
            return "worker"
        return self.queues[0].removeprefix("suspect_")

    def list_sending_variables(self, settings: Settings) -> frozenset[str] | None:
        """List the names of the variables that a process which delivers has for platforms; ``None`` for another one."""
        if QueueName.DELIVERY not in self.queues:
            return None
        from hermes_worker.channels.readiness import list_set_variables

        return list_set_variables(settings.environ)


def build_compactor(shared: SharedParts) -> Compactor | None:
    """The compactor that the settings name, in a worker that makes model calls. Raises ``ConfigurationError``."""
    if not {QueueName.MODEL, QueueName.SUSPECT_MODEL} & set(shared.options.queues):
        return None
    if shared.settings.model.compactor == "summary":
        return build_summary_compactor(shared.settings)
    chosen: Compactor = plugins.build_compactor(shared.settings.model.compactor)
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParts:
    """The parts that all others of a worker process are built from."""

    settings: Settings
    options: WorkerOptions
    database: Database
    redis: redis.Redis
    publisher: HintPublisher
    leases: Leases
    sandbox: Sandbox
    redactor: Redactor
    contents: ContentStore
    """Where the files that runs leave are kept."""
    open_keeper: Callable[[str], FileKeeper] | None = None
    """Opens what keeps the files of a workspace in object storage; ``None`` where that is not set up."""
    fetch_files: Callable[[str], None] = lambda workspace: None
    """Brings the files of a workspace to this machine, where they are in object storage. Raises nothing."""
    object_target: TidiedTarget | None = None
    """The workspaces in object storage."""


def build_worker_models(shared: SharedParts, watch_tenants: Callable[[], TenantKeyWatch[TenantModels]]) -> WorkerModels:
    """Build the providers and keys; empty ones for a worker that makes no model calls: its tools leave auxiliary calls
    to others. ``watch_tenants`` builds the watch over the keys of tenants.
    """
    from hermes_worker.models.chain import NoChain
    from hermes_worker.models.tenant_watch import PoolWhereNeeded
    from hermes_worker.tasks.context import WorkerModels

    settings, database = shared.settings, shared.database
    governor = Governor(shared.redis, build_configured_limits(settings))
    prices = dict(parse_own_price(text) for text in settings.model.prices)
    if not {QueueName.MODEL, QueueName.SUSPECT_MODEL} & set(shared.options.queues):
        return WorkerModels(chain=NoChain(), governor=governor, prices=prices)
    chain = build_chain(settings, build_grants(settings, database))
    of_tenants = watch_tenants()
    watch = KeyWatch(KeyStates(database, build_key_rules(settings)))
    for each in (watch, of_tenants):
        each.poll_once()
        each.start()

    def has_pools() -> bool:
        return chain.has_pools or any(getattr(each.chain, "has_pools", False) for each in of_tenants.list_built())

    pool = PoolWhereNeeded(CredentialPool(shared.redis, Strategy(settings.model.key_strategy)), FirstKey(), has_pools)
    auxiliary = build_auxiliary_chains(settings)
    return WorkerModels(
        chain=chain,
        auxiliary=auxiliary,
        of_tenants=of_tenants,
        governor=governor,
        pool=pool,
        keys=watch,
        prices=prices,
    )


def make_override_builder(
    shared: SharedParts, compactor: Compactor | None, of_features: Callable[[Settings, Overrides], Mapping[str, object]]
) -> Callable[[WorkerContext, str], WorkerContext]:
    """Build the function that makes the parts for a run with settings of its own. The parts that hold connections stay
    the same. ``of_features`` returns those that features build from settings and what differs in them.
    """
    settings = shared.settings

    @lru_cache(_OVERRIDES_KNOWN_MAX)
    def build_overridden(overrides: str) -> tuple[dict[str, Any], dict[str, Any]]:
        said = json.loads(overrides)
        chosen = override_settings(settings, said)
        is_built_in = compactor is not None and settings.model.compactor == "summary"
        rules = {
            "delegation": build_delegation_policy(chosen),
            "approvals": build_approval_rules(chosen),
            "guardrails": build_guardrail_rules(chosen),
            "model": build_model_options(
                chosen, compactor=build_summary_compactor(chosen) if is_built_in else compactor
            ),
            **of_features(chosen, said),
        }
        if (limits := build_command_limits(chosen)) == build_command_limits(settings):
            return rules, {}
        sandbox, rule = shared.sandbox.with_limits(limits), build_copy_rule(settings, shared.database)
        return rules, {"workspace": make_workspace_opener(settings, sandbox, rule, shared.open_keeper)}

    def override(parts: WorkerContext, overrides: str) -> WorkerContext:
        rules, others = build_overridden(overrides)
        return replace(parts, rules=replace(parts.rules, **rules), **others)

    return override


def load_what_runs_here(shared: SharedParts, catalog: ToolCatalog) -> None:
    """Load what a worker of these queues will call, so that a missing setting or package is reported now, and nothing
    is imported in the middle of a step. Raises ``ConfigurationError``.
    """
    queues = {QueueName(queue) for queue in shared.options.queues}
    require_role_needs(shared.settings, {ProcessRole(queue.value.removeprefix("suspect_")) for queue in queues})
    found = installed.list_foreign()
    if queues & {QueueName.TOOLS, QueueName.SUSPECT_TOOLS}:
        catalog.load_all()
        plugins.preload_references([kind.implementation for one in found for kind in one.workspaces])
    if queues & {QueueName.MODEL, QueueName.SUSPECT_MODEL}:
        plugins.preload_references([wire.implementation for one in found for wire in one.wires])
    if queues & {QueueName.DELIVERY, QueueName.SUSPECT_DELIVERY}:
        from hermes_worker.channels.adapters import list_sendings

        sendings = [sending for one in found for sending in list_sendings(one)]
        plugins.preload_references([place for one in sendings for place in (one.send, one.credentials)])


def build_process_watcher(shared: SharedParts, parts: WorkerContext) -> ProcessWatcher:
    """Build the watcher of background processes, which is on in a worker for tools, since that reaches their
    workspaces.
    """
    from hermes_worker.store.runs.processes import Processes
    from hermes_worker.tasks.processes import ProcessWatcher, WatchContext

    watching = WatchContext(
        rows=Processes(shared.database),
        calls=parts.rows.calls,
        sender=parts.sender,
        workspace=parts.workspace,
        processes_dir=get_processes_dir(shared.settings.home),
        redactor=shared.redactor,
        turns_max=parts.rules.delegation.turns_max,
    )
    return ProcessWatcher(watching, is_on=QueueName.TOOLS in shared.options.queues)


def build_task_closer(shared: SharedParts, parts: WorkerContext) -> TaskCloser:
    """Build the closer of remote tasks, which is on in a worker for tools with tool sources."""
    from hermes_worker.store.runs.remote_tasks import RemoteTasks
    from hermes_worker.tasks.remote_tasks import TaskCloser

    has_any = bool(installed.get_installed().tool_sources) or shared.settings.mcp.has_rows
    has_sources = has_any and QueueName.TOOLS in shared.options.queues
    return TaskCloser(RemoteTasks(shared.database), parts.catalog.get_source, is_on=has_sources)


def build_worker_hooks(shared: SharedParts, may_remember: Callable[[str], bool]) -> WorkerHooks:
    """Build the hooks that this process calls: those about model calls where these are made, all others beside the
    tools. ``may_remember`` says whether a run may write memories. Raises ``ConfigurationError`` for a hook that cannot
    be loaded.
    """
    from hermes_worker.store.hooks.calls import HookCalls
    from hermes_worker.tasks.context import WorkerHooks
    from hermes_worker.tasks.hooks.running import HookRunner, load_hooks

    found, queues = installed.get_installed(), {QueueName(queue) for queue in shared.options.queues}
    if not found.hooks:
        return WorkerHooks()
    called: set[str] = set()
    if queues & {QueueName.MODEL, QueueName.SUSPECT_MODEL}:
        called |= MODEL_EVENTS
    if queues & {QueueName.TOOLS, QueueName.SUSPECT_TOOLS}:
        called |= HOOK_EVENTS.keys() - MODEL_EVENTS
    plugins.preload_references(
        [hook.implementation for hook in found.hooks.values() if called & set(expand_events(hook.events))]
    )
    return WorkerHooks(
        runner=HookRunner(load_hooks(found, called)),
        store=HookCalls(shared.database),
        observed=shared.database.observed,
        may_remember=may_remember,
        memory_tools=frozenset(tool.name for one in found.list_bringing("memory_providers") for tool in one.tools),
    )


def build_tool_lister(shared: SharedParts, catalog: ToolCatalog) -> ToolLister:
    """Build the lister of tool sources, in a worker for tools; in any other it has no source to ask."""
    from hermes_worker.tasks.tool_sources import ToolLister

    declared = installed.get_installed().tool_sources if QueueName.TOOLS in shared.options.queues else {}
    sources = {name: (one, catalog.get_source(name)) for name, one in declared.items()}
    return ToolLister(sources, ToolSources(shared.database), catalog.names)


def build_workspace_collector(shared: SharedParts, needs: WorkspaceNeeds) -> WorkspaceCollector:
    """Build the keeper of remote workspaces, in a worker for tools, which may reach them."""
    from hermes_worker.tasks.workspace_gc import WorkspaceCollector

    settings = shared.settings
    is_ours = QueueName.TOOLS in shared.options.queues and not shared.options.is_lane
    places = [place for place in (find_workspace_target(settings), shared.object_target) if place and is_ours]
    return WorkspaceCollector(places, needs, settings.terminal.remote_idle_s, partial(is_copy, shared.database))


def build_delivery_parts(shared: SharedParts) -> DeliveryContext:
    from hermes_worker.store.outbox.deliveries import Deliveries
    from hermes_worker.store.runs.views import load_progress
    from hermes_worker.stream.live import read_reply_text
    from hermes_worker.tasks.deliver import DeliveryContext
    from hermes_worker.tasks.previews import ChatPace

    settings = shared.settings
    dispatcher = replace(build_dispatcher(settings), learnt=build_learnt_chats(shared.database))
    return DeliveryContext(
        outbox=Deliveries(shared.database),
        views=Views(shared.database),
        dispatcher=dispatcher,
        sender=shared.publisher,
        leases=shared.leases,
        attachments=partial(build_file_outbox, settings, fetch_files=shared.fetch_files),
        filters_silence=settings.delivery.filter_silence,
        secrets=(*dispatcher.secrets, *(secret.reveal() for secret in settings.secrets)),
        pace=ChatPace(governor=Governor(shared.redis)),
        written=partial(read_reply_text, shared.redis),
        progress=partial(load_progress, shared.database),
    )


def build_collecting_parts(shared: SharedParts, dispatcher: Dispatcher, skills: SkillLibrary) -> CollectingContext:
    """Build the parts for collecting the scripts and skills of jobs."""
    from hermes_worker.store.jobs.executions import Executions
    from hermes_worker.tasks.jobs.collect import CollectingContext

    settings = shared.settings
    return CollectingContext(
        executions=Executions(shared.database),
        dispatcher=dispatcher,
        sender=shared.publisher,
        leases=shared.leases,
        home=settings.home,
        skills=skills,
        environ=settings.environ,
        env_passthrough=settings.terminal.env_passthrough,
        sandbox=shared.sandbox,
        free_bytes_min=settings.terminal.free_mb_min * 1024**2,
        script_timeout_s=settings.cron.script_timeout_s,
        redactor=shared.redactor,
        umask=settings.terminal.umask,
    )


def build_fetching_parts(shared: SharedParts) -> FetchingContext:
    """Build the parts for fetching files that people send."""
    from hermes_worker.channels.downloads import FileDownloader
    from hermes_worker.store.inbound_files import InboundFiles
    from hermes_worker.tasks.inbound_files import FetchingContext

    said = shared.settings.gateway
    return FetchingContext(
        files=InboundFiles(shared.database),
        downloads=FileDownloader(
            values=shared.settings.variables, bytes_max=said.file_mb_max * 1024**2, total_s=FETCH_S
        ),
        sender=shared.publisher,
        leases=shared.leases,
        hear=make_transcriber(said),
    )


def build_keeper(shared: SharedParts, sweeper: Sweeper, pruner: RowPruner) -> WorkerKeeper:
    from hermes_worker.store.search.indexing import Indexer
    from hermes_worker.tasks.heartbeat import WorkerKeeper

    options = shared.options
    return WorkerKeeper(
        leases=shared.leases,
        sweeper=sweeper,
        pruner=pruner,
        sender=shared.publisher,
        stopping=Runs(shared.database).find_stopping,
        queues=options.queues,
        sweep_every_s=shared.settings.lease.sweep_interval_s,
        alive_file=options.alive_file,
        suspects=list_lane_queues(options.queues),
        lanes=options.lanes,
        indexer=None if options.is_lane else Indexer(shared.database),
        is_lane=options.is_lane,
    )


def build_model_options(settings: Settings, *, compactor: Compactor | None = None) -> ModelOptions:
    """The options of model calls. ``compactor`` is the one that the settings name; ``None`` where no model is asked."""
    from hermes_worker.agent.prompt.compactors import SUMMARY
    from hermes_worker.models.identity import identify_endpoint
    from hermes_worker.tasks.iteration.requests import ModelOptions

    model = settings.model
    return ModelOptions(
        endpoint=identify_endpoint(model),
        window=model.window,
        output_tokens_max=model.output_tokens_max,
        reasoning_effort=model.reasoning_effort,
        attempts_max=model.attempts_max,
        compacts=model.compacts,
        compact_at=model.compact_at,
        compact_models_at=model.compact_models_at,
        compactor=compactor or SUMMARY,
    )


def build_delegation_policy(settings: Settings) -> DelegationPolicy:
    asked = settings.delegation
    return DelegationPolicy(
        children_max=asked.children_max,
        depth_max=asked.depth_max,
        iterations_max=asked.iterations_max,
        budget=BudgetMode(asked.budget),
        timeout_s=max(asked.timeout_s, CHILD_TIMEOUT_S_MIN) if asked.timeout_s else None,
        model=asked.model,
        turns_max=asked.turns_max,
    )


def build_redactor(settings: Settings) -> Redactor:
    """Build the redactor of tool results, which also hides the secrets of this installation that commands may print."""
    from hermes_worker.channels.dispatcher import Dispatcher

    passed_on = {name: settings.environ.get(name, "") for name in settings.terminal.env_passthrough}
    known = (
        *(secret.reveal() for secret in settings.secrets),
        *Dispatcher(values=settings.environ, directory=settings.home).secrets,
        *(value for name, value in passed_on.items() if is_secret_name(name)),
    )
    return Redactor(is_on=settings.agent.redact_secrets, known=tuple(dict.fromkeys(known)))


def build_approval_rules(settings: Settings) -> ApprovalRules:
    """The settings about dangerous commands."""
    from hermes_worker.safety.approvals import ApprovalMode, UnattendedMode
    from hermes_worker.tasks.calls.approval_rules import ApprovalRules

    chosen = settings.approvals
    sources = {
        "cli": chosen.cli,
        "api": chosen.api,
        "cron": chosen.cron,
        "webhook": chosen.webhook,
        "delegation": chosen.delegation,
    }
    return ApprovalRules(
        mode=ApprovalMode(chosen.mode),
        timeout_s=chosen.timeout_s,
        deny=chosen.deny,
        allowed=frozenset(chosen.allowed),
        by_source={source: UnattendedMode(outcome) for source, outcome in sources.items()},
    )


def build_guardrail_rules(settings: Settings) -> GuardrailRules:
    """The settings about agents that repeat themselves in vain."""
    chosen = settings.tool_loop_guardrails
    return GuardrailRules(
        warns=chosen.warns,
        stops=chosen.stops,
        warn_after=GuardLimits(
            exact_failure=chosen.warn_exact_failure,
            same_tool_failure=chosen.warn_same_tool_failure,
            no_progress=chosen.warn_no_progress,
        ),
        stop_after=GuardLimits(
            exact_failure=chosen.stop_exact_failure,
            same_tool_failure=chosen.stop_same_tool_failure,
            no_progress=chosen.stop_no_progress,
        ),
    )


def build_tenant_models(settings: Settings) -> dict[str, TenantModels]:
    """The providers of tenants that have provider keys in the settings: the same as those of others, and never with a
    key of the installation. Raises ``ConfigurationError`` for an unknown provider.
    """
    from hermes_worker.models.catalog import find_provider, list_provider_rows

    held: dict[str, dict[str, list[str]]] = {}
    for each in settings.model.tenant_keys:
        row = find_provider(each.provider) or list_provider_rows().get(each.provider)
        if row is None:
            raise ConfigurationError(
                f"model.tenant_keys (HERMES_TENANT_KEYS) names the provider {each.provider!r}, which is not in the "
                f"catalogue: choose one of {', '.join(list_provider_rows())}"
            )
        held.setdefault(each.tenant, {}).setdefault(row.name, []).append(each.key.reveal())
    return {tenant: build_models_of_tenant(settings, tenant, keys) for tenant, keys in held.items()}


def build_models_of_tenant(settings: Settings, tenant: str, keys: Mapping[str, Sequence[str]]) -> TenantModels:
    from hermes_worker.models.chain import ProviderChain, is_usable
    from hermes_worker.models.factory import find_provider_row
    from hermes_worker.models.tenant_keys import WithoutKey, with_own_keys
    from hermes_worker.tasks.context import TenantModels

    def choose_own(choices: Sequence[ModelChoice]) -> list[ModelChoice]:
        return [own for choice in choices if (own := with_own_keys(choice, keys)) is not None]

    primary = build_model_choice(settings)
    own = with_own_keys(primary, keys)
    if own is None:
        return TenantModels(chain=WithoutKey(tenant, find_provider_row(primary).name), auxiliary={})
    chain = ProviderChain(own, choose_own(build_named_choices(settings, settings.model.fallbacks)))
    named = {
        task: choose_own(build_named_choices(settings, names)) for task, names in list_auxiliary_names(settings).items()
    }
    usable = {task: [choice for choice in choices if is_usable(choice)] for task, choices in named.items()}
    auxiliary = {task: ProviderChain(choices[0], choices[1:]) for task, choices in usable.items() if choices}
    return TenantModels(chain=chain, auxiliary=auxiliary)


def build_summary_compactor(settings: Settings) -> Compactor:
    from hermes_worker.agent.prompt.compaction import ProtectedRows
    from hermes_worker.agent.prompt.compactors import SummaryCompactor

    model = settings.model
    return SummaryCompactor(
        ProtectedRows(
            head_rows=model.compact_head_rows,
            tail_rows=model.compact_tail_rows,
            tail_part=model.compact_tail_part,
        )
    )
