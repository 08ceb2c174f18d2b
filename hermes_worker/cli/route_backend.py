"""What the verbs of ``webhook`` need, as typed calls, and how a database and a server answer them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hermes_worker.channels.signature import sign
from hermes_worker.channels.webhooks.route import Route, checked, new_secret
from hermes_worker.channels.webhooks.sealed import opened_secret, sealed_secret
from hermes_worker.cli.records import Records, open_records
from hermes_worker.cli.server import chosen_server, server_client
from hermes_worker.local.paths import running_stack
from hermes_worker.settings import Settings
from hermes_worker.settings.sealing import SealedElsewhere
from hermes_worker.settings.server_key import keyring_of
from hermes_worker.store.outbox.webhooks import RouteNotFound, RouteRow, Webhooks, place_of_route

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient


class RouteView(NamedTuple):
    """A route without its secret. ``created_at`` in epoch seconds."""

    name: str
    state: str
    """``enabled``, ``disabled``, or ``locked`` where its secret cannot be opened."""
    definition: str
    created_at: float

    @property
    def route(self) -> Route:
        return Route.from_json(self.name, "", self.definition)


class KeptRoute(NamedTuple):
    """A route that was just kept."""

    url: str
    secret: str | None
    """``None`` for the one that it had before."""


class SignedEvent(NamedTuple):
    """Where a test event goes, and what proves it."""

    url: str
    headers: Mapping[str, str]


class RouteBackend(Protocol):
    """Routes of one tenant. Each call raises ``HermesError``s that say what is wrong."""

    def add(self, fields: Mapping[str, Any], *, secret: str | None, replaces: bool) -> KeptRoute:
        """``fields`` are those of ``Route``; without a ``secret`` it is that of the route before, or a new one."""

    def all(self) -> Sequence[RouteView]: ...
    def get(self, name: str) -> RouteView: ...
    def remove(self, name: str) -> None: ...
    def signed(self, name: str, payload: str, url: str | None) -> SignedEvent:
        """``url`` is another address of the server."""


def open_routes(home: Path | None) -> RouteBackend:
    """The server that was chosen, or the database of a home. Raises ``ConfigurationError``, ``UnavailableError``."""
    client = server_client()
    if client is None:
        return LocalRoutes(open_records(home))
    chosen = chosen_server()
    return RemoteRoutes(client, chosen.url if chosen and chosen.url else "")


class LocalRoutes:
    """Asks a database, and seals with the key of the home."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._routes = Webhooks(records.database, records.tenant)

    def add(self, fields: Mapping[str, Any], *, secret: str | None, replaces: bool) -> KeptRoute:
        before = self._routes.find(str(fields["name"])) if replaces else None
        keyring = keyring_of(self._records.settings, makes=True)
        kept = opened_secret(keyring, before.place, before.secret) if before and not secret else None
        route = checked(Route(secret=secret or kept or new_secret(), **fields))
        place = place_of_route(self._records.tenant, route.name)
        self._routes.add(route.name, sealed_secret(keyring, place, route.secret), route.to_json(), replaces=replaces)
        return KeptRoute(f"{_address(self._records.settings)}/webhooks/{place}", None if kept else route.secret)

    def all(self) -> Sequence[RouteView]:
        return [self._view(row) for row in self._routes.all()]

    def get(self, name: str) -> RouteView:
        return self._view(self._row(name))

    def remove(self, name: str) -> None:
        self._routes.remove(name)

    def signed(self, name: str, payload: str, url: str | None) -> SignedEvent:
        row = self._row(name)
        secret = opened_secret(keyring_of(self._records.settings), row.place, row.secret)
        address = (url or _address(self._records.settings)).rstrip("/")
        return SignedEvent(f"{address}/webhooks/{row.place}", sign(payload.encode(), secret, datetime.now(UTC)))

    def _row(self, name: str) -> RouteRow:
        row = self._routes.find(name)
        if row is None:
            raise RouteNotFound(f"there is no route {name!r}")
        return row

    def _view(self, row: RouteRow) -> RouteView:
        try:
            opened_secret(keyring_of(self._records.settings), row.place, row.secret)
            state = "enabled" if json.loads(row.definition).get("enabled", True) else "disabled"
        except SealedElsewhere:
            state = "locked"  # 'webhook test' says why
        return RouteView(name=row.name, state=state, definition=row.definition, created_at=row.created_at)


class RemoteRoutes:
    """Asks a server. A new secret is drawn here, so that no answer has to bring it."""

    def __init__(self, client: HermesClient, url: str) -> None:
        self._client = client
        self._url = url.rstrip("/")

    def add(self, fields: Mapping[str, Any], *, secret: str | None, replaces: bool) -> KeptRoute:
        is_there = replaces and any(told["name"] == fields["name"] for told in self._client.webhook_routes())
        given = secret or (None if is_there else new_secret())
        # What can be said of a route is checked here as well: the sentence names the options.
        checked(Route(secret=given or new_secret(), **fields))
        document = json.loads(json.dumps(asdict(Route(secret="", **fields))))
        del document["secret"]
        told = self._client.add_webhook_route(secret=given, replaces=replaces, **document)
        return KeptRoute(f"{self._url}{told['path']}", given)

    def all(self) -> Sequence[RouteView]:
        return [RouteView(*(told[name] for name in RouteView._fields)) for told in self._client.webhook_routes()]

    def get(self, name: str) -> RouteView:
        for view in self.all():
            if view.name == name:
                return view
        raise RouteNotFound(f"there is no route {name!r}")

    def remove(self, name: str) -> None:
        self._client.remove_webhook_route(name)

    def signed(self, name: str, payload: str, url: str | None) -> SignedEvent:
        told = self._client.sign_webhook_event(name, payload)
        return SignedEvent(f"{(url or self._url).rstrip('/')}{told['path']}", told["headers"])


def _address(settings: Settings) -> str:
    """Where the API of this home listens."""
    stack = running_stack(settings.home)
    if stack is not None and stack.api_url:
        return stack.api_url
    host = f"[{settings.server.host}]" if ":" in settings.server.host else settings.server.host
    return f"{settings.server.scheme}://{host}:{settings.server.port}"
