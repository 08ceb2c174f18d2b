"""Kombu's Redis transport, without the work that our design makes superfluous.

Kombu builds a Redis client for every publish and two for every message consumed, a quarter to a third of the CPU of a
message; here a channel keeps one. And it copies each message into ``unacked`` before handing it over and deletes it
there afterwards: emulated acknowledgement, which neither closes the window between BRPOP and the copy nor knows how
long a task may take. Our guarantee is the sweeper, which finds an unclaimed row whatever became of its message, so the
emulation is off (``ack_emulation``) and a message costs one BRPOP.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, redis

ALIAS = "hermes-redis"
"""Scheme of broker URLs that use this transport."""


class Channel(redis.Channel):  # type: ignore[misc]
    """A channel with one client for everything that is not a blocking read."""

    ack_emulation = False

    @cached_property
    def _shared_client(self) -> Any:
        return self._create_client()

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        yield client or self._shared_client


class Transport(redis.Transport):  # type: ignore[misc]
    """See the module's docstring."""

    Channel = Channel


def install() -> None:
    """Make ``hermes-redis://`` known to kombu. Idempotent."""
    TRANSPORT_ALIASES[ALIAS] = f"{__name__}:Transport"
