"""Composition root: settings in, connected parts out. Nothing else knows how the parts fit together.

What only a worker needs (providers, tools, workspaces) is imported where a worker is built: the SDKs alone take most of
a second, and the API, beat and every short command would pay for it.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import redis
from sqlalchemy import make_url

from hermes_worker import installed, plugins
from hermes_worker.broker.queue import STANDING_QUEUES, HintPublisher, QueueName, build_redis_client, list_lane_queues
from hermes_worker.core.budget import BudgetMode
from hermes_worker.core.credentials import Strategy
from hermes_worker.core.delegation import CHILD_TIMEOUT_S_MIN, DelegationPolicy
from hermes_worker.core.errors import ConfigurationError, UnavailableError
from hermes_worker.core.guardrails import GuardLimits, GuardrailRules
from hermes_worker.core.hooks import HOOK_EVENTS, MODEL_EVENTS, NOT_OBSERVED, Observed, build_observed, expand_events
from hermes_worker.core.key_states import KeyRules
from hermes_worker.core.logins import Login
from hermes_worker.core.messages import Usage
from hermes_worker.core.pricing import Cost, Pricing, parse_own_price
from hermes_worker.features.checkpoints.rules import CheckpointLimits
from hermes_worker.features.mcp_servers.rules import is_row_source
from hermes_worker.features.memory.review_rules import ReviewPolicy
from hermes_worker.features.memory.rules import MemoryPolicy, MemoryTarget, MemoryWriter
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.features.retention.rules import DEFAULT_RULES, RetentionKind, RetentionRule, parse_rules
from hermes_worker.features.skills.change_rules import SkillPolicy, SkillWrites
from hermes_worker.features.skills.rows import Skills
from hermes_worker.features.skills.shelf_files import SkillShelf
from hermes_worker.live_settings import LiveSettings, build_live_settings
from hermes_worker.local.paths import (
    embedded_database_url,
    find_broker_url,
    list_spellings,
    output_dir,
    processes_dir,
    tenants_workspaces_dir,
)
from hermes_worker.models.credentials import CredentialPool, FirstKey, KeyPool
from hermes_worker.models.governor import ConfiguredLimits, Governor
from hermes_worker.models.key_watch import KeyStateLookup, KeyWatch, NoKeyStates
from hermes_worker.safety.redaction import Redactor, is_secret_name
from hermes_worker.safety.threats import ThreatScope, scan_text
from hermes_worker.settings import GatewaySettings, Settings
from hermes_worker.settings.kinds import NamedModel, parse_named_model
from hermes_worker.settings.overriding import Overrides, override_settings
from hermes_worker.settings.role_secrets import ProcessRole
from hermes_worker.settings.servers import parse_servers_url
from hermes_worker.settings.text_keys import load_current_keys
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.pooler import require_statements_kept
from hermes_worker.store.engine.sealing import PLAIN, Sealer, build_text_keys
from hermes_worker.store.key_states import KeyStates
from hermes_worker.store.outbox.alerts import AlertPolicy
from hermes_worker.store.restore_detection import is_copy
from hermes_worker.store.revisions import require_current
from hermes_worker.store.runs.runs import Runs
from hermes_worker.store.runs.status_reasons import Standings
from hermes_worker.store.runs.trees import Trees
from hermes_worker.store.runs.views import Views
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.sweep import Sweeper, SweepPolicy
from hermes_worker.store.text_keys import check_keys as begin_sealing
from hermes_worker.store.tool_sources import ToolSources
from hermes_worker.store.workers import Workers
from hermes_worker.stream.live import Live
from hermes_worker.tracing.beginning import trace_if_wanted
from hermes_worker.tracing.recording import find_traceparent, flush_spans, get_recorder, record_ends

if TYPE_CHECKING:
    from hermes_worker.agent.prompt.compactors import Compactor
    from hermes_worker.agent.tools.base import Tool, ToolPolicies
    from hermes_worker.agent.tools.catalog import ToolCatalog
    from hermes_worker.channels.dispatcher import Dispatcher
    from hermes_worker.channels.files import FileOutbox
    from hermes_worker.channels.learnt_chats import LearntChats
    from hermes_worker.channels.transcription import Transcription
    from hermes_worker.features.artifacts.work import GatheringContext
    from hermes_worker.features.checkpoints.work import Checkpointing
    from hermes_worker.features.memory.review_work import ReviewStarter
    from hermes_worker.hosting.host import ResourceHost
    from hermes_worker.mcp.rows import ServerLister
    from hermes_worker.mcp.servers import McpServer
    from hermes_worker.models.base import Provider
    from hermes_worker.models.chain import ModelChoice, ProviderChain
    from hermes_worker.models.endpoint import Endpoint
    from hermes_worker.models.factory import ProviderExtras
    from hermes_worker.models.login import TokenSource
    from hermes_worker.models.logins import Exchange, LoginTokens
    from hermes_worker.models.tenant_watch import TenantKeyWatch
    from hermes_worker.net.urls import UrlPolicy
    from hermes_worker.store.resources import ResourceView
    from hermes_worker.tasks.calls.approval_rules import ApprovalRules
    from hermes_worker.tasks.context import ModelChain as TaskChain
    from hermes_worker.tasks.context import TenantModelLookup, TenantModels, WorkerContext, WorkerHooks
    from hermes_worker.tasks.deliver import DeliveryContext
    from hermes_worker.tasks.heartbeat import LaneStarter, NudgeListener, WorkerKeeper
    from hermes_worker.tasks.inbound_files import FetchingContext
    from hermes_worker.tasks.iteration.requests import ModelOptions
    from hermes_worker.tasks.jobs.collect import CollectingContext
    from hermes_worker.tasks.leases import Leases
    from hermes_worker.tasks.processes import ProcessWatcher
    from hermes_worker.tasks.remote_tasks import TaskCloser
    from hermes_worker.tasks.tool_sources import ToolLister
    from hermes_worker.tasks.workspace_gc import WorkspaceCollector
    from hermes_worker.workspaces.base import Workspace
    from hermes_worker.workspaces.opening import CopyRule
    from hermes_worker.workspaces.remote.docker import DockerAccount
    from hermes_worker.workspaces.remote.kubernetes import KubernetesAccount
    from hermes_worker.workspaces.remote.ssh import SshAccount
    from hermes_worker.workspaces.remote.targets import WorkspaceTarget
    from hermes_worker.workspaces.sandbox.backends import Sandbox
    from hermes_worker.workspaces.sandbox.network import NetworkRules
    from hermes_worker.workspaces.sandbox.policy import CommandLimits

_TENANT_WORKSPACE_MB = 10_240
_KINDS_OF_ALL = ("docker", "kubernetes")
"""Kinds whose disks all tenants share."""
_TENANTS_EVERY_S = 10.0
_POOL_SIZE = 12
"""Database connections per process: transactions are short, so many more threads than this share them."""
SWITCH_INTERVAL_S = 0.05
"""Seconds that a thread may compute before another one can interrupt it. Each thread that waits for the interpreter
wakes after this time to ask for it; with Python's 5 ms, hundreds of them spend most of the CPU on asking. Ours wait for
sockets all the time and give way by themselves. 500 streams in a process: 184 us of CPU per chunk with 5 ms, 58 with
100 (docs/benchmarks.md).
"""
_OVERRIDES_KNOWN_MAX = 256
_WORKSPACES_OPEN_MAX = 1_000
"""How many opened workspaces are cached. Every session may have one of its own; opening one again costs less than a
millisecond.
"""
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

    def close(self) -> None:
        self.database.close()
        self.redis.close()


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
    lanes: LaneStarter | None = None
    """Starts lanes for this process's suspects. ``None`` in a lane."""

    @property
    def is_lane(self) -> bool:
        """Whether this process does suspects, one at a time, and nothing else."""
        return any(QueueName(queue).is_for_lanes for queue in self.queues)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcess:
    """The parts of one worker process, with its threads running."""

    pid: int
    parts: WorkerContext
    deliveries: DeliveryContext
    collecting: CollectingContext
    gathering: GatheringContext
    fetching: FetchingContext
    runs: Runs
    sweeper: Sweeper
    pruner: Pruner
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


def build_database(
    settings: Settings, *, pool_size: int = 10, observed: Observed = NOT_OBSERVED, sealer: Sealer = PLAIN
) -> Database:
    """Build the database of ``settings``, whatever its schema; ``observed`` says which hooks have to be called about
    what is written. Code that reads or writes texts needs ``build_sealer``. Nothing is connected yet. Raises
    ``ConfigurationError``.
    """
    url = settings.database.url or embedded_database_url(settings.home)
    prepares = settings.database.prepared_statements
    homes = list_spellings(settings.home)
    return Database(url, pool_size=pool_size, prepares=prepares, observed=observed, sealer=sealer, homes=homes)


def build_sealer(settings: Settings) -> Sealer:
    """Build the sealer, which encrypts and decrypts texts in the database. Raises ``ConfigurationError``."""
    keys, source = load_current_keys(settings)
    return Sealer(build_text_keys(keys), source) if keys or source else PLAIN


def open_database(settings: Settings) -> Database:
    """Open the database of ``settings``, at this version's schema. Raises ``ConfigurationError``,
    ``UnavailableError``.
    """
    found = plugins.begin_extensions(settings)  # before anything is connected, so that no transaction waits for it
    observed = build_observed((hook.name, hook.events) for hook in found.hooks.values())
    database = build_database(settings, pool_size=_POOL_SIZE, observed=observed, sealer=build_sealer(settings))
    require_current(database)
    require_statements_kept(database)
    begin_sealing(database)
    return database


def build_shelf(settings: Settings, database: Database) -> SkillShelf:
    """Build the shelf of skills of a database, and of the folders of this machine."""
    chosen = settings.skills
    return SkillShelf(Skills(database), settings.home, external=chosen.external_dirs, disabled=chosen.disabled)


def open_client(settings: Settings) -> Client:
    """Connect to the database and the broker of ``settings``. Raises ``ConfigurationError``, ``UnavailableError``."""
    database = open_database(settings)
    return build_client(settings, database, build_redis_client(find_broker_url(settings)))


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
    )


def build_learnt_chats(database: Database) -> LearntChats:
    """The chats that were learnt from people of the default tenant, whose names and home channels are targets."""
    from hermes_worker.channels.learnt_chats import LearntChats
    from hermes_worker.store.known_chats import KnownChats

    known = KnownChats(database)
    return LearntChats(homes_known=known.list_homes, named_known=known.find_by_name)


def build_dispatcher(settings: Settings) -> Dispatcher:
    """Build the dispatcher, which takes deliveries to their targets with the credentials of ``settings``."""
    from hermes_worker.channels.dispatcher import Dispatcher

    return Dispatcher(
        values=settings.environ,
        directory=output_dir(settings.home),
        allows_private=settings.delivery.allow_private_urls,
        channels=settings.delivery.channels,
        rules=settings.gateway.rules,
    )


def build_provider(settings: Settings) -> Provider:
    """Build the provider that the settings name. Raises ``ConfigurationError`` when a part of it is missing."""
    from hermes_worker.models.factory import shared_provider

    return shared_provider(*find_wire_and_endpoint(settings))


def find_endpoint(settings: Settings) -> Endpoint:
    """The endpoint to which ``build_provider`` would send model calls. Raises ``ConfigurationError`` when a part of it
    is missing.
    """
    return find_wire_and_endpoint(settings)[1]


def find_wire_and_endpoint(settings: Settings) -> tuple[str, Endpoint]:
    """The name of the wire, and the endpoint to which ``build_provider`` would send model calls. Raises
    ``ConfigurationError`` when a part of it is missing.
    """
    from hermes_worker.models import factory

    has_login = bool(settings.model.refresh_tokens)
    choice = _build_model_choice(settings)
    return factory.resolve_endpoint(choice, proxy_url=choice.proxy_url, needs_key=not has_login, extras=choice.extras)


def list_key_endpoints(settings: Settings) -> Iterator[tuple[str, tuple[str, Endpoint] | ConfigurationError]]:
    """The wires and endpoints beside that of ``find_wire_and_endpoint``: the same provider with its further keys, and
    the fallbacks with each of theirs; by a name for people, with the error where a part is missing.
    """
    from hermes_worker.models import factory

    named = zip(settings.model.fallbacks, _named_choices(settings, settings.model.fallbacks), strict=True)
    main = _build_model_choice(settings)
    choices: list[tuple[str, ModelChoice, Sequence[str | None]]] = [
        (settings.model.provider or "the model's server", main, main.more_keys),
        *((name, choice, (choice.api_key, *choice.more_keys)) for name, choice in named),
    ]
    for name, choice, keys in choices:
        for key in keys:
            try:
                one = replace(choice, api_key=key)
                yield name, factory.resolve_endpoint(one, proxy_url=choice.proxy_url, extras=choice.extras)
            except ConfigurationError as error:
                yield name, error


def build_chain(settings: Settings, grants: TokenSource | None = None) -> ProviderChain:
    """Build the chain of the provider that the settings name, and its fallbacks. Connects to nothing. Without
    ``grants`` only keys are used.
    """
    from hermes_worker.models.chain import ProviderChain

    return ProviderChain(
        _build_model_choice(settings), _named_choices(settings, settings.model.fallbacks), grants=grants
    )


def build_grants(settings: Settings, database: Database) -> LoginTokens | None:
    """The access tokens of the configured logins; ``None`` when there are none."""
    if not settings.model.refresh_tokens:
        return None
    from hermes_worker.models.logins import LoginTokens, exchange_over
    from hermes_worker.store.access.logins import Logins

    return LoginTokens(Logins(database), exchange_over(settings.model.proxy_url))


def build_grants_at(database: Database, exchange: Exchange) -> LoginTokens:
    """Access tokens for logins at servers of others, whose refresh tokens ``exchange`` sends."""
    from hermes_worker.models.logins import LoginTokens
    from hermes_worker.store.access.logins import Logins

    return LoginTokens(Logins(database), exchange)


def list_logins(settings: Settings) -> tuple[Login, ...]:
    """The logins that are configured."""
    model = settings.model
    return tuple(
        Login(
            token_url=model.token_url or "",
            refresh_token=token.reveal(),
            client_id=model.client_id or "",
            client_secret=model.client_secret.reveal() if model.client_secret else "",
        )
        for token in model.refresh_tokens
    )


def build_auxiliary_chains(settings: Settings) -> dict[str, ProviderChain]:
    """Build the chains for calls beside the conversation, by task; those without a key are left out."""
    from hermes_worker.models.chain import ProviderChain, is_usable

    named = _auxiliary_names(settings)
    usable = {task: [c for c in _named_choices(settings, names) if is_usable(c)] for task, names in named.items()}
    return {task: ProviderChain(choices[0], choices[1:]) for task, choices in usable.items() if choices}


def _auxiliary_names(settings: Settings) -> dict[str, Sequence[str]]:
    """The providers of calls beside the conversation, as the settings name them."""
    from hermes_worker.core.auxiliary import AuxTask

    model = settings.model
    return {
        AuxTask.COMPRESSION: model.compression_providers,
        AuxTask.TITLE: model.title_providers,
        AuxTask.APPROVAL: model.approval_providers,
        AuxTask.VISION: model.vision_providers,
        AuxTask.WEB_EXTRACT: model.web_extract_providers,
    }


def _named_choices(settings: Settings, named: Sequence[str]) -> list[ModelChoice]:
    """The settings of providers that are given in the form of ``setting_kinds.named_model``."""
    return [_named_choice(settings, name) for name in map(parse_named_model, named)]


def _named_choice(settings: Settings, name: NamedModel) -> ModelChoice:
    """The settings of one provider. A key variable that is named belongs to this entry, whatever its address: the same
    person wrote both.
    """
    from hermes_worker.models.chain import ModelChoice

    choice = ModelChoice(
        provider=name.provider,
        model=name.model,
        base_url=name.address,
        proxy_url=settings.model.proxy_url,
        extras=_build_extras(settings, name.provider),
    )
    if name.key_variable is None:
        return _add_keys(choice, _find_vendor_keys(settings, name.provider, name.address))
    key = settings.model.vendor_keys.get(name.key_variable)
    return _add_keys(choice, [key.reveal()] if key is not None else [])


def _build_extras(settings: Settings, provider: str | None, base_url: str | None = None) -> ProviderExtras:
    """The further settings of this provider, under any of its names."""
    from hermes_worker.models.catalog import find_provider, provider_of_host
    from hermes_worker.models.factory import ProviderExtras

    row = find_provider(provider) if provider else provider_of_host(base_url or "")
    names = (row.name, *row.aliases) if row is not None else (provider or "custom",)
    said = settings.model.find_options(*names)
    return ProviderExtras(region=said.region, service_tier=said.service_tier, headers=said.headers, body=said.body)


def _build_model_choice(settings: Settings) -> ModelChoice:
    from hermes_worker.models.chain import ModelChoice

    model = settings.model
    choice = ModelChoice(
        base_url=model.base_url,
        model=model.name or "",
        api_mode=model.api_mode,
        provider=model.provider,
        proxy_url=model.proxy_url,
        logins=list_logins(settings),
        extras=_build_extras(settings, model.provider, model.base_url),
    )
    keys = _find_vendor_keys(settings, model.provider, model.base_url)
    if model.api_key:
        given = model.api_key.reveal()
        # A key of our own variable stands in for the vendor's; one that was taken from there brings its siblings.
        keys = [given, *(keys if given in keys else ())]
    return _add_keys(choice, [*keys, *(key.reveal() for key in model.more_keys)])


def _add_keys(choice: ModelChoice, keys: Sequence[str]) -> ModelChoice:
    first, *more = dict.fromkeys(keys) or (None,)
    return replace(choice, api_key=first, more_keys=tuple(key for key in more if key))


def _find_vendor_keys(settings: Settings, provider: str | None, base_url: str | None) -> list[str]:
    """The provider's keys from its usual variables; never for an address that is not its own. Servers that people run
    themselves (``vllm``) have no address of their own, so their keys are sent to the configured one.
    """
    from hermes_worker.models.catalog import find_provider, provider_of_host

    at_address = provider_of_host(base_url or "")
    row = find_provider(provider) if provider else at_address
    is_theirs = row is at_address or (row is not None and row.is_own_server and at_address is None)
    if row is None or (base_url and not is_theirs):
        return []
    held = settings.model.vendor_keys
    first = next((name for name in row.key_variables if name in held), None)
    if first is None:
        return []
    return [held[name].reveal() for name in (first, *(f"{first}_{n}" for n in range(1, 100))) if name in held]


def build_model_options(settings: Settings, *, compactor: Compactor | None = None) -> ModelOptions:
    """The options of model calls. ``compactor`` is the one that the settings name; ``None`` where no model is asked."""
    from hermes_worker.agent.prompt.compactors import SUMMARY
    from hermes_worker.models.identity import endpoint_identity
    from hermes_worker.tasks.iteration.requests import ModelOptions

    model = settings.model
    return ModelOptions(
        endpoint=endpoint_identity(model),
        window=model.window,
        output_tokens_max=model.output_tokens_max,
        reasoning_effort=model.reasoning_effort,
        attempts_max=model.attempts_max,
        compacts=model.compacts,
        compact_at=model.compact_at,
        compact_models_at=model.compact_models_at,
        compactor=compactor or SUMMARY,
    )


def _configured_limits(settings: Settings) -> ConfiguredLimits:
    model = settings.model
    return ConfiguredLimits(
        requests_per_min=model.requests_per_min,
        tokens_per_min=model.tokens_per_min,
        in_flight_max=model.in_flight_max,
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


def build_retention_rules(settings: Settings) -> dict[RetentionKind, RetentionRule]:
    """The retention rules of tenants without rules of their own."""
    return {**DEFAULT_RULES, **parse_rules(settings.retention.rules)}


def build_pruner(database: Database, settings: Settings) -> Pruner:
    return Pruner(database, build_retention_rules(settings))


def prune_files_here(database: Database, settings: Settings) -> dict[RetentionKind, int]:
    """Remove the files of this machine's home that the rules let go; return how many of each kind."""
    from hermes_worker.tasks.maintenance import prune_files

    return prune_files(settings.home, build_pruner(database, settings), outputs_kept=settings.cron.outputs_kept)


def remove_files_here(home: Path, tenant: str, sessions: Sequence[str], jobs: Sequence[str]) -> Mapping[str, int]:
    """Remove this machine's files of erased sessions and jobs. Idempotent."""
    from hermes_worker.tasks.maintenance import remove_files

    return remove_files(home, tenant, sessions, jobs)


def build_sweep_policy(settings: Settings) -> SweepPolicy:
    return SweepPolicy(
        interval_s=min(settings.lease.sweep_interval_s, settings.lease.ttl_s / 8),
        ttl_s=settings.lease.ttl_s,
        resend_grace_s=settings.lease.resend_grace_s,
        alerts=build_alert_policy(settings),
    )


def build_alert_policy(settings: Settings) -> AlertPolicy:
    """The policy of alerts: the targets that are told of problems."""
    delivery = settings.delivery
    return AlertPolicy(targets=delivery.alert_targets, backlog_age_s=delivery.alert_backlog_age_s)


def build_pricing(settings: Settings) -> Pricing:
    """The prices of model calls, for code that cannot ask a provider: the sweeper, also where no provider is set up."""
    from hermes_worker.models.catalog import find_provider, provider_of_host
    from hermes_worker.models.prices import cost_of

    model = settings.model
    row = (find_provider(model.provider) if model.provider else None) or provider_of_host(model.base_url or "")
    first = model.provider or (row.name if row else "custom")
    own = dict(parse_own_price(text) for text in model.prices)
    others = [(name.provider, name.model) for name in map(parse_named_model, model.fallbacks)]

    def cost(asked_for: str, position: int, usage: Usage) -> Cost:
        provider, name = (first, asked_for) if not position or not others else others[min(position, len(others)) - 1]
        return cost_of(usage, provider=provider, model=name, own_prices=own)

    return cost


def _list_passed_on(settings: Settings) -> frozenset[str]:
    """Variables that commands have because the operator passes them on, as far as they are set."""
    return frozenset(name for name in settings.terminal.env_passthrough if settings.environ.get(name))


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
        asks_for_skills=settings.skills.writes == SkillWrites.ASK,
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


def _build_file_outbox(settings: Settings, workspace: str) -> FileOutbox:
    """The files that an answer of a run in ``workspace`` may take along."""
    from hermes_worker.channels.files import FileOutbox
    from hermes_worker.channels.media import list_denied_prefixes
    from hermes_worker.workspaces.ref import WorkspaceRef

    return FileOutbox(
        root=WorkspaceRef.from_json(workspace).root,
        more_roots=settings.delivery.media_dirs,
        denied=list_denied_prefixes(str(Path.home()), str(settings.home)),
        is_strict=settings.delivery.media_strict,
    )


def build_sandbox(settings: Settings, is_shared: Callable[[], bool] = lambda: False) -> Sandbox:
    """Build the sandbox that confines commands; what works on this machine is tried when it is first asked for.
    ``is_shared`` returns whether there are other tenants than the default one.
    """
    import hermes_worker
    from hermes_worker.net.urls import UrlPolicy
    from hermes_worker.workspaces.sandbox.backends import Sandbox
    from hermes_worker.workspaces.sandbox.network import EgressRules
    from hermes_worker.workspaces.sandbox.policy import (
        Profile,
        SandboxMode,
        SandboxPolicy,
        find_unseen,
        hidden_paths,
    )
    from hermes_worker.workspaces.sandbox.proxy import EgressProxy

    chosen = settings.terminal
    home = settings.environ.get("HOME")
    hidden = tuple(
        dict.fromkeys(str(Path(path).resolve()) for path in hidden_paths(home, tuple(_list_private_paths(settings))))
    )
    interpreter = (sys.prefix, sys.base_prefix, str(Path(hermes_worker.__file__).parent))
    profile = Profile(chosen.profile)
    policy = SandboxPolicy(
        profile=profile,
        egress=EgressRules(
            hosts=chosen.network_hosts, ports=EgressRules().ports | {int(port) for port in chosen.network_ports}
        ),
        readable=find_unseen(interpreter, profile, hidden),
        hidden=hidden,
        limits=build_command_limits(settings),
    )
    guests = replace(policy, profile=Profile.TENANT, readable=find_unseen(interpreter, Profile.TENANT, hidden))
    default = SandboxMode.AUTO if settings.server.is_loopback else SandboxMode.REQUIRE
    return Sandbox(
        SandboxMode(chosen.sandbox) if chosen.sandbox else default,
        policy,
        network=build_network_rules(settings),
        proxy=EgressProxy(UrlPolicy(allows_private=settings.agent.allow_private_urls)),
        may_call_us=chosen.allow_hermes_worker,
        guests=guests,
        is_shared=is_shared if chosen.sandbox is None else lambda: False,
    )


def build_command_limits(settings: Settings) -> CommandLimits:
    """The limits of a command on this machine."""
    from hermes_worker.workspaces.sandbox.policy import CommandLimits

    chosen = settings.terminal
    return CommandLimits(
        processes=chosen.processes_max,
        open_files=chosen.open_files_max,
        file_bytes=chosen.file_mb_max and chosen.file_mb_max * 1024**2,
        memory_bytes=chosen.memory_mb_max and chosen.memory_mb_max * 1024**2,
        cpu_s=chosen.cpu_s_max,
    )


def build_network_rules(settings: Settings) -> NetworkRules:
    """The networks of commands, by the origin of their run."""
    from hermes_worker.workspaces.sandbox.network import Network, NetworkRules

    chosen = settings.terminal
    return NetworkRules(
        people=Network(chosen.network),
        api=Network(chosen.network_api) if chosen.network_api else None,
        unattended=Network(chosen.network_unattended) if chosen.network_unattended else None,
        is_api_local=settings.server.is_loopback,
    )


def workspace_bytes_max(settings: Settings, root: str | None = None, kind: str = "local") -> int:
    """Bytes that a workspace may hold; 0 for no limit. ``root`` is its directory."""
    chosen = settings.terminal.workspace_mb_max
    if chosen is None:
        is_guests = root is not None and Path(root).is_relative_to(tenants_workspaces_dir(settings.home))
        is_limited = is_guests or settings.terminal.profile == "tenant" or kind in _KINDS_OF_ALL
        chosen = _TENANT_WORKSPACE_MB if is_limited else 0
    return chosen * 1024**2


def _make_sharing_check(database: Database) -> Callable[[], bool]:
    """Build the check whether there are other tenants than the default one, looked up a few times a minute at most.
    While the database is away it answers that there are.
    """
    is_shared, look_at = False, 0.0

    def looked_up() -> bool:
        nonlocal is_shared, look_at
        if not is_shared and time.monotonic() >= look_at:
            try:
                is_shared = Tenants(database).has_others()
            except UnavailableError:
                return True
            look_at = time.monotonic() + _TENANTS_EVERY_S
        return is_shared

    return looked_up


_OF_CLIENT_KEYS = ("sslkey", "ssl_keyfile")
"""Options of URLs that name the private key of a client certificate: libpq's and redis-py's."""


def _list_private_paths(settings: Settings) -> Iterator[str]:
    """The files and directories of the product that no command may see."""
    yield str(settings.home)
    yield from settings.secret_files.values()
    if settings.server.tls_key is not None:
        yield str(settings.server.tls_key)
    for url in (settings.database.url, settings.broker.url):
        options = dict(parse_qsl(parse_servers_url(url or "").query))
        yield from (options[name] for name in _OF_CLIENT_KEYS if name in options)
    if settings.database.url and settings.database.url.startswith("sqlite"):
        file = make_url(settings.database.url).database
        if file and file != ":memory:":
            yield from (f"{file}{ending}" for ending in ("", "-journal", "-shm", "-wal"))
    if settings.broker.client_url and settings.broker.client_url.startswith("unix://"):
        yield unquote(urlsplit(settings.broker.client_url).path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WorkerModels:
    """The providers and keys of a worker's model calls."""

    chain: TaskChain
    auxiliary: Mapping[str, TaskChain]
    pool: KeyPool
    keys: KeyStateLookup
    of_tenants: TenantModelLookup
    """For tenants that have keys of their own."""


def _build_models(settings: Settings, options: WorkerOptions, client: Client) -> _WorkerModels:
    """Build the providers and keys; empty ones for a worker that makes no model calls: its tools leave auxiliary calls
    to others.
    """
    from hermes_worker.models.chain import NoChain
    from hermes_worker.models.tenant_watch import PoolWhereNeeded
    from hermes_worker.tasks.context import NoTenantKeys

    if not {QueueName.MODEL, QueueName.SUSPECT_MODEL} & set(options.queues):
        return _WorkerModels(
            chain=NoChain(), auxiliary={}, pool=FirstKey(), keys=NoKeyStates(), of_tenants=NoTenantKeys()
        )
    chain = build_chain(settings, build_grants(settings, client.database))
    of_tenants = build_tenant_watch(settings, client.database)
    watch = KeyWatch(KeyStates(client.database, build_key_rules(settings)))
    for each in (watch, of_tenants):
        each.poll_once()
        each.start()

    def has_pools() -> bool:
        return chain.has_pools or any(getattr(each.chain, "has_pools", False) for each in of_tenants.list_built())

    pool = PoolWhereNeeded(CredentialPool(client.redis, Strategy(settings.model.key_strategy)), FirstKey(), has_pools)
    auxiliary = build_auxiliary_chains(settings)
    return _WorkerModels(chain=chain, auxiliary=auxiliary, pool=pool, keys=watch, of_tenants=of_tenants)


def build_tenant_watch(settings: Settings, database: Database) -> TenantKeyWatch[TenantModels]:
    """Build the watch over tenants' provider keys in rows, or in the settings. Nothing is read yet. Raises
    ``ConfigurationError``.
    """
    from hermes_worker.features.provider_keys.rows import ProviderKeys
    from hermes_worker.models.tenant_watch import TenantKeyWatch

    build = partial(_build_models_of_tenant, settings)
    return TenantKeyWatch(ProviderKeys(database), build, build_tenant_models(settings))


def build_key_rules(settings: Settings) -> KeyRules:
    """When keys of providers are closed, and how often they are tried."""
    model = settings.model
    return KeyRules(
        probe_first_s=model.probe_first_s,
        probe_max_s=max(model.probe_first_s, model.probe_max_s),
    )


def build_tenant_models(settings: Settings) -> dict[str, TenantModels]:
    """The providers of tenants that have provider keys in the settings: the same as those of others, and never with a
    key of the installation. Raises ``ConfigurationError`` for an unknown provider.
    """
    from hermes_worker.models.catalog import find_provider, provider_rows

    held: dict[str, dict[str, list[str]]] = {}
    for each in settings.model.tenant_keys:
        row = find_provider(each.provider) or provider_rows().get(each.provider)
        if row is None:
            raise ConfigurationError(
                f"model.tenant_keys (HERMES_TENANT_KEYS) names the provider {each.provider!r}, which is not in the "
                f"catalogue: choose one of {', '.join(provider_rows())}"
            )
        held.setdefault(each.tenant, {}).setdefault(row.name, []).append(each.key.reveal())
    return {tenant: _build_models_of_tenant(settings, tenant, keys) for tenant, keys in held.items()}


def _build_models_of_tenant(settings: Settings, tenant: str, keys: Mapping[str, Sequence[str]]) -> TenantModels:
    from hermes_worker.models.chain import ProviderChain, is_usable
    from hermes_worker.models.factory import find_provider_row
    from hermes_worker.models.tenant_keys import WithoutKey, with_own_keys
    from hermes_worker.tasks.context import TenantModels

    def owned(choices: Sequence[ModelChoice]) -> list[ModelChoice]:
        return [own for choice in choices if (own := with_own_keys(choice, keys)) is not None]

    primary = _build_model_choice(settings)
    own = with_own_keys(primary, keys)
    if own is None:
        return TenantModels(chain=WithoutKey(tenant, find_provider_row(primary).name), auxiliary={})
    chain = ProviderChain(own, owned(_named_choices(settings, settings.model.fallbacks)))
    named = {task: owned(_named_choices(settings, names)) for task, names in _auxiliary_names(settings).items()}
    usable = {task: [choice for choice in choices if is_usable(choice)] for task, choices in named.items()}
    auxiliary = {task: ProviderChain(choices[0], choices[1:]) for task, choices in usable.items() if choices}
    return TenantModels(chain=chain, auxiliary=auxiliary)


def _build_compactor(shared: _SharedParts) -> Compactor | None:
    """The compactor that the settings name, in a worker that makes model calls. Raises ``ConfigurationError``."""
    if not {QueueName.MODEL, QueueName.SUSPECT_MODEL} & set(shared.options.queues):
        return None
    if shared.settings.model.compactor == "summary":
        return _build_builtin_compactor(shared.settings)
    chosen: Compactor = plugins.build_compactor(shared.settings.model.compactor)
    return chosen


def _build_builtin_compactor(settings: Settings) -> Compactor:
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


def _load_what_runs_here(shared: _SharedParts, catalog: ToolCatalog) -> None:
    """Load what a worker of these queues will call, so that a missing setting or package is reported now, and nothing
    is imported in the middle of a step. Raises ``ConfigurationError``.
    """
    queues = {QueueName(queue) for queue in shared.options.queues}
    plugins.require_settings(shared.settings, {ProcessRole(queue.value.removeprefix("suspect_")) for queue in queues})
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


def start_worker_process(settings: Settings, options: WorkerOptions | None = None) -> WorkerProcess:
    """Build the parts of a worker and start its threads. Raises ``ConfigurationError``, ``UnavailableError``."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    from hermes_worker.tasks.heartbeat import NudgeListener

    shared = _build_shared_parts(settings, options or WorkerOptions())
    client = shared.client
    parts, deliveries = _build_step_parts(shared), _build_delivery_parts(shared)
    collecting = _build_collecting_parts(shared, deliveries.dispatcher)
    trace_if_wanted(settings, "worker", client.database)
    tell = None if get_recorder() is None else record_ends
    sweeper = Sweeper(client.database, build_sweep_policy(settings), build_pricing(settings), tell=tell)
    keeper = _build_keeper(shared, sweeper)
    listener = NudgeListener(client.redis, shared.leases, client.runs.load_nudged)
    lister = _build_tool_lister(shared, parts.catalog)
    looker = _build_address_lister(shared)
    if looker is not None:
        looker.start()
    places = _build_workspace_collector(shared)
    watcher = _build_process_watcher(shared, parts)
    closer = _build_task_closer(shared, parts)
    for thread in (keeper, listener, lister, places, watcher, closer):
        thread.start()
    return WorkerProcess(
        pid=os.getpid(),
        parts=parts,
        deliveries=deliveries,
        collecting=collecting,
        gathering=_build_gathering_parts(shared, parts),
        fetching=_build_fetching_parts(shared),
        runs=client.runs,
        sweeper=sweeper,
        pruner=build_pruner(client.database, settings),
        keeper=keeper,
        listener=listener,
        lister=lister,
        looker=looker,
        places=places,
        watcher=watcher,
        closer=closer,
        database=client.database,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SharedParts:
    """The parts that all others of a worker process are built from."""

    settings: Settings
    options: WorkerOptions
    client: Client
    leases: Leases
    sandbox: Sandbox
    redactor: Redactor


def _build_shared_parts(settings: Settings, options: WorkerOptions) -> _SharedParts:
    """Build the shared parts, and register the process among the workers."""
    from hermes_worker.tasks.leases import Leases

    client = open_client(settings)
    sandbox = build_sandbox(settings, _make_sharing_check(client.database))
    leases = Leases(
        client.workers,
        name=options.name or f"{socket.gethostname()}:{os.getpid()}",
        queues=",".join(options.queues),
        ttl_s=settings.lease.ttl_s,
        slots=options.slots if QueueName.MODEL in options.queues else None,
        sandbox=lambda: sandbox.known_name,
    )
    leases.register()
    return _SharedParts(
        settings=settings,
        options=options,
        client=client,
        leases=leases,
        sandbox=sandbox,
        redactor=build_redactor(settings),
    )


def _build_step_parts(shared: _SharedParts) -> WorkerContext:
    """Build the parts for iterations, tool calls and auxiliary calls."""
    from hermes_worker.store.inbound_files import InboundFiles
    from hermes_worker.store.runs.auxiliary import AuxiliaryCalls
    from hermes_worker.store.runs.calls import ToolCalls
    from hermes_worker.store.runs.processes import Processes
    from hermes_worker.store.runs.remote_tasks import RemoteTasks
    from hermes_worker.store.runs.transcripts import Transcripts
    from hermes_worker.tasks.context import WorkerContext
    from hermes_worker.tasks.fair_semaphore import FairSemaphore

    settings, client = shared.settings, shared.client
    models = _build_models(settings, shared.options, client)
    return WorkerContext(
        runs=client.runs,
        calls=ToolCalls(client.database),
        waits=client.waits,
        auxiliary_calls=AuxiliaryCalls(client.database),
        remote_tasks=RemoteTasks(client.database),
        approvals=build_approval_rules(settings),
        guardrails=build_guardrail_rules(settings),
        transcripts=Transcripts(client.database),
        sender=client.publisher,
        leases=shared.leases,
        live=Live(client.redis),
        catalog=_build_catalog(shared),
        hooks=_build_hooks(shared),
        chain=models.chain,
        auxiliary_chains=models.auxiliary,
        tenant_models=models.of_tenants,
        pool=models.pool,
        keys=models.keys,
        governor=Governor(client.redis, _configured_limits(settings)),
        model=build_model_options(settings, compactor=_build_compactor(shared)),
        fair_semaphore=FairSemaphore(_COMPUTING_AT_ONCE),
        prices=dict(parse_own_price(text) for text in settings.model.prices),
        redactor=shared.redactor,
        workspace=make_workspace_opener(settings, shared.sandbox, build_copy_rule(settings, client.database)),
        now=client.database.now,
        delegation=build_delegation_policy(settings),
        policies=build_tool_policies(settings, {}),
        overridden_by=_make_override_builder(shared, _build_compactor(shared)),
        checkpoints=_build_checkpointing(settings),
        files=InboundFiles(client.database),
        reviewing=_build_review_starter(shared, settings),
        processes=Processes(client.database),
    )


def _build_review_starter(shared: _SharedParts, settings: Settings) -> ReviewStarter | None:
    """Build what begins reviews under these settings; ``None`` where reviews are off or no model could learn
    anything.
    """
    from hermes_worker.features.memory.review_rows import Reviews
    from hermes_worker.features.memory.review_work import ReviewStarter
    from hermes_worker.features.memory.rows import Memories
    from hermes_worker.store.runs.calls import ToolCalls

    database, said = shared.client.database, settings.memory
    policy = ReviewPolicy(turns=said.nudge_interval, iterations=settings.skills.creation_nudge_interval)
    if not policy.topics or settings.model.is_scripted:
        return None
    return ReviewStarter(
        policy=policy,
        rows=Reviews(database),
        memories=Memories(database),
        memory=build_memory_policy(settings),
        skills=build_skill_policy(settings),
        spec_of=ToolCalls(database).load_spec,
    )


def _make_override_builder(
    shared: _SharedParts, compactor: Compactor | None
) -> Callable[[WorkerContext, str], WorkerContext]:
    """Build the function that makes the parts for a run with settings of its own. The parts that hold connections stay
    the same.
    """
    settings = shared.settings

    @lru_cache(_OVERRIDES_KNOWN_MAX)
    def served(overrides: str) -> dict[str, Any]:
        said = json.loads(overrides)
        chosen = override_settings(settings, said)
        is_built_in = compactor is not None and settings.model.compactor == "summary"
        found = {
            "delegation": build_delegation_policy(chosen),
            "approvals": build_approval_rules(chosen),
            "guardrails": build_guardrail_rules(chosen),
            "model": build_model_options(
                chosen, compactor=_build_builtin_compactor(chosen) if is_built_in else compactor
            ),
            "policies": build_tool_policies(chosen, said),
        }
        if any(key.startswith(("memory.", "skills.")) for key in said):
            found["reviewing"] = _build_review_starter(shared, chosen)
        if (limits := build_command_limits(chosen)) != build_command_limits(settings):
            sandbox, rule = shared.sandbox.with_limits(limits), build_copy_rule(settings, shared.client.database)
            found["workspace"] = make_workspace_opener(settings, sandbox, rule)
        return found

    return lambda parts, overrides: replace(parts, **served(overrides))


def build_tool_policies(settings: Settings, said: Overrides) -> ToolPolicies:
    """The policies for tools under these settings; ``said`` are the settings that differ from those of the process."""
    from hermes_worker.agent.tools.base import ToolPolicies
    from hermes_worker.agent.tools.builtin import COMMAND_S_MAX

    return ToolPolicies(
        memory=build_memory_policy(settings),
        skills=build_skill_policy(settings),
        command_s=min(COMMAND_S_MAX, math.ceil(settings.terminal.timeout_s)),
        network=settings.terminal.network if "terminal.network" in said else None,
    )


def _build_checkpointing(settings: Settings) -> Checkpointing | None:
    from hermes_worker.features.checkpoints.work import Checkpointing

    if not settings.checkpoints.enabled:
        return None
    return Checkpointing(home=settings.home, limits=build_checkpoint_limits(settings))


def build_checkpoint_limits(settings: Settings) -> CheckpointLimits:
    """How many checkpoints, and how large ones, are kept of one workspace."""
    chosen = settings.checkpoints
    return CheckpointLimits(
        checkpoints=chosen.kept, file_bytes=chosen.file_mb_max * 1024**2, store_bytes=chosen.mb_max * 1024**2
    )


def _build_process_watcher(shared: _SharedParts, parts: WorkerContext) -> ProcessWatcher:
    """Build the watcher of background processes, which is on in a worker for tools, since that reaches their
    workspaces.
    """
    from hermes_worker.store.runs.processes import Processes
    from hermes_worker.tasks.processes import ProcessWatcher, WatchContext

    watching = WatchContext(
        rows=Processes(shared.client.database),
        calls=parts.calls,
        sender=parts.sender,
        workspace=parts.workspace,
        processes_dir=processes_dir(shared.settings.home),
        redactor=shared.redactor,
        turns_max=parts.delegation.turns_max,
    )
    return ProcessWatcher(watching, is_on=QueueName.TOOLS in shared.options.queues)


def _build_task_closer(shared: _SharedParts, parts: WorkerContext) -> TaskCloser:
    """Build the closer of remote tasks, which is on in a worker for tools with tool sources."""
    from hermes_worker.store.runs.remote_tasks import RemoteTasks
    from hermes_worker.tasks.remote_tasks import TaskCloser

    has_any = bool(installed.get_installed().tool_sources) or shared.settings.mcp.has_rows
    has_sources = has_any and QueueName.TOOLS in shared.options.queues
    return TaskCloser(RemoteTasks(shared.client.database), parts.catalog.source, is_on=has_sources)


def _build_hooks(shared: _SharedParts) -> WorkerHooks:
    """Build the hooks that this process calls: those about model calls where these are made, all others beside the
    tools. Raises ``ConfigurationError`` for one that cannot be loaded.
    """
    from hermes_worker.features.memory.rows import Memories
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
    database = shared.client.database
    memories = Memories(database)

    def may_remember(run_id: str) -> bool:
        asker = memories.load_requester(run_id)
        return asker.writers <= build_memory_policy(override_settings(shared.settings, asker.overrides)).writers

    return WorkerHooks(
        runner=HookRunner(load_hooks(found, called)),
        store=HookCalls(database),
        observed=database.observed,
        may_remember=may_remember,
        memory_tools=frozenset(tool.name for one in found.list_bringing("memory_providers") for tool in one.tools),
    )


def _build_catalog(shared: _SharedParts) -> ToolCatalog:
    """Build the catalogue of tools of this process; tools are loaded only where they are called."""
    from hermes_worker.agent.fetching import AddressFetcher
    from hermes_worker.agent.tools.catalog import default_catalog
    from hermes_worker.features.memory.rows import Memories
    from hermes_worker.features.memory.work import AgentMemories
    from hermes_worker.features.skills.work import AgentSkills
    from hermes_worker.net.urls import UrlPolicy
    from hermes_worker.store.jobs.jobs import Jobs
    from hermes_worker.store.outbox.deliveries import Deliveries
    from hermes_worker.store.resources import Resources
    from hermes_worker.tasks.agent_messages import AgentMessages
    from hermes_worker.tasks.agent_sessions import AgentSessions
    from scheduler.agent_jobs import AgentJobs

    database = shared.client.database
    policy = UrlPolicy(allows_private=shared.settings.agent.allow_private_urls)
    catalog = default_catalog(
        *shared.options.more_tools,
        services={
            "jobs": AgentJobs(Jobs(database)),
            "memories": AgentMemories(Memories(database)),
            "skills": AgentSkills(
                shared.client.skills,
                Views(database).load_tools,
                writers_of=Memories(database).load_writers,
                variables=_list_passed_on(shared.settings),
            ),
            "messages": AgentMessages(
                Deliveries(database), Jobs(database), shared.client.publisher.send, shared.settings.gateway.rules
            ),
            "fetching": AddressFetcher(policy=policy),
            "past_sessions": AgentSessions(database, Memories(database)),
            "resources": Resources(database),
            **_build_browser_services(shared, policy),
            **_build_mcp_row_services(shared, policy),
            "grants": partial(build_grants_at, database),
        },
    )
    _load_what_runs_here(shared, catalog)
    return catalog


def build_memory_policy(settings: Settings) -> MemoryPolicy:
    """The settings about memories. Text that is to be kept is scanned more strictly than text that is read."""
    said = settings.memory
    used = {MemoryTarget.MEMORY: said.is_enabled, MemoryTarget.USER: said.knows_user}
    return MemoryPolicy(
        limits={MemoryTarget.MEMORY: said.chars_max, MemoryTarget.USER: said.user_chars_max},
        targets=frozenset(target for target, is_used in used.items() if is_used),
        writers=frozenset(map(MemoryWriter, said.writers)),
        is_staged=said.write_approval,
        profile=said.profile,
        scan=partial(scan_text, scope=ThreatScope.STRICT),
    )


def build_skill_policy(settings: Settings) -> SkillPolicy:
    """The settings about agents that change skills."""
    said = settings.skills
    return SkillPolicy(writes=SkillWrites(said.writes), writers=frozenset(map(MemoryWriter, said.writers)))


def _build_browser_services(shared: _SharedParts, policy: UrlPolicy) -> dict[str, object]:
    """The services by which tools use the browsers of sessions; empty where there are none."""
    if not shared.settings.browser.is_enabled:
        return {}
    from hermes_worker.browser.visits import SessionBrowsers
    from hermes_worker.store.resources import Resources

    return {
        "browsers": SessionBrowsers(Resources(shared.client.database), policy, build_network_rules(shared.settings))
    }


def _build_mcp_row_services(shared: _SharedParts, policy: UrlPolicy) -> dict[str, object]:
    """The services that make tool sources of tenants' MCP servers; empty where there are none."""
    if not shared.settings.mcp.has_rows:
        return {}
    from hermes_worker.features.mcp_servers.rows import McpServers
    from hermes_worker.mcp.rows import RowServers
    from hermes_worker.store.resources import Resources

    database = shared.client.database
    return {"row_sources": RowServers(McpServers(database), Resources(database), policy)}


def build_browser_host(settings: Settings, database: Database, *, name: str, alive_file: Path | None) -> ResourceHost:
    """Build the host of the browsers of this process. Raises ``NoBrowserHere``, ``OSError``."""
    from hermes_worker.browser.chromium import Chromium, find_chromium, require_confinement
    from hermes_worker.browser.host import build_browser_host
    from hermes_worker.browser.relay import BrowserRelay
    from hermes_worker.hosting.host import HostOptions
    from hermes_worker.store.resources import Resources

    chosen = settings.browser
    program, sandbox = find_chromium(chosen.chromium), build_sandbox(settings)
    require_confinement(sandbox)
    address = _advertised_host(chosen.host, chosen.address)
    options = HostOptions(
        name=name,
        hosted_max=chosen.browsers_max,
        idle_s=chosen.idle_s,
        ttl_s=settings.lease.ttl_s,
        folder=settings.home / "browsers",
        alive_file=alive_file,
    )
    return build_browser_host(
        Resources(database),
        lambda folder: Chromium(program, folder, sandbox),
        options,
        lambda may_use: BrowserRelay(chosen.host.strip("[]"), address, may_use),
    )


def _advertised_host(host: str, address: str | None) -> str:
    return address or (socket.gethostname() if host in ("0.0.0.0", "::", "[::]") else host)


def build_mcp_host(settings: Settings, database: Database, *, name: str, alive_file: Path | None) -> ResourceHost:
    """Build the host of the MCP servers that have a command. Raises ``ConfigurationError``, ``OSError``."""
    from hermes_worker.features.mcp_servers.rows import McpServers
    from hermes_worker.hosting.host import HostOptions
    from hermes_worker.hosting.program import NotStarted
    from hermes_worker.mcp.bridge import McpBridge, build_mcp_host
    from hermes_worker.mcp.rows import find_row_process
    from hermes_worker.mcp.servers import load_servers, token_variable
    from hermes_worker.store.resources import Resources
    from hermes_worker.workspaces.base import WorkspaceError

    chosen, servers = settings.mcp, load_servers(settings.home)

    rule = build_copy_rule(settings, database)

    def known(resource: ResourceView) -> tuple[McpServer, str | None] | None:
        if is_row_source(resource.name):
            return find_row_process(McpServers(database), resource, chosen.row_commands) if chosen.has_rows else None
        token = settings.variables.get(token_variable(resource.name), "").strip() or None
        if resource.name not in servers:
            return None
        try:
            for path in servers[resource.name].writes:
                rule.require_own_folder(path)
        except WorkspaceError as error:
            raise NotStarted(str(error)) from error
        return servers[resource.name], token

    options = HostOptions(
        name=name,
        hosted_max=chosen.processes_max,
        idle_s=chosen.idle_s,
        ttl_s=settings.lease.ttl_s,
        folder=settings.home / "mcp-servers",
        alive_file=alive_file,
    )
    return build_mcp_host(
        Resources(database),
        known,
        build_sandbox(settings),
        options,
        lambda may_use: McpBridge(chosen.host.strip("[]"), _advertised_host(chosen.host, chosen.address), may_use),
    )


def build_process_lister(settings: Settings, database: Database) -> ServerLister | None:
    """Build the lister of tenants' MCP servers that have a command; ``None`` where the operator allows no commands."""
    if not (settings.mcp.has_rows and settings.mcp.row_commands):
        return None
    from hermes_worker.features.mcp_servers.rows import McpServers
    from hermes_worker.mcp.rows import ServerLister, make_process_asker

    ask = make_process_asker(build_sandbox(settings), settings.mcp.row_commands)
    return ServerLister(McpServers(database), ask, installed.get_installed().tools, is_process=True)


def _build_address_lister(shared: _SharedParts) -> ServerLister | None:
    """Build the lister of tenants' MCP servers that have an address; ``None`` unless this is a worker for tools and
    tenants have any.
    """
    settings = shared.settings
    if not settings.mcp.has_rows or QueueName.TOOLS not in shared.options.queues:
        return None
    from hermes_worker.features.mcp_servers.rows import McpServers
    from hermes_worker.mcp.rows import ServerLister, make_address_asker
    from hermes_worker.net.urls import UrlPolicy

    ask = make_address_asker(UrlPolicy(allows_private=settings.agent.allow_private_urls))
    return ServerLister(McpServers(shared.client.database), ask, installed.get_installed().tools, is_process=False)


def _build_tool_lister(shared: _SharedParts, catalog: ToolCatalog) -> ToolLister:
    """Build the lister of tool sources, in a worker for tools; in any other it has no source to ask."""
    from hermes_worker.tasks.tool_sources import ToolLister

    declared = installed.get_installed().tool_sources if QueueName.TOOLS in shared.options.queues else {}
    sources = {name: (one, catalog.source(name)) for name, one in declared.items()}
    return ToolLister(sources, shared.client.tool_sources, catalog.names)


def _build_workspace_collector(shared: _SharedParts) -> WorkspaceCollector:
    """Build the keeper of remote workspaces, in a worker for tools, which may reach them."""
    from hermes_worker.tasks.workspace_gc import WorkspaceCollector

    settings = shared.settings
    is_ours = QueueName.TOOLS in shared.options.queues and not shared.options.is_lane
    place = find_workspace_target(settings) if is_ours else None
    database = shared.client.database
    idle_s = settings.terminal.remote_idle_s
    return WorkspaceCollector(place, build_pruner(database, settings), idle_s, partial(is_copy, database))


def find_workspace_target(settings: Settings) -> WorkspaceTarget | None:
    """The place of new sessions' workspaces; ``None`` when that is this machine or an extension's."""
    if settings.terminal.workspace not in ("ssh", *_KINDS_OF_ALL):
        return None
    from hermes_worker.workspaces.ref import OpeningOptions
    from hermes_worker.workspaces.remote.targets import find_target

    options = OpeningOptions(
        base_env={},
        ssh=build_ssh_account(settings),
        docker=build_docker_account(settings),
        kubernetes=build_kubernetes_account(settings),
    )
    return find_target(settings.terminal.workspace, options, settings.terminal.ssh_directory)


def build_copy_rule(settings: Settings, database: Database) -> CopyRule:
    """The rule about what a restored copy may open."""
    from hermes_worker.workspaces.opening import CopyRule

    return CopyRule(list_spellings(settings.home), partial(is_copy, database))


def make_workspace_opener(settings: Settings, sandbox: Sandbox | None, rule: CopyRule) -> Callable[[str], Workspace]:
    """Build the function that opens the workspace of a session, and caches those opened last. Without ``sandbox`` no
    command may be run there. It raises ``WorkspaceError``, and ``ValueError`` for a text that is no description.
    """
    from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
    from hermes_worker.workspaces.ref import WorkspaceRef

    opening = OpeningOptions(
        base_env=settings.environ,
        env_passthrough=settings.terminal.env_passthrough,
        hermes_home=str(settings.home),
        sandbox=sandbox,
        free_bytes_min=settings.terminal.free_mb_min * 1024**2,
        umask=settings.terminal.umask,
        processes_dir=str(processes_dir(settings.home)),
        ssh=build_ssh_account(settings),
        docker=build_docker_account(settings),
        kubernetes=build_kubernetes_account(settings),
    )

    @lru_cache(_WORKSPACES_OPEN_MAX)
    def opened(place: WorkspaceRef) -> Workspace:
        return open_workspace(place, replace(opening, bytes_max=workspace_bytes_max(settings, place.root, place.kind)))

    def workspace(ref: str) -> Workspace:
        place = WorkspaceRef.from_json(ref)
        rule.require_own(place)
        return opened(place)

    return workspace


def build_ssh_account(settings: Settings) -> SshAccount | None:
    """The account for workspaces of the kind ``ssh``; ``None`` when no host is set."""
    from hermes_worker.workspaces.remote.ssh import SshAccount

    terminal, own = settings.terminal, settings.home / "ssh"
    if terminal.ssh_host is None:
        return None
    return SshAccount(
        host=terminal.ssh_host.strip("[]"),
        user=terminal.ssh_user,
        port=terminal.ssh_port,
        known_hosts=terminal.ssh_known_hosts or own / "known_hosts",
        key_file=terminal.ssh_key or own / "id_ed25519",
    )


def build_docker_account(settings: Settings) -> DockerAccount:
    """The engine for workspaces of the kind ``docker``, and the settings of its containers."""
    from hermes_worker.workspaces.remote.docker import ContainerRules, DockerAccount
    from hermes_worker.workspaces.remote.streams import ServiceAddress

    terminal, certs = settings.terminal, settings.terminal.docker_certs or settings.home / "docker"
    if terminal.docker_host.startswith("unix:"):
        address = ServiceAddress(url=terminal.docker_host)
    else:
        address = ServiceAddress(
            url=terminal.docker_host.replace("tcp://", "https://", 1),
            ca_file=certs / "ca.pem",
            cert_file=certs / "cert.pem",
            key_file=certs / "key.pem",
        )
    memory_mb = terminal.memory_mb_max
    rules = ContainerRules(
        image=terminal.docker_image,
        user=terminal.docker_user,
        network=terminal.docker_network,
        proxy=terminal.docker_proxy,
        runtime=terminal.docker_runtime,
        processes_max=terminal.processes_max,
        memory_bytes=None if memory_mb is None else memory_mb * 1024**2,
        cpus=terminal.docker_cpus,
    )
    return DockerAccount(address=address, rules=rules)


def build_kubernetes_account(settings: Settings) -> KubernetesAccount:
    """The cluster for workspaces of the kind ``kubernetes``, and the settings of its pods."""
    from hermes_worker.workspaces.remote.kubernetes import KubernetesAccount, PodRules
    from hermes_worker.workspaces.remote.streams import ServiceAddress
    from hermes_worker.workspaces.sandbox.network import Network

    terminal = settings.terminal
    user, _, group = terminal.docker_user.partition(":")
    memory_mb, storage_mb = terminal.memory_mb_max, terminal.kubernetes_storage_mb
    rules = PodRules(
        image=terminal.kubernetes_image,
        user=int(user),
        group=int(group),
        network=Network(terminal.kubernetes_network),
        runtime_class=terminal.kubernetes_runtime,
        memory_bytes=None if memory_mb is None else memory_mb * 1024**2,
        cpus=terminal.docker_cpus,
        storage_bytes=None if storage_mb is None else storage_mb * 1024**2,
        storage_class=terminal.kubernetes_storage_class,
        warm_pool=terminal.kubernetes_warm_pool,
    )
    return KubernetesAccount(
        address=ServiceAddress(url=terminal.kubernetes_url, ca_file=terminal.kubernetes_ca),
        token_file=terminal.kubernetes_account,
        namespace=terminal.kubernetes_namespace,
        rules=rules,
    )


def _build_delivery_parts(shared: _SharedParts) -> DeliveryContext:
    from hermes_worker.store.outbox.deliveries import Deliveries
    from hermes_worker.store.runs.progress import load_progress
    from hermes_worker.stream.live import read_reply_text
    from hermes_worker.tasks.deliver import DeliveryContext
    from hermes_worker.tasks.previews import ChatPace

    settings, client = shared.settings, shared.client
    dispatcher = replace(build_dispatcher(settings), learnt=build_learnt_chats(client.database))
    return DeliveryContext(
        outbox=Deliveries(client.database),
        views=client.views,
        dispatcher=dispatcher,
        sender=client.publisher,
        leases=shared.leases,
        attachments=partial(_build_file_outbox, settings),
        filters_silence=settings.delivery.filter_silence,
        secrets=(*dispatcher.secrets, *(secret.reveal() for secret in settings.secrets)),
        pace=ChatPace(governor=Governor(client.redis)),
        written=partial(read_reply_text, client.redis),
        progress=partial(load_progress, client.database),
    )


def _build_collecting_parts(shared: _SharedParts, dispatcher: Dispatcher) -> CollectingContext:
    """Build the parts for collecting the scripts and skills of jobs."""
    from hermes_worker.store.jobs.executions import Executions
    from hermes_worker.tasks.jobs.collect import CollectingContext

    settings = shared.settings
    return CollectingContext(
        executions=Executions(shared.client.database),
        dispatcher=dispatcher,
        sender=shared.client.publisher,
        leases=shared.leases,
        home=settings.home,
        skills=shared.client.skills,
        environ=settings.environ,
        env_passthrough=settings.terminal.env_passthrough,
        sandbox=shared.sandbox,
        free_bytes_min=settings.terminal.free_mb_min * 1024**2,
        script_timeout_s=settings.cron.script_timeout_s,
        redactor=shared.redactor,
        umask=settings.terminal.umask,
    )


def _build_gathering_parts(shared: _SharedParts, parts: WorkerContext) -> GatheringContext:
    """Build the parts for gathering the artifacts of runs."""
    from hermes_worker.features.artifacts.work import GatheringContext
    from hermes_worker.store.artifacts.gatherings import Gatherings

    kept = shared.settings.artifacts
    return GatheringContext(
        gatherings=Gatherings(shared.client.database),
        sender=shared.client.publisher,
        leases=shared.leases,
        workspace=parts.workspace,
        file_bytes_max=kept.file_mb_max * 1024**2,
        run_bytes_max=kept.run_mb_max * 1024**2,
    )


_FETCH_S = 60.0
"""Most seconds that one file of a person may take to be fetched, or to be transcribed."""


def _build_fetching_parts(shared: _SharedParts) -> FetchingContext:
    """Build the parts for fetching files that people send."""
    from hermes_worker.channels.downloads import FileDownloader
    from hermes_worker.store.inbound_files import InboundFiles
    from hermes_worker.tasks.inbound_files import FetchingContext

    said = shared.settings.gateway
    return FetchingContext(
        files=InboundFiles(shared.client.database),
        downloads=FileDownloader(
            values=shared.settings.variables, bytes_max=said.file_mb_max * 1024**2, total_s=_FETCH_S
        ),
        sender=shared.client.publisher,
        leases=shared.leases,
        hear=_make_transcriber(said),
    )


def _make_transcriber(said: GatewaySettings) -> Callable[[bytes, str], Transcription]:
    """Build the function that transcribes recordings that people send."""
    from hermes_worker.channels.transcription import NOT_SET_UP, Transcriber

    if said.transcription_url is None:
        return lambda content, media_type: NOT_SET_UP
    key = said.transcription_key
    return Transcriber(
        url=said.transcription_url,
        key="" if key is None else key.reveal(),
        model=said.transcription_model,
        total_s=_FETCH_S,
    ).transcribe


def _build_keeper(shared: _SharedParts, sweeper: Sweeper) -> WorkerKeeper:
    from hermes_worker.store.search.indexing import Indexer
    from hermes_worker.tasks.heartbeat import WorkerKeeper

    options = shared.options
    return WorkerKeeper(
        leases=shared.leases,
        sweeper=sweeper,
        pruner=build_pruner(shared.client.database, shared.settings),
        sender=shared.client.publisher,
        stopping=shared.client.runs.find_stopping,
        queues=options.queues,
        sweep_every_s=shared.settings.lease.sweep_interval_s,
        alive_file=options.alive_file,
        suspects=list_lane_queues(options.queues),
        lanes=options.lanes,
        indexer=None if options.is_lane else Indexer(shared.client.database),
        is_lane=options.is_lane,
    )
