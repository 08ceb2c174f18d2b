"""Servers of the HTTP API as processes, forked from one that has imported everything. They serve until they are
killed."""

from __future__ import annotations

import multiprocessing.process
import os
from collections.abc import Mapping
from multiprocessing.connection import Connection

from hermes_worker import settings as settings_module
from hermes_worker.api.server import ApiServer, open_sockets
from hermes_worker.system import faults
from hermes_worker.wiring import open_client
from support.patience import PATIENCE_S
from support.replicas import FORKS


def start(environ: Mapping[str, str], *, plan: str = "") -> tuple[multiprocessing.process.BaseProcess, str]:
    """A server in a process of its own, with fault points armed by ``plan``; and its address."""
    ours, theirs = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=main, args=(dict(environ), plan, theirs), daemon=True)
    process.start()
    if not ours.poll(PATIENCE_S):
        process.kill()
        raise AssertionError("the server did not start")
    return process, str(ours.recv())


def main(environ: dict[str, str], plan: str, ready: Connection) -> None:
    os.environ.clear()
    os.environ.update(environ)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    settings = settings_module.load_settings()
    faults.arm_faults(plan)
    ApiServer(open_client(settings), open_sockets(settings.server), on_ready=ready.send).run()
