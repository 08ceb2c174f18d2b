"""Ask a server how large a model's context window is.

Asked when a run needs to know, never before an ordinary call: a request was refused as too long without saying how long
it may be. The questions go where calls go: to the same checked address, with the same credential and proxy, and they
follow no redirect. All of them together take ``TIME_MAX_S`` at most. What was learned, also that nothing was, is kept
for a while; a turn keeps it in its memory besides.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import httpx2

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.recovery.retry import STANDARD_WINDOW
from hermes_worker.core.recovery.served_windows import WindowQuery, list_queries
from hermes_worker.extension import load_reference
from hermes_worker.models.base import Abort
from hermes_worker.models.catalog import list_wire_rows
from hermes_worker.models.connections import CuttableTransport, Line, use_line
from hermes_worker.models.endpoint import Endpoint

TIME_MAX_S = 3.0
KNOWN_S, UNKNOWN_S = 600.0, 60.0
"""How many seconds an answer is believed, and how many a server that gave none is left alone."""
ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""Lists of aggregators are about 1 MB long."""
_KEPT_MAX = 1_024


class WindowAnswers:
    """The answers of servers about their models' windows, by address and model. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, str], tuple[float, int | None]] = {}
        self._being_asked: set[tuple[str, str]] = set()

    def find_fresh(self, place: tuple[str, str]) -> tuple[bool, int | None]:
        """Whether there is an answer that still counts, and the window if it told one."""
        with self._lock:
            until, window = self._answers.get(place, (0.0, None))
        return (True, window) if self._clock() < until else (False, None)

    def keep_answer(self, place: tuple[str, str], window: int | None) -> None:
        until = self._clock() + (KNOWN_S if window else UNKNOWN_S)
        with self._lock:
            if len(self._answers) >= _KEPT_MAX:
                self._answers.clear()  # rare, and cheaper than keeping an order
            self._answers[place] = (until, window)

    @contextlib.contextmanager
    def claim_question(self, place: tuple[str, str]) -> Iterator[bool]:
        """Mark the place as being asked while the block runs; yields whether no other thread is asking it."""
        with self._lock:
            is_first = place not in self._being_asked
            self._being_asked.add(place)
        try:
            yield is_first
        finally:
            if is_first:
                with self._lock:
                    self._being_asked.discard(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWindow:
    """The window of one model at one server, as far as that tells it."""

    endpoint: Endpoint
    model: str
    wire: str
    is_own_server: bool
    """Whether the server is the user's own, which may have more doors than those of its API."""
    answers: WindowAnswers
    stated: int | None = None
    """The window that catalogue rows give the model, in tokens. A server of the user's own may have given it less."""

    @property
    def known_tokens(self) -> int | None:
        """The window that was learned before, or else one that a row states if it is smaller than usual, in tokens;
        asks no server. A larger window has to come from the server or from a setting: a conversation that fills it
        costs accordingly.
        """
        return self.answers.find_fresh(self._place)[1] or self._smaller_than_usual

    @property
    def _smaller_than_usual(self) -> int | None:
        is_smaller = self.stated is not None and self.stated < STANDARD_WINDOW
        return self.stated if is_smaller and not self.is_own_server else None

    def note_window(self, window: int) -> None:
        """Take over a window that the server stated elsewhere, such as in a refusal."""
        self.answers.keep_answer(self._place, window)

    def request_window(self, abort: Abort) -> int | None:
        """Ask the server for the window in tokens; ``None`` when it does not tell. Takes ``TIME_MAX_S`` at most; never
        raises.
        """
        is_fresh, window = self.answers.find_fresh(self._place)
        if is_fresh:
            return window
        window = _WindowRequests(self, abort).find_window(list_queries(is_own_server=self.is_own_server))
        if not abort.is_set():
            self.answers.keep_answer(self._place, window)
        return window

    def request_in_background(self) -> None:
        """Ask in a thread of its own, without waiting; ``known_tokens`` returns the answer once there is one."""
        if not self.answers.find_fresh(self._place)[0]:
            threading.Thread(target=self._request_unless_asked, name="window", daemon=True).start()

    def _request_unless_asked(self) -> None:
        with self.answers.claim_question(self._place) as is_first:
            if is_first:
                self.request_window(AbortSignal())

    @property
    def _place(self) -> tuple[str, str]:
        return self.endpoint.plain_url, self.model


class _WindowRequests:
    """One round of questions."""

    def __init__(self, served: ServedWindow, abort: Abort) -> None:
        self._endpoint = served.endpoint
        self._model = served.model
        self._version_path = list_wire_rows()[served.wire].version_path
        self._headers = build_request_headers(served.wire, served.endpoint)
        self._line = Line()
        self._until = time.monotonic() + TIME_MAX_S
        abort.on_abort(self._line.cut)

    def find_window(self, asked: tuple[WindowQuery, ...]) -> int | None:
        transport = CuttableTransport(proxy_url=self._endpoint.proxy_url)
        timer = threading.Timer(TIME_MAX_S, self._line.cut)  # name resolution and a slow drip heed no other limit
        timer.daemon = True
        timer.start()
        try:
            with (
                use_line(self._line),
                httpx2.Client(transport=transport, trust_env=False, follow_redirects=False) as client,
            ):
                return self._find_first_answer(client, asked)
        finally:
            timer.cancel()

    def _find_first_answer(self, client: httpx2.Client, asked: tuple[WindowQuery, ...]) -> int | None:
        for place in asked:
            if self._line.is_cut or time.monotonic() >= self._until:
                return None
            with contextlib.suppress(httpx2.HTTPError, httpx2.InvalidURL, ValueError, RecursionError):
                window = place.read(self._request_document(client, place), self._model)
                if window is not None:
                    return window
        return None

    def _request_document(self, client: httpx2.Client, place: WindowQuery) -> object:
        body = dump_canonical_json({"model": self._model, "name": self._model}).encode() if place.names_model else None
        rest_s = max(0.1, self._until - time.monotonic())
        with client.stream(
            "POST" if place.names_model else "GET",
            self._build_url(place),
            content=body,
            params=self._endpoint.query or None,
            headers=self._headers,
            timeout=httpx2.Timeout(min(rest_s, TIME_MAX_S)),
        ) as response:
            if response.status_code != 200:
                return None
            return json.loads(_read_limited(response))

    def _build_url(self, place: WindowQuery) -> str:
        base = self._endpoint.plain_url
        if place.is_of_api:
            return f"{base.removesuffix(self._version_path)}{self._version_path}{place.path}"
        return f"{base.removesuffix('/v1').removesuffix('/anthropic')}{place.path}"


def _read_limited(response: httpx2.Response) -> bytes:
    received = bytearray()
    for chunk in response.iter_bytes():
        received += chunk
        if len(received) > ANSWER_BYTES_MAX:
            raise ValueError("the answer is longer than any list of models")
    return bytes(received)


def build_request_headers(wire: str, endpoint: Endpoint) -> dict[str, str]:
    """The headers of calls over ``wire``, the credential among them. Imports the wire's implementation."""
    headers: Mapping[str, object] = load_reference(list_wire_rows()[wire].headers)(endpoint)
    return {name: value for name, value in headers.items() if isinstance(value, str)}
