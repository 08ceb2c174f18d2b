"""Connect a verb to the API: ``--server``, the stack that runs on the home, or this process itself.

A verb has one way to what it shows and changes: the public API. At a home without a stack that serves it, this process
serves the API to itself for as long as the command runs (``api.in_process``). Either way the caller is the person at
the home: the installation's key opens the API, and the headers name the tenant and the person.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker import __version__
from hermes_worker import settings as settings_module
from hermes_worker.cli.options import find_this_user, format_home_option, get_chosen_tenant, load_client_settings
from hermes_worker.cli.progress import clear_progress, show_progress
from hermes_worker.cli.server import find_chosen_server, open_client, open_server_client
from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.local.paths import find_broker_url, find_running_stack, has_no_rows
from hermes_worker.operation import ApiAnswer, build_get
from hermes_worker.settings import Settings, is_loopback

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

THIS_MACHINE = "this machine"
_PATIENCE_S = 20.0
"""Seconds for which requests are retried: a person waits for the stack of this home."""
_LOOKS_FOR_S = 0.0
"""A single request decides whether the stack answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConnection:
    """The API that a verb calls, and where it is."""

    client: HermesClient
    settings: Settings | None
    """The settings of the home; ``None`` over ``--server``."""

    @property
    def source(self) -> str:
        """The name space of sessions."""
        return "api" if self.settings is None else "cli"

    @property
    def home(self) -> Path | None:
        return None if self.settings is None else self.settings.home


def connect_api(home: Path | None, *, names_tenant: bool = False, begins_work: bool = False) -> ApiConnection:
    """Connect to the API. Over a server ``--tenant`` is refused but for a command that ``names_tenant`` to it; a
    command that ``begins_work`` is refused on a home where nothing runs. Raises ``ConfigurationError`` (nothing has run
    on the home yet, say), ``UnavailableError``."""
    client = open_server_client(names_tenant=names_tenant)
    if client is not None:
        return ApiConnection(client=client, settings=None)
    settings = load_client_settings(home, needs_servers=False)
    asked = connect_home(settings)
    if begins_work:
        find_broker_url(settings)  # raises where nothing runs that could do the work
    return asked


def connect_home(settings: Settings) -> ApiConnection:
    """Connect to the API of a home, or of the services that the settings describe. Raises ``ConfigurationError``,
    ``UnavailableError``."""
    require_used_home(settings)
    return ApiConnection(client=open_home_client(settings), settings=settings)


def open_api_client(home: Path | None, *, names_tenant: bool = False) -> HermesClient:
    """Connect to the API, for a verb that works the same wherever the API is. Raises ``ConfigurationError``,
    ``UnavailableError``."""
    return connect_api(home, names_tenant=names_tenant).client


def open_home_client(settings: Settings) -> HermesClient:
    """Connect to the stack that runs on the home, if it serves this version of the API, else to this process. Raises
    ``ConfigurationError``, ``UnavailableError``."""
    return _open_stack_client(settings) or _open_own_client(settings)


def _open_stack_client(settings: Settings) -> HermesClient | None:
    """Connect to the stack; ``None`` where no stack of this version answers."""
    note = find_running_stack(settings.home) if settings.broker.url is None and settings.database.url is None else None
    if note is None or note.api_url is None or settings.server.tls_client_ca is not None:
        return None
    url = note.api_url
    try:
        with _build_client(settings, url, patience_s=_LOOKS_FOR_S) as probe:
            if probe.send(build_get("/health", _read_version)) != __version__:
                return None
    except HermesError:
        return None  # it starts, or drains, or hangs: the rows are there all the same
    return _build_client(settings, url, patience_s=_PATIENCE_S)


def _read_version(answer: ApiAnswer) -> object:
    """Read the version of a server from its health: the reader of the whole takes a tenth of a command's time."""
    document = answer.parse_document()
    return document.get("version") if isinstance(document, dict) else None


def _build_client(settings: Settings, url: str, *, patience_s: float, key: str | None = None) -> HermesClient:
    from hermes_worker.client import HermesClient
    from hermes_worker.settings.server_key import find_server_key
    from hermes_worker.settings.tls import build_own_context

    tls = build_own_context(settings.server) if url.startswith("https:") else None
    if key is None and (own := find_server_key(settings)):
        key = own.reveal()
    asks_for: dict[str, str] = {"tenant": get_chosen_tenant(), "user": find_this_user().partition(":")[2]}
    client = HermesClient(url, api_key=key, home=settings.home, patience_s=patience_s, tls=tls, **asks_for)
    _close_at_end(client.close)
    return client


def _open_own_client(settings: Settings) -> HermesClient:
    """Serve the API in this process. Its client does not retry: the server cannot come back."""
    show_progress("no stack runs here, so this command opens the stored state itself ...")
    try:
        from hermes_worker.api.in_process import AloneApi  # takes half a second

        api = AloneApi(settings)
    finally:
        clear_progress()
    _close_at_end(api.close)
    return _build_client(settings, api.url, patience_s=0.0, key=api.key.reveal())


def _close_at_end(close: Callable[[], None]) -> None:
    """Close something when the command has ended; what was opened last is closed first."""
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        atexit.register(close)
    else:
        ctx.find_root().call_on_close(close)


def require_used_home(settings: Settings) -> None:
    """Raise ``ConfigurationError`` for a home on which nothing has run yet. Looking there creates nothing."""
    if has_no_rows(settings):
        raise ConfigurationError(
            f"nothing has run on {str(settings.home)!r} yet; start with 'hermes-worker run' or 'hermes-worker up', "
            "or name another directory with --home"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLocation:
    """An API that a verb may call."""

    home: Path
    """The person's home, where a verb may keep things."""
    place: str
    """The server's URL, or ``THIS_MACHINE``, whose port may be another one tomorrow."""
    settings: Settings | None
    """The settings of the home; ``None`` over ``--server``."""
    open: Callable[[float], HermesClient]
    """Opens a client, which retries for so many seconds where that is safe."""


def find_api(home: Path | None, *, as_person: bool = False) -> ApiLocation:
    """Find the API for a verb that needs a fleet at work behind it. ``as_person`` names the person at this machine to
    the API of the home, so that runs may work in directories of theirs. Raises ``ConfigurationError`` when no server
    is named and none runs on the home."""
    chosen = find_chosen_server()
    if chosen is not None:
        found = settings_module.load_settings(home=home).home
        return ApiLocation(
            home=found,
            place=chosen.url,
            settings=None,
            open=lambda patience_s: open_client(chosen, patience_s=patience_s),
        )
    settings = load_client_settings(home, needs_servers=False)
    url = _find_own_api(settings)

    def open_own(patience_s: float) -> HermesClient:
        from hermes_worker.client import HermesClient

        user = find_this_user().partition(":")[2] if as_person else None
        return HermesClient(url, home=settings.home, patience_s=patience_s, user=user)

    return ApiLocation(home=settings.home, place=THIS_MACHINE, settings=settings, open=open_own)


def _find_own_api(settings: Settings) -> str:
    """Find the address of the API of the stack on a home, or of the services that the settings describe."""
    note = find_running_stack(settings.home) if settings.broker.url is None else None
    if note is not None and note.api_url is not None:
        return note.api_url
    if settings.broker.url is None:
        raise ConfigurationError(
            f"no API runs on {str(settings.home)!r}; start 'hermes-worker up{format_home_option(settings.home)}' in "
            f"another "
            "terminal, or name a server with --server"
        )
    server = settings.server
    if not is_loopback(server.host) and server.host not in ("0.0.0.0", "::"):
        raise ConfigurationError(f"the API is at {server.host!r}; name it with --server")
    if server.tls_certificate is not None:
        raise ConfigurationError("the API speaks HTTPS; name it as its certificate does with --server https://...")
    return f"http://127.0.0.1:{server.port}"
