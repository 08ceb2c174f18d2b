"""Requests to a server of a revision with sessions (2025-03-26 to 2025-11-25), over HTTP.

A session is a document of ours: the worker that makes the next call goes on with it, and when the server forgot it,
begins another one. Each request has a number of its own, since a server tells the streams of a session apart by it.

A stream that ends before the answer is there is taken up again (``Last-Event-ID``) as long as its events have ids. That
asks for what was said since, and sends nothing a second time. So a question for a person can be put while a call's
stream is open: the stream is left at the event that asks, its place is kept with the call (``StreamPlace``), and the
worker that has the person's answer sends it and takes the stream up there. That a person can be asked is told only to a
server whose answer to ``initialize`` has event ids.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from hermes_worker.core.json_values import parse_json
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.mcp.http import ANY_ANSWER, EVENTS, AnswerLost, NotReached, ServerHttp, as_not_sent
from hermes_worker.mcp.protocol import (
    ELICITATION,
    InputWanted,
    McpError,
    McpRefusal,
    ServerRequest,
    UnknownOutcome,
    build_initialize_params,
    build_notification,
    build_reply,
    build_request,
)
from hermes_worker.mcp.response_reader import ANSWER_BYTES_MAX, ResponseReader
from hermes_worker.mcp.servers import WITH_SESSIONS, McpServer
from hermes_worker.net.events import EventReader

_WITH_QUESTIONS: Final = frozenset({"2025-06-18", "2025-11-25"})
"""Revisions in which a server may ask a person."""
_ASKS: Final[Mapping[str, Any]] = {"elicitation": {}}
"""Forms, by the first revision that has them; the next one takes the same words for it."""
_RETRY_S: Final = 1.0
"""Before a stream is taken up again, where the server does not say how long it wants."""
_LOST_MAX: Final = 5
"""Times in a row that a stream may be taken up and bring nothing."""
_QUESTION: Final = "question"
_NUMBERS: Final = 2**40
_EVENT_ID = re.compile(r"[\x20-\x7e]{1,1000}")


@dataclass(slots=True, kw_only=True)
class McpSession:
    """The session that a server of an older revision gave to one of our sessions."""

    url: str
    session_id: str | None = field(default=None, repr=False)
    version: str = WITH_SESSIONS
    asks: bool = False
    """Whether the server was told that a person can be asked."""
    is_new: bool = False
    """Whether the document has to be stored."""

    @classmethod
    def from_document(cls, document: object, server: McpServer) -> McpSession:
        """Read a session from its document; an empty one where there is none, or one of another address."""
        found = cls(url=server.url)
        match document:
            case {"url": server.url, "id": str(session_id), "version": str(version), **more}:
                found.session_id, found.version = session_id, version
                found.asks = more.get("asks") == "yes"
        return found

    @property
    def document(self) -> Mapping[str, str] | None:
        """The document to store; ``None`` for a server that gave no id."""
        if self.session_id is None:
            return None
        asks = {"asks": "yes"} if self.asks else {}
        return {"url": self.url, "id": self.session_id, "version": self.version, **asks}

    @property
    def headers(self) -> dict[str, str]:
        told = {"Accept": ANY_ANSWER, "MCP-Protocol-Version": self.version}
        return told if self.session_id is None else {**told, "Mcp-Session-Id": self.session_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlace:
    """The place at which the stream of a call was left, to be taken up there by any worker."""

    session: Mapping[str, str] = field(repr=False)
    """The document of the session."""
    number: int
    """The number of our request."""
    event_id: str = field(repr=False)
    asked: int | str
    """The number of the server's question."""

    def to_text(self) -> str:
        return dump_canonical_json({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_text(cls, text: object) -> StreamPlace | None:
        """Read a place; ``None`` for a text that is not of ``to_text``, as a server's own would be."""
        match parse_json(text) if isinstance(text, str) else None:
            case {
                "session": dict(session),
                "number": int(number),
                "event_id": str(event_id),
                "asked": int(asked) | str(asked),
            }:
                return cls(session=session, number=number, event_id=event_id, asked=asked)
            case _:
                return None


class SessionRequests:
    """The requests of one call, within an existing session or a new one."""

    def __init__(self, http: ServerHttp, session: McpSession) -> None:
        self._http = http
        self._session = session
        self._reader = EventReader(chars_max=ANSWER_BYTES_MAX)

    def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any] | InputWanted:
        """The result of one request, or the question for a person before there is one. Raises ``McpError``."""
        is_kept = self._session.session_id is not None
        if not is_kept:
            self._begin_session()
        number = secrets.randbelow(_NUMBERS)
        body = build_request(method, params, number)
        hearing = self._make_reader(number)
        status = self._post_message(body, hearing, is_kept=is_kept)
        if status is None:  # it has forgotten the session, and did nothing
            self._begin_session()
            hearing = self._make_reader(number)
            status = self._post_message(body, hearing)
        return self._read_outcome(hearing, number, status or 0)

    def continue_call(self, place: StreamPlace, responses: object) -> Mapping[str, Any] | InputWanted:
        """Continue a call that asked a person: send the answer, and take up its stream. Returns what ``request`` does.
        Raises ``McpError``.
        """
        self._send_answer(place, responses)
        hearing = self._make_reader(place.number, place.asked)
        self._reader.last_event_id = place.event_id
        with hearing.explain_errors(), suppress(AnswerLost, NotReached):
            self._resume_stream_once(hearing, place.event_id)
        return self._read_outcome(hearing, place.number, 200)

    def cancel_call(self, place: StreamPlace) -> None:
        """Cancel a call whose question will not be answered. Raises ``McpError``; a server that has forgotten it is
        content.
        """
        cancelled = {"requestId": place.number, "reason": "nobody waits for it any more"}
        for body in (
            build_reply(_build_question(place), {"action": "cancel"}),
            build_notification("notifications/cancelled", cancelled),
        ):
            status = self._http.send(self._session.headers, body)
            if status >= 500:
                raise self._http.error_for_status(status, "")

    def end_session(self) -> None:
        """End a session that is not needed any more; the server forgets it by itself where it cannot be told."""
        if self._session.session_id is not None:
            with suppress(McpError):
                self._http.send(self._session.headers, b"", method="DELETE")

    # --- a session begins --------------------------------------------------------------------------------------------

    def _begin_session(self) -> None:
        """Initialize a session. The call was not sent yet, so no failure here is an unknown outcome."""
        try:
            had = self._session.session_id
            has_ids = self._initialize({})
            if has_ids and self._session.session_id is not None and self._session.version in _WITH_QUESTIONS:
                self.end_session()
                self._session.asks = self._initialize(_ASKS)
            self._session.is_new = self._session.session_id is not None or had is not None
            self._http.send(self._session.headers, build_notification("notifications/initialized"))
        except UnknownOutcome as error:
            raise as_not_sent(error) from None

    def _initialize(self, capabilities: Mapping[str, Any]) -> bool:
        """Initialize the session; return whether the answer has event ids."""
        number = secrets.randbelow(_NUMBERS)
        hearing, reader = ResponseReader(number), EventReader(chars_max=ANSWER_BYTES_MAX)
        body = build_request("initialize", build_initialize_params(WITH_SESSIONS, capabilities), number)
        with self._http.open_response({"Accept": ANY_ANSWER}, body) as response:
            self._http.read_answer(response, hearing, reader)
            result = self._http.get_result(hearing, response.status)
            session_id = response.headers.get("mcp-session-id")
        self._session.version = parse_header_text(result.get("protocolVersion")) or WITH_SESSIONS
        self._session.session_id = parse_header_text(session_id)
        self._session.asks = False
        return reader.last_event_id is not None

    # --- an answer is heard ------------------------------------------------------------------------------------------

    def _make_reader(self, number: int, *answered: int | str) -> ResponseReader:
        return ResponseReader(number, self._send_reply, takes_questions=self._session.asks, answered=answered)

    def _send_reply(self, reply: bytes) -> None:
        self._http.send(self._session.headers, reply)

    def _post_message(self, body: bytes, hearing: ResponseReader, *, is_kept: bool = False) -> int | None:
        """Send a message and read the answer; return its status, or ``None`` where the server has forgotten the kept
        session.
        """
        status = 200
        with hearing.explain_errors():
            try:
                with self._http.open_response(self._session.headers, body) as response:
                    status = response.status
                    if status == 404 and is_kept:
                        return None
                    self._http.read_answer(response, hearing, self._reader)
            except AnswerLost:
                if self._event_id is None:
                    raise
        return status

    @property
    def _event_id(self) -> str | None:
        """The id of the event behind which the stream can be taken up again; ``None`` for none."""
        last = self._reader.last_event_id
        return last if last is not None and _EVENT_ID.fullmatch(last) else None

    def _read_outcome(self, hearing: ResponseReader, number: int, status: int) -> Mapping[str, Any] | InputWanted:
        with hearing.explain_errors():
            self._resume_stream(hearing)
        if hearing.question is None:
            return self._http.get_result(hearing, status)
        asked, event_id = hearing.question
        session = self._session.document or {}
        place = StreamPlace(session=session, number=number, event_id=event_id, asked=asked.number)
        question = {"method": asked.method, "params": asked.params}
        return InputWanted(asked={_QUESTION: question}, server_state=place.to_text())

    def _resume_stream(self, hearing: ResponseReader) -> None:
        """Read the rest of a stream that ended early, if it can be read."""
        lost = 0
        while not hearing.is_over and (before := self._event_id) is not None:
            if lost > _LOST_MAX:
                raise UnknownOutcome(f"the server's stream was taken up {lost} times and brought nothing")
            self._pause()
            with suppress(AnswerLost, NotReached):
                self._resume_stream_once(hearing, before)
            lost = lost + 1 if self._event_id == before else 0

    def _resume_stream_once(self, hearing: ResponseReader, event_id: str) -> None:
        """Take the stream up once. Raises ``UnknownOutcome``, ``NotReached``: the call itself was sent before, however
        this fails.
        """
        headers = {**self._session.headers, "Accept": EVENTS, "Last-Event-ID": event_id}
        try:
            with self._http.open_response(headers, method="GET") as response:
                if response.status >= 500:
                    return
                if response.status != 200:
                    raise UnknownOutcome(f"the server's stream cannot be taken up again (HTTP {response.status})")
                self._http.read_answer(response, hearing, self._reader)
        except McpRefusal as error:
            raise UnknownOutcome(str(error)) from None

    def _pause(self) -> None:
        wanted_s = _RETRY_S if self._reader.retry_s is None else self._reader.retry_s
        if wanted_s >= self._http.left_s:
            raise UnknownOutcome("the server took too long")
        time.sleep(wanted_s)

    def _send_answer(self, place: StreamPlace, responses: object) -> None:
        """Send a person's answer until it arrives: a server ignores the second of two same answers."""
        said = responses.get(_QUESTION) if isinstance(responses, Mapping) else None
        reply = build_reply(_build_question(place), said if isinstance(said, Mapping) else {"action": "decline"})
        for _ in range(_LOST_MAX):
            try:
                status = self._http.send(self._session.headers, reply)
            except AnswerLost:
                return  # its stream says whether the answer is there
            except NotReached:
                status = 503
            except McpRefusal as error:
                raise UnknownOutcome(f"the answer was not taken: {error}") from None
            if status < 300:
                return
            if status < 500:
                raise UnknownOutcome(f"the server would not have the answer (HTTP {status})")
            self._pause()
        raise UnknownOutcome("the answer could not be brought to the server")


def _build_question(place: StreamPlace) -> ServerRequest:
    return ServerRequest(number=place.asked, method=ELICITATION, params=None)


def parse_header_text(said: object) -> str | None:
    """A text that can be sent back in a header; ``None`` for any other."""
    return said if isinstance(said, str) and re.fullmatch(r"[!-~]{1,1000}", said) else None
