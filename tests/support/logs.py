"""The log of this process, kept while a test runs."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from hermes_worker.observe import configure_logging, log
from hermes_worker.settings import LogSettings


@contextmanager
def kept_log(level: str = "INFO") -> Iterator[io.StringIO]:
    """Write the log as JSON lines to what is returned, and as before afterwards."""
    root = logging.getLogger()
    handlers, root_level, ours = root.handlers[:], root.level, (log._level, log._emit)
    stream = io.StringIO()
    configure_logging(LogSettings(level=level, format="json"), "worker", stream=stream)
    try:
        yield stream
    finally:
        root.handlers[:] = handlers
        root.setLevel(root_level)
        logging.captureWarnings(False)
        log._level, log._emit = ours
