"""A server that speaks all three wires as strictly as the real ones, and misbehaves when it is told to.

    with StrictServer() as server:
        server.says(Said(text="hello"), Said(calls=(...)))       # replies, in order; then the last one again
        server.faults(status(429), nothing)                      # what happens to the first requests instead

The path of a request decides its wire. A request that breaks a rule of its wire gets a 400, as it would in earnest, and
is kept in ``server.refusals``: a test that sends good requests asserts that this stays empty.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from dialects import HELLO, RULES, Refused, Said, WireRules
from support.fault_server import FaultServer, Received, Reply

Fault = Callable[["StrictServer", WireRules, Received, Reply], None]
"""Answers a request in place of the model."""


class StrictServer:
    """Serves on loopback until the block ends."""

    def __init__(self, rules: Mapping[str, WireRules] = RULES) -> None:
        self._server = FaultServer(self._answer)
        self._rules = rules
        self._lock = threading.Lock()
        self._script: list[Said] = [HELLO]
        self._faults: list[Fault] = []
        self.answers: Mapping[str, object] = {}
        """What is served beside the wires: documents by method and path."""
        self.refusals: list[str] = []
        """Why requests were refused."""
        self.accepted: list[Mapping[str, Any]] = []
        """Requests that kept all rules, whatever became of them."""

    def __enter__(self) -> StrictServer:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    @property
    def base_url(self) -> str:
        return self._server.base_url

    @property
    def connections(self) -> int:
        return self._server.connections

    @property
    def requests(self) -> list[Received]:
        return self._server.requests

    def says(self, *said: Said) -> None:
        """What the model says to the next requests; the last reply is repeated."""
        with self._lock:
            self._script = list(said)

    def faults(self, *faults: Fault) -> None:
        """What becomes of the next requests, one each, before the model is asked again."""
        with self._lock:
            self._faults = list(faults)

    def next_reply(self) -> Said:
        with self._lock:
            return self._script.pop(0) if len(self._script) > 1 else self._script[0]

    def _rules_for(self, request: Received) -> WireRules | None:
        path = request.head.split(" ", 2)[1]
        return next((rules for rules in self._rules.values() if rules.is_for(path)), None)

    def _answer(self, request: Received, reply: Reply) -> None:
        rules = self._rules_for(request)
        beside = self.answers.get(" ".join(request.head.split(" ", 2)[:2]))
        if beside is not None:
            reply.document(200, beside)
            return
        if rules is None:
            reply.document(404, b"404 page not found", content_type="text/plain")
            return
        try:
            document = request.document
            rules.check(document, request.header)
        except (Refused, KeyError, AttributeError, TypeError, ValueError) as error:
            with self._lock:
                self.refusals.append(f"{type(error).__name__}: {error}")
            reply.document(400, rules.error(str(error)))
            return
        with self._lock:
            self.accepted.append(document)
            fault = self._faults.pop(0) if self._faults else None
        if fault is not None:
            fault(self, rules, request, reply)
        elif rules.streams(request.head.split(" ", 2)[1], document):
            send_stream(reply, rules, rules.events(self.next_reply()))
        else:
            reply.document(200, rules.document(self.next_reply()))


def send_stream(reply: Reply, rules: WireRules, events: list[object]) -> None:
    reply.head(200, rules.content_type)
    for event in events:
        reply.piece(rules.encode(event))
    reply.end()


# -------------------------------------------------------------------------------------------------------------- faults


def status(code: int, message: str = "no", error_code: str | None = None, *headers: str) -> Fault:
    """An error of the wire's own shape."""

    def fault(_: StrictServer, rules: WireRules, __: Received, reply: Reply) -> None:
        reply.document(code, rules.error(message, error_code, code), *headers)

    return fault


def body(code: int, data: bytes, content_type: str = "application/json") -> Fault:
    """A status with a body of any kind."""
    return lambda _, __, ___, reply: reply.document(code, data, content_type=content_type)


def silence(_: StrictServer, __: WireRules, ___: Received, reply: Reply) -> None:
    reply.block()


def hang_up(_: StrictServer, __: WireRules, ___: Received, reply: Reply) -> None:
    reply.close()


def reset(_: StrictServer, __: WireRules, ___: Received, reply: Reply) -> None:
    reply.reset()


def cut_after(events: int, ending: str = "close", *, extra_bytes: int = 0) -> Fault:
    """The stream breaks after so many events and ``extra_bytes`` of the next: ``close``, ``end`` or ``reset``."""

    def fault(server: StrictServer, rules: WireRules, _: Received, reply: Reply) -> None:
        all_events = rules.events(server.next_reply())
        reply.head(200, rules.content_type)
        for event in all_events[:events]:
            reply.piece(rules.encode(event))
        if extra_bytes and events < len(all_events):
            reply.piece(rules.encode(all_events[events])[:extra_bytes])
        getattr(reply, ending)()

    return fault


def cut_at_byte(count: int, ending: str = "close", *, piece_bytes: int = 1_000) -> Fault:
    """The stream breaks after so many bytes, sent in pieces that heed no event."""

    def fault(server: StrictServer, rules: WireRules, _: Received, reply: Reply) -> None:
        data = b"".join(map(rules.encode, rules.events(server.next_reply())))[:count]
        reply.head(200, rules.content_type)
        for start in range(0, len(data), piece_bytes):
            reply.piece(data[start : start + piece_bytes])
        getattr(reply, ending)()

    return fault


def instead_of_event(position: int, data: bytes) -> Fault:
    """A whole stream in which one event is replaced by ``data``."""

    def fault(server: StrictServer, rules: WireRules, _: Received, reply: Reply) -> None:
        reply.head(200, rules.content_type)
        for index, event in enumerate(rules.events(server.next_reply())):
            reply.piece(data if index == position else rules.encode(event))
        reply.end()

    return fault
