"""Watches over what a library does for us at the wish of strangers: its connections, and the files that it opens.

Such a library resolves names and follows redirects by itself, so its address is judged where nothing comes after: when
the interpreter connects a socket (audit event ``socket.connect``, docs.python.org/3/library/audit_events.html). It may
also be told to read a template or a key from this machine, so it may open nothing but its own code. Only threads that
asked for it are watched.
"""

from __future__ import annotations

import errno
import mimetypes
import os
import sys
import threading
import zoneinfo
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hermes_worker.net.urls import UrlPolicy, find_address_refusal


class ConnectionWatch:
    """The connections and files of one thread while it was watched."""

    def __init__(self, policy: UrlPolicy) -> None:
        self.policy = policy
        self.has_sent = False
        """A part of an HTTP request went out."""
        self.refusal: str | None = None
        """The reason of the last refusal; ``None`` for none."""

    def judge_file(self, path: Any) -> None:
        """Judge a file to open. Raises ``PermissionError``."""
        if isinstance(path, int) or _is_code(os.fsdecode(path)):
            return
        self.refuse("it would read a file of this machine")

    def refuse(self, reason: str) -> None:
        self.refusal = reason
        raise PermissionError(errno.EACCES, reason)

    def judge_address(self, address: Any) -> None:
        """Judge an address to connect to. Raises ``PermissionError``: to the library a connection that failed."""
        host = address[0] if isinstance(address, tuple) and isinstance(address[0], str) else None
        reason = find_address_refusal(host, self.policy) if host is not None else "it is not an internet address"
        if reason is not None:
            self.refuse(reason)


class _CurrentWatch(threading.local):
    by: ConnectionWatch | None = None


_watched = _CurrentWatch()
_lock = threading.Lock()
_is_installed = False


@contextmanager
def watch_thread(watch: ConnectionWatch) -> Iterator[None]:
    """Judge everything that this thread does in the block."""
    _install_hook()
    _watched.by = watch
    try:
        yield
    finally:
        _watched.by = None


def _install_hook() -> None:
    """Install the hook once per process, when it is first needed: it is called at every file that is opened."""
    global _is_installed
    with _lock:
        if not _is_installed:
            sys.addaudithook(_audit_hook)
            _is_installed = True


def _audit_hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _EVENTS or (watch := _watched.by) is None:
        return
    match event:
        case "socket.connect":
            watch.judge_address(arguments[1])
        case "http.client.send":
            watch.has_sent = True
        case "open":
            watch.judge_file(arguments[0])
        case _:
            watch.refuse("it would start a program of this machine")


_EVENTS = frozenset(
    {"socket.connect", "http.client.send", "open", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"}
)


def _is_code(path: str) -> bool:
    """Whether a file belongs to Python: modules that are imported late, tables of zones and media types."""
    real = os.path.realpath(path)
    return real in mimetypes.knownfiles or any(real.startswith(f"{root}/") for root in _list_code_roots())


@cache
def _list_code_roots() -> tuple[str, ...]:
    ours = str(Path(__file__).parents[1])
    places = (ours, sys.prefix, sys.base_prefix, *sys.path, *zoneinfo.TZPATH)
    return tuple({os.path.realpath(place) for place in places if place.startswith("/")} - {"/"})
