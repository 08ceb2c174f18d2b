"""Run one process of a role until a signal tells it to stop."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hermes_worker.cli.options import load_settings
from hermes_worker.local.process import title_process
from hermes_worker.local.startup import set_at_signal, wait_for_database
from hermes_worker.system import heap

if TYPE_CHECKING:
    from hermes_worker.settings import Settings
    from hermes_worker.settings.role_secrets import ProcessRole


class RoleRunner(Protocol):
    """The work of a role."""

    def run(self, stopping: threading.Event) -> None:
        """Work until some time after ``stopping`` is set."""


def run_role(
    home: Path | None,
    role: ProcessRole,
    name: str | None,
    runner_of: Callable[[Settings, str, ExitStack], RoleRunner],
    alive_file: Path | None = None,
) -> int:
    """Run what ``runner_of`` makes of the settings and of the name that others know this process by; returns the exit
    code. What it opens it enters into the stack. It is called again for as long as the database is away, and
    ``alive_file`` is touched meanwhile."""
    from hermes_worker.observe import configure_logging, log
    from hermes_worker.role_needs import require_role_needs

    title_process(role.value)
    settings = load_settings(home, is_of_fleet=True)
    require_role_needs(settings, [role])
    configure_logging(settings.log, role.value, secrets=settings.secrets)
    stopping = threading.Event()
    known_as = name or f"{socket.gethostname()}:{os.getpid()}"

    def open_runner() -> tuple[RoleRunner, ExitStack]:
        with ExitStack() as stack:
            return runner_of(settings, known_as, stack), stack.pop_all()

    runner, opened = wait_for_database(open_runner, alive_file=alive_file)
    with opened:
        set_at_signal(stopping)
        heap.freeze_objects()
        log.info("worker.started", schedule=role.value)
        runner.run(stopping)
        log.info("worker.stopped")
    return 0
