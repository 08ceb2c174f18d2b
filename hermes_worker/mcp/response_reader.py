"""Read what a server says while one request of ours is open: the answer, and the server's own requests before it.

A server that asks waits for us, and would wait until the call's time is over; so it is refused at once, and the answer
says what was refused. A ``ping`` is answered. A form for a person is kept where its stream can be taken up again behind
it (``mcp.sessions``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from hermes_worker.mcp.protocol import (
    ELICITATION,
    McpError,
    ServerRequest,
    UnknownOutcome,
    add_refusal,
    build_reply,
    format_refused,
    is_answer_to,
    parse_messages,
    parse_result,
    parse_server_request,
)
from hermes_worker.net.events import EventReader, EventTooLong, ServerEvent

ANSWER_BYTES_MAX: Final = 4_000_000
_ASKED_MAX: Final = 20
"""How many requests a server may make of us during one answer; later ones get no answer."""
_NO_WAY_BACK: Final = "; a person can be asked only on a stream whose events have ids, so that it can be taken up again"


class ResponseReader:
    """Collects the answer to one request, over however many connections it comes."""

    def __init__(
        self,
        number: int = 1,
        reply: Callable[[bytes], object] | None = None,
        *,
        takes_questions: bool = False,
        answered: Collection[int | str] = (),
    ) -> None:
        """``reply`` sends our answer to a server that asks; it may raise ``McpError``. ``answered`` are the numbers of
        questions that a person answered, which a server may show again.
        """
        self._number = number
        self._reply = reply
        self._takes_questions = takes_questions
        self._answered = frozenset(answered)
        self._asked = 0
        self._refused: set[str] = set()
        self._lacks_ids = False
        self._answer: Mapping[str, Any] | None = None
        self.question: tuple[ServerRequest, str] | None = None
        """The question for a person, and the id of its event."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more has to be read for now."""
        return self._answer is not None or self.question is not None

    def on_event(self, event: ServerEvent) -> None:
        """Take one event. Raises ``McpError`` for broken JSON."""
        if event.name != "message":
            return
        for found in parse_messages(event.data):
            if is_answer_to(found, self._number):
                self._answer = found
            elif (asked := parse_server_request(found)) is not None:
                self._on_request(asked, event.event_id)
            if self.is_over:
                return

    def get_result(self) -> Mapping[str, Any]:
        """The result of the request. Raises ``McpRefusal``, ``UnknownOutcome``, ``McpError``."""
        with self.explain_errors():
            if self._answer is None:
                raise McpError("the server ended its answer without a result")
            return add_refusal(parse_result(self._answer), self._refusal)

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Add to errors of the block what the server asked for and did not get: it may be the cause."""
        try:
            yield
        except McpError as error:
            if (refusal := self._refusal) and refusal not in str(error):
                error.args = (f"{error}; {refusal}",)
            raise

    @property
    def _refusal(self) -> str:
        return format_refused(self._refused) + (_NO_WAY_BACK if self._lacks_ids else "")

    def _on_request(self, asked: ServerRequest, event_id: str | None) -> None:
        self._asked += 1
        if self._asked > _ASKED_MAX or asked.number in self._answered:
            return
        if self._takes_questions and asked.method == ELICITATION and isinstance(asked.params, dict):
            if event_id is not None:
                self.question = asked, event_id
                return
            self._lacks_ids = True
        if asked.method != "ping":
            self._refused.add(asked.method)
        if self._reply is not None:
            with suppress(McpError):
                self._reply(build_reply(asked))


def read_events(media_type: str, pieces: Iterable[bytes], reader: EventReader) -> Iterator[ServerEvent]:
    """Yield what a body says, as it comes: its events, or one JSON text. Raises ``McpError`` for a body that is
    neither, and for one that is too large.
    """
    kind = media_type.partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        reader.begin_connection()
        for piece in _limit_bytes(pieces):
            try:
                yield from reader.feed(piece)
            except EventTooLong:
                raise _too_large() from None
    elif kind == "application/json":
        yield ServerEvent(data=b"".join(_limit_bytes(pieces)).decode("utf-8", "replace"))
    else:
        raise McpError(f"the server answered with {kind[:60] or 'nothing'!r} and not with JSON")


def _limit_bytes(pieces: Iterable[bytes]) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > ANSWER_BYTES_MAX:
            raise _too_large()
        yield piece


def _too_large() -> McpError:
    return UnknownOutcome(f"the server's answer is larger than {ANSWER_BYTES_MAX:,} bytes")
