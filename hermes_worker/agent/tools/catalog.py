"""Which tools there are, which toolset holds which, and how they are described to a model.

Everything but ``get`` is answered from declarations; a tool itself is loaded and built when ``get`` is called for it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from hermes_worker import installed
from hermes_worker.agent.source_tools import iterate_frozen_specs, parse_definition
from hermes_worker.core.client_tools import CLIENT_SOURCE
from hermes_worker.core.deferred_tools import BRIDGE_SOURCE, list_deferred_functions
from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.row_sources import is_row_source
from hermes_worker.extension import (
    NO_TOOLS,
    USUAL_BUNDLES,
    Installed,
    SettingValue,
    ToolDeclaration,
    ToolSourceDeclaration,
    ToolSpec,
    load_reference,
)

if TYPE_CHECKING:
    from hermes_worker.agent.tools.base import Tool
    from hermes_worker.agent.tools.sources import ToolSource

EVERYTHING: Final = ("all", "*")
_SESSIONS_MAX = 256
"""Sets of stored definitions that a catalogue remembers."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class UnknownTool(HermesError):
    """No tool of this name is installed."""


class ToolCatalog:
    """Tools by name. Every answer is computed once and then looked up; thread-safe.

    Each tool belongs to the toolset its specification names; ``bundles`` adds toolsets that include others. A tool
    object counts as its own declaration. ``services`` is what tools may be built with, by the names that their
    declarations use, ``values`` the settings of each tool's extension, and ``sources`` makes tool sources. Raises
    ``ConfigurationError`` when two tools have one name or a bundle has the name of a toolset.
    """

    def __init__(
        self,
        tools: Iterable[ToolDeclaration | Tool],
        *,
        bundles: Mapping[str, tuple[str, ...]] = _NOTHING,
        services: Mapping[str, Any] = _NOTHING,
        values: Mapping[str, Mapping[str, SettingValue]] = _NOTHING,
        sources: Mapping[str, Callable[[], ToolSource]] = _NOTHING,
    ) -> None:
        self._declared: dict[str, ToolDeclaration] = {}
        for tool in tools:
            if tool.spec.name in self._declared:
                raise ConfigurationError(f"two tools are named {tool.spec.name!r}")
            self._declared[tool.spec.name] = tool if isinstance(tool, ToolDeclaration) else _declare_tool(tool)
        self._own: dict[str, frozenset[str]] = {}
        for name, tool in self._declared.items():
            self._own[tool.spec.toolset] = self._own.get(tool.spec.toolset, frozenset()) | {name}
        for name in bundles.keys() & (self._own.keys() | {*EVERYTHING, NO_TOOLS}):
            raise ConfigurationError(f"{name!r} names both a toolset and a bundle of toolsets")
        self._bundles = dict(bundles)
        self._services = services
        self._values = values
        self._definitions = {name: _render_definition(tool) for name, tool in self._declared.items()}
        self._resolved: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[str, ...]] = {}
        self._built: dict[str, Tool] = {}
        self._building = threading.Lock()
        self._sources = sources
        self._built_sources: dict[str, ToolSource] = {}
        self._sessions: dict[str, ToolCatalog] = {}

    @property
    def names(self) -> frozenset[str]:
        """The names of all tools."""
        return frozenset(self._declared)

    @property
    def deferred(self) -> frozenset[str]:
        """The names of the tools that ``tool_call`` leads to: only a session has some."""
        return frozenset()

    @property
    def toolsets(self) -> Mapping[str, tuple[str, ...]]:
        """Every toolset that holds a tool, and its tools."""
        resolved = {name: tuple(sorted(self._list_members(name))) for name in sorted({*self._own, *self._bundles})}
        return {name: members for name, members in resolved.items() if members}

    def get_spec(self, name: str) -> ToolSpec:
        """Return the declaration of a tool. Raises ``UnknownTool``."""
        return self._find_declaration(name).spec

    def get(self, name: str) -> Tool:
        """The tool itself, loaded and built the first time. Raises ``UnknownTool``, and ``ConfigurationError`` for one
        that cannot be built here."""
        declared = self._find_declaration(name)
        with self._building:
            if name not in self._built:
                self._built[name] = _build_tool(
                    declared, {**self._services, "values": self._values.get(name, _NOTHING)}
                )
            return self._built[name]

    def get_source(self, name: str) -> ToolSource:
        """The tool source itself, made the first time. Raises ``UnknownTool``, and ``ConfigurationError`` for one that
        cannot be made here."""
        make = self._sources.get(name)
        if make is None and is_row_source(name) and (rows := self._services.get("row_sources")) is not None:
            make = partial(rows, name)
        if make is None:
            raise UnknownTool(f"the tools of {name!r} cannot be used any more: the extension that brought them is gone")
        with self._building:
            if name not in self._built_sources:
                self._built_sources[name] = make()
            return self._built_sources[name]

    def for_session(self, tools: str) -> ToolCatalog:
        """The catalogue as a session with these stored definitions sees it: tools of tool sources are as they were when
        stored, whatever is offered or installed by now. Raises ``KeyError`` or ``ValueError`` for a definition that
        makes no sense."""
        found = self._sessions.get(tools)
        if found is None:
            frozen = {spec.name: (source, spec) for source, spec in iterate_frozen_specs(tools)}
            found = SessionCatalog(self, frozen, list_deferred_functions(tools)) if frozen else self
            if len(self._sessions) >= _SESSIONS_MAX:
                self._sessions.clear()
            self._sessions[tools] = found
        return found

    def select_deferrable_names(self, names: Iterable[str]) -> frozenset[str]:
        """Pick the tools among ``names`` that need not be shown to a model: those that the product did not bring
        itself."""
        return frozenset(name for name in names if not _is_of_product(self._find_declaration(name)))

    def load_all(self) -> None:
        """Build every tool, so that one that cannot be built is known before it is called. Raises
        ``ConfigurationError``.
        """
        for name in self._declared:
            self.get(name)
        for name in self._sources:
            self.get_source(name)

    def resolve(self, toolsets: Iterable[str], *, disabled: Iterable[str] = ()) -> tuple[str, ...]:
        """The names of the tools in ``toolsets``, without those in ``disabled``, in a stable order. A
        tool may be named, too, where no toolset has its name.

        Disabling a bundle takes away no tool that belongs to a toolset of its own. Raises ``ConfigurationError`` for
        a toolset that is unknown, or that has no tool here.
        """
        key = (tuple(sorted(set(toolsets))), tuple(sorted(set(disabled))))
        if key not in self._resolved:
            # Two threads may compute the same answer; the second replaces it by itself.
            self._resolved[key] = self._resolve(*key)
        return self._resolved[key]

    def render_definitions(self, names: Iterable[str]) -> tuple[str, ...]:
        """Canonical JSON of the chat-completions definition of each tool, sorted by name: the same names give the same
        bytes, in whatever order they come. Raises ``UnknownTool``.
        """
        wanted = sorted(set(names))
        for name in wanted:
            self._find_declaration(name)
        return tuple(self._definitions[name] for name in wanted)

    def _find_declaration(self, name: str) -> ToolDeclaration:
        try:
            return self._declared[name]
        except KeyError:
            raise UnknownTool(f"there is no tool {name!r}; there are {', '.join(sorted(self._declared))}") from None

    def _resolve(self, toolsets: tuple[str, ...], disabled: tuple[str, ...]) -> tuple[str, ...]:
        chosen: set[str] = set()
        for name in toolsets:
            members = set(self._list_members(name))
            if not members and name != NO_TOOLS:
                known = ", ".join(sorted({*self.toolsets, "all", NO_TOOLS}))
                raise ConfigurationError(f"there is no toolset {name!r}; use one or more of {known}")
            chosen |= members
        for name in disabled:
            chosen -= self._own.get(name, frozenset())
        return tuple(sorted(chosen))

    def _list_members(self, name: str) -> Iterator[str]:
        """The tools of a toolset and of all it includes; a bundle that includes itself does no harm."""
        if name in EVERYTHING:
            yield from self._declared
            return
        if name in self._declared and name not in self._own and name not in self._bundles:
            yield name
            return
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            toolset = waiting.pop()
            if toolset not in seen:
                seen.add(toolset)
                yield from self._own.get(toolset, ())
                waiting.extend(self._bundles.get(toolset, ()))


class SessionCatalog(ToolCatalog):
    """A catalogue with the tools of sources that a session has."""

    def __init__(
        self,
        base: ToolCatalog,
        frozen: Mapping[str, tuple[str, ToolSpec]],
        deferred: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """``deferred`` are the functions that the session's model is not shown."""
        super().__init__(())
        self._base = base
        self._frozen = frozen
        self._deferred = deferred

    @property
    def deferred(self) -> frozenset[str]:
        return frozenset(str(one["name"]) for one in self._deferred)

    @property
    def names(self) -> frozenset[str]:
        return self._base.names | self._frozen.keys()

    def get_spec(self, name: str) -> ToolSpec:
        return self._frozen[name][1] if name in self._frozen else self._base.get_spec(name)

    def get(self, name: str) -> Tool:
        if name not in self._frozen:
            return self._base.get(name)
        from hermes_worker.agent.tools.client_tools import ClientToolRunner
        from hermes_worker.agent.tools.sources import SourcedTool
        from hermes_worker.agent.tools.tool_search import BridgeTool

        source, spec = self._frozen[name]
        if source == CLIENT_SOURCE:
            return ClientToolRunner(spec)
        if source == BRIDGE_SOURCE:
            return BridgeTool(spec, self._deferred)
        return SourcedTool(spec, self._base.get_source(source))


@lru_cache(maxsize=4)
def _build_declared_catalog(found: Installed) -> ToolCatalog:
    return build_catalog(found)


def get_declared_catalog() -> ToolCatalog:
    """The catalogue of the tools that are in force in this process, for code that describes tools and runs none."""
    return _build_declared_catalog(installed.get_installed())


def has_tool_sources() -> bool:
    """Whether any extension that is in force brings a tool source."""
    return bool(installed.get_installed().tool_sources)


def build_sourced_catalog(definitions: Sequence[str]) -> ToolCatalog:
    """The catalogue in force with the tools of sources, by the definitions that workers stored. A tool whose name is
    taken by now, or whose source is not in force here, is left out.
    """
    return (
        _build_sourced_catalog(installed.get_installed(), tuple(definitions)) if definitions else get_declared_catalog()
    )


@lru_cache(maxsize=64)
def _build_sourced_catalog(found: Installed, definitions: tuple[str, ...]) -> ToolCatalog:
    sourced: dict[str, SourcedDeclaration] = {}
    for definition in definitions:
        source, spec = parse_definition(json.loads(definition))
        is_known = source in found.tool_sources or is_row_source(source)
        if is_known and spec.name not in found.tools and spec.name not in sourced:
            sourced[spec.name] = SourcedDeclaration(spec=spec, implementation=_refuse_to_load, definition=definition)
    rows = sorted({one.spec.toolset for one in sourced.values() if is_row_source(one.spec.toolset)})
    if rows:
        joined = {name: (*found.bundles.get(name, ()), *rows) for name in USUAL_BUNDLES}
        found = replace(found, bundles={**found.bundles, **joined})
    return build_catalog(found, *sourced.values())


def _refuse_to_load() -> Tool:
    raise ConfigurationError("a tool of a source is only known here, and runs in workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedDeclaration(ToolDeclaration):
    """A tool of a source, for code that starts sessions."""

    definition: str
    """The definition that a session stores."""


def build_default_catalog(*more: ToolDeclaration | Tool, services: Mapping[str, Any] = _NOTHING) -> ToolCatalog:
    """The catalogue of the tools that are in force in this process, and ``more``."""
    return build_catalog(installed.get_installed(), *more, services=services)


def build_catalog(
    found: Installed, *more: ToolDeclaration | Tool, services: Mapping[str, Any] = _NOTHING
) -> ToolCatalog:
    """The catalogue of the tools of ``found``, and ``more``."""
    values = {tool.name: found.values[one.name] for one in found.list_bringing("tools") for tool in one.tools}
    sources = {
        source.name: partial(_make_source, source, found.values[one.name], services)
        for one in found.list_bringing("tool_sources")
        for source in one.tool_sources
    }
    return ToolCatalog(
        (*found.tools.values(), *more), bundles=found.bundles, services=services, values=values, sources=sources
    )


def _make_source(
    declared: ToolSourceDeclaration, values: Mapping[str, SettingValue], services: Mapping[str, Any]
) -> ToolSource:
    if lacking := [name for name in declared.needs if name not in services]:
        raise ConfigurationError(
            f"the tool source {declared.name!r} needs {', '.join(lacking)}, which this process has not"
        )
    source: ToolSource = load_reference(declared.implementation)(
        values, **{name: services[name] for name in declared.needs}
    )
    return source


def _is_of_product(tool: ToolDeclaration) -> bool:
    return isinstance(tool.implementation, str) and tool.implementation.startswith("hermes_worker.")


def _declare_tool(tool: Tool) -> ToolDeclaration:
    return ToolDeclaration(spec=tool.spec, implementation=lambda: tool)


def _build_tool(declared: ToolDeclaration, services: Mapping[str, Any]) -> Tool:
    services = {**services, "spec": declared.spec}
    if lacking := [name for name in declared.needs if name not in services]:
        raise ConfigurationError(f"the tool {declared.name!r} needs {', '.join(lacking)}, which this process has not")
    tool = cast("Tool", load_reference(declared.implementation)(**{name: services[name] for name in declared.needs}))
    if tool.spec != declared.spec:
        raise ConfigurationError(
            f"the tool {declared.name!r} is declared otherwise than {declared.implementation!r} is"
        )
    return tool


def _render_definition(tool: ToolDeclaration) -> str:
    if isinstance(tool, SourcedDeclaration):
        return tool.definition
    spec = tool.spec
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return dump_canonical_json({"type": "function", "function": function})
