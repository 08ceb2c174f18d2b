"""Where the API is that a verb talks to which knows no database: ``--server``, or the stack that runs on the home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_worker import settings as settings_module
from hermes_worker.cli.options import client_settings, home_option
from hermes_worker.cli.server import chosen_server, open_client
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.local.paths import running_stack
from hermes_worker.settings import Settings, is_loopback

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

THIS_MACHINE = "this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedApi:
    """An API that may be asked."""

    home: Path
    """Of the person, where a verb may keep things."""
    place: str
    """The server's URL, or ``THIS_MACHINE``, whose port may be another one tomorrow."""
    open: Callable[[float], HermesClient]
    """A client, which asks again for so many seconds where that is safe."""


def reach(home: Path | None) -> ReachedApi:
    """Raises ``ConfigurationError`` when no server is named and none runs on the home."""
    chosen = chosen_server()
    if chosen is not None and chosen.url is not None:
        found = settings_module.load(home=home).home
        return ReachedApi(
            home=found, place=chosen.url, open=lambda patience_s: open_client(chosen, patience_s=patience_s)
        )
    settings = client_settings(home, needs_servers=False)
    url = _own_api(settings)

    def open_own(patience_s: float) -> HermesClient:
        from hermes_worker.client import HermesClient

        return HermesClient(url, home=settings.home, patience_s=patience_s)

    return ReachedApi(home=settings.home, place=THIS_MACHINE, open=open_own)


def _own_api(settings: Settings) -> str:
    """The API of the stack on a home, or of the services that the settings describe."""
    note = running_stack(settings.home) if settings.broker.url is None else None
    if note is not None and note.api_url is not None:
        return note.api_url
    if settings.broker.url is None:
        raise ConfigurationError(
            f"no API runs on {str(settings.home)!r}; start 'hermes-worker up{home_option(settings.home)}' in another "
            "terminal, or name a server with --server"
        )
    server = settings.server
    if not is_loopback(server.host) and server.host not in ("0.0.0.0", "::"):
        raise ConfigurationError(f"the API is at {server.host!r}; name it with --server")
    if server.tls_certificate is not None:
        raise ConfigurationError("the API speaks HTTPS; name it as its certificate does with --server https://...")
    return f"http://127.0.0.1:{server.port}"
