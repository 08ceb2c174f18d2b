"""A Python client of the HTTP API: submit runs, and follow them as typed events or by callbacks.

    client = HermesClient("http://127.0.0.1:8642")
    run_id = client.submit("what is in this directory?")
    result = client.follow(run_id, Callbacks(stream_delta_callback=show, clarify_callback=ask))

The callbacks have the names and meanings of Hermes Agent's (docs/behaviour.md, "Callbacks"), but are called by whoever
follows, wherever the run is worked on. A connection that breaks is made again and goes on where it was.

The API wants its key. For a server of this machine the client finds it by itself, in the installation's home directory;
elsewhere say ``api_key``.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2

from hermes_worker.core.errors import HermesError, UnavailableError, reason_of
from hermes_worker.core.run_events import TERMINAL_EVENTS
from hermes_worker.observe import log
from hermes_worker.settings import is_loopback, load
from hermes_worker.settings.server_key import find_server_key

__all__ = [
    "ApprovalRequested",
    "Callbacks",
    "Event",
    "HermesClient",
    "InputRequested",
    "MessageCompleted",
    "MessageDelta",
    "OtherEvent",
    "ReasoningDelta",
    "RefusedError",
    "ReplyDiscarded",
    "RunEnded",
    "RunStatusChanged",
    "ToolCompleted",
    "ToolGenerating",
    "ToolStarted",
    "parse_event",
]

_READ_TIMEOUT_S = 60.0
"""Longer than the server's pauses between signs of life."""
_RECONNECT_AFTER_S = 0.5
_WAIT_S = 30.0
"""Of one request that waits."""
_NOBODY_ANSWERED = "The model is asked again: its reply was cut short or empty."


# ------------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDelta:
    """Text of the reply that is being written."""

    text: str
    kind: Literal["message.delta"] = "message.delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta:
    text: str
    kind: Literal["reasoning.available"] = "reasoning.available"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolGenerating:
    """The name of a tool was seen in the reply that is being written. A hint: it may come twice, or not at all."""

    tool: str
    kind: Literal["tool.generating"] = "tool.generating"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCompleted:
    text: str
    iteration: int
    finish_reason: str | None
    kind: Literal["message.completed"] = "message.completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyDiscarded:
    """What was told of the reply of this iteration is void; another one follows."""

    iteration: int
    finish_reason: str | None
    kind: Literal["reply.discarded"] = "reply.discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    call_id: str
    tool: str
    preview: str
    kind: Literal["tool.started"] = "tool.started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCompleted:
    call_id: str
    tool: str
    duration_s: float
    is_error: bool
    outcome: str | None = None
    """``unknown`` when its worker vanished and nobody knows whether it took effect."""
    kind: Literal["tool.completed"] = "tool.completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequested:
    command: str
    description: str
    choices: Sequence[str]
    wait_id: int | None = None
    """Names the question in an answer."""
    kind: Literal["approval.request"] = "approval.request"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequested:
    question: str
    choices: Sequence[str]
    wait_id: int | None = None
    kind: Literal["input.request"] = "input.request"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatusChanged:
    """Something about the run that people may want to know: it waits, is stopped, or a step is tried again."""

    name: str
    message: str
    kind: Literal["status"] = "status"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    name: str
    output: str | None
    error: str | None
    exit_reason: str | None
    usage: Mapping[str, int] = field(default_factory=dict)
    """``input_tokens``, ``output_tokens`` and ``total_tokens``; where there are any, also ``estimated_tokens`` (of
    those, what the provider did not count), ``refused_attempts`` (requests that failed) and ``unknown_attempts`` with
    ``unknown_input_tokens`` and ``unknown_output_tokens`` (beside those, what may have been billed without a reply)."""
    kind: Literal["ended"] = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEvent:
    """An event that this version has no type for."""

    name: str
    fields: Mapping[str, Any]
    kind: Literal["other"] = "other"


Event = (
    MessageDelta
    | ReasoningDelta
    | ToolGenerating
    | MessageCompleted
    | ReplyDiscarded
    | ToolStarted
    | ToolCompleted
    | ApprovalRequested
    | InputRequested
    | RunStatusChanged
    | RunEnded
    | OtherEvent
)


def parse_event(document: Mapping[str, Any]) -> Event:
    """An event of the stream. Raises ``ValueError`` when a field that it needs is missing."""
    try:
        return _parsed(str(document["event"]), document)
    except (KeyError, TypeError) as error:
        raise ValueError(f"an event of the stream lacks {error}") from error


def _parsed(name: str, document: Mapping[str, Any]) -> Event:
    if name in TERMINAL_EVENTS:
        return RunEnded(
            name=name,
            output=document.get("output"),
            error=document.get("error"),
            exit_reason=document.get("exit_reason"),
            usage=document.get("usage") or {},
        )
    make = _PARSERS.get(name)
    return make(document) if make else OtherEvent(name=name, fields=dict(document))


def _status(name: str, message: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], Event]:
    return lambda document: RunStatusChanged(name=name, message=message(document))


_PARSERS: Mapping[str, Callable[[Mapping[str, Any]], Event]] = {
    "message.delta": lambda d: MessageDelta(text=d["delta"]),
    "reasoning.available": lambda d: ReasoningDelta(text=d["text"]),
    "tool.generating": lambda d: ToolGenerating(tool=d["tool"]),
    "message.completed": lambda d: MessageCompleted(
        text=d["text"], iteration=d["iteration"], finish_reason=d.get("finish_reason")
    ),
    "reply.discarded": lambda d: ReplyDiscarded(iteration=d["iteration"], finish_reason=d.get("finish_reason")),
    "tool.started": lambda d: ToolStarted(
        call_id=d.get("tool_call_id", ""), tool=d["tool"], preview=d.get("preview") or ""
    ),
    "tool.completed": lambda d: ToolCompleted(
        call_id=d.get("tool_call_id", ""),
        tool=d["tool"],
        duration_s=float(d.get("duration") or 0.0),
        is_error=bool(d.get("error")),
        outcome=d.get("outcome"),
    ),
    "approval.request": lambda d: ApprovalRequested(
        command=d.get("command") or "",
        description=d.get("description") or "",
        choices=tuple(d.get("choices") or ()),
        wait_id=d.get("wait_id"),
    ),
    "input.request": lambda d: InputRequested(
        question=d["question"], choices=tuple(d.get("choices") or ()), wait_id=d.get("wait_id")
    ),
    "run.waiting": _status("run.waiting", lambda d: f"The run is {str(d.get('status')).replace('_', ' ')}."),
    "budget.exhausted": _status(
        "budget.exhausted", lambda d: f"The limit of {str(d.get('dimension')).replace('_', ' ')} is reached."
    ),
    "run.resumed": _status("run.resumed", lambda d: "The run goes on."),
    "run.stopping": _status("run.stopping", lambda d: "The run was asked to stop."),
    "session.compress": _status(
        "session.compress", lambda d: f"{d.get('rows')} older messages were summarised to make room."
    ),
    "step.retried": _status(
        "step.retried",
        lambda d: f"A worker vanished; {d.get('step')} is tried again{' by itself' if 'deaths' in d else ''}.",
    ),
}


# ---------------------------------------------------------------------------------------------------------- callbacks


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """All optional. What one of them raises is logged, and the following goes on."""

    stream_delta_callback: Callable[[str | None], object] | None = None
    """Text of a reply; ``None`` where a reply ends."""
    stream_callback: Callable[[str], object] | None = None
    interim_assistant_callback: Callable[[str, bool], object] | None = None
    """Text that stood beside tool calls, and whether it was streamed already."""
    reasoning_callback: Callable[[str], object] | None = None
    thinking_callback: Callable[[str], object] | None = None
    """A word for a spinner while the model is waited for; empty when its reply begins."""
    tool_gen_callback: Callable[[str], object] | None = None
    tool_start_callback: Callable[[str, str, str], object] | None = None
    """Id and name of a call, and a preview of its arguments."""
    tool_complete_callback: Callable[[str, str, str, str], object] | None = None
    """The same, and its outcome: ``ok``, ``error`` or ``unknown``."""
    tool_progress_callback: Callable[..., object] | None = None
    """``(event, name, preview, None)``; with ``duration`` and ``is_error`` for ``tool.completed``."""
    step_callback: Callable[[int, list[str]], object] | None = None
    """Number of an iteration that begins, and the tools of the one before."""
    clarify_callback: Callable[[str, Sequence[str]], str | None] | None = None
    """Gives the answer to a question of the model; ``None`` leaves it to others."""
    approval_callback: Callable[[str, str], str | None] | None = None
    """Command and description; gives ``once``, ``session``, ``always`` or ``deny``; ``None`` leaves it to others."""
    status_callback: Callable[[str, str], object] | None = None
    """``lifecycle`` or ``warn``, and a sentence."""
    event_callback: Callable[[str, Event], object] | None = None
    """Every event."""


class RefusedError(HermesError):
    """The API refused a request; the message is what it said."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class HermesClient:
    """Talks to one API server. Thread-safe."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        home: Path | None = None,
        patience_s: float = 60.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Without ``api_key`` it is the key of the installation in ``home`` (``None``: HERMES_HOME, else
        ``~/.hermes-worker``), which is sent to a server of this machine, or, when you name the ``home``, to any.
        ``patience_s`` is how long a stream is tried to be picked up again before that is an error. ``tls`` is for an
        authority of your own, and for a certificate of this client.

        Raises ``ConfigurationError`` when the key of the installation cannot be read.
        """
        if api_key is None and (home is not None or is_loopback(urlsplit(base_url).hostname or "")):
            found = find_server_key(load(home=home))
            api_key = found.reveal() if found else None
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._patience_s = patience_s
        self._http = httpx2.Client(
            base_url=base_url.rstrip("/"),
            headers=headers,
            timeout=httpx2.Timeout(_READ_TIMEOUT_S, connect=10.0),
            verify=tls or True,
        )

    def close(self) -> None:
        self._http.close()

    def submit(self, text: str, *, idempotency_key: str | None = None, **options: Any) -> str:
        """Start a run; ``options`` are the other fields of ``POST /v1/runs``. Returns its id. Raises ``RefusedError``,
        ``UnavailableError`` (it is then not known whether it was accepted: ask again with the same key)."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        answer = self._asked("POST", "/v1/runs", json={"input": text, **options}, headers=headers)
        return str(answer["run_id"])

    def result(self, run_id: str) -> dict[str, Any]:
        """What the run left, under the original's names. Raises ``RefusedError``, ``UnavailableError``."""
        return self._asked("GET", f"/v1/runs/{run_id}/result")

    def stop(self, run_id: str) -> None:
        """Idempotent. Raises ``RefusedError``, ``UnavailableError``."""
        self._asked("POST", f"/v1/runs/{run_id}/stop")

    def submit_all(self, submissions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Start up to a thousand runs in one request: the fields of ``POST /v1/runs``, and ``idempotency_key``. What
        became of each, in their order: ``run_id`` and ``status``, or ``error``. Raises as ``submit``."""
        answer = self._asked("POST", "/v1/batch/runs", json={"runs": [dict(each) for each in submissions]})
        return list(answer["data"])

    def runs(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """Runs, newest first, page after page; ``filters`` are those of ``GET /v1/runs``, lists where several are
        meant. Raises ``RefusedError``, ``UnavailableError``."""
        cursor: dict[str, Any] = {}
        while True:
            page = self._asked("GET", "/v1/runs", params={"limit": 100, **filters, **cursor})
            yield from page["data"]
            if not page["has_more"]:
                return
            cursor = {"cursor": page["next_cursor"]}

    def explain(self, run_id: str) -> dict[str, Any]:
        """Why the run is where it is: ``because``, ``text`` and ``facts``. Raises ``RefusedError``,
        ``UnavailableError``."""
        return self._asked("GET", f"/v1/runs/{run_id}/explain")

    def retry(self, run_id: str) -> str:
        """Start a run with the submission of one that has ended; returns its id. Raises ``RefusedError``,
        ``UnavailableError``."""
        return str(self._asked("POST", f"/v1/runs/{run_id}/retry")["run_id"])

    def stop_all(self, *, dry_run: bool = False, **filters: Any) -> list[str]:
        """Stop the open runs that match, at most ``limit`` of them; which they are, or would be. Idempotent. Raises
        ``RefusedError``, ``UnavailableError``."""
        return list(self._asked("POST", "/v1/batch/stop", json={"dry_run": dry_run, **filters})["run_ids"])

    def join(
        self, run_ids: Sequence[str], *, mode: Literal["all", "any"] = "all", timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Wait until all of up to a thousand runs have ended, or ``any`` of them, or the time is over: ``done``, and
        ``runs`` with ``status`` of those that have ended. Raises ``RefusedError``, ``UnavailableError``."""
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _WAIT_S if give_up_at is None else max(0.0, min(_WAIT_S, give_up_at - time.monotonic()))
            asked = {"run_ids": list(run_ids), "mode": mode, "timeout_s": left_s}
            answer = self._asked("POST", "/v1/batch/wait", json=asked)
            if answer["done"] or (give_up_at is not None and time.monotonic() >= give_up_at):
                return answer

    def wait(self, run_id: str, *, timeout_s: float | None = None) -> str | None:
        """Wait for the end of a run; its status, or ``None`` when the time was over before. Raises as ``join``."""
        [waited] = self.join([run_id], timeout_s=timeout_s)["runs"]
        return str(waited["status"]) if waited["ended"] else None

    def answer(self, run_id: str, text: str, *, wait_id: int | None = None) -> None:
        """Answer a question of the run, the oldest unless ``wait_id`` says which. Raises ``RefusedError``,
        ``UnavailableError``."""
        self._asked("POST", f"/v1/runs/{run_id}/input", json={"text": text, "wait_id": wait_id})

    def approve(self, run_id: str, choice: str, *, wait_id: int | None = None) -> None:
        """Allow or deny what the run asked for, the oldest unless ``wait_id`` says which. Raises ``RefusedError``,
        ``UnavailableError``."""
        self._asked("POST", f"/v1/runs/{run_id}/approval", json={"choice": choice, "wait_id": wait_id})

    def events(self, run_id: str, *, after: str = "0") -> Iterator[Event]:
        """Everything that happens to a run, from its beginning (or after the event with that id) to its end. Raises
        ``RefusedError``, ``UnavailableError``."""
        last_id, give_up_at = after, time.monotonic() + self._patience_s
        while True:
            reason = "the stream ended"
            try:
                for event_id, event in self._stream(run_id, last_id):
                    last_id, give_up_at = event_id or last_id, time.monotonic() + self._patience_s
                    yield event
                    if isinstance(event, RunEnded):
                        return
            except httpx2.HTTPError as error:
                reason = reason_of(error)
            if time.monotonic() >= give_up_at:
                raise UnavailableError(f"the stream of run {run_id!r} cannot be followed: {reason}")
            time.sleep(_RECONNECT_AFTER_S)

    def follow(self, run_id: str, callbacks: Callbacks) -> dict[str, Any]:
        """Follow a run to its end and call back; returns its ``result``. Raises as ``events``."""
        following = _Following(self, run_id, callbacks)
        for event in self.events(run_id):
            following.take(event)
        return self.result(run_id)

    def _stream(self, run_id: str, last_id: str) -> Iterator[tuple[str, Event]]:
        with self._http.stream("GET", f"/v1/runs/{run_id}/events", headers={"Last-Event-ID": last_id}) as response:
            if response.status_code >= 500:
                raise httpx2.ReadError(f"HTTP {response.status_code}")
            if response.status_code != 200:
                response.read()
                raise _refusal(response)
            event_id = ""
            for line in response.iter_lines():
                if line.startswith("id: "):
                    event_id = line[4:]
                elif line.startswith("data: "):
                    yield event_id, parse_event(json.loads(line[6:]))

    def _asked(self, method: str, path: str, **parts: Any) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, **parts)
        except httpx2.HTTPError as error:
            raise UnavailableError(f"{self._http.base_url} does not answer: {reason_of(error)}") from error
        if response.status_code >= 400:
            raise _refusal(response)
        document: dict[str, Any] = response.json()
        return document


def _refusal(response: httpx2.Response) -> RefusedError:
    try:
        said = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = f"HTTP {response.status_code}"
    return RefusedError(said, response.status_code)


class _Following:
    """Turns the events of one run into calls."""

    def __init__(self, client: HermesClient, run_id: str, callbacks: Callbacks) -> None:
        self._client = client
        self._run_id = run_id
        self._to = callbacks
        self._iteration = 0
        self._is_begun = False
        self._has_streamed = False
        self._tools: list[str] = []
        self._previews: dict[str, str] = {}

    def take(self, event: Event) -> None:
        _call(self._to.event_callback, event.kind, event)
        match event:
            case MessageDelta():
                self._begin()
                self._has_streamed = True
                _call(self._to.stream_delta_callback, event.text)
                _call(self._to.stream_callback, event.text)
            case ReasoningDelta():
                self._begin()
                _call(self._to.reasoning_callback, event.text)
                _call(self._to.tool_progress_callback, "reasoning.available", "_thinking", event.text, None)
            case ToolGenerating():
                self._begin()
                _call(self._to.tool_gen_callback, event.tool)
            case MessageCompleted():
                self._begin()
                self._complete(event)
            case ReplyDiscarded():
                self._is_begun = self._has_streamed = False
                _call(self._to.stream_delta_callback, None)
                _call(self._to.status_callback, "warn", _NOBODY_ANSWERED)
            case ToolStarted():
                self._previews[event.call_id] = event.preview
                _call(self._to.tool_start_callback, event.call_id, event.tool, event.preview)
                _call(self._to.tool_progress_callback, "tool.started", event.tool, event.preview, None)
            case ToolCompleted():
                self._finish_tool(event)
            case InputRequested():
                self._clarify(event)
            case ApprovalRequested():
                self._ask_permission(event)
            case RunStatusChanged():
                kind = "warn" if event.name == "step.retried" else "lifecycle"
                _call(self._to.status_callback, kind, event.message)
            case RunEnded():
                _call(self._to.thinking_callback, "")

    def _begin(self) -> None:
        """The first sign of the reply of an iteration."""
        if self._is_begun:
            return
        self._is_begun = True
        _call(self._to.step_callback, self._iteration + 1, self._tools)
        _call(self._to.thinking_callback, "")
        self._tools = []

    def _complete(self, event: MessageCompleted) -> None:
        _call(self._to.stream_delta_callback, None)
        if event.finish_reason == "tool_calls" and event.text:
            _call(self._to.interim_assistant_callback, event.text, self._has_streamed)
        self._iteration, self._is_begun, self._has_streamed = event.iteration, False, False

    def _finish_tool(self, event: ToolCompleted) -> None:
        self._tools.append(event.tool)
        outcome = event.outcome or ("error" if event.is_error else "ok")
        preview = self._previews.pop(event.call_id, "")
        _call(self._to.tool_complete_callback, event.call_id, event.tool, preview, outcome)
        if self._to.tool_progress_callback:
            facts = {"duration": event.duration_s, "is_error": event.is_error}
            _call(self._to.tool_progress_callback, "tool.completed", event.tool, None, None, **facts)
        _call(self._to.thinking_callback, "thinking")

    def _clarify(self, event: InputRequested) -> None:
        answer = _call(self._to.clarify_callback, event.question, event.choices)
        if answer is not None:
            with contextlib.suppress(RefusedError):  # somebody else was faster
                self._client.answer(self._run_id, str(answer), wait_id=event.wait_id)

    def _ask_permission(self, event: ApprovalRequested) -> None:
        choice = _call(self._to.approval_callback, event.command, event.description)
        if choice is not None:
            with contextlib.suppress(RefusedError):
                self._client.approve(self._run_id, str(choice), wait_id=event.wait_id)


def _call(callback: Callable[..., Any] | None, *arguments: Any, **facts: Any) -> Any:
    """What the callback returns; ``None`` when there is none or it raised: foreign code must not end the following."""
    if callback is None:
        return None
    try:
        return callback(*arguments, **facts)
    except Exception as error:
        log.warning("callback.failed", callback=getattr(callback, "__name__", "?"), error=repr(error))
        return None
