"""How a role begins while its database is away, and how it hears that it is to leave."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from hermes_worker.core.errors import UnavailableError
from hermes_worker.local.readiness import readiness
from hermes_worker.observe import database_outage

LEAVING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals at which a role leaves in order."""
_FIRST_S: Final = 0.5
_MAX_S: Final = 5.0
"""The longest wait between two tries, in seconds. Tries are logged at growing intervals of their own."""

Opened = TypeVar("Opened")


def wait_for_database(open_it: Callable[[], Opened], *, alive_file: Path | None = None) -> Opened:
    """Return what ``open_it`` returns, called again for as long as it raises ``UnavailableError``: the database is
    away, full or read-only. ``alive_file`` is touched meanwhile, as the process is well: to end it would not bring the
    database back. A signal to leave ends the process with status 0, since nothing has begun that would have to end in
    order. Call it in the main thread. Raises whatever else ``open_it`` raises, such as ``ConfigurationError``."""
    before = {number: signal.signal(number, _leave_at_once) for number in LEAVING_SIGNALS}
    wait_s = _FIRST_S
    try:
        while True:
            try:
                opened = open_it()
                break
            except UnavailableError as error:
                database_outage.note_failure(doing="register", error=str(error))
                readiness.declare_waiting(str(error))
            if alive_file is not None:
                with suppress(OSError):
                    alive_file.touch()
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _MAX_S)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    database_outage.note_success()
    return opened


def set_at_signal(stopping: threading.Event) -> None:
    """Set the event soon after a signal to leave has come; call it in the main thread.

    The handler only writes to a pipe, for a thread that sets the event. If it set the event itself, it might interrupt
    the main thread where this holds the lock of the event to wait for it, and then wait for that lock for ever. That is
    likely where a process that was suspended is continued and told to leave at once."""
    reading, writing = os.pipe()

    def await_signal() -> None:
        os.read(reading, 1)
        stopping.set()

    threading.Thread(target=await_signal, name="hermes_signals", daemon=True).start()
    for number in LEAVING_SIGNALS:
        signal.signal(number, lambda *_: os.write(writing, b"!"))


def _leave_at_once(_number: int, _frame: Any) -> NoReturn:
    readiness.withdraw()
    raise SystemExit(0)
