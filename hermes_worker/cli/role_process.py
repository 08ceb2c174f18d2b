"""Run one process of a role until a signal tells it to stop."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hermes_worker.cli.options import load_settings
from hermes_worker.local.process import title_process
from hermes_worker.system import heap

if TYPE_CHECKING:
    from hermes_worker.settings import Settings
    from hermes_worker.settings.role_secrets import ProcessRole


class RoleRunner(Protocol):
    """The work of a role."""

    def run(self, stopping: threading.Event) -> None:
        """Work until some time after ``stopping`` is set."""
        ...


def run_role(
    home: Path | None,
    role: ProcessRole,
    name: str | None,
    runner_of: Callable[[Settings, str, ExitStack], RoleRunner],
) -> int:
    """Run what ``runner_of`` makes of the settings and of the name that others know this process by. What it opens it
    enters into the stack. The exit code."""
    from hermes_worker import plugins
    from hermes_worker.observe import configure_logging, log

    title_process(role.value)
    settings = load_settings(home, is_of_fleet=True)
    plugins.require_settings(settings, [role])
    configure_logging(settings.log, role.value, secrets=settings.secrets)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stopping.set())
    with ExitStack() as stack:
        runner = runner_of(settings, name or f"{socket.gethostname()}:{os.getpid()}", stack)
        heap.freeze_objects()
        log.info("worker.started", schedule=role.value)
        runner.run(stopping)
        log.info("worker.stopped")
    return 0
