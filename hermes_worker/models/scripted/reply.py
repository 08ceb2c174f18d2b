"""A reply of the scripted model, before it is written in a provider's format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hermes_worker.core.messages import dump_canonical_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """A tool call the model asks for."""

    id: str
    name: str
    arguments: Mapping[str, object] | str
    """An object, or text that is sent as it is: a script may want arguments that are no JSON."""

    @property
    def arguments_text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else dump_canonical_json(self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedPace:
    """The pace at which a reply is sent. ``None`` leaves it to the server's own options."""

    delay_s: float | None = None
    """Seconds before the first byte."""
    chunks: int | None = None
    """Events that the text, or each call's arguments, are cut into."""
    chunk_gap_s: float | None = None
    """Seconds between two of those events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedFault:
    """A failure in place of a reply, or in the middle of one."""

    status: int | None = None
    """HTTP status to fail with; ``None`` breaks the connection instead."""
    message: str = "scripted failure"
    code: str | None = None
    retry_after_s: float | None = None
    times: int | None = 1
    """How often this step fails before it succeeds, counted by each server for itself; ``None`` means always."""
    after_chunks: int = 0
    """Events that are sent before the connection breaks, where there is no status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A text, tool calls, or both."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    reasoning: str = ""
    finish_reason: str | None = None
    """``None`` for the usual one: ``tool_calls`` with calls, else ``stop``."""
    pace: ScriptedPace = field(default_factory=ScriptedPace)
    fault: ScriptedFault | None = None
    fault_key: str = ""
    """Names the step that fails, so that its failures can be counted."""

    @property
    def settled_reason(self) -> str:
        return self.finish_reason or ("tool_calls" if self.calls else "stop")
