"""Tools that only a worker can learn of, such as those of an MCP server.

A worker for tools lists a source and stores the definitions as rows (``store.tool_sources``). The code that starts a
session reads the rows and imports nothing. A call is dispatched by what the session stored (``agent.source_tools``), to
the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.results import build_error_result
from hermes_worker.core.errors import HermesError
from hermes_worker.core.replay import Replay
from hermes_worker.extension import ToolSpec


class ToolGone(HermesError):
    """Raised by a source's ``call``: it does not offer that tool any more."""


class ToolSource(Protocol):
    """Offers tools that a worker asks for by name. Thread-safe. Making one connects to nothing."""

    def list_tools(self) -> Sequence[ToolSpec]:
        """The tools that it offers now. ``toolset`` may be empty. May block, and raise anything."""

    def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Run one of its tools, as ``Tool.run`` does. Raises ``ToolGone``."""


@dataclass(frozen=True, slots=True)
class SourcedTool:
    """A tool of a source, as a session knows it."""

    spec: ToolSpec
    source: ToolSource

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Call the source. Raises what the source raises, except for a tool that is gone, which is a result."""
        try:
            result = self.source.call(self.spec.name, arguments, context)
        except ToolGone as error:
            return build_error_result(f"{self.spec.name} is not there any more ({error}); do without it")
        if result.is_unknown and self.spec.replay is not Replay.ONCE:
            return replace(result, is_unknown=False)  # it may run again: a model that wants to know calls it again
        return result
