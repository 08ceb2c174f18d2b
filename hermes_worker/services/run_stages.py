"""What a submission becomes, stage by stage: configured, equipped, composed.

Each stage is a function of the stage before it and of facts that ``services.submission`` read for it. No stage reads
anything itself, and none changes what an earlier one decided. The first one that finds something wrong raises
``InvalidSubmission``, which names the part of the submission to change.

    validate     what the submission says is right by itself (``services.submission_rules``)
    configure    the settings that count, the model and who serves it, the toolsets
    equip        the tools, in the bytes that the session stores, and the workspace
    compose      the system prompt, and the rows to be written: ``NewRun``
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

from hermes_worker import __version__
from hermes_worker.agent.prompt.pipeline import import_history
from hermes_worker.agent.prompt.sources import ContextFacts
from hermes_worker.agent.prompt.system import PromptParts, assemble_prompt
from hermes_worker.agent.source_tools import defer_definitions, render_client_definition
from hermes_worker.agent.tools.catalog import build_sourced_catalog
from hermes_worker.core.budget import NANO
from hermes_worker.core.client_tools import ClientTool
from hermes_worker.core.deferred_tools import BRIDGE
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.pricing import parse_own_price
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.priority import Priority
from hermes_worker.core.sources import CHAT_SOURCE, parse_source_kind
from hermes_worker.core.spec import REQUESTED, TERMS, RunSpec
from hermes_worker.core.titles import read_row_text
from hermes_worker.live_settings import ChosenSettings
from hermes_worker.local.paths import get_workspaces_dir
from hermes_worker.models.catalog import find_provider, find_provider_by_host
from hermes_worker.models.identity import (
    STAND_IN,
    STAND_IN_MODEL,
    find_usual_address,
    find_usual_model,
    identify_endpoint,
)
from hermes_worker.models.prices import is_priced
from hermes_worker.services.prompt_blocks import BlockFacts, build_block_reader
from hermes_worker.services.prompting import PromptTexts
from hermes_worker.services.submission_rules import (
    InvalidSubmission,
    Submission,
    list_targets,
    make_fingerprint,
    require_valid_client_tools,
)
from hermes_worker.settings import MemorySettings, ModelSettings, Settings
from hermes_worker.settings.configuration_id import name_configuration
from hermes_worker.settings.kinds import parse_named_model
from hermes_worker.store.runs.runs import NewRun
from hermes_worker.workspaces.ref import CONTAINED_DIRECTORY, WorkspaceKind, WorkspaceRef, make_session_ref

DEFAULT_MODEL_ALIAS = "hermes-agent"
"""The name under which Hermes Agent offers itself as a model; it means the configured
model."""
_UNATTENDED_WITHOUT = ("cronjob", "messaging", "clarify")
"""Toolsets that scheduled runs never have: a job that makes jobs has no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredRun:
    """A valid submission with the settings and the model that its run gets."""

    submission: Submission
    settings: Settings
    chosen: ChosenSettings | None
    """Where the settings come from, which the run records; ``None`` for those of the process."""
    model: str
    provider: str
    endpoint: str | None
    """The name of the provider's endpoint; ``None`` for a process without a model of its own: the workers are
    configured elsewhere."""
    toolsets: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The kind of the source: ``api``, ``cli``, ``cron``, ``webhook``, ``chat``."""
        return parse_source_kind(self.submission.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDirectory:
    """A directory that a submission names, as it was found."""

    root: Path
    """With all links resolved."""
    is_of_tenant: bool
    """Whether the tenant may name it: the default one may name any, another one those in its workspaces."""
    holds_state: bool
    """Whether it holds state of the product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EquippedRun:
    """A configured run with the tools and the workspace of its session, if that is a new one."""

    configured: ConfiguredRun
    run_id: str
    tool_names: frozenset[str]
    tools: str
    """Their definitions, as a session stores them."""
    workspace: WorkspaceRef

    @property
    def context_facts(self) -> ContextFacts:
        """The facts that context sources are told."""
        run = self.configured
        tenant = run.submission.principal.tenant
        return ContextFacts(tenant=tenant, source=run.kind, model=run.model, workspace=self.workspace.root)


class RunSkills(Protocol):
    """The skills for one run. ``core.offered_skills.OfferedSkills``."""

    @property
    def set_hash(self) -> str | None: ...

    def build_index(self, tools: Set[str], /) -> str: ...

    def prepend_texts(self, asked: str | Sequence[Mapping[str, Any]]) -> str | Sequence[Mapping[str, Any]]: ...


def configure(submission: Submission, settings: Settings, chosen: ChosenSettings | None) -> ConfiguredRun:
    """Choose the settings, the model and the toolsets of a valid submission. ``chosen`` are the settings of its tenant
    and its session, which stand in for ``settings`` of the process; ``None`` for none."""
    if chosen is not None:
        _require_within(chosen, submission)
        settings = chosen.settings
    model, provider = resolve_model(settings.model, submission.model)
    endpoint = submission.endpoint
    if endpoint is None and not settings.model.is_scripted:
        endpoint = identify_endpoint(settings.model)
    _require_served(model, endpoint)
    if submission.cost_usd_max is not None:
        _require_known_prices(settings, model, provider)
    usual = settings.agent.toolsets or choose_default_toolsets(parse_source_kind(submission.source))
    return ConfiguredRun(
        submission=submission,
        settings=settings,
        chosen=chosen,
        model=model,
        provider=provider,
        endpoint=endpoint,
        toolsets=tuple(submission.toolsets or usual),
    )


def equip(run: ConfiguredRun, run_id: str, sourced: Sequence[str], found: FoundDirectory | None) -> EquippedRun:
    """Choose the tools and the workspace. ``sourced`` are the definitions that tool sources offer to the tenant;
    ``found`` is the directory that the submission names, ``None`` where it is no absolute path of one."""
    disabled = _list_excluded_toolsets(run.settings.memory, run.kind)
    names, tools = _resolve_tools(run.toolsets, disabled, sourced, run.settings.model.window)
    if run.submission.client_tools:
        taken = build_sourced_catalog(sourced).names | names
        tools = _add_client_tools(run.settings, tools, run.submission.client_tools, taken)
    workspace = choose_workspace(run.settings, run.submission, run_id, found)
    return EquippedRun(configured=run, run_id=run_id, tool_names=names, tools=tools, workspace=workspace)


def compose(equipped: EquippedRun, skills: RunSkills, texts: PromptTexts) -> NewRun:
    """Write the system prompt, and put together what the store needs to write the run."""
    run = equipped.configured
    submission, settings = run.submission, run.settings
    facts = BlockFacts(
        tenant=submission.principal.tenant,
        principal=submission.principal.name,
        source=run.kind,
        tools=equipped.tool_names,
        toolsets=run.toolsets,
        model=run.model,
        skills_index=skills.build_index(equipped.tool_names),
        settings=settings,
    )
    prompt = assemble_prompt(
        PromptParts(
            model=run.model,
            provider=_find_prompt_name(run.provider),
            today=texts.today,
            tools=equipped.tool_names,
            blocks=texts.blocks,
            identity=texts.identity,
            instructions=submission.instructions or "",
        )
    )
    may_hold_files = submission.directory is not None or equipped.workspace.kind not in set(WorkspaceKind)
    return NewRun(
        **{name: getattr(submission, name) for name in TERMS},
        tenant=submission.principal.tenant,
        principal=submission.principal.name,
        spec=_build_spec(run, skills),
        skills=skills.set_hash,
        run_id=equipped.run_id,
        system_prompt=prompt.text,
        gaps=prompt.gaps,
        prepares=bool(equipped.tool_names) and settings.agent.context_files and may_hold_files,
        blocks=build_block_reader(facts),
        tools=equipped.tools,
        workspace=equipped.workspace.to_json(),
        fingerprint=make_fingerprint(submission),
        deliver=list_targets(submission.deliver, submission.principal.tenant, settings.gateway.rules),
    )


def resolve_model(settings: ModelSettings, asked_for: str | None) -> tuple[str, str]:
    """Find the model that a run will use and the name of its provider. Raises ``InvalidSubmission`` when there is
    none."""
    row = (find_provider(settings.provider) if settings.provider else None) or find_provider_by_host(
        settings.base_url or ""
    )
    provider = settings.provider or (row.name if row else "custom")
    chosen = asked_for if asked_for != DEFAULT_MODEL_ALIAS else None
    model = chosen or find_usual_model(settings)
    if not model:
        raise InvalidSubmission("model", "no model is named; name one, or set HERMES_MODEL (model.default)")
    return model, provider


def find_provider_address(settings: ModelSettings) -> str | None:
    """Find the address of the configured provider; ``None`` for one without a common address."""
    return (settings.base_url or find_usual_address(settings)).rstrip("/") or None


_LIMITS: Sequence[tuple[str, str, Callable[[Settings], float | None]]] = (
    ("agent.max_turns", "iterations_max", lambda settings: settings.agent.iterations_max),
    ("agent.max_wall_s", "wall_s_max", lambda settings: settings.agent.wall_s_max),
    ("agent.gateway_timeout", "idle_s_max", lambda settings: settings.agent.idle_s_max),
)
"""Limits that a submission may set itself, by the setting that stands in where it does not."""


def _require_within(chosen: ChosenSettings, submission: Submission) -> None:
    """Check the submission's limits: an override for the tenant, the session or the run is an upper bound of them.
    Raises ``InvalidSubmission``."""
    for key, name, read in _LIMITS:
        asked, limit = getattr(submission, name), read(chosen.settings)
        if asked is None or limit is None or chosen.origins.get(key) not in ("tenant", "session", "run"):
            continue
        if asked > limit or asked == 0:
            whose = chosen.origins[key]
            raise InvalidSubmission(name, f"{name} is at most {limit:g} here: {key} says so for this {whose}")


def _require_served(model: str, endpoint: str | None) -> None:
    """Refuse a model name for the scripted stand-in: it is no language model. Raises ``InvalidSubmission``."""
    if endpoint == STAND_IN and model != STAND_IN_MODEL:
        raise InvalidSubmission(
            "model",
            f"nobody here serves {model!r}: only the scripted stand-in runs; configure a provider (HERMES_API_KEY, "
            "OPENAI_API_KEY, ANTHROPIC_API_KEY or --base-url) and start again, or name no model",
        )


def _require_known_prices(settings: Settings, model: str, provider: str) -> None:
    """Check that all prices are known: a limit in money can only be kept where the price of every provider is known
    that may be asked. Raises ``InvalidSubmission``."""
    own = dict(parse_own_price(text) for text in settings.model.prices)
    asked = [(provider, model)]
    asked += [(name.provider, name.model) for name in map(parse_named_model, settings.model.fallbacks)]
    if settings.delegation.model:
        asked.append((provider, settings.delegation.model))
    for name, other in asked:
        if not is_priced(name, other, own):
            raise InvalidSubmission(
                "cost_usd_max",
                f"it is not known what {other!r} costs at {name!r}, so a limit in US dollars cannot be kept; set its "
                "price in model.prices (HERMES_MODEL_PRICES), or leave the limit out",
            )


def choose_default_toolsets(kind: str) -> tuple[str, ...]:
    """Choose the default toolsets: a person who types a task, in a chat as well, can answer questions; a client of the
    API asks for such tools by name."""
    return ("hermes-cli",) if kind in ("cli", CHAT_SOURCE) else ("hermes-api-server",)


def _list_excluded_toolsets(memory: MemorySettings, kind: str) -> tuple[str, ...]:
    """List toolsets that a run from this source never has, whatever it names."""
    is_used = (memory.is_enabled or memory.knows_user) and (kind != "cron" or "cron" in memory.writers)
    return (*(_UNATTENDED_WITHOUT if kind == "cron" else ()), *(() if is_used else ("memory",)))


def _resolve_tools(
    toolsets: tuple[str, ...], disabled: tuple[str, ...], sourced: Sequence[str], window: int | None
) -> tuple[frozenset[str], str]:
    """List the names of the tools, and write their definitions as a session stores them."""
    try:
        catalog = build_sourced_catalog(sourced)
        names = catalog.resolve(toolsets, disabled=disabled)
    except ConfigurationError as error:
        raise InvalidSubmission("toolsets", str(error)) from error
    definitions = dict(zip(names, catalog.render_definitions(names), strict=True))
    stored = defer_definitions(definitions, catalog.select_deferrable_names(names), window)
    led_to = BRIDGE if len(stored) > len(names) else frozenset()
    return frozenset(names) | led_to, f"[{','.join(stored)}]"


def _add_client_tools(settings: Settings, tools: str, brought: Sequence[ClientTool], taken: Collection[str]) -> str:
    """Add the definitions of the client's tools behind those of a session, by name. Raises ``InvalidSubmission``."""
    require_valid_client_tools(brought, taken)
    of_client = [
        render_client_definition(tool, settings.agent.client_tools_s)
        for tool in sorted(brought, key=lambda tool: tool.name)
    ]
    own = [tools[1:-1]] if tools != "[]" else []
    return f"[{','.join((*own, *of_client))}]"


def choose_workspace(
    settings: Settings, submission: Submission, run_id: str, found: FoundDirectory | None = None
) -> WorkspaceRef:
    """Choose the workspace. It is named by the session's id, and never by its name: two callers may have chosen the
    same. ``found``: see ``equip``."""
    tenant = submission.principal.tenant
    if submission.directory is None:
        kind = settings.terminal.workspace
        if kind in (WorkspaceKind.DOCKER, WorkspaceKind.KUBERNETES):
            return make_session_ref(CONTAINED_DIRECTORY, run_id, kind=kind)
        if kind == WorkspaceKind.SSH and tenant == DEFAULT_TENANT:
            return make_session_ref(settings.terminal.ssh_directory, run_id, kind=kind)
        # Other tenants work on our own machines: nothing would keep them apart on a host that has one account.
        own = str(get_workspaces_dir(settings.home, tenant))
        return make_session_ref(own, run_id, kind=WorkspaceKind.LOCAL if kind == WorkspaceKind.SSH else kind)
    if found is None:
        wrong = f"{submission.directory!r} is not an absolute path of a directory"
    elif not found.is_of_tenant:
        wrong = f"{str(found.root)!r} is not in a workspace of the tenant {tenant!r}"
    elif found.holds_state:
        wrong = f"{str(found.root)!r} holds the state of hermes-worker; choose another directory"
    else:
        return WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(found.root))
    raise InvalidSubmission("directory", wrong)


def _find_prompt_name(provider: str) -> str:
    """Find the name of a provider in prompts, by whichever of its names it was configured: two installations with the
    same provider have the same prompts."""
    row = find_provider(provider)
    return provider if row is None else row.name


def _build_spec(run: ConfiguredRun, skills: RunSkills) -> RunSpec:
    submission, agent = run.submission, run.settings.agent
    asked = {name: getattr(submission, name) for name in REQUESTED}
    asked |= {"history": _import_history(submission.history), "input": skills.prepend_texts(submission.input)}
    if submission.about is None and asked["input"] != submission.input:
        asked["about"] = read_row_text({"content": submission.input})  # texts of skills stand before what was asked
    if (chosen := run.chosen) is not None:
        asked |= {"layers": chosen.layers, "overrides": chosen.overrides, "overridden_by": chosen.origins}
    return RunSpec(
        **asked,
        model=run.model,
        endpoint=run.endpoint,
        toolsets=run.toolsets,
        iterations_max=submission.iterations_max or agent.iterations_max,
        wall_s_max=submission.wall_s_max or agent.wall_s_max,
        idle_s_max=agent.idle_s_max if submission.idle_s_max is None else submission.idle_s_max or None,
        nano_usd_max=None if submission.cost_usd_max is None else int(Decimal(str(submission.cost_usd_max)) * NANO),
        budget=submission.budget.value if submission.budget else None,
        priority=int(submission.priority or Priority.NORMAL),
        artifacts=tuple(run.settings.artifacts.patterns if submission.artifacts is None else submission.artifacts),
        program=__version__,
        configuration=name_configuration(run.settings),
    )


def _import_history(history: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Write earlier turns as they are stored: normalised once, here, so that no request has to do it again."""
    try:
        return [json.loads(row) for row in import_history(history)]
    except (ValueError, RecursionError) as error:
        raise InvalidSubmission("history", f"the history cannot be stored: {error}") from error
