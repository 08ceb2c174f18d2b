"""The submission of a run: its immutable description."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from hermes_worker.core.messages import canonical_json
from hermes_worker.core.sources import parse_source_kind

FOCUS_CHARS_MAX = 2_000
"""The most characters of the topic to which a summary pays special attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a caller asks of a run, as far as it is stored as it was asked for."""

    input: str | Sequence[Mapping[str, Any]]
    """The user's message: text, or chat-completions content parts."""
    instructions: str | None = None
    """The caller's own text for the system prompt of a new session."""
    history: Sequence[Mapping[str, Any]] = ()
    """Earlier turns to start a *new* session with, as chat-completions rows; ignored when the session exists."""
    tokens_max: int | None = None
    """Tokens that the run and all it delegates may use before they are asked to sum up; ``None`` for no limit."""
    tool_calls_max: int | None = None
    """Tool calls that the run and all it delegates may make; ``None`` for no limit."""
    source: str = "api"
    """The source, within which its names are valid: ``api``, ``cli``, ``cron``, ``webhook:ROUTE``, ``delegation``."""
    network: str | None = None
    """The network requested for its commands: ``open``, ``proxy`` or ``none``; ``None`` for the installation's setting,
    which it never widens."""
    approvals: str | None = None
    """What happens with a dangerous command: ``ask``, ``deny`` or ``approve``; ``None`` for the default of ``source``.
    Not to be taken from outsiders."""
    approval_s: float | None = None
    """Seconds until a dangerous command is refused that was not allowed; ``None`` for the installation's setting."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    echo: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the API's dialect repeats in every answer about the run."""
    tags: Sequence[str] = ()
    """Words to find the run by."""
    output_schema: Mapping[str, Any] | None = None
    """JSON Schema that the answer has to fit (``agent.output``)."""
    compress: str | None = None
    """The conversation is to be summarised, with special attention to this text, and nothing answered; empty for no
    topic, ``None`` for an ordinary run."""
    files: str | None = None
    """Its message came with files, which are fetched before it begins: ``seen``, or ``kept`` when they are put into the
    workspace as well; ``None`` for no files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec(RunRequest):
    """A run as submitted. Stored once as JSON and never changed."""

    model: str
    endpoint: str | None = None
    """Which provider serves the model, as ``models.identity`` names it; ``None`` leaves that to the workers."""
    toolsets: Sequence[str] = ("hermes-api-server",)
    iterations_max: int = 90
    attempts_max: int = 3
    """How many times a step may take down a lane before the run fails. A lane does one step at a time."""
    wall_s_max: float = 86_400.0
    """Seconds from submission after which the run expires."""
    idle_s_max: float | None = None
    """Seconds without any progress after which the run expires; ``None`` for no limit."""
    nano_usd_max: int | None = None
    """Billionths of a US dollar that the run and all it delegates may cost."""
    budget: str | None = None
    """How its children share these limits (``core.budget.BudgetMode``); ``None`` for the installation's setting."""
    priority: int = 0
    """``core.priority.Priority``."""
    artifacts: Sequence[str] = ()
    """Patterns of the files that it leaves (``features.artifacts.rules``)."""
    program: str | None = None
    """The version of the program that accepted it; ``None`` for a run from before that was recorded."""
    configuration: str | None = None
    """A name for the configuration that it was accepted under (``settings.configuration_id``)."""
    layers: Mapping[str, str] = field(default_factory=dict)
    """The version of each layer of the configuration that counted: ``fleet``, ``tenant``, ``file``."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Settings in which it differs from those of its processes, as ``settings.overriding`` writes them."""
    overridden_by: Mapping[str, str] = field(default_factory=dict)
    """The layer that set each of these."""

    @property
    def source_kind(self) -> str:
        """``api``, ``cli``, ``cron``, ``webhook`` or ``delegation``."""
        return parse_source_kind(self.source)

    def to_json(self) -> str:
        return canonical_json({name: getattr(self, name) for name in _STORED})

    @classmethod
    def from_json(cls, text: str) -> RunSpec:
        """Raises ``ValueError`` when the text is not a stored spec."""
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("a run's spec must be a JSON object")
        known = {name: document[name] for name in _STORED if name in document}
        try:
            return cls(**known)
        except TypeError as error:
            raise ValueError(f"a run's spec is incomplete: {error}") from error


REQUESTED = tuple(each.name for each in fields(RunRequest))
_STORED = tuple(each.name for each in fields(RunSpec))
