"""Writing results down while the database may be away."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import LeaseLost, UnavailableError
from hermes_worker.observe import log
from hermes_worker.tasks.leases import AbortReason

T = TypeVar("T")
_FIRST_WAIT_S = 0.1
_WAIT_S_MAX = 2.0


def persist(write: Callable[[], T], abort: AbortSignal, *, patience_s: float) -> T:
    """Call ``write`` until the database takes it.

    A result costs money or has had an effect, so it is kept in memory while the database is away, for as long as the
    claim is not known to be lost. ``write`` is a compare-and-set: repeating one whose COMMIT got no answer is safe.
    Raises ``LeaseLost`` when the claim is gone, ``UnavailableError`` when patience is.
    """
    deadline = time.monotonic() + patience_s
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            return write()
        except UnavailableError as error:
            if abort.reason == AbortReason.LOST:
                raise LeaseLost("the claim was lost while the database was away") from error
            if time.monotonic() + wait_s > deadline:
                raise
            log.warning("database.unreachable", doing="commit", retry_in_s=wait_s)
        time.sleep(wait_s)
        wait_s = min(wait_s * 2, _WAIT_S_MAX)
