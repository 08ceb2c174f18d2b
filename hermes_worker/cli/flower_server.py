"""Flower in this process, closed: without the password it answers nothing but its health check.

Importing this needs the extra ``flower``.
"""

from __future__ import annotations

import logging
import signal
from typing import Any

import tornado.web
from flower.app import Flower
from flower.options import options
from flower.urls import settings as web_settings
from flower.views.monitor import Metrics

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.observe import log
from hermes_worker.settings import RemoteControl, Settings
from hermes_worker.settings.kinds import Secret
from hermes_worker.worker.app import build_app

_USER = "hermes"
"""Who logs in (HTTP basic authentication)."""
_SAVED_EVERY_MS = 10_000
"""Milliseconds between two saves: so much a killed Flower forgets at most. One that is told to stop saves what it
knows."""


class _Metrics(Metrics):  # type: ignore[misc]
    """Flower answers this page without a password, and it names workers and tasks, so it is closed."""

    @tornado.web.authenticated
    async def get(self) -> None:
        await super().get()


def serve(settings: Settings, password: Secret) -> None:
    """Serve until SIGTERM or SIGINT. Raises ``ConfigurationError`` when the address cannot be used."""
    # These log every page that is asked for, and every worker that was asked and is not there.
    for chatty in ("tornado.access", "flower.inspector"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    _configure(settings, password)
    server = Flower(capp=build_app(settings), options=options, **web_settings)
    server.add_handlers(".*", [(r"/metrics", _Metrics)])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: server.io_loop.add_callback_from_signal(server.stop))
    log.info("worker.started", url=f"http://{settings.flower.host}:{_start_listening(server, settings)}")
    server.start()
    log.info("worker.stopped")


def _configure(settings: Settings, password: Secret) -> None:
    chosen: dict[str, Any] = {
        "address": settings.flower.host.strip("[]"),
        "port": settings.flower.port,
        "basic_auth": [f"{_USER}:{password.reveal()}"],
        "persistent": True,
        "db": str(settings.home / "flower"),
        "state_save_interval": _SAVED_EVERY_MS,
        # Workers refuse what the buttons do, so none are shown.
        "read_only": settings.worker.remote_control != RemoteControl.ALL,
        "tasks_columns": "name,args,state,received,runtime,worker",
    }
    for name, value in chosen.items():
        setattr(options, name, value)


def _start_listening(server: Flower, settings: Settings) -> int:
    try:
        return int(server.start_http_server())
    except OSError as error:
        raise ConfigurationError(
            f"Flower cannot listen on {settings.flower.host}:{settings.flower.port} ({error.strerror}); "
            "choose another --host or --port"
        ) from error
