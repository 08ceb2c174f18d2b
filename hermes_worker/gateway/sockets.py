"""Listen to an account over a lasting connection: a websocket, lines, or a response that does not end.

The connection belongs to the holder of the account's lease. The lease is renewed long before it ends; a process that
was frozen after a renewal looks at its own clock before it takes another frame, and what it writes too late is refused
by the rows. What a frame brings is committed with the cursor before the platform is told that it was taken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import Unsendable, failure, flatten_text, perform
from hermes_worker.channels.inbound.receiving import Following, FrameOutcome, SocketAddress, SocketTalk
from hermes_worker.core.errors import ConfigurationError, LeaseLost
from hermes_worker.gateway.inbound import InboundHandler
from hermes_worker.gateway.received import ReceivedEvent
from hermes_worker.net.frames import FrameConnection, FramesEnded, open_frames
from hermes_worker.net.http import HttpRequest, HttpResponse, NoAnswer
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy
from hermes_worker.net.wire import send
from hermes_worker.observe import count, log
from hermes_worker.store.gateway import AccountLease, GatewayRows

USEFUL_S = 30.0
"""Seconds after which a connection counts as useful. One that held so long, or brought something new, is replaced at
once when it ends."""
_LOOK_UP_S = 0.5
"""Seconds between two looks at the order to stop."""
_RENEWED_PART = 0.6
"""The part of a lease after which it is renewed."""
_OURS = UrlPolicy(allows_private=True)
"""The operator configures the address of a platform, or that platform named it."""

_Found = TypeVar("_Found")


def run_exchange(
    exchange: Generator[HttpRequest, HttpResponse, _Found | DeliveryError],
    account: str,
    ends_at: float | Callable[[], float],
) -> _Found | DeliveryError:
    """Make the requests of an exchange, until ``ends_at`` of the monotonic clock; as a function it is called before
    each request. Raises ``LeaseLost``."""

    def ask(request: HttpRequest) -> HttpResponse:
        left_s = (ends_at() if callable(ends_at) else ends_at) - time.monotonic()
        if left_s <= 0:
            raise LeaseLost(f"the lease of {account!r} ended before it was used")
        return send(request, _OURS, total_s=left_s)

    try:
        return perform(exchange, ask)
    except ConfigurationError as error:
        return DeliveryError(kind=SendErrorKind.REFUSED, message=flatten_text(str(error)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketAccount:
    """An account whose lease is held, and how to talk to its platform."""

    account: str
    platform: str
    name: str
    """The account's name among those of its platform."""
    open_talk: Callable[[], SocketTalk]
    hold: AccountLease
    lease_s: float
    last_error: str | None = None
    """What was wrong with the last connection: people are shown it until this one is open for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionEnd:
    """The result of a connection."""

    cursor: str
    """How far the account is read."""
    error: DeliveryError | None
    """``None`` when the platform wanted another connection, or the process stops."""
    was_useful: bool
    """Whether it held for a while or brought something new."""


class SocketListening:
    """One connection. Used by one thread, once."""

    def __init__(self, held: SocketAccount, rows: GatewayRows, handler: InboundHandler, cursor: str) -> None:
        self._held = held
        self._rows = rows
        self._handler = handler
        self._cursor = cursor
        self._committed = cursor
        self._talk = held.open_talk()
        self._beat_s: float | None = None
        self._beat_at = 0.0
        self._renew_at = self._ends_at = 0.0
        self._brought = False

    def listen(self, stopping: threading.Event) -> ConnectionEnd:
        """Connect and take frames until the connection ends or ``stopping`` is set. Raises ``LeaseLost``,
        ``UnavailableError``."""
        self._renew(self._held.last_error)
        began_at = time.monotonic()
        error: DeliveryError | None
        try:
            error = self._connect_and_read(stopping)
        except NoAnswer as ended:
            error = self._judge_end(ended)
        except (Unsendable, UnsafeUrl, ConfigurationError) as refused:
            error = DeliveryError(kind=SendErrorKind.REFUSED, message=flatten_text(str(refused)))
        self._commit_cursor()
        was_useful = self._brought or stopping.is_set() or time.monotonic() - began_at >= USEFUL_S
        return ConnectionEnd(cursor=self._cursor, error=error, was_useful=was_useful)

    def _judge_end(self, ended: NoAnswer) -> DeliveryError:
        """Judge the end of a connection."""
        if isinstance(ended, FramesEnded) and ended.response is not None:
            return failure(ended.response)
        if isinstance(ended, FramesEnded) and ended.code is not None:
            heard = self._talk.on_close(ended.code)
            self._handle_all(heard)
            if heard.error is not None:
                return heard.error
        return DeliveryError(kind=SendErrorKind.TRANSIENT, message=flatten_text(ended.reason))

    def _connect_and_read(self, stopping: threading.Event) -> DeliveryError | None:
        address = run_exchange(
            self._talk.find_address(self._cursor, datetime.now(UTC)), self._held.account, self._ends_at
        )
        if isinstance(address, DeliveryError):
            return address
        connection = open_frames(address.url, address.headers, _OURS)
        try:
            return self._read_frames(connection, address, stopping)
        finally:
            with suppress(NoAnswer, OSError):
                connection.close()

    def _read_frames(
        self, connection: FrameConnection, address: SocketAddress, stopping: threading.Event
    ) -> DeliveryError | None:
        for frame in address.greeting:
            connection.send(frame)
        while not stopping.is_set():
            now = time.monotonic()
            if now >= self._renew_at:
                self._commit_cursor()
                self._renew()
            if self._beat_s is not None and now >= self._beat_at:
                self._beat_at = now + self._beat_s
                heard = self._talk.on_beat(datetime.now(UTC))
            else:
                frame_or_none = connection.receive(self._compute_patience_s(now))
                if frame_or_none is None:
                    continue
                heard = self._read_frame(frame_or_none)
            heard = self._act_on_frame(heard, connection)
            if heard.is_over or heard.error is not None:
                return heard.error
        return None

    def _read_frame(self, frame: str) -> FrameOutcome:
        """Read a frame. One on which our own code breaks is dropped: after a reconnection it would come again."""
        try:
            return self._talk.on_frame(frame, datetime.now(UTC))
        except Exception:
            count("gateway.frame_broke")
            log.exception("gateway.frame_broke", account=self._held.account)
            return FrameOutcome()

    def _compute_patience_s(self, now: float) -> float:
        due = [now + _LOOK_UP_S, self._renew_at]
        if self._beat_s is not None:
            due.append(self._beat_at)
        return max(0.0, min(due) - now)

    def _act_on_frame(self, heard: FrameOutcome, connection: FrameConnection) -> FrameOutcome:
        """Do what a frame asks for. Returns its outcome, or that of the last exchange which followed it."""
        if time.monotonic() >= self._ends_at:
            raise LeaseLost(f"the lease of {self._held.account!r} ended while it slept")
        for frame in heard.replies:
            connection.send(frame)
        self._handle_all(heard)
        for frame in heard.acknowledgements:
            connection.send(frame)
        if heard.beat_s is not None:
            self._beat_s = heard.beat_s
            self._beat_at = time.monotonic() + heard.beat_s
        if heard.then is None:
            return heard
        found = self._run_following(heard.then)
        return FrameOutcome(error=found) if isinstance(found, DeliveryError) else self._act_on_frame(found, connection)

    def _run_following(self, exchange: Following) -> FrameOutcome | DeliveryError:
        """Make the exchange that follows a frame. It may take longer than a lease, and renews it."""

        def compute_end() -> float:
            if time.monotonic() >= self._renew_at:
                self._renew()
            return self._ends_at

        return run_exchange(exchange, self._held.account, compute_end)

    def _handle_all(self, heard: FrameOutcome) -> None:
        """Commit what a frame brings, in order, the cursor with the last of it."""
        if heard.cursor is not None:
            self._cursor = heard.cursor
        for number, event in enumerate(heard.inbound):
            is_last = number == len(heard.inbound) - 1
            cursor = self._cursor if is_last else None
            received = ReceivedEvent(
                platform=self._held.platform,
                account_name=self._held.name,
                event=event,
                hold=self._held.hold,
                cursor=cursor,
            )
            if self._handler.handle(received) is None:
                continue  # it came before
            self._brought = True
            if is_last:
                self._committed = self._cursor

    def _commit_cursor(self) -> None:
        """Commit a cursor that moved without an event with the next renewal, not for every frame."""
        if self._cursor != self._committed:
            self._rows.advance_cursor(self._held.hold, self._cursor)
            self._committed = self._cursor

    def _renew(self, error: str | None = None) -> None:
        now = time.monotonic()
        self._rows.renew(self._held.hold, self._held.lease_s, error=error)
        # Counted from before the statement, so our clock ends first.
        self._renew_at, self._ends_at = now + self._held.lease_s * _RENEWED_PART, now + self._held.lease_s
