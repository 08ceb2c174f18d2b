"""Kombu's Redis transport, without the work that our design makes superfluous.

Kombu builds a Redis client for every publish and two for every message consumed, a quarter to a third of the CPU of a
message; here a channel keeps one. And it copies each message into ``unacked`` before handing it over and deletes it
there afterwards: emulated acknowledgement, which neither closes the window between BRPOP and the copy nor knows how
long a task may take. Our guarantee is the sweeper, which finds an unclaimed row whatever became of its message, so the
emulation is off (``ack_emulation``) and a message costs one BRPOP, whose bytes are packed once. Priorities, for which
kombu reads four lists instead of one, are not used; and the sockets are handed to the event loop when they are new, not
before every poll.
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

ALIAS = "hermes-redis"
"""Scheme of broker URLs that use this transport."""


class Channel(redis.Channel):  # type: ignore[misc]
    """A channel with one client for everything that is not a blocking read."""

    ack_emulation = False
    priority_steps = (0,)

    @cached_property
    def _shared_client(self) -> Any:
        return self._create_client()

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        yield client or self._shared_client

    @cached_property
    def _commands(self) -> dict[tuple[str, ...], list[bytes]]:
        return {}

    def _brpop_start(self, timeout: float | None = None) -> None:
        queues = tuple(self._queue_cycle.consume(len(self.active_queues)))
        if not queues:
            return
        connection = self.client.connection
        command = self._commands.get(queues)
        if command is None:
            keys = [f"{self.global_keyprefix}{queue}" for queue in queues]
            command = connection.pack_command("BRPOP", *keys, timeout or self.brpop_timeout or 0)
            self._commands[queues] = command
        self._in_poll = connection
        self._brpop_sent_at = monotonic()
        connection.send_packed_command(command)

    def _brpop_read(self, **options: Any) -> bool:
        connection = self.client.connection
        try:
            try:
                popped = connection.read_response(disable_decoding=True)
            except self.connection_errors:
                connection.disconnect()
                raise
            if not popped:
                raise Empty
            queue = popped[0].decode().removeprefix(self.global_keyprefix)
            self._queue_cycle.rotate(queue)
            self.connection._deliver(json.loads(popped[1]), queue)
            return True
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()


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
