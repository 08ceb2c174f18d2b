"""Gateways as processes, forked from one that has imported everything. They listen until they are killed."""

from __future__ import annotations

import multiprocessing.process
import os
import threading
from collections.abc import Mapping

from hermes_worker import settings as settings_module
from hermes_worker.gateway.listening import GatewayListener, list_listened_accounts
from hermes_worker.wiring import open_client
from support.replicas import FORKS


def start(name: str, environ: Mapping[str, str]) -> multiprocessing.process.BaseProcess:
    """A gateway in a process of its own."""
    process = FORKS.Process(target=main, args=(name, dict(environ)), daemon=True)
    process.start()
    return process


def main(name: str, environ: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    settings = settings_module.load_settings()
    listener = GatewayListener(open_client(settings), list_listened_accounts(settings), name=name, alive_file=None)
    listener.run(threading.Event())
