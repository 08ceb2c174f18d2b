"""The submission of a run: its immutable description."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from hermes_worker.core.messages import dump_canonical_json
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
    forced_tools: Sequence[str] = ()
    """Tools of the client, one of which the model has to call before it answers; empty where it is free."""
    compress: str | None = None
    """The conversation is to be summarised, with special attention to this text, and nothing answered; empty for no
    topic, ``None`` for an ordinary run."""
    about: str | None = None
    """What people are told that it is about, where its input does not begin with that: the job and the slot, or the
    request whose background answer began it."""
    files: str | None = None
    """Its message came with files, which are fetched before it begins: ``seen``, or ``kept`` when they are put into the
    workspace as well; ``None`` for no files."""


class Multitask(StrEnum):
    """The treatment of input for a session that has a run at work."""

    QUEUE = "queue"
    INTERRUPT = "interrupt"
    """Stop the run at work; the new one is next, before others that wait."""
    STEER = "steer"
    """Say the text to the run at work and make no new run. Queued when that is impossible."""
    REJECT = "reject"


@dataclass(frozen=True, kw_only=True)
class RunTerms:
    """Where and when a run is to begin, and how often its request may come. Not stored with its description."""

    __slots__ = ()  # its heirs have the slots: of two parents with slots nothing can inherit

    session_id: str | None = None
    """Continue the conversation that has this id, or that its source calls so, or start it under this name; ``None``
    starts a new one."""
    after: str | None = None
    """Accept the run only if this is the newest of the session; an empty text: only if there is no such session yet."""
    multitask: Multitask = Multitask.QUEUE
    """What to do when the session has an active run. A postponed run waits in any case."""
    not_before: float | None = None
    """Epoch seconds before which the run does not begin; a time in the past is ignored."""
    delay_s: float | None = None
    """Seconds from now before which the run does not begin, by the database's clock and not by the caller's."""
    deadline: float | None = None
    """Epoch seconds at which the run expires, whatever it is doing; ``wall_s_max`` may end it before."""
    idempotency_key: str | None = None
    """The same key with the same request gives the same run, however often it is submitted."""
    proof: str | None = None
    """The signature that let the request in: it is accepted once, under whichever key."""


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
        return dump_canonical_json({name: getattr(self, name) for name in SPECIFIED})

    @classmethod
    def from_json(cls, text: str) -> RunSpec:
        """Parse a stored spec. Raises ``ValueError`` when the text is none."""
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("a run's spec must be a JSON object")
        known = {name: document[name] for name in SPECIFIED if name in document}
        try:
            return cls(**known)
        except TypeError as error:
            raise ValueError(f"a run's spec is incomplete: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BeganWith:
    """The versions that a run began with; ``None`` for what was not recorded yet when it was submitted."""

    program: str | None
    """The version of the program that accepted the run, such as ``0.2.0``."""
    configuration: str | None
    """The hash of the settings that it was accepted under (``settings.configuration_id``)."""
    prompt: str
    """SHA-256 of the system prompt, which a session has from its first run and keeps."""
    layers: Mapping[str, str]
    """``RunSpec.layers``; ``overrides`` and ``overridden_by`` are the fields of that name too."""
    overrides: Mapping[str, str]
    overridden_by: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNotes:
    """The notes of a caller on a run, and which run it repeats or goes on from."""

    tags: Sequence[str]
    metadata: Mapping[str, str]
    retry_of: str | None
    forked_from: str | None
    fork_step: int | None
    """How many iterations of ``forked_from`` stand before it."""
    began_with: BeganWith


TERMS = tuple(each.name for each in fields(RunTerms))
REQUESTED = tuple(each.name for each in fields(RunRequest))
SPECIFIED = frozenset(each.name for each in fields(RunSpec))
