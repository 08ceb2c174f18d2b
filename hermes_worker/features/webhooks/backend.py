"""The API's operations on webhook routes, as typed calls for the verbs of ``webhook``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hermes_worker.cli.reaching import ask_api
from hermes_worker.cli.server import chosen_server
from hermes_worker.features.webhooks.rows import RouteNotFound
from hermes_worker.features.webhooks.rules.route import Route, checked, new_secret
from hermes_worker.local.paths import running_stack
from hermes_worker.settings import Settings

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
    """A route that was just stored."""

    url: str
    secret: str | None
    """The new secret; ``None`` where the old one stays."""


class SignedEvent(NamedTuple):
    """The address and the headers of a signed test event."""

    url: str
    headers: Mapping[str, str]


def open_routes(home: Path | None) -> RouteRows:
    """Open the routes of a home or server. Raises ``ConfigurationError``, ``UnavailableError``."""
    asked = ask_api(home)
    chosen = chosen_server()
    url = _address(asked.settings) if asked.settings is not None else chosen.url if chosen and chosen.url else ""
    return RouteRows(asked.client, url)


class RouteRows:
    """Routes of one tenant. A new secret is generated here, so that no answer has to contain it."""

    def __init__(self, client: HermesClient, url: str) -> None:
        self._client = client
        self._url = url.rstrip("/")

    def add(self, fields: Mapping[str, Any], *, secret: str | None, replaces: bool) -> KeptRoute:
        """Store a route. ``fields`` are those of ``Route``; without a ``secret`` the old route's is kept, or a new one
        is generated."""
        is_there = replaces and any(told["name"] == fields["name"] for told in self._client.webhook_routes())
        given = secret or (None if is_there else new_secret())
        # A route is validated here as well: the sentence then names the options.
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
        """Sign a test event. ``url`` is another address of the server."""
        told = self._client.sign_webhook_event(name, payload)
        return SignedEvent(f"{(url or self._url).rstrip('/')}{told['path']}", told["headers"])


def _address(settings: Settings) -> str:
    """Find the address at which the API of this home listens."""
    stack = running_stack(settings.home)
    if stack is not None and stack.api_url:
        return stack.api_url
    host = f"[{settings.server.host}]" if ":" in settings.server.host else settings.server.host
    return f"{settings.server.scheme}://{host}:{settings.server.port}"
