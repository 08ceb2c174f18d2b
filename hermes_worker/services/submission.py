"""Submit a run: one way for the API, the command line and the scheduler.

A submission says what is wanted; here it gets what the installation decides (model, limits, tools, workspace, system
prompt), is committed, and is then announced. Once it is committed it will run: the announcement is a hint that the
sweeper repeats if it is lost.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hermes_worker import __version__
from hermes_worker.agent.prompt.pipeline import import_history
from hermes_worker.agent.prompt.sources import PromptBlock
from hermes_worker.agent.source_tools import defer_definitions, render_client_definition
from hermes_worker.agent.tools.catalog import catalog_with, has_tool_sources
from hermes_worker.channels.targets import (
    NO_RULES,
    TargetError,
    format_reference,
    normalize_deliver,
    parse_targets,
    require_open_to,
)
from hermes_worker.core.budget import NANO, BudgetMode
from hermes_worker.core.chat_accounts import ChatRules
from hermes_worker.core.client_tools import ClientTool
from hermes_worker.core.deferred_tools import BRIDGE
from hermes_worker.core.errors import ConfigurationError, HermesError, UnavailableError
from hermes_worker.core.gateway import CHAT_SOURCE
from hermes_worker.core.messages import canonical_json
from hermes_worker.core.overrides import OverrideLevel
from hermes_worker.core.pricing import parse_own_price
from hermes_worker.core.principals import DEFAULT_TENANT, OPERATOR, Principal
from hermes_worker.core.priority import LATEST_S, Priority
from hermes_worker.core.sources import parse_source_kind
from hermes_worker.core.spec import RunSpec
from hermes_worker.core.tool_schemas import explain_unusable_name
from hermes_worker.features.artifacts.rules import PATTERNS_MAX, explain_wrong_pattern
from hermes_worker.features.configurations.rows import Configurations
from hermes_worker.features.mcp_servers.rules import is_row_source
from hermes_worker.features.skills.rules import SkillError
from hermes_worker.features.skills.service import NO_SKILLS, OfferedSkills, find_offered_skills
from hermes_worker.features.skills.shelf_files import SkillShelf
from hermes_worker.live_settings import ChosenSettings
from hermes_worker.local.paths import holds_state, workspaces_dir
from hermes_worker.models.catalog import find_provider, provider_of_host
from hermes_worker.models.identity import STAND_IN, STAND_IN_MODEL, endpoint_identity, usual_address
from hermes_worker.models.prices import is_priced
from hermes_worker.observe import count, log
from hermes_worker.services.prompt_blocks import BlockFacts, build_block_reader
from hermes_worker.services.prompting import build_prompt
from hermes_worker.settings import MemorySettings, ModelSettings, Settings
from hermes_worker.settings.configuration_id import name_configuration
from hermes_worker.settings.kinds import parse_named_model
from hermes_worker.settings.overriding import bound_overrides, check_overrides
from hermes_worker.store.runs.runs import (
    Created,
    Multitask,
    NewRun,
    SessionNotFound,
    compute_fingerprint,
    create_run_id,
)
from hermes_worker.store.tool_sources import ToolSources
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.tracing.recording import record_submission
from hermes_worker.wiring import Client, build_memory_policy
from hermes_worker.workspaces.ref import CONTAINED_DIRECTORY, WorkspaceKind, WorkspaceRef, make_session_ref

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

__all__ = [
    "DEFAULT_MODEL_ALIAS",
    "TAG",
    "TAGS_MAX",
    "TEXT_CHARS_MAX",
    "InvalidSubmission",
    "Submission",
    "accept",
    "announce",
    "build_run",
    "choose_settings",
    "find_provider_address",
    "find_run_skills",
    "list_sourced_tools",
    "list_targets",
    "prepare_run",
    "resolve_model",
    "submit",
]

DEFAULT_MODEL_ALIAS = "hermes-agent"
"""The name under which Hermes Agent offers itself as a model; it means the configured
model."""
_UNATTENDED_WITHOUT = ("cronjob", "messaging", "clarify")
"""Toolsets that scheduled runs never have: a job that makes jobs has no end."""


class InvalidSubmission(HermesError):
    """The submission cannot be accepted; ``field`` names the part of it to change."""

    def __init__(self, submission_field: str, message: str) -> None:
        super().__init__(message)
        self.field = submission_field


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request for a run. ``None`` leaves a choice to the settings."""

    input: str | Sequence[Mapping[str, Any]]
    """The user's message: text, or chat-completions content parts."""
    instructions: str | None = None
    history: Sequence[Mapping[str, Any]] = ()
    """Earlier turns to start a new session with; ignored when the session exists."""
    session_id: str | None = None
    """Continue the conversation that has this id, or this name within ``source``, or start it under this name; ``None``
    starts a new one."""
    after: str | None = None
    """Accept the run only if this run is the newest of the session; an empty text: only if there is no such session
    yet."""
    model: str | None = None
    endpoint: str | None = None
    """The name of the server of the model (``models.identity``), where the caller knows better than the settings."""
    toolsets: Sequence[str] | None = None
    iterations_max: int | None = None
    wall_s_max: float | None = None
    tokens_max: int | None = None
    """This and the next three are for the run and all it delegates; ``None`` for no limit."""
    tool_calls_max: int | None = None
    cost_usd_max: float | None = None
    budget: BudgetMode | None = None
    """How child runs share the limits."""
    idle_s_max: float | None = None
    """Seconds without progress; 0 for no limit."""
    directory: str | None = None
    """Absolute path of a directory for a new session to work in. Not to be taken from outsiders: who chooses it reads
    and writes there. ``None`` gives the session a directory of its own."""
    approvals: str | None = None
    """What is done about dangerous commands: ``ask``, ``deny`` or ``approve``. Not to be taken from outsiders."""
    approval_s: float | None = None
    """Seconds that a person has to allow one."""
    network: str | None = None
    """Less network for commands than the installation gives them: ``proxy`` or ``none``."""
    principal: Principal = OPERATOR
    """The caller and its tenant: the run belongs to that tenant, and so does all that it causes."""
    source: str = "api"
    """``api``, ``cli``, ``cron`` or ``webhook:ROUTE``: the name space of the names above and the key below, within the
    tenant."""
    skills: Sequence[str] = ()
    """Skills and bundles to follow: their texts stand before ``input``."""
    artifacts: Sequence[str] | None = None
    """Patterns of the files that the run leaves (``features.artifacts.rules``); an empty list for none at all."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    echo: Mapping[str, Any] = field(default_factory=dict)
    """Values that the caller's dialect repeats with every answer about the run."""
    tags: Sequence[str] = ()
    """Words to find the run by, at most ``TAGS_MAX``."""
    priority: Priority | None = None
    """``None`` for the normal priority."""
    not_before: float | None = None
    """Epoch seconds before which the run does not begin."""
    delay_s: float | None = None
    """Seconds from now before which the run does not begin."""
    deadline: float | None = None
    """Epoch seconds at which the run expires, whatever it is doing; ``wall_s_max`` may end it before."""
    retry_of: str | None = None
    """The run whose submission this repeats."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of this run, written as in the environment, by key (``core.overrides``)."""
    output_schema: Mapping[str, Any] | None = None
    """JSON Schema that the answer has to fit (``agent.output``)."""
    compress: str | None = None
    """Summarise the conversation in place of an answer, above all what concerns this topic; an empty text for no topic.
    """
    files: str | None = None
    """Its message came with files (``RunSpec.files``), for which it waits until ``delay_s`` at the latest."""
    client_tools: Sequence[ClientTool] = ()
    """Tools of the caller for a new session, whose results it brings itself (``core.client_tools``)."""
    multitask: Multitask = Multitask.QUEUE
    """What to do when another run is at work in the session."""
    deliver: str | Sequence[str] | None = None
    """Targets that get the answer, in the grammar of ``channels.targets``."""
    idempotency_key: str | None = None
    """The same key with the same submission gives the same run, however often it is submitted."""
    request: str | None = None
    """The text that the key stands for, where that is not this submission but what it was made from."""
    proof: str | None = None
    """The signature that the request came with: it is accepted once, under whichever key."""


TAGS_MAX = 16
CLIENT_TOOLS_MAX = 128
TEXT_CHARS_MAX = 1_000_000
"""Longest message. Longer ones are refused, never cut: Hermes Agent cuts at 65,536 and says nothing."""


class _Form(NamedTuple):
    pattern: re.Pattern[str]
    words: str
    """Completes the sentence "... must be"."""


_FORMS: Mapping[str, _Form] = {
    # It fits into a header and never looks like a path.
    "session_id": _Form(
        re.compile(r"(?!.*\.\.)[!-.0-\[\]-~]{1,256}"),
        "1 to 256 printable ASCII characters without spaces, '/', '\\' and '..'",
    ),
    "model": _Form(re.compile(r"[A-Za-z0-9_.:/@+-]{1,200}"), "1 to 200 letters, digits and any of _ . : / @ + -"),
    "idempotency_key": _Form(re.compile(r"(?=.*\S)[\x20-\x7e]{1,256}"), "1 to 256 printable ASCII characters"),
}
"""The forms of the fields that become keys, names and headers."""
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,63}")
_NOT_LATER = frozenset({Multitask.INTERRUPT, Multitask.STEER, Multitask.REJECT})
"""Modes that concern the session as it is now, and so make no sense for a run that begins later."""


def submit(client: Client, submission: Submission) -> Created:
    """Accept a run and announce it. Idempotent under ``submission.idempotency_key``.

    Raises ``InvalidSubmission``, ``IdempotencyConflict``, ``RequestReplayed``, ``SessionBusy``, ``SessionMoved`` and
    ``UnavailableError`` (it is then not known whether the run was accepted; with an idempotency key it is safe to ask
    again).
    """
    created = accept(client, submission)
    announce(client, created)
    return created


def accept(
    client: Client, submission: Submission, also: Callable[[Connection, Created], None] | None = None
) -> Created:
    """Commit a run without announcing it; ``also`` writes in the same transaction. Raises as ``submit``."""
    try:
        created = client.runs.create(prepare_run(client, submission), also)
    except SessionNotFound as error:
        raise InvalidSubmission("session_id", str(error)) from None
    if not created.was_replayed:
        count("run.submitted")
        record_submission(created.run_id, submission.source)
        log.info("run.submitted", run_id=created.run_id, session_id=created.session_id, source=submission.source)
    return created


def announce(client: Client, created: Created) -> None:
    """Announce an accepted run to the workers, best effort. Safe to repeat."""
    faults.pass_point(FaultPoint.SUBMIT_AFTER_COMMIT)
    if created.interrupted is None:
        client.publisher.send(created.hints)
        return
    stopped = [created.interrupted]
    hints = list(created.hints)
    try:
        below = client.runs.stop_descendants(created.interrupted)
    except UnavailableError:
        below = {}  # the sweeper stops them
    for run_id, more in below.items():
        stopped.append(run_id)
        hints += more
    client.publisher.publish_stops(stopped, hints)


def prepare_run(client: Client, submission: Submission) -> NewRun:
    """Build what is to be written, with the tools and skills that exist now. Raises ``InvalidSubmission``,
    ``UnavailableError``."""
    return build_run(
        client.settings,
        submission,
        chosen=choose_settings(client, submission),
        sourced=list_sourced_tools(
            client.tool_sources, submission.principal.tenant, has_rows=client.settings.mcp.has_rows
        ),
        skills=find_run_skills(client.skills, submission),
    )


def choose_settings(client: Client, submission: Submission) -> ChosenSettings:
    """Find the settings with which the run is accepted now. Raises ``InvalidSubmission`` for overrides that a run may
    not have, ``UnavailableError``."""
    tenant, asked = submission.principal.tenant, submission.settings
    session = _load_session_overrides(client, submission)
    try:
        said = check_overrides(asked, OverrideLevel.RUN, place="settings")
        above = client.live_settings.choose_settings(tenant, session)
        if not said:
            return above
        bound_overrides(above.settings, said, place="settings")
    except ConfigurationError as error:
        raise InvalidSubmission("settings", str(error)) from None
    return client.live_settings.choose_settings(tenant, session, said)


def _load_session_overrides(client: Client, submission: Submission) -> Mapping[str, str]:
    if submission.session_id is None:
        return {}
    rows = Configurations(client.database)
    return rows.load_overrides(submission.principal.tenant, submission.source, submission.session_id)


def resolve_model(settings: ModelSettings, asked_for: str | None) -> tuple[str, str]:
    """Find the model that a run will use and the name of its provider. Raises ``InvalidSubmission`` when there is
    none."""
    row = (find_provider(settings.provider) if settings.provider else None) or provider_of_host(settings.base_url or "")
    provider = settings.provider or (row.name if row else "custom")
    chosen = asked_for if asked_for != DEFAULT_MODEL_ALIAS else None
    usual = STAND_IN_MODEL if settings.is_scripted else row.default_model if row else ""
    model = chosen or settings.name or usual
    if not model:
        raise InvalidSubmission("model", "no model is named; name one, or set HERMES_MODEL (model.default)")
    return model, provider


def find_usable_model(client: Client, submission: Submission) -> str:
    """Find the model that a run would use. Raises ``InvalidSubmission`` as ``accept`` does, ``UnavailableError``."""
    settings = _choose_accepted_settings(client.settings, submission, choose_settings(client, submission))
    return _find_model(settings, submission)[0]


def list_offered_models(client: Client, submission: Submission) -> Sequence[str]:
    """List the models that the settings of such a run name: the default one, and fallbacks of the same provider. Others
    may be named. Raises as ``find_usable_model``."""
    settings = choose_settings(client, submission).settings.model
    usual, provider = resolve_model(settings, None)
    others = (other for other in map(parse_named_model, settings.fallbacks) if other.address is None)
    return tuple(dict.fromkeys((usual, *(other.model for other in others if other.provider == provider))))


def _find_prompt_name(provider: str) -> str:
    """Find the name of a provider in prompts, by whichever of its names it was configured: two installations with the
    same provider have the same prompts."""
    row = find_provider(provider)
    return provider if row is None else row.name


def find_provider_address(settings: ModelSettings) -> str | None:
    """Find the address of the configured provider; ``None`` for one without a common address."""
    return (settings.base_url or usual_address(settings)).rstrip("/") or None


def _require_valid(submission: Submission) -> None:
    for name, form in _FORMS.items():
        value = getattr(submission, name)
        if value is not None and not form.pattern.fullmatch(value):
            raise InvalidSubmission(name, f"{name} must be {form.words}")
    if isinstance(submission.input, str) and not submission.input.strip():
        raise InvalidSubmission("input", "the message is empty")
    if len(submission.input) > TEXT_CHARS_MAX:
        raise InvalidSubmission("input", f"the message has more than {TEXT_CHARS_MAX} characters")
    _require_valid_tags(submission.tags)
    _require_valid_artifacts(submission.artifacts or ())
    _require_usable_schema(submission)
    _require_valid_times(submission)


def warm_up() -> None:
    """Import what judges schemas, for a process that takes submissions all day, so that no caller waits for it.
    Idempotent."""
    from hermes_worker.agent.output import check_schema

    check_schema({"type": "object"})


def _require_usable_schema(submission: Submission) -> None:
    if submission.output_schema is None:
        return
    if submission.multitask is Multitask.STEER:
        raise InvalidSubmission("output_schema", "what is said to a run at work has no answer of its own")
    # Here and not above: it takes long to import, and few runs have a schema.
    from hermes_worker.agent.output import check_schema
    from hermes_worker.agent.tools.schema_time_limit import UnusableSchema

    try:
        check_schema(submission.output_schema)
    except UnusableSchema as error:
        raise InvalidSubmission("output_schema", f"the schema {error}") from None


def _require_valid_tags(tags: Sequence[str]) -> None:
    if len(tags) > TAGS_MAX:
        raise InvalidSubmission("tags", f"a run has at most {TAGS_MAX} tags")
    for tag in tags:
        if not TAG.fullmatch(tag):
            words = "a tag is 1 to 64 letters, digits and any of _ . : / @ + -, and begins with a letter or a digit"
            raise InvalidSubmission("tags", f"{tag[:80]!r} is no tag: {words}")


def _require_valid_artifacts(patterns: Sequence[str]) -> None:
    if len(patterns) > PATTERNS_MAX:
        raise InvalidSubmission("artifacts", f"a run declares at most {PATTERNS_MAX} patterns of artifacts")
    for pattern in patterns:
        if (wrong := explain_wrong_pattern(pattern)) is not None:
            raise InvalidSubmission("artifacts", f"the pattern {pattern[:80]!r} of artifacts {wrong}")


def _require_valid_times(submission: Submission) -> None:
    now = time.time()
    if submission.not_before is not None and submission.delay_s is not None:
        raise InvalidSubmission("delay_s", "not_before and delay_s say the same: name one of them")
    begins = now + submission.delay_s if submission.delay_s is not None else submission.not_before
    if begins is not None and not 0 <= begins <= now + LATEST_S:
        field_name = "not_before" if submission.delay_s is None else "delay_s"
        raise InvalidSubmission(field_name, f"a run can be put off by at most {LATEST_S / 86_400:.0f} days")
    if begins is not None and submission.multitask in _NOT_LATER:
        raise InvalidSubmission(
            "multitask",
            f"{submission.multitask.value!r} is about the session as it is now; a run that begins later waits for its "
            "turn in the session: leave 'multitask' out",
        )
    if submission.deadline is not None and submission.deadline <= max(now, begins or 0.0):
        raise InvalidSubmission("deadline", "the deadline has passed before the run can begin")


def list_sourced_tools(rows: ToolSources, tenant: str, *, has_rows: bool) -> Sequence[str]:
    """List the tool definitions that tool sources offer to a tenant, as workers stored them, those of its own MCP
    servers last, where it may have such: of two tools with one name the first is offered. Raises ``UnavailableError``.
    """
    if not has_rows and not has_tool_sources():
        return ()
    found = [row for row in rows.list_sources(tenant) if has_rows or not is_row_source(row.source)]
    found.sort(key=lambda row: is_row_source(row.source))
    return [definition for row in found for definition in row.definitions]


def find_run_skills(shelf: SkillShelf, submission: Submission) -> OfferedSkills:
    """Find the skills that a run which is submitted now may see, and the texts of those that it is to follow. Raises
    ``InvalidSubmission``, ``UnavailableError``."""
    try:
        return find_offered_skills(shelf, submission.principal.tenant, submission.skills)
    except SkillError as error:
        raise InvalidSubmission("skills", str(error)) from None


def build_run(
    settings: Settings,
    submission: Submission,
    *,
    chosen: ChosenSettings | None = None,
    context: Sequence[PromptBlock] | None = None,
    sourced: Sequence[str] = (),
    skills: OfferedSkills = NO_SKILLS,
) -> NewRun:
    """Build what the store needs to write the run. ``context`` are the blocks of extensions' context sources; ``None``
    asks them now, which takes time, so never inside a transaction. ``sourced``: see ``list_sourced_tools``; ``skills``:
    see ``find_run_skills``. ``chosen`` stands in for ``settings``. Raises ``InvalidSubmission``."""
    settings = _choose_accepted_settings(settings, submission, chosen)
    run_id, kind = create_run_id(), parse_source_kind(submission.source)
    model, provider, endpoint = _find_model(settings, submission)
    toolsets = tuple(submission.toolsets or settings.agent.toolsets or choose_default_toolsets(kind))
    names, tools = _tools(toolsets, _list_excluded_toolsets(settings.memory, kind), sourced, settings.model.window)
    tools = _add_client_tools(settings, tools, submission.client_tools, catalog_with(sourced).names | names)
    workspace = _workspace(settings, submission, run_id)
    facts = BlockFacts(
        tenant=submission.principal.tenant,
        principal=submission.principal.name,
        source=kind,
        tools=names,
        toolsets=toolsets,
        model=model,
        skills_index=skills.build_index(names),
        memory=build_memory_policy(settings),
    )
    said, called = submission.instructions or "", _find_prompt_name(provider)
    prompt = build_prompt(facts, workspace, home=settings.home, provider=called, instructions=said, context=context)
    return NewRun(
        tenant=submission.principal.tenant,
        principal=submission.principal.name,
        spec=replace(
            _spec(settings, submission, model, toolsets),
            endpoint=endpoint,
            input=skills.prepend_texts(submission.input),
            **_build_settings_record(chosen),  # type: ignore[arg-type]
        ),
        skills=skills.set_hash,
        run_id=run_id,
        session_id=submission.session_id,
        after=submission.after,
        system_prompt=prompt.text,
        gaps=prompt.gaps,
        prepares=bool(names) and settings.agent.context_files and _may_hold_files(submission, workspace),
        blocks=build_block_reader(facts),
        tools=tools,
        workspace=workspace.to_json(),
        idempotency_key=submission.idempotency_key,
        multitask=submission.multitask,
        fingerprint=_make_fingerprint(submission),
        proof=submission.proof,
        deliver=list_targets(submission.deliver, submission.principal.tenant, settings.gateway.rules),
        not_before=submission.not_before,
        delay_s=submission.delay_s,
        deadline=submission.deadline,
        retry_of=submission.retry_of,
    )


def _build_settings_record(chosen: ChosenSettings | None) -> dict[str, Mapping[str, str]]:
    """Build what the run records of the settings that it was accepted with."""
    if chosen is None:
        return {}
    return {"layers": chosen.layers, "overrides": chosen.overrides, "overridden_by": chosen.origins}


def _choose_accepted_settings(settings: Settings, submission: Submission, chosen: ChosenSettings | None) -> Settings:
    """Check the submission, and choose its settings. Raises ``InvalidSubmission``."""
    _require_valid(submission)
    if chosen is None:
        return settings
    _require_within(chosen, submission)
    return chosen.settings


def _find_model(settings: Settings, submission: Submission) -> tuple[str, str, str | None]:
    """Find the model, its provider, and the name of the provider's endpoint. Raises ``InvalidSubmission``."""
    model, provider = resolve_model(settings.model, submission.model)
    endpoint = _find_endpoint(settings, submission)
    _require_served(model, endpoint)
    if submission.cost_usd_max is not None:
        _require_known_prices(settings, model, provider)
    return model, provider, endpoint


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


def _may_hold_files(submission: Submission, workspace: WorkspaceRef) -> bool:
    """Whether the workspace of a new session existed before it: one that is made for the session is empty."""
    return submission.directory is not None or workspace.kind not in set(WorkspaceKind)


def _list_excluded_toolsets(memory: MemorySettings, kind: str) -> tuple[str, ...]:
    """List toolsets that a run from this source never has, whatever it names."""
    is_used = (memory.is_enabled or memory.knows_user) and (kind != "cron" or "cron" in memory.writers)
    return (*(_UNATTENDED_WITHOUT if kind == "cron" else ()), *(() if is_used else ("memory",)))


def choose_default_toolsets(kind: str) -> tuple[str, ...]:
    """Choose the default toolsets: a person who types a task, in a chat as well, can answer questions; a client of the
    API asks for such tools by name."""
    return ("hermes-cli",) if kind in ("cli", CHAT_SOURCE) else ("hermes-api-server",)


def list_targets(
    deliver: str | Sequence[str] | None, tenant: str = DEFAULT_TENANT, rules: ChatRules = NO_RULES
) -> list[str]:
    """List the targets, one by one, as they are written. ``rules`` say which chats are the tenant's. Raises
    ``InvalidSubmission``."""
    if not deliver:
        return []
    try:
        references = parse_targets(normalize_deliver(deliver))
        require_open_to(tenant, references, rules)
        return [format_reference(reference) for reference in references]
    except TargetError as error:
        raise InvalidSubmission("deliver", str(error)) from error


def _spec(settings: Settings, submission: Submission, model: str, toolsets: Sequence[str]) -> RunSpec:
    agent = settings.agent
    return RunSpec(
        input=submission.input,
        instructions=submission.instructions,
        history=_history(submission),
        model=model,
        toolsets=toolsets,
        iterations_max=submission.iterations_max or agent.iterations_max,
        wall_s_max=submission.wall_s_max or agent.wall_s_max,
        idle_s_max=agent.idle_s_max if submission.idle_s_max is None else submission.idle_s_max or None,
        tokens_max=submission.tokens_max,
        tool_calls_max=submission.tool_calls_max,
        nano_usd_max=None if submission.cost_usd_max is None else int(Decimal(str(submission.cost_usd_max)) * NANO),
        budget=submission.budget.value if submission.budget else None,
        source=submission.source,
        approvals=submission.approvals,
        approval_s=submission.approval_s,
        network=submission.network,
        metadata=submission.metadata,
        echo=submission.echo,
        tags=tuple(submission.tags),
        output_schema=submission.output_schema,
        compress=submission.compress,
        priority=int(submission.priority or Priority.NORMAL),
        files=submission.files,
        artifacts=tuple(settings.artifacts.patterns if submission.artifacts is None else submission.artifacts),
        program=__version__,
        configuration=name_configuration(settings),
    )


def _find_endpoint(settings: Settings, submission: Submission) -> str | None:
    """Find the endpoint that will serve the run; ``None`` for a process without a model of its own: the workers are
    configured elsewhere."""
    if submission.endpoint is not None:
        return submission.endpoint
    identity = endpoint_identity(settings.model)
    return None if settings.model.is_scripted else identity


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


def _history(submission: Submission) -> Sequence[Mapping[str, Any]]:
    """Write earlier turns as they are stored: normalised once, here, so that no request has to do it again."""
    try:
        return [json.loads(row) for row in import_history(submission.history)]
    except (ValueError, RecursionError) as error:
        raise InvalidSubmission("history", f"the history cannot be stored: {error}") from error


_LATER_FIELDS = (
    "deliver",
    "idle_s_max",
    "after",
    "echo",
    "artifacts",
    "tags",
    "priority",
    "not_before",
    "delay_s",
    "deadline",
    "retry_of",
    "output_schema",
    "settings",
    "compress",
    "client_tools",
    "skills",
)
"""Fields that were added later: a submission that names none of them has the fingerprint that it had before."""


def _make_fingerprint(submission: Submission) -> str:
    """Make the fingerprint of what was asked for, not of what the settings made of it: a retry after a change of
    settings is a retry. Empty without a key and a proof."""
    if submission.idempotency_key is None and submission.proof is None:
        return ""
    if submission.request is not None:
        return compute_fingerprint(submission.request)
    asked_for = asdict(submission)
    for name in _LATER_FIELDS:
        if asked_for[name] in (None, "", [], (), {}):
            del asked_for[name]  # a key from before there was this still fits its request
    for name in ("idempotency_key", "endpoint", "request", "proof", "principal"):
        del asked_for[name]
    return compute_fingerprint(asked_for)


def _tools(
    toolsets: tuple[str, ...], disabled: tuple[str, ...], sourced: Sequence[str], window: int | None
) -> tuple[frozenset[str], str]:
    """List the names of the tools, and write their definitions as a session stores them."""
    try:
        catalog = catalog_with(sourced)
        names = catalog.resolve(toolsets, disabled=disabled)
    except ConfigurationError as error:
        raise InvalidSubmission("toolsets", str(error)) from error
    definitions = dict(zip(names, catalog.tool_definitions(names), strict=True))
    stored = defer_definitions(definitions, catalog.deferrable_names(names), window)
    led_to = BRIDGE if len(stored) > len(names) else frozenset()
    return frozenset(names) | led_to, f"[{','.join(stored)}]"


def _ssh_workspace(settings: Settings, tenant: str, run_id: str) -> WorkspaceRef:
    """Choose the SSH workspace. Other tenants work on our own machines: nothing would keep them apart on a host that
    has one account."""
    if tenant != DEFAULT_TENANT:
        return make_session_ref(str(workspaces_dir(settings.home, tenant)), run_id)
    return make_session_ref(settings.terminal.ssh_directory, run_id, kind=WorkspaceKind.SSH)


def _add_client_tools(settings: Settings, tools: str, brought: Sequence[ClientTool], taken: Collection[str]) -> str:
    """Add the definitions of the client's tools behind those of a session, by name. Raises ``InvalidSubmission``."""
    if not brought:
        return tools
    _require_valid_client_tools(brought, taken)
    of_client = [
        render_client_definition(tool, settings.agent.client_tools_s)
        for tool in sorted(brought, key=lambda tool: tool.name)
    ]
    own = [tools[1:-1]] if tools != "[]" else []
    return f"[{','.join((*own, *of_client))}]"


def _require_valid_client_tools(brought: Sequence[ClientTool], taken: Collection[str]) -> None:
    # Here and not above: it takes long to import, and few runs have such tools.
    from hermes_worker.agent.output import SCHEMA_CHARS_MAX, require_usable_parameters
    from hermes_worker.agent.tools.schema_time_limit import UnusableSchema

    if len(brought) > CLIENT_TOOLS_MAX:
        raise InvalidSubmission("tools", f"a session has at most {CLIENT_TOOLS_MAX} tools of its client")
    left = SCHEMA_CHARS_MAX
    seen: set[str] = set()
    for tool in brought:
        if problem := explain_unusable_name(tool.name):
            raise InvalidSubmission("tools", f"the tool {tool.name[:80]!r} {problem}")
        if tool.name in taken or tool.name in seen:
            whose = "two of them are called so" if tool.name in seen else "the agent has a tool of that name"
            raise InvalidSubmission("tools", f"the tool {tool.name!r} needs another name: {whose}")
        seen.add(tool.name)
        try:
            require_usable_parameters(tool.parameters)
        except UnusableSchema as error:
            raise InvalidSubmission("tools", f"the tool {tool.name!r} cannot be used: its schema {error}") from None
        left -= len(canonical_json(tool.parameters)) + len(tool.description)
        if left < 0:
            words = f"all of them together have more than {SCHEMA_CHARS_MAX:,} characters"
            raise InvalidSubmission("tools", f"the tools are too large: {words}")


def _workspace(settings: Settings, submission: Submission, run_id: str) -> WorkspaceRef:
    """Choose the workspace. It is named by the session's id, and never by its name: two callers may have chosen the
    same."""
    tenant = submission.principal.tenant
    own = workspaces_dir(settings.home, tenant)
    if submission.directory is None:
        if settings.terminal.workspace == WorkspaceKind.SSH:
            return _ssh_workspace(settings, tenant, run_id)
        if settings.terminal.workspace in (WorkspaceKind.DOCKER, WorkspaceKind.KUBERNETES):
            return make_session_ref(CONTAINED_DIRECTORY, run_id, kind=settings.terminal.workspace)
        return make_session_ref(str(own), run_id, kind=settings.terminal.workspace)
    path = Path(submission.directory)
    if not path.is_absolute() or not path.is_dir():
        raise InvalidSubmission("directory", f"{submission.directory!r} is not an absolute path of a directory")
    root = path.resolve()
    if tenant != DEFAULT_TENANT and not root.is_relative_to(own.resolve()):
        raise InvalidSubmission("directory", f"{str(root)!r} is not in a workspace of the tenant {tenant!r}")
    if holds_state(settings.home, root, tenant):
        raise InvalidSubmission(
            "directory", f"{str(root)!r} holds the state of hermes-worker; choose another directory"
        )
    return WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(root))
