"""Which tools there are, which toolset holds which, and how a model is told about them (reference, loop §12.3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.messages import canonical_json
from hermes_worker.tools.base import Tool, ToolSpec
from hermes_worker.tools.clarify import ClarifyTool
from hermes_worker.tools.cronjob import CronjobTool, JobDesk
from hermes_worker.tools.delegation import DelegateTool
from hermes_worker.tools.fetch import Fetching
from hermes_worker.tools.files import PatchTool, ReadFileTool, WriteFileTool
from hermes_worker.tools.search import SearchFilesTool
from hermes_worker.tools.terminal import TerminalTool
from hermes_worker.tools.todo import TodoTool
from hermes_worker.tools.vision import VisionTool
from hermes_worker.tools.web import WebExtractTool

EVERYTHING: Final = ("all", "*")

_CORE: Final = (
    "browser",
    "code_execution",
    "cronjob",
    "delegation",
    "file",
    "image_gen",
    "memory",
    "session_search",
    "skills",
    "terminal",
    "todo",
    "tts",
    "vision",
    "web",
)

BUNDLES: Final[Mapping[str, tuple[str, ...]]] = {
    "hermes-cli": (*_CORE, "clarify"),
    "hermes-cron": (*_CORE, "clarify"),
    "hermes-gateway": ("hermes-cli", "hermes-webhook"),
    # Nobody answers a question that is asked through the API.
    "hermes-api-server": _CORE,
    "hermes-webhook": ("web", "vision", "clarify"),
    "debugging": ("terminal", "web", "file"),
    "safe": ("web", "vision", "image_gen"),
}
"""Toolsets made of toolsets. A part that has no tools in this installation adds nothing."""


class UnknownTool(HermesError):
    """No tool of this name is installed."""


def default_tools(jobs: JobDesk | None = None, fetching: Fetching | None = None) -> tuple[Tool, ...]:
    """The tools of every installation; ``jobs`` is where scheduled ones are kept and ``fetching`` fetches from the web,
    both needed to run their tools."""
    return (
        ReadFileTool(),
        WriteFileTool(),
        PatchTool(),
        SearchFilesTool(),
        TerminalTool(),
        TodoTool(),
        DelegateTool(),
        ClarifyTool(),
        CronjobTool(jobs),
        WebExtractTool(fetching),
        VisionTool(fetching),
    )


class Catalog:
    """The tools of a worker. Built once; every answer is computed once and then looked up.

    Each tool belongs to the toolset its specification names; ``bundles`` adds toolsets that include others. Raises
    ``ConfigurationError`` when two tools have one name or a bundle has the name of a toolset.
    """

    def __init__(self, tools: Iterable[Tool], *, bundles: Mapping[str, tuple[str, ...]] = BUNDLES) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.spec.name in self._tools:
                raise ConfigurationError(f"two tools are named {tool.spec.name!r}")
            self._tools[tool.spec.name] = tool
        self._own: dict[str, frozenset[str]] = {}
        for name, tool in self._tools.items():
            self._own[tool.spec.toolset] = self._own.get(tool.spec.toolset, frozenset()) | {name}
        for name in bundles.keys() & (self._own.keys() | set(EVERYTHING)):
            raise ConfigurationError(f"{name!r} names both a toolset and a bundle of toolsets")
        self._bundles = dict(bundles)
        self._definitions = {name: _definition(tool.spec) for name, tool in self._tools.items()}
        self._resolved: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[str, ...]] = {}

    @property
    def names(self) -> frozenset[str]:
        """The names of all tools."""
        return frozenset(self._tools)

    @property
    def toolsets(self) -> Mapping[str, tuple[str, ...]]:
        """Every toolset that holds a tool, and its tools."""
        resolved = {name: tuple(sorted(self._members(name))) for name in sorted({*self._own, *self._bundles})}
        return {name: members for name, members in resolved.items() if members}

    def get(self, name: str) -> Tool:
        """Raises ``UnknownTool``."""
        try:
            return self._tools[name]
        except KeyError:
            raise UnknownTool(f"there is no tool {name!r}; there are {', '.join(sorted(self._tools))}") from None

    def resolve(self, toolsets: Iterable[str], *, disabled: Iterable[str] = ()) -> tuple[str, ...]:
        """The names of the tools in ``toolsets``, without those in ``disabled``, in a stable order.

        Disabling a bundle takes away no tool that belongs to a toolset of its own. Raises ``ConfigurationError`` for
        a toolset that is unknown, or that has no tool here.
        """
        key = (tuple(sorted(set(toolsets))), tuple(sorted(set(disabled))))
        if key not in self._resolved:
            # Two threads may compute the same answer; the second replaces it by itself.
            self._resolved[key] = self._resolve(*key)
        return self._resolved[key]

    def tool_definitions(self, names: Iterable[str]) -> tuple[str, ...]:
        """Canonical JSON of the chat-completions definition of each tool, sorted by name: the same names give the
        same bytes, in whatever order they come. Raises ``UnknownTool``."""
        wanted = sorted(set(names))
        for name in wanted:
            self.get(name)
        return tuple(self._definitions[name] for name in wanted)

    def _resolve(self, toolsets: tuple[str, ...], disabled: tuple[str, ...]) -> tuple[str, ...]:
        chosen: set[str] = set()
        for name in toolsets:
            members = set(self._members(name))
            if not members:
                known = ", ".join(sorted({*self.toolsets, "all"}))
                raise ConfigurationError(f"there is no toolset {name!r}; use one or more of {known}")
            chosen |= members
        for name in disabled:
            chosen -= self._own.get(name, frozenset())
        return tuple(sorted(chosen))

    def _members(self, name: str) -> Iterator[str]:
        """The tools of a toolset and of all it includes; a bundle that includes itself is no harm."""
        if name in EVERYTHING:
            yield from self._tools
            return
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            toolset = waiting.pop()
            if toolset not in seen:
                seen.add(toolset)
                yield from self._own.get(toolset, ())
                waiting.extend(self._bundles.get(toolset, ()))


def default_catalog(*more: Tool, jobs: JobDesk | None = None, fetching: Fetching | None = None) -> Catalog:
    """The catalogue of the default tools and ``more``."""
    return Catalog((*default_tools(jobs, fetching), *more))


def _definition(spec: ToolSpec) -> str:
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return canonical_json({"type": "function", "function": function})
