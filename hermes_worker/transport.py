"""Kombu's Redis transport, without the work that our design makes superfluous.

Kombu builds a Redis client for every publish and two for every message consumed, a quarter to a third of the CPU of a
message; here a channel keeps one. And it copies each message into ``unacked`` before handing it over and deletes it
there afterwards: emulated acknowledgement, which neither closes the window between BRPOP and the copy nor knows how
long a task may take. Our guarantee is the sweeper, which finds an unclaimed row whatever became of its message, so the
emulation is off (``ack_emulation``) and a pop is all that a message costs: BLMPOP, which brings up to ``POPPED_MAX`` of
them when they wait already, and whose bytes are packed once. Priorities, for which kombu reads four lists instead of
one, are not used; and the sockets are handed to the event loop when they are new, not before every poll.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from queue import Empty
from time import monotonic
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis
from redis.exceptions import ResponseError

ALIAS = "hermes-redis"
"""Scheme of broker URLs that use this transport."""
POPPED_MAX = 4
"""Messages that one command may bring: saves most of a round trip, and leaves some for other workers."""


class Channel(redis.Channel):  # type: ignore[misc]
    """A channel with one client for everything that is not a blocking read."""

    ack_emulation = False
    priority_steps = (0,)

    _pops_many = True
    """Until the server turns out to be a Redis before 7, which has no BLMPOP."""

    @cached_property
    def _packed(self) -> dict[tuple[tuple[str, ...], int], list[bytes]]:
        """Commands by queues and number of messages."""
        return {}

    @cached_property
    def _shared_client(self) -> Any:
        return self._create_client()

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        yield client or self._shared_client

    def _brpop_start(self, timeout: float | None = None) -> None:
        queues = tuple(self._queue_cycle.consume(len(self.active_queues)))
        if not queues:
            return
        connection = self.client.connection
        packed = self._pop(queues, timeout or self.brpop_timeout or 0)
        self._in_poll = connection
        self._brpop_sent_at = monotonic()
        connection.send_packed_command(packed)

    def _pop(self, queues: tuple[str, ...], timeout: float) -> list[bytes]:
        """The command, packed: how many messages it may return is what the worker has room for."""
        room = self.qos.can_consume_max_estimate()
        count = POPPED_MAX if room is None else min(room, POPPED_MAX)
        packed = self._packed.get((queues, count))
        if packed is None:
            keys = [f"{self.global_keyprefix}{queue}" for queue in queues]
            command = ("BLMPOP", timeout, len(keys), *keys, "RIGHT", "COUNT", count)
            if not self._pops_many:
                command = ("BRPOP", *keys, timeout)
            packed = self._packed[queues, count] = self.client.connection.pack_command(*command)
        return packed

    def _brpop_read(self, **options: Any) -> bool:
        try:
            queue, messages = self._popped()
            self._queue_cycle.rotate(queue)
            self._deliver_all(messages, queue)
            return True
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()

    def _popped(self) -> tuple[str, list[bytes]]:
        """The reply to the command. Raises ``Empty`` when nothing came in time."""
        connection = self.client.connection
        try:
            popped = connection.read_response(disable_decoding=True)
        except ResponseError as error:
            if not (self._pops_many and "unknown command" in str(error).lower()):
                raise
            self._pops_many = False
            self._packed.clear()
            raise Empty from error
        except self.connection_errors:
            connection.disconnect()
            raise
        if not popped:
            raise Empty
        key, messages = popped
        return key.decode().removeprefix(self.global_keyprefix), messages if self._pops_many else [messages]

    def _deliver_all(self, messages: list[bytes], queue: str) -> None:
        """One that cannot be read must not take those behind it along: they are in no queue any more."""
        failure: Exception | None = None
        for message in messages:
            try:
                self.connection._deliver(json.loads(message), queue)
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure


class Transport(redis.Transport):  # type: ignore[misc]
    """See the module's docstring."""

    Channel = Channel

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        before = set(loop.on_tick)
        super().register_with_event_loop(connection, loop)
        loop.on_tick -= loop.on_tick - before
        cycle, readers = self.cycle, loop.readers

        def on_poll_start() -> None:
            cycle.on_poll_start()
            for fd in cycle.fds:
                if fd not in readers:
                    loop.add_reader(fd, self.on_readable, fd)

        loop.on_tick.add(on_poll_start)


def install() -> None:
    """Make ``hermes-redis://`` known to kombu. Idempotent."""
    TRANSPORT_ALIASES[ALIAS] = f"{__name__}:Transport"
