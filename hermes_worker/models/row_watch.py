"""Look at rows again and again beside a process's work, so that the work itself costs no statement for them."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod

from hermes_worker.core.errors import UnavailableError
from hermes_worker.observe import log

_LOOK_EVERY_S = 1.0


class RowWatch(ABC):
    """What a process knows of rows. While the database is away the last known rows count."""

    def __init__(self, name: str, *, thread: str) -> None:
        """``name`` stands in the log when a look fails."""
        self._name = name
        self._thread = thread
        self._end = threading.Event()

    @abstractmethod
    def poll_once(self) -> None:
        """Read the current rows. Raises ``UnavailableError``."""

    def start(self) -> None:
        """Begin to read the rows, in a thread of its own."""
        threading.Thread(target=self._poll_forever, name=self._thread, daemon=True).start()

    def stop(self) -> None:
        self._end.set()

    def _poll_forever(self) -> None:
        while not self._end.wait(_LOOK_EVERY_S * random.uniform(0.8, 1.2)):
            try:
                self.poll_once()
            except UnavailableError:
                continue  # the heartbeat says that the database is away
            except Exception:
                log.exception("thread.failed", doing=self._name)
