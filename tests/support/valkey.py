"""Valkey servers for tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from hermes_worker.broker.rights import USER
from hermes_worker.local.valkey import EmbeddedValkey


@contextmanager
def valkey_server(*, is_durable: bool) -> Iterator[EmbeddedValkey]:
    """A running server in a directory of its own, which is short enough for its socket."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-vk-"))
    server = EmbeddedValkey(directory, is_durable=is_durable, has_administrator=True)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def administrator(server: EmbeddedValkey) -> redis.Redis:
    """A client that may do everything on a server of ours."""
    return redis.Redis.from_url(server.administrator_url, decode_responses=True)


def for_administrator(broker_url: str) -> str:
    """The URL by which a server that a fixture started lets an administrator in."""
    return broker_url.replace(f"//{USER}:", "//administrator:", 1)


def emptied(server: EmbeddedValkey) -> str:
    """The URL of ``server``, with everything in it removed and everybody disconnected but us."""
    with administrator(server) as client:
        client.client_kill_filter(skipme=True)
        client.flushall()
    return server.url
