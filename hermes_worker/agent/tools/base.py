"""The interface of a tool: a specification and one function. A family of tools is one module; an ``Extension`` declares
it.

A tool gets parsed arguments and a ``ToolContext`` and returns a ``ToolResult``. It never touches the database, the
broker or the environment. What it wants remembered for the session (the working directory, the todo list) it returns in
``session_updates``; the store writes that in the transaction that settles the call, so a worker that lost its claim
cannot change a session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

from hermes_worker.agent.tools.background import SessionProcesses
from hermes_worker.agent.tools.builtin import COMMAND_S_DEFAULT
from hermes_worker.core.auxiliary import AuxiliaryAnswer, Consultation
from hermes_worker.core.delegation import ChildTask
from hermes_worker.core.questions import AskedCall, Question, Refusal
from hermes_worker.core.remote_tasks import RemoteTask
from hermes_worker.extension import ToolSpec
from hermes_worker.safety.redaction import Redactor
from hermes_worker.workspaces.base import Workspace
from hermes_worker.workspaces.sandbox.network import PEOPLE, RunOrigin

Policy = TypeVar("Policy")


class Cancellation(Protocol):
    """Set when the run is stopped, the claim is lost or the worker drains. ``threading.Event`` satisfies it."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class InnerTools(Protocol):
    """The tools that a script may call, for the call that runs it."""

    @property
    def parameters(self) -> Mapping[str, Sequence[str]]:
        """Their names, and the names of their parameters in order."""

    def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Make one call, with the gate and under the rules of any call. Raises nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicies:
    """Decisions for tools by the settings that a run was accepted with."""

    of_features: Sequence[object] = ()
    """The policies of features, at most one of each class."""
    asked: Mapping[str, AskedCall] = field(default_factory=dict)
    """The tools whose every call a person must allow, by name."""
    command_s: int = COMMAND_S_DEFAULT
    """Seconds that a command may run when the model asks for no other limit."""
    network: str | None = None
    """The widest network that commands have; ``None`` for what the installation allows them."""

    def find(self, kind: type[Policy]) -> Policy:
        """Return the policy of this class, or ``kind()`` where there is none."""
        return next((each for each in self.of_features if isinstance(each, kind)), None) or kind()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The environment of one call of a tool."""

    run_id: str
    session_id: str
    idempotency_key: str
    """A text that every attempt of this call has, and no other call."""
    attempt: int
    """1 for the first try."""
    workspace: Workspace
    session: Mapping[str, Any]
    """The session documents named by ``ToolSpec.session_keys``; a missing one is absent."""
    cancelled: Cancellation
    origin: RunOrigin = PEOPLE
    """The origin of the call: what its commands may reach follows from that."""
    progress: Callable[[str], None] = lambda text: None
    """Tells the run's watchers how far the call is. Best effort; it must hold no secret."""
    kept: Callable[[str], str | None] = lambda key: None
    """Loads the full text of a long result of this session by the key of its document; ``None`` when there is none."""
    task: RemoteTask | None = None
    """The task that an earlier attempt of this call left: the call goes on with it and begins nothing."""
    finds_hints: bool = False
    """Whether the hints of folders that the call is the first to touch stand behind its result (``agent.tools.hints``).
    """
    processes: SessionProcesses | None = None
    """The session's background processes; ``None`` where there can be none."""
    inner: InnerTools | None = None
    """The tools that a script may call; ``None`` for a tool that runs no scripts."""
    policies: ToolPolicies = field(default_factory=ToolPolicies)
    redactor: Redactor = field(default_factory=Redactor)
    """Hides secrets. What a tool returns goes through it in any case; a tool that shows text to others before it
    returns (a file, a model) hides them itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The text that the model sees, and what is stored beside it."""

    text: str
    """JSON text for most tools."""
    is_error: bool = False
    session_updates: Mapping[str, Any] = field(default_factory=dict)
    """Session documents to replace; a value of ``None`` deletes the document."""
    refusal: Refusal | None = None
    """Why the call did not run, where it was not allowed to; ``text`` tells the model."""
    question: Question | None = None
    """Set instead of a result: the call has done nothing and waits for a person's answer."""
    consultation: Consultation | None = None
    """Set instead of a result: the call has had no effect and goes on when models have answered."""
    task: RemoteTask | None = None
    """Set instead of a result: a server works on it, and the call looks again later. With a ``question`` its answer is
    handed on.
    """
    delegated: Sequence[ChildTask] = ()
    """Tasks for child runs. Their results become the result of the call, and ``text`` is not shown."""
    is_background: bool = False
    """Whether the run does not wait for the children: their results begin a new turn of its session."""
    sandbox: str | None = None
    """The sandbox that confined the command that the tool ran; ``None`` when it ran none."""
    network: str | None = None
    """The network that the command had, where a sandbox confined it."""
    is_untrusted: bool = False
    """Whether it holds text of strangers, although results of its tool need not."""
    is_unknown: bool = False
    """Whether the outcome is unknown: the host of the workspace vanished while the tool acted there."""


class Tool(Protocol):
    """A tool. ``run`` may block; it looks at ``context.cancelled`` at least every 0.2 s while it waits."""

    @property
    def spec(self) -> ToolSpec: ...

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult: ...


@runtime_checkable
class ConsultingTool(Tool, Protocol):
    """A tool that needs a model, which no worker that runs tools has. Its ``run`` reads, fetches and returns a
    consultation; the worker that takes the call once that is answered lets it ``finish``. A tool of replay class
    ``once`` cannot be one: its worker may die after either half, and neither may run twice.
    """

    def finish(self, material: Mapping[str, Any], answers: Sequence[AuxiliaryAnswer]) -> ToolResult:
        """Build the result, from nothing but what ``run`` put aside and the answers to its questions, in their
        order.
        """
