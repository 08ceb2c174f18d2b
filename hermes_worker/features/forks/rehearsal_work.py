"""What stands in for the outside in a rehearsal: a model that says what was recorded, and tools that do nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hermes_worker.agent.tools.base import Tool, ToolContext, ToolResult
from hermes_worker.agent.tools.catalog import ToolCatalog
from hermes_worker.core.messages import ModelReply, ModelRequest, ToolRequest, Usage
from hermes_worker.core.recovery_state import RecoveryState
from hermes_worker.extension import ToolSpec
from hermes_worker.models.base import Abort, OnDelta
from hermes_worker.models.chain import ModelRoute
from hermes_worker.store.rows import Hint
from hermes_worker.store.sweep import Sweeper
from hermes_worker.tasks.context import WorkerContext, WorkerHooks, WorkerModels
from hermes_worker.tasks.driving import HintList, do_step, drive_steps
from hermes_worker.tasks.iteration.requests import build_request
from hermes_worker.workspaces.base import Workspace

_ANSWER = "This is a rehearsal."
_NOT_MADE = "This is a rehearsal, so the call was not made."
_WIRES = (("custom", "chat_completions"), ("anthropic", "anthropic_messages"), ("openai", "responses"))


class RecordedModel:
    """Says in each conversation what was recorded, and then a last word. ``models.base.Provider``, and the chain of it
    alone. Used by one thread."""

    def __init__(self) -> None:
        self.scripts: dict[str, list[ModelReply]] = {}
        """What is still to be said, by session id."""
        self._sent: dict[str, Any] = {}

    def ask(self, request: ModelRequest, *, on_delta: OnDelta, abort: Abort) -> ModelReply:
        digest = self._sent.setdefault(request.session_id, hashlib.sha256())
        digest.update(_join(request))
        left = self.scripts.get(request.session_id)
        return left.pop(0) if left else ModelReply(text=_ANSWER, usage=Usage(input=1, output=1))

    def digest_sent(self, session_id: str) -> str:
        """Digest the requests of a conversation."""
        digest = self._sent.get(session_id)
        return "nothing" if digest is None else str(digest.hexdigest())

    def __len__(self) -> int:
        return 1

    def list_credentials(self, model: str, position: int) -> Sequence[str]:
        return ()

    def resolve_route(self, model: str, position: int, credential: str = "") -> ModelRoute:
        return self.resolve_route_over(*_WIRES[0], model)

    def resolve_route_over(self, provider: str, wire: str, model: str) -> ModelRoute:
        return ModelRoute(provider=self, name=provider, model=model, host="", wire=wire, credential="rehearsal")


def _join(request: ModelRequest) -> bytes:
    return "\n".join((*request.messages, *request.tools, *request.forced_tools)).encode()


def read_reply(row: Mapping[str, Any]) -> ModelReply:
    """Read a reply from its row in chat-completions form."""
    calls = tuple(
        ToolRequest(id=each["id"], name=each["function"]["name"], arguments=each["function"]["arguments"])
        for each in row.get("tool_calls") or ()
    )
    content = row.get("content") or ""
    return ModelReply(
        text=content if isinstance(content, str) else "",
        tool_requests=calls,
        finish_reason="tool_calls" if calls else "stop",
        usage=Usage(input=1, output=1),
    )


@dataclass(frozen=True, slots=True)
class _SilentTool:
    spec: ToolSpec

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(text=_NOT_MADE)


class SilentCatalog:
    """A catalogue with the same tools, of which none does anything. ``agent.tools.catalog.ToolCatalog``."""

    def __init__(self, catalog: ToolCatalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def get(self, name: str) -> Tool:
        return _SilentTool(self._catalog.get_spec(name))

    def for_session(self, tools: str) -> SilentCatalog:
        return SilentCatalog(self._catalog.for_session(tools))


def silence_parts(parts: WorkerContext, workspace: Workspace) -> WorkerContext:
    """Change parts so that no step reaches the outside: tools and hooks do nothing, and files are read and written in
    ``workspace`` alone."""
    rules = replace(parts.rules, reviewing=None, checkpoints=None)
    return replace(
        parts,
        catalog=SilentCatalog(parts.catalog),  # type: ignore[arg-type]
        hooks=WorkerHooks(),
        rules=rules,
        workspace=lambda _: workspace,
        overridden_by=lambda changed, _: changed,
    )


def build_models(model: RecordedModel) -> WorkerModels:
    """Build the models of a worker that asks nothing but ``model``."""
    return WorkerModels(chain=model)


def drive(parts: WorkerContext, hints: HintList, sweeper: Sweeper, steps_max: int) -> bool:
    """Do all that is due; ``False`` when it is not done after so many steps."""

    def do(hint: Hint) -> None:
        do_step(parts, hint)

    return drive_steps(hints, sweeper, do, steps_max=steps_max)


def digest_prompt(parts: WorkerContext, model: RecordedModel, session_pk: int, rows: int, name: str) -> str:
    """Digest the bytes with which the next request of a conversation begins, over each wire."""
    session = parts.rows.runs.load_session_context(session_pk)
    transcript = parts.rows.transcripts.load(session_pk, rows)
    digest = hashlib.sha256()
    for provider, wire in _WIRES:
        route = model.resolve_route_over(provider, wire, name)
        memory = RecoveryState()
        request = build_request(session, transcript, route, memory, is_summary=False, options=parts.rules.model)
        digest.update(_join(request))
    return digest.hexdigest()
