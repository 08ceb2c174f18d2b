"""Errors of httpx2 as those of a transport."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

from hermes_worker.client.wire import ConnectionFailed


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise ``ConnectionFailed`` for what httpx2 raises in the block."""
    try:
        yield
    except httpx2.HTTPError as error:
        was_sent = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
        raise ConnectionFailed(error, was_sent=was_sent) from error
