"""What an extension may bring, as declarations, and the one function that puts all declarations together.

Everything the product knows by name (tools, providers, wires, channels, kinds of workspaces, routes of the API,
commands) stands in an ``Extension``, whether it is built in, or comes from an installed package or from
``HOME/plugins``. There is no second way in. A declaration is data: names, schemas and *references*,
``"package.module:attribute"``, to the code that does the work. Every process reads all declarations; a reference is
loaded in the process that uses it, when it uses it.

Pure, except for ``load_reference``, which imports.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.memory_context import fence_memory
from hermes_worker.core.replay import Replay

__all__ = [
    "API_VERSION",
    "Agent",
    "AgentBudget",
    "ChannelDeclaration",
    "CommandDeclaration",
    "CompactorDeclaration",
    "ContextSourceDeclaration",
    "Extension",
    "ExtensionConflict",
    "HookDeclaration",
    "Installed",
    "MemoryProviderDeclaration",
    "ProviderDeclaration",
    "RouterDeclaration",
    "SettingDeclaration",
    "SettingType",
    "SettingValue",
    "ToolDeclaration",
    "ToolSourceDeclaration",
    "ToolSpec",
    "WireDeclaration",
    "WorkspaceDeclaration",
    "explain_missing",
    "explain_missing_extra",
    "find_conflicts",
    "find_missing_settings",
    "fold_extensions",
    "load_reference",
]

API_VERSION = 1
"""The version of this module's interface. An extension names the version it was written for."""

Reference = str | Callable[..., Any]
"""An implementation: ``"package.module:attribute"``, or the object itself where it was imported anyhow."""

OWN_PACKAGES = ("hermes_worker", "scheduler")
MODULES_OF_EXTRA: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gateway": ("websockets",),
        "apprise": ("apprise",),
        "bedrock": ("botocore",),
        "browser": ("playwright", "websockets"),
        "documents": ("docx", "openpyxl", "pptx", "pypdf"),
        "flower": ("flower", "tornado"),
        "kubernetes": ("websockets",),
        "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp"),
        "s3": ("botocore",),
        "ssh": ("asyncssh",),
    }
)
"""The modules of each extra, which are installed on demand only. The first extra that has a module is named for it."""
EXTRA_OF_MODULE: Mapping[str, str] = MappingProxyType(
    {
        module.partition(".")[0]: extra
        for extra, modules in reversed(tuple(MODULES_OF_EXTRA.items()))
        for module in modules
    }
)
"""The extra that brings a module which is installed on demand only."""
USUAL_BUNDLES = ("hermes-cli", "hermes-cron", "hermes-api-server")
"""The toolsets of sessions that name none."""
NO_TOOLS = "none"
"""The toolset without a tool, for runs that only answer."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of functions that every provider accepts."""
HOOK_TIMEOUT_S_MAX = 300.0
PREFETCH_S_MAX = 2.0
"""The longest time that an iteration waits for a memory provider, in seconds."""
CONTEXT_S_MAX = 10.0
"""The longest time limit of a context source, in seconds: a caller waits for the answer to a submission."""
_DELIVERS, _LISTENS, _SERVES = "delivery", "gateway", "api"
_ROLES = frozenset({"model", "tools", _DELIVERS, "system", "beat", _SERVES, "mcp", _LISTENS})
_SKILLS = re.compile(r"[A-Za-z_][\w.]*:\w[\w./-]*")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class ExtensionConflict(ConfigurationError):
    """The enabled extensions cannot be used together, or one of them cannot be used here."""


# --- what can be declared --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """The facts about a tool for the model, the planner and the worker."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the arguments object."""
    toolset: str
    replay: Replay
    is_untrusted: bool
    """Whether its results hold text of strangers: true for every tool that reads from outside the workspace. They are
    shown in the wrapper of ``safety.untrusted``.
    """
    timeout_s: float = 120.0
    """The worker cancels the call after this long, and the sweeper takes the claim a little later. A tool with a
    ``timeout`` argument of its own declares the largest value it allows."""
    result_chars_max: int | None = 100_000
    """A longer result is written to a file in the workspace and replaced by a preview; ``None`` for tools that
    page by themselves."""
    is_parallel_safe: bool = False
    """Whether it may run beside its neighbours of the same batch."""
    path_argument: str | None = None
    """Name of the argument that holds the one path this call touches: such calls may run beside each other when
    their paths do not overlap."""
    command_argument: str | None = None
    """Name of the argument that holds a shell command: dangerous ones need permission (``safety.approvals``)."""
    code_argument: str | None = None
    """Name of the argument that holds a program: it needs permission as one that a shell hands to an interpreter."""
    changes_files: bool = False
    """Whether a call changes files of the workspace: a checkpoint is made before it. Commands are read instead."""
    session_keys: tuple[str, ...] = ()
    """Session documents the tool reads; they arrive in ``ToolContext.session``."""
    replay_by: tuple[str, Mapping[str, Replay]] | None = None
    """Name of the argument by whose value the replay class is another than ``replay``, and these values."""
    refuses_markers: str | None = None
    """The sentence for a model whose arguments contain the marker of a hidden secret, which the tool would write into a
    file in the secret's place; ``None`` for tools that write nothing.
    """

    def replay_of(self, arguments: Mapping[str, Any]) -> Replay:
        """The replay class of a call with ``arguments``."""
        if self.replay_by is None:
            return self.replay
        name, classes = self.replay_by
        value = arguments.get(name)
        return classes.get(value, self.replay) if isinstance(value, str) else self.replay


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDeclaration:
    """A tool: its specification, and where the tool itself is."""

    spec: ToolSpec
    implementation: Reference
    """Called with the services of ``needs`` as keywords; returns a ``agent.tools.base.Tool``."""
    needs: tuple[str, ...] = ()
    """The services that the tool is built with: ``jobs``, ``messages``, ``fetching``, ``values`` (the extension's own
    settings), ``spec``.
    """

    @property
    def name(self) -> str:
        return self.spec.name


class ProviderDeclaration(Protocol):
    """A row of ``models.catalog``: a provider of models, as data."""

    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WireDeclaration:
    """A way to write requests to models and to read their replies; ``model.api_mode`` names it."""

    name: str
    implementation: Reference
    """Called with an ``Endpoint``; returns a ``models.base.Provider``."""


class ChannelDeclaration(Protocol):
    """A row of ``channels.catalog``: a platform that messages are delivered to, and may come from."""

    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...
    @property
    def secret_variables(self) -> tuple[str, ...]:
        """The secret variables that the delivery role needs."""

    @property
    def gateway_secrets(self) -> tuple[str, ...]:
        """The secret variables that the gateway role needs."""

    @property
    def webhook_secrets(self) -> tuple[str, ...]:
        """The secret variables that the API needs."""

    @property
    def webhook_needs(self) -> tuple[str, ...]:
        """The variables without which the platform brings nothing to the API; then it gets none of those secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceDeclaration:
    """A kind of place in which sessions work."""

    name: str
    implementation: Reference
    """Called with the workspace's root and ``workspaces.ref.OpeningOptions``; returns a ``Workspace``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterDeclaration:
    """Routes of the HTTP API: a dialect, or a part of one. They are served behind the API's key like all others."""

    name: str
    implementation: Reference
    """A ``fastapi.APIRouter``."""
    paths: tuple[str, ...] = ()
    """The paths of its routes (``/v1/runs/{run_id}``) that commands ask for: the API of one command
    (``api.in_process``) imports a router when one of these is asked for, and serves no other.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandDeclaration:
    """A command of ``hermes-worker``."""

    name: str
    """One word, or that of a group and a verb in it: ``fleet balance``."""
    summary: str
    """The line of ``hermes-worker --help`` about it: the command itself is not imported for that."""
    implementation: Reference
    """A ``click.Command``."""
    section: str = ""
    """The heading that ``--help`` lists it under; without one, that of extensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepDeclaration:
    """What the product's regular work does for a feature: sweeping, pruning, erasing, the start of an API, the doctor.
    Each part is ``None`` where there is nothing to do.
    """

    name: str
    """What is kept in order; prunes and erasures report their counts under this name."""
    sweep_rows: Reference | None = None
    """Called with the database in every sweep: takes back what lost its worker, and does what is due by time. Returns
    the hints to send (``store.rows.Hint``). Idempotent."""
    resend_rows: Reference | None = None
    """Called in every sweep with the database and the keywords ``grace_s`` and ``before``: returns the hints of the
    feature's due rows whose message for a worker for tools is lost, hinted before ``before`` (epoch seconds) and more
    than ``grace_s`` seconds ago."""
    prune_rows: Reference | None = None
    """Called with the database and the keyword ``acts``: deletes rows that nothing names any more, and returns how
    many; without ``acts`` it only counts them."""
    forget_sessions: Reference | None = None
    """Called with the home, a tenant, and a function that returns which of some session ids may go: removes this
    machine's files of those sessions, and returns how many. Idempotent."""
    begin_serving: Reference | None = None
    """Called with the settings and the database when an API starts. Idempotent."""
    list_checks: Reference | None = None
    """Called with the settings: yields the checks of ``hermes-worker doctor``, each a subject and a function that
    returns a ``cli.doctor_findings.Grade`` and a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBlockDeclaration:
    """What a feature says from its rows in the system prompts of new sessions."""

    name: str
    implementation: Reference
    """A ``services.prompt_blocks.BlockReader``."""


class SettingType(StrEnum):
    """The type of an extension's setting."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    SWITCH = "switch"


SettingValue = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSourceDeclaration:
    """A text in the system prompts of new sessions."""

    name: str
    implementation: Reference
    """Called with ``agent.prompt.sources.ContextFacts``; returns the text, or ``None`` for none."""
    order: int = 500
    """The order among several blocks, the lowest first; those below 300 stand before the caller's instructions."""
    title: str = ""
    """The heading of the text; ``name`` when it is empty."""
    chars_max: int = 20_000
    """A longer text is cut in its middle."""
    timeout_s: float = 2.0
    """After so many seconds the session begins without it; at most 10."""
    is_pure: bool = False
    """Whether it computes from the facts alone: then it is called in the caller's own thread, without a limit, and its
    text is used unchanged, with its own heading.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillsDeclaration:
    """A directory of skills (docs/skills.md). Each is called ``EXTENSION:NAME``, and no agent changes it."""

    folder: str
    """``package:folder``, relative to the package; the package is not imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSourceDeclaration:
    """Tools that only a worker can learn of, by asking a service. They are in a toolset with the name of the source."""

    name: str
    implementation: Reference
    """Called with the extension's settings by name, and the services of ``needs`` as keywords; returns a
    ``agent.tools.sources.ToolSource``."""
    needs: tuple[str, ...] = ()
    """Services of the process, with the names that a ``ToolDeclaration`` uses."""
    refresh_s: float = 300.0
    """Seconds after which each worker for tools asks it again."""
    timeout_s: float = 30.0
    """An answer that takes longer is named in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactorDeclaration:
    """A way to make long conversations shorter; ``compression.compactor`` names it."""

    name: str
    implementation: Reference
    """Called with the extension's settings by name; returns a ``agent.prompt.compactors.Compactor``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookDeclaration:
    """Code that is told of what happens in runs, or asked before it happens (docs/hooks.md)."""

    name: str
    """The name under which its calls are recorded: lower-case letters, digits, ``_`` and ``-``."""
    events: tuple[str, ...]
    """Names of ``core.hooks.HOOK_EVENTS``; ``agent:*`` stands for all that begin so."""
    implementation: Reference
    """Called with a ``core.hooks.HookEvent``; may be a coroutine function. Of an observer the answer is ignored."""
    order: int = 0
    """The order among several hooks for one event, the lowest first; equal ones in the order of their extensions."""
    timeout_s: float = 10.0
    """After so many seconds it is not waited for any more."""
    is_handler: bool = False
    """Whether it is called as ``handler.py`` beside a ``HOOK.yaml`` is: with the event's name and its payload."""
    of_memory: bool = False
    """Whether it belongs to a memory provider: then it is called only about runs that may write memories, and its
    answer is judged as recalled memory.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProviderDeclaration:
    """A service that remembers people between conversations. One at a time may be enabled. Its functions are called as
    hooks are (docs/hooks.md): with a ``core.hooks.HookEvent``, on a thread, within a time limit; each may be a
    coroutine function. A failure of one costs no turn. They are called only about runs that may write memories
    (docs/memory.md). Its tools are those of its extension.
    """

    name: str
    prefetch: Reference
    """Asked for ``pre_llm_call``, once in a run: the text it returns, at most ``core.memory_context.MEMORY_CHARS_MAX``
    characters, is shown to the model as recalled memory, and is stored with the first reply."""
    sync: Reference
    """Told of ``post_llm_call`` after an answer is committed, at least once, with the same event id each time."""
    on_pre_compress: Reference | None = None
    """Asked for ``pre_compress``, with the messages that a summary will stand for: what it returns is given to the
    model that writes the summary."""
    on_delegation: Reference | None = None
    """Told of ``subagent_stop``: a run's delegated task, and its result."""
    on_memory_write: Reference | None = None
    """Told of ``post_tool_call`` where a call of the tool ``memory`` changed something."""
    on_session_end: Reference | None = None
    """Told of ``on_session_end``: a turn is over, however it ended."""
    prompt_block: Reference | None = None
    """Called as a context source is: a text in the prompts of new sessions of people, among the memories."""
    prefetch_timeout_s: float = PREFETCH_S_MAX
    """A turn waits no longer for what is remembered, and no longer for ``on_pre_compress``."""
    sync_timeout_s: float = 30.0
    """The time limit of the functions that are not waited for, in seconds."""

    def hooks(self) -> tuple[HookDeclaration, ...]:
        """The provider as hooks."""
        written = None if self.on_memory_write is None else _MemoryWriteObserver(self.on_memory_write)
        parts: tuple[tuple[str, str, Reference | None], ...] = (
            ("prefetch", "pre_llm_call", _PrefetchHook(self.prefetch)),
            ("sync", "post_llm_call", self.sync),
            ("compress", "pre_compress", self.on_pre_compress),
            ("delegation", "subagent_stop", self.on_delegation),
            ("write", "post_tool_call", written),
            ("end", "on_session_end", self.on_session_end),
        )
        return tuple(
            HookDeclaration(
                name=f"{self.name}-{part}",
                events=(event,),
                implementation=implementation,
                timeout_s=self.prefetch_timeout_s if event in _WAITED_FOR else self.sync_timeout_s,
                of_memory=True,
            )
            for part, event, implementation in parts
            if implementation is not None
        )

    def context_sources(self) -> tuple[ContextSourceDeclaration, ...]:
        """The provider's text in system prompts, behind the memories of the product's own."""
        if self.prompt_block is None:
            return ()
        said = _OnlyForPeople(self.prompt_block)
        source = ContextSourceDeclaration(
            name=f"{self.name}-memory", implementation=said, order=_BEHIND_MEMORIES, title=f"Memory ({self.name})"
        )
        return (source,)


_WAITED_FOR = frozenset({"pre_llm_call", "pre_compress"})
_BEHIND_MEMORIES = 900
_MEMORY_TOOL = "memory"


@dataclass(frozen=True, slots=True)
class _PrefetchHook:
    """A hook that shows what ``reference`` recalls."""

    reference: Reference

    def __call__(self, event: object) -> object:
        found = load_reference(self.reference)(event)
        return _await_and_fence(found) if inspect.isawaitable(found) else _fence_text(found)


@dataclass(frozen=True, slots=True)
class _MemoryWriteObserver:
    """An observer of tool calls that tells ``reference`` of what the tool ``memory`` changed."""

    reference: Reference

    def __call__(self, event: Any) -> object:
        is_change = event.payload.get("tool_name") == _MEMORY_TOOL and event.payload.get("status") == "ok"
        return load_reference(self.reference)(event) if is_change else None


@dataclass(frozen=True, slots=True)
class _OnlyForPeople:
    """A context source that says nothing to runs that no person asked for."""

    reference: Reference

    def __call__(self, facts: Any) -> object:
        return None if facts.source in ("cron", "webhook") else load_reference(self.reference)(facts)


async def _await_and_fence(found: Awaitable[object]) -> object:
    return _fence_text(await found)


def _fence_text(found: object) -> object:
    return fence_memory(found) if isinstance(found, str) else found


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDeclaration:
    """Something that the operator sets for an extension, in the environment or in ``.env``. ``setting_groups`` makes
    these of a dataclass."""

    name: str
    """The name by which the extension's code reads it."""
    variable: str
    """The environment variable that holds it."""
    summary: str
    holds: SettingType = SettingType.TEXT
    default: SettingValue | None = None
    """``None``: the extension gets no value when none is set."""
    choices: tuple[str, ...] = ()
    """The allowed values of a text; empty for any text."""
    minimum: float | None = None
    maximum: float | None = None
    """Bounds of a number; ``None`` for none."""
    is_required: bool = False
    """Processes of ``roles`` do not start without it."""
    is_secret: bool = False
    roles: tuple[str, ...] = ("tools",)
    """The roles of processes that use it. A secret is given to no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentBudget:
    """Limits of an agent's runs: of what a run leaves open, and the most that it may ask for. ``None`` for none."""

    iterations: int | None = None
    """Model calls."""
    tokens: int | None = None
    tool_calls: int | None = None
    cost_usd: float | None = None
    wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that runs and jobs name as their model: ``agent:NAME``."""

    name: str
    """Lower-case letters, digits, ``_`` and ``-``."""
    prompt: str
    """Joins the system prompt of new sessions, before what the caller says of its own."""
    tools: tuple[str | ToolDeclaration, ...] = ()
    """Its tools, and names of tools and toolsets; the usual ones when there are none, ``"none"`` for no tool."""
    model: str | None = None
    """``None`` for the configured one."""
    budget: AgentBudget = AgentBudget()
    summary: str = ""

    @property
    def tool_names(self) -> tuple[str, ...]:
        return tuple(one if isinstance(one, str) else one.name for one in self.tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """The declarations of one extension: making one imports nothing that does the work."""

    name: str
    """Lower-case letters, digits, ``_`` and ``-``; what the operator enables."""
    version: str
    api_version: int = API_VERSION
    """The ``API_VERSION`` it was written for."""
    summary: str = ""
    tools: tuple[ToolDeclaration, ...] = ()
    tool_sources: tuple[ToolSourceDeclaration, ...] = ()
    toolsets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Toolsets that are made of others. A part that has no tools in this installation adds nothing."""
    joins: tuple[str, ...] = USUAL_BUNDLES
    """The toolsets that its tools become part of, beside the one that each names itself."""
    providers: tuple[ProviderDeclaration, ...] = ()
    wires: tuple[WireDeclaration, ...] = ()
    channels: tuple[ChannelDeclaration, ...] = ()
    workspaces: tuple[WorkspaceDeclaration, ...] = ()
    routers: tuple[RouterDeclaration, ...] = ()
    commands: tuple[CommandDeclaration, ...] = ()
    context_sources: tuple[ContextSourceDeclaration, ...] = ()
    compactors: tuple[CompactorDeclaration, ...] = ()
    memory_providers: tuple[MemoryProviderDeclaration, ...] = ()
    settings: tuple[SettingDeclaration, ...] = ()
    hooks: tuple[HookDeclaration, ...] = ()
    skills: tuple[SkillsDeclaration, ...] = ()
    agents: tuple[Agent, ...] = ()
    upkeep: tuple[UpkeepDeclaration, ...] = ()
    """For features of the product, as the fields behind it: what these functions are given is promised to no other
    extension."""
    prompt_blocks: tuple[PromptBlockDeclaration, ...] = ()
    tables: tuple[Reference, ...] = ()
    """Its tables: each a ``sqlalchemy.Table`` of ``store.tables.metadata``, beside those of the kernel, in one schema
    that one line of revisions builds. The table's ``info`` says whose its rows are: its ``owner`` is the column
    (``run_pk``, ``session_pk`` or ``tenant``) by which they are exported, counted in receipts and erased. Rows of runs
    and sessions are deleted by their foreign key (``on delete cascade``). Without an owner they are nobody's."""

    def __post_init__(self) -> None:
        """Put tools that name no toolset into that of their extension, and add the hooks of memory providers."""
        named = tuple(one if one.spec.toolset else _put_into_toolset(one, self.name) for one in self.tools)
        object.__setattr__(self, "tools", named)
        for name in ("hooks", "context_sources"):
            theirs = (part for provider in self.memory_providers for part in getattr(provider, name)())
            there = getattr(self, name)
            object.__setattr__(self, name, (*there, *(part for part in theirs if part not in there)))


def _put_into_toolset(tool: ToolDeclaration, toolset: str) -> ToolDeclaration:
    return replace(tool, spec=replace(tool.spec, toolset=toolset))


# --- putting them together -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Installed:
    """What all enabled extensions bring together, by name and in the order in which they were named. Compared by
    identity: a value derived from one may be kept for as long as it is in force.
    """

    extensions: Sequence[Extension]
    tools: Mapping[str, ToolDeclaration]
    tool_sources: Mapping[str, ToolSourceDeclaration]
    bundles: Mapping[str, tuple[str, ...]]
    providers: Mapping[str, ProviderDeclaration]
    wires: Mapping[str, WireDeclaration]
    channels: Mapping[str, ChannelDeclaration]
    workspaces: Mapping[str, WorkspaceDeclaration]
    routers: Mapping[str, RouterDeclaration]
    commands: Mapping[str, CommandDeclaration]
    context_sources: Mapping[str, ContextSourceDeclaration]
    compactors: Mapping[str, CompactorDeclaration]
    settings: Mapping[str, SettingDeclaration]
    """Settings by variable."""
    hooks: Mapping[str, HookDeclaration]
    """Hooks in the order in which they are asked."""
    agents: Mapping[str, Agent]
    upkeep: Mapping[str, UpkeepDeclaration]
    prompt_blocks: Mapping[str, PromptBlockDeclaration]
    values: Mapping[str, Mapping[str, SettingValue]]
    """The values of each extension's settings, by their names."""

    secret_variables: Mapping[str, tuple[str, ...]]
    """The variables that hold secrets of extensions, and the roles of processes that get them."""
    webhook_needs: Mapping[str, tuple[str, ...]]
    """By variable that holds a secret of a webhook: the other variables that have to be set for the API to need it."""

    def list_bringing(self, kind: str) -> tuple[Extension, ...]:
        """The extensions that bring something of a kind: a field of ``Extension``."""
        return tuple(one for one in self.extensions if getattr(one, kind))


def fold_extensions(
    extensions: Sequence[Extension], values: Mapping[str, SettingValue] | None = None, *, withheld: Iterable[str] = ()
) -> Installed:
    """Put all extensions together. ``values`` holds the values of variables, by name; those in ``withheld`` may be
    missing here because only another process needs them. Raises ``ExtensionConflict``, which names every conflict there
    is.
    """
    given = values or {}
    found = [*find_conflicts(extensions), *find_missing_settings(extensions, given, withheld=withheld)]
    if found:
        raise ExtensionConflict("; ".join(found))
    return Installed(
        extensions=tuple(extensions),
        bundles=_merge_bundles(extensions),
        **{
            name: _index_by_name(getattr(one, name) for one in extensions)
            for name in _KINDS
            if name not in ("settings", "hooks")
        },
        settings=MappingProxyType({item.variable: item for one in extensions for item in one.settings}),
        hooks=_index_by_name([sorted((hook for one in extensions for hook in one.hooks), key=lambda hook: hook.order)]),
        secret_variables=_index_secrets(extensions),
        webhook_needs=MappingProxyType(
            {
                variable: row.webhook_needs
                for one in extensions
                for row in one.channels
                for variable in row.webhook_secrets
            }
        ),
        values=MappingProxyType(
            {
                one.name: MappingProxyType(
                    {item.name: given[item.variable] for item in one.settings if item.variable in given}
                )
                for one in extensions
            }
        ),
    )


def find_conflicts(extensions: Sequence[Extension]) -> tuple[str, ...]:
    """The reasons why these cannot be used together, one sentence each; empty when they can. Pure."""
    return tuple(_find_conflicts(extensions))


def _find_conflicts(extensions: Sequence[Extension]) -> Iterator[str]:
    for one in extensions:
        if one.api_version != API_VERSION:
            yield (
                f"the extension {one.name!r} is made for version {one.api_version} of the extension interface, and "
                f"this is version {API_VERSION}: install a version of it that fits, or disable it"
            )
        yield from _find_faults(one)
    toolsets = {tool.spec.toolset for one in extensions for tool in one.tools}
    for name in sorted(toolsets & {source.name for one in extensions for source in one.tool_sources}):
        yield f"{name!r} names both a toolset and a tool source: disable one of the extensions that bring them"
    remembering = [(provider.name, one.name) for one in extensions for provider in one.memory_providers]
    if len(remembering) > 1:
        which = ", ".join(f"{name!r} of {whose!r}" for name, whose in remembering)
        yield f"only one memory provider can be in use, and there are {which}: disable the other extensions"
    names = [one.name for one in extensions]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"two extensions are named {name!r}: disable one of them"
    claimed: dict[tuple[str, str], str] = {}
    for one in extensions:
        for kind, name in _iterate_claims(one):
            other = claimed.setdefault((kind, name), one.name)
            if other != one.name:
                yield f"the extensions {other!r} and {one.name!r} both bring the {kind} {name!r}: disable one of them"
        twice = Counter(_iterate_claims(one))
        yield from (
            f"the extension {one.name!r} brings the {kind} {name!r} twice" for (kind, name), n in twice.items() if n > 1
        )


def _find_faults(one: Extension) -> Iterator[str]:
    """Yield what is wrong with one extension, whatever else is installed, as sentences."""
    if not _NAME.fullmatch(one.name):
        yield f"{one.name!r} is no name for an extension: use lower-case letters, digits, '_' and '-'"
    for tool in one.tools:
        if not _TOOL_NAME.fullmatch(tool.name):
            yield f"{tool.name!r} of the extension {one.name!r} is no name for a tool: use letters, digits, '_' and '-'"
        if not isinstance(tool.spec.replay, Replay):
            yield f"the tool {tool.name!r} of the extension {one.name!r} says no replay class: pure, keyed or once"
    for item in one.settings:
        if unknown := sorted(set(item.roles) - _ROLES):
            yield f"{item.variable} of the extension {one.name!r} names roles that there are not: {', '.join(unknown)}"
        if item.is_secret and (item.default is not None or item.holds is not SettingType.TEXT):
            yield f"{item.variable} of the extension {one.name!r} is a secret: it is text and has no default"
    for offering in one.tool_sources:
        if not _NAME.fullmatch(offering.name) or offering.refresh_s < 1 or offering.timeout_s <= 0:
            yield (
                f"the tool source {offering.name!r} of the extension {one.name!r} is called by lower-case letters, "
                "digits, '_' and '-', and asked once a second at most"
            )
    for source in one.context_sources:
        if not 0 < source.timeout_s <= CONTEXT_S_MAX or source.chars_max < 1:
            yield (
                f"the context source {source.name!r} of the extension {one.name!r} must end within {CONTEXT_S_MAX:g} s "
                "and may have at least one character"
            )
    for brought in one.skills:
        if not _SKILLS.fullmatch(brought.folder) or ".." in brought.folder:
            yield f"{brought.folder!r} of the extension {one.name!r} has not the form 'package:folder'"
    toolsets = {tool.spec.toolset for tool in one.tools}
    for name in sorted(toolsets & one.toolsets.keys()):
        yield f"{name!r} of the extension {one.name!r} names both a toolset and a bundle of toolsets"
    for provider in one.memory_providers:
        if not 0 < provider.prefetch_timeout_s <= PREFETCH_S_MAX:
            yield (
                f"the memory provider {provider.name!r} of the extension {one.name!r} must have a prefetch_timeout_s "
                f"above 0 and at most {PREFETCH_S_MAX:g}"
            )
    for agent in one.agents:
        if not _NAME.fullmatch(agent.name):
            yield f"{agent.name!r} is no name for an agent: use lower-case letters, digits, '_' and '-'"
    for hook in one.hooks:
        yield from _find_hook_faults(hook, one.name)
    for reference in _list_references(one):
        if isinstance(reference, str) and not _REFERENCE.fullmatch(reference):
            yield f"{reference!r} of the extension {one.name!r} has not the form 'package.module:attribute'"


def _find_hook_faults(hook: HookDeclaration, extension: str) -> Iterator[str]:
    from hermes_worker.core.hooks import ABSENT_EVENTS, HOOK_EVENTS, expand_events  # few extensions have hooks

    whose = f"the hook {hook.name!r} of the extension {extension!r}"
    if not _NAME.fullmatch(hook.name):
        yield f"{whose} has no usable name: use lower-case letters, digits, '_' and '-'"
    if not hook.events:
        yield f"{whose} names no event"
    for event in expand_events(hook.events):
        if event in ABSENT_EVENTS:
            yield f"{whose} is for {event!r}, which never happens here: docs/hooks.md says why"
        elif event not in HOOK_EVENTS:
            yield f"{whose} is for {event!r}, which is no event: docs/hooks.md lists them"
    if not isinstance(hook.timeout_s, int | float) or not 0 < hook.timeout_s <= HOOK_TIMEOUT_S_MAX:
        yield f"{whose} must have a timeout_s above 0 and at most {HOOK_TIMEOUT_S_MAX:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlugKind:
    """One kind of plug: a field of ``Extension`` that holds rows."""

    word: str
    """What one of them is called in sentences."""
    claims: Callable[[Any], Iterable[str]] = lambda row: (row.name,)
    """The names of a row, which no other row of the kind may have."""


def _claim_with_aliases(row: Any) -> Iterable[str]:
    return (row.name, *row.aliases)


_KINDS: Mapping[str, _PlugKind] = MappingProxyType(
    {
        "tools": _PlugKind(word="tool"),
        "tool_sources": _PlugKind(word="tool source"),
        "providers": _PlugKind(word="provider", claims=_claim_with_aliases),
        "wires": _PlugKind(word="wire"),
        "channels": _PlugKind(word="channel", claims=_claim_with_aliases),
        "workspaces": _PlugKind(word="kind of workspace"),
        "routers": _PlugKind(word="router"),
        "commands": _PlugKind(word="command"),
        "context_sources": _PlugKind(word="context source"),
        "compactors": _PlugKind(word="compactor"),
        "settings": _PlugKind(word="setting", claims=lambda row: (row.variable,)),
        "hooks": _PlugKind(word="hook"),
        "agents": _PlugKind(word="agent"),
        "upkeep": _PlugKind(word="upkeep"),
        "prompt_blocks": _PlugKind(word="block of prompts"),
    }
)
"""The kinds of plugs, by the field of ``Extension`` that holds them."""


def _list_references(one: Extension) -> Iterator[Reference]:
    rows = (row for name in _KINDS for row in getattr(one, name))
    yield from (row.implementation for row in rows if hasattr(row, "implementation"))
    parts = (getattr(task, part.name) for task in one.upkeep for part in fields(task) if part.name != "name")
    yield from (part for part in (*one.tables, *parts) if part is not None)
    for provider in one.memory_providers:
        yield provider.prefetch
        yield from (part for part in (provider.on_memory_write, provider.prompt_block) if part is not None)


def _iterate_claims(one: Extension) -> Iterator[tuple[str, str]]:
    """Yield each kind and name that no other extension may bring."""
    for name, kind in _KINDS.items():
        yield from ((kind.word, claimed) for row in getattr(one, name) for claimed in kind.claims(row))
    yield from (("bundle of toolsets", name) for name in (*one.toolsets, *(source.name for source in one.tool_sources)))


def find_missing_settings(
    extensions: Sequence[Extension],
    values: Mapping[str, SettingValue],
    *,
    withheld: Iterable[str] = (),
    roles: Iterable[str] = _ROLES,
) -> tuple[str, ...]:
    """The required settings that have no value and that processes of ``roles`` use, a sentence each. Pure."""
    kept, ours = frozenset(withheld), frozenset(roles)
    return tuple(
        f"the extension {one.name!r} needs {item.variable} ({item.summary.rstrip('.')}): "
        "set it, or disable the extension"
        for one in extensions
        for item in one.settings
        if item.is_required
        and not ours.isdisjoint(item.roles)
        and item.variable not in kept
        and not str(values.get(item.variable, "")).strip()
    )


def _list_secrets(extensions: Sequence[Extension]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for one in extensions:
        yield from ((item.variable, item.roles) for item in one.settings if item.is_secret)
        for row in one.channels:
            yield from ((variable, (_DELIVERS,)) for variable in row.secret_variables)
            yield from ((variable, (_LISTENS,)) for variable in row.gateway_secrets)
            yield from ((variable, (_SERVES,)) for variable in row.webhook_secrets)


def _index_secrets(extensions: Sequence[Extension]) -> Mapping[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for variable, roles in _list_secrets(extensions):
        found[variable] = tuple(dict.fromkeys((*found.get(variable, ()), *roles)))
    return MappingProxyType(found)


def _merge_bundles(extensions: Sequence[Extension]) -> Mapping[str, tuple[str, ...]]:
    bundles = {name: tuple(parts) for one in extensions for name, parts in one.toolsets.items()}
    for one in extensions:
        named = (*(tool.spec.toolset for tool in one.tools), *(source.name for source in one.tool_sources))
        toolsets = tuple(dict.fromkeys(named))
        for name in one.joins if toolsets else ():
            bundles[name] = tuple(dict.fromkeys((*bundles.get(name, ()), *toolsets)))
    return MappingProxyType(bundles)


class _HasName(Protocol):
    @property
    def name(self) -> str: ...


_Declared = TypeVar("_Declared", bound=_HasName)


def _index_by_name(declared: Iterable[Iterable[_Declared]]) -> Mapping[str, _Declared]:
    return MappingProxyType({one.name: one for each in declared for one in each})


def load_reference(reference: Reference) -> Any:
    """Load the object that a reference names. Raises ``ConfigurationError``."""
    if not isinstance(reference, str):
        return reference
    module_name, _, path = reference.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        if module_name.partition(".")[0] in OWN_PACKAGES:
            raise ConfigurationError(explain_missing(error)) from error
        raise ConfigurationError(f"{reference!r} of an extension cannot be loaded: {error}") from error
    return found


def explain_missing_extra(extra: str) -> str | None:
    """Say what is not installed of an extra of ours, and how to install it; ``None`` when all of it is there."""
    missing = [module for module in MODULES_OF_EXTRA[extra] if not _is_installed(module)]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return f"{' and '.join(missing)} {verb} missing: pip install 'hermes-worker[{extra}]'"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it is not there
        return False


def explain_missing(error: ImportError | AttributeError) -> str:
    """The sentence that says what to do about a module of this product, or of a dependency, that cannot be imported."""
    extra = (
        EXTRA_OF_MODULE.get((error.name or "").partition(".")[0]) if isinstance(error, ModuleNotFoundError) else None
    )
    if extra is not None:
        return f"this needs the module {error.name!r}, which is not installed: pip install 'hermes-worker[{extra}]'"
    return (
        f"this installation of hermes-worker is broken ({error}); install it again: "
        "pip install --force-reinstall hermes-worker"
    )
