"""A model that says what a test wants: by list, by function, or as a run that was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_worker.core.errors import FailureKind, ModelCallError
from hermes_worker.core.messages import ModelReply, ModelRequest, ToolRequest, Usage, dump_canonical_json
from hermes_worker.models.base import Abort, OnDelta, Provider
from hermes_worker.models.chain import ModelRoute
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.lazy_wires import load_provider
from hermes_worker.models.scripted.replies import InvalidReplies, load_replies

MODEL = "scripted-test"
PROVIDER = "custom"
_CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class WantedCall:
    """A tool call that the model asks for."""

    name: str
    arguments: Mapping[str, Any]


Saying = str | WantedCall | Sequence[WantedCall] | ModelReply | Exception
"""What the model says: an answer, one call or several, a whole reply, or an error that is raised."""


def call(name: str, /, **arguments: Any) -> WantedCall:
    """Have the model ask for the tool ``name`` with these arguments."""
    return WantedCall(name, arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedModel:
    """A request to the model."""

    messages: Sequence[Mapping[str, Any]]
    """The rows of the prompt in the form of chat completions, the system prompt first."""
    tools: Sequence[str]
    """The names of the tools that are offered."""
    session_id: str

    @property
    def replies(self) -> int:
        """How many replies the conversation has."""
        return sum(row.get("role") == "assistant" for row in self.messages)

    @property
    def last(self) -> str:
        """The text of the newest row: the user's message or a tool's result."""
        content = self.messages[-1].get("content") or ""
        return content if isinstance(content, str) else dump_canonical_json(content)


class ScriptedModel:
    """A model for a ``AgentStack``. ``requests`` are all requests to it, in order.

    A list is played from its beginning in every session. Which saying is next is read from the transcript, so a step
    that is repeated after a crash gets the same reply. A function is called with an ``AskedModel`` for every request.
    """

    def __init__(self, script: Iterable[Saying] | Callable[[AskedModel], Saying]) -> None:
        self._choose = script if callable(script) else _play(list(script))
        self.requests: list[AskedModel] = []

    @classmethod
    def of_recording(cls, messages: Iterable[Mapping[str, Any]]) -> ScriptedModel:
        """Say again what the model of a recorded conversation said: ``FinishedRun.messages``, or the messages of a
        session from the API."""
        return cls([_read_recorded(row) for row in messages if row.get("role") == "assistant"])

    @classmethod
    def of_cassette(cls, file: Path | str) -> ScriptedModel:
        """Answer with the bytes of a provider that ``hermes-worker dev scripted-model --record-from`` recorded in
        ``file``. They are served on a port of this machine and read as in production. Raises ``InvalidReplies``."""
        return _CassetteModel(Path(file))

    def close(self) -> None:
        """Give back what the model holds."""

    def ask(self, request: ModelRequest, *, on_delta: OnDelta, abort: Abort) -> ModelReply:
        """Reply as the script says. ``models.base.Provider``."""
        asked = self._note(request)
        said = self._choose(asked)
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, ModelReply) else _build_reply(said, request, asked)

    def _note(self, request: ModelRequest) -> AskedModel:
        asked = AskedModel(
            messages=[json.loads(row) for row in request.messages],
            tools=[json.loads(row)["function"]["name"] for row in request.tools],
            session_id=request.session_id,
        )
        self.requests.append(asked)
        return asked


_WIRES = {"completions": "chat_completions", "responses": "codex_responses", "messages": "anthropic_messages"}
"""The wire that a recorded path belongs to, by its last word."""


class _CassetteModel(ScriptedModel):
    """Asks the scripted model's server, which plays the recording, over the wire that was recorded."""

    def __init__(self, file: Path) -> None:
        from hermes_worker.models.scripted.server import ScriptedOptions, ScriptedServer

        super().__init__(())
        replies = load_replies(file)
        wires = {_WIRES.get(one.path.partition("?")[0].rpartition("/")[2]) for one in replies.recorded}
        if len(wires) != 1 or None in wires:
            raise InvalidReplies(f"{str(file)!r} has no recording of one wire: chat completions, responses or messages")
        [wire] = wires
        self._served = ExitStack()
        server = self._served.enter_context(ScriptedServer(options=ScriptedOptions(replies=replies)))
        self._provider = load_provider(str(wire), Endpoint(base_url=server.base_url, api_key="none"))

    def close(self) -> None:
        self._served.close()

    def ask(self, request: ModelRequest, *, on_delta: OnDelta, abort: Abort) -> ModelReply:
        self._note(request)
        return self._provider.ask(request, on_delta=on_delta, abort=abort)


class ModelChainOfOne:
    """A chain of one provider, which stands for ``models.chain.ProviderChain``."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def __len__(self) -> int:
        return 1

    def list_credentials(self, model: str, position: int) -> Sequence[str]:
        return ()

    def resolve_route(self, model: str, position: int, credential: str = "") -> ModelRoute:
        return ModelRoute(
            provider=self._provider, name=PROVIDER, model=model, host="", wire="chat_completions", credential=PROVIDER
        )


def _play(script: Sequence[Saying]) -> Callable[[AskedModel], Saying]:
    def say_next(asked: AskedModel) -> Saying:
        if asked.replies < len(script):
            return script[asked.replies]
        message = f"the script has {len(script)} replies, and the model was asked for one more after {asked.last!r}"
        return ModelCallError(FailureKind.FORMAT_ERROR, message)

    return say_next


def _build_reply(said: str | WantedCall | Sequence[WantedCall], request: ModelRequest, asked: AskedModel) -> Any:
    calls = [said] if isinstance(said, WantedCall) else [] if isinstance(said, str) else list(said)
    requests = tuple(
        ToolRequest(
            id=f"call_{asked.replies}_{number}", name=one.name, arguments=dump_canonical_json(dict(one.arguments))
        )
        for number, one in enumerate(calls)
    )
    text = said if isinstance(said, str) else ""
    sent = sum(map(len, (*request.messages, *request.tools)))
    spoken = len(text) + sum(len(one.name) + len(one.arguments) for one in requests)
    return ModelReply(
        text=text,
        tool_requests=requests,
        finish_reason="tool_calls" if requests else "stop",
        usage=Usage(input=-(-sent // _CHARS_PER_TOKEN), output=-(-spoken // _CHARS_PER_TOKEN)),
    )


def _read_recorded(row: Mapping[str, Any]) -> Saying:
    calls = [
        WantedCall(one["function"]["name"], json.loads(one["function"]["arguments"] or "{}"))
        for one in row.get("tool_calls") or ()
    ]
    return calls or str(row.get("content") or "")
