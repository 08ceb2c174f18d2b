"""Watches over the connections that a library makes for us.

Such a library resolves names and follows redirects by itself, so its address is judged where nothing comes after: when
the interpreter connects a socket (audit event ``socket.connect``, docs.python.org/3/library/audit_events.html). Only
threads that asked for it are watched.
"""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hermes_worker.core.urls import UrlPolicy, address_refusal


class Watch:
    """What one thread did while it was watched."""

    def __init__(self, policy: UrlPolicy) -> None:
        self.policy = policy
        self.has_sent = False
        """A part of an HTTP request went out."""
        self.refusal: str | None = None
        """Why the last connection was not made."""

    def judge(self, address: Any) -> None:
        """Raises ``PermissionError``: to the library a connection that failed."""
        host = address[0] if isinstance(address, tuple) and isinstance(address[0], str) else None
        self.refusal = address_refusal(host, self.policy) if host is not None else "it is not an internet address"
        if self.refusal is not None:
            raise PermissionError(errno.EACCES, self.refusal)


class _Watched(threading.local):
    by: Watch | None = None


_watched = _Watched()
_lock = threading.Lock()
_is_installed = False


@contextmanager
def watching(policy: UrlPolicy) -> Iterator[Watch]:
    """Judge every connection that this thread makes in the block."""
    _install()
    _watched.by = watch = Watch(policy)
    try:
        yield watch
    finally:
        _watched.by = None


def _install() -> None:
    """Once per process, and not before somebody needs it: a hook is asked at every file that is opened."""
    global _is_installed
    with _lock:
        if not _is_installed:
            sys.addaudithook(_hook)
            _is_installed = True


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("socket.connect", "http.client.send") or (watch := _watched.by) is None:
        return
    if event == "socket.connect":
        watch.judge(arguments[1])
    else:
        watch.has_sent = True
