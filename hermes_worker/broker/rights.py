"""The commands and keys that the product uses at its broker, and so all that its user there has to be allowed.

The broker carries hints. Our user must be able to send and to read them, and to do nothing else: not to empty the
broker, not to configure it, not to look at other data on the same server. ``build_acl_rules`` says that in the words of
``ACL SETUSER``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

KEY_PREFIX = "hermes:"
"""The prefix of every key and channel of ours."""
USER = "hermes"
"""The name of the user on the embedded broker, and in the documentation."""

_ALWAYS = (6, 2)
COMMANDS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        # Connections and Celery's remote control.
        "ping": _ALWAYS,
        "select": _ALWAYS,
        "client|setname": _ALWAYS,
        "client|setinfo": (7, 2),
        "multi": _ALWAYS,
        "exec": _ALWAYS,
        "publish": _ALWAYS,
        "subscribe": _ALWAYS,
        "psubscribe": _ALWAYS,
        "punsubscribe": _ALWAYS,
        # Queues.
        "lpush": _ALWAYS,
        "llen": _ALWAYS,
        "brpop": _ALWAYS,
        "blmpop": (7, 0),
        "del": _ALWAYS,
        "exists": _ALWAYS,
        "sadd": _ALWAYS,
        "srem": _ALWAYS,
        "smembers": _ALWAYS,
        "expire": _ALWAYS,
        # Live previews.
        "xadd": _ALWAYS,
        "xread": _ALWAYS,
        # The governor, the pool of keys, and kombu's bindings: scripts, and what is called in them.
        "evalsha": _ALWAYS,
        "script|load": _ALWAYS,
        "script|exists": _ALWAYS,
        "time": _ALWAYS,
        "ttl": _ALWAYS,
        "hget": _ALWAYS,
        "hset": _ALWAYS,
        "hsetnx": _ALWAYS,
        "hdel": _ALWAYS,
        "hincrby": _ALWAYS,
        "zadd": _ALWAYS,
        "zrem": _ALWAYS,
        "zscore": _ALWAYS,
        "zrank": _ALWAYS,
        "zcard": _ALWAYS,
        "zrange": _ALWAYS,
        "zrangebyscore": _ALWAYS,
        "zremrangebyscore": _ALWAYS,
    }
)
"""Each command with the first version of Redis that knows it. ``AUTH`` and ``HELLO`` are never forbidden."""


_PATTERNS = ("celery.pidbox", "celeryev/*", "celeryev/worker.*")
"""Patterns that Celery subscribes to; rights for those are compared letter by letter."""


def build_acl_rules(version: tuple[int, ...], *, database: int = 0) -> str:
    """All rights of our user on a server of this version, without its password."""
    patterns = " ".join(f"&{KEY_PREFIX}/{database}.{pattern}" for pattern in _PATTERNS)
    allowed = " ".join(f"+{name}" for name, since in COMMANDS.items() if version[:2] >= since)
    return f"~{KEY_PREFIX}* &{KEY_PREFIX}* {patterns} -@all {allowed}"
