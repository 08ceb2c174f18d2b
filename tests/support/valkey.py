"""Valkey servers for tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from hermes_worker.embedded.valkey import EmbeddedValkey


@contextmanager
def valkey_server(*, is_durable: bool) -> Iterator[EmbeddedValkey]:
    """A running server in a directory of its own, which is short enough for its socket."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-vk-"))
    server = EmbeddedValkey(directory, is_durable=is_durable)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def emptied(server: EmbeddedValkey) -> str:
    """The URL of ``server``, with everything in it removed and everybody disconnected but us."""
    with redis.Redis.from_url(server.url) as client:
        client.client_kill_filter(skipme=True)
        client.flushall()
    return server.url
