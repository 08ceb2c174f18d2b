"""What the verbs of ``webhook`` ask the API beside single operations of the client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_worker.cli.api_connection import connect_api
from hermes_worker.cli.server import find_chosen_server
from hermes_worker.features.webhooks.rows import RouteNotFound
from hermes_worker.features.webhooks.rules.route import Route, make_secret, validate_route
from hermes_worker.local.paths import find_running_stack
from hermes_worker.settings import Settings

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient
    from hermes_worker.features.webhooks.schema import RouteObject


def reach_routes(home: Path | None) -> tuple[HermesClient, str]:
    """Return a client and the address to which others send events, without a slash at its end. Raises
    ``ConfigurationError``, ``UnavailableError``."""
    asked = connect_api(home)
    chosen = find_chosen_server()
    url = _find_address(asked.settings) if asked.settings is not None else chosen.url if chosen else ""
    return asked.client, url.rstrip("/")


def add_route(
    client: HermesClient, fields: Mapping[str, Any], *, secret: str | None, replaces: bool
) -> tuple[RouteObject, str | None]:
    """Keep a route and return it with its secret, which is ``None`` for the one that it had before.

    ``fields`` are those of ``Route``. Without a ``secret`` it is that of the route before, or a new one, which is drawn
    here, so that no answer has to bring it.
    """
    is_there = replaces and any(route.name == fields["name"] for route in client.webhook_routes())
    given = secret or (None if is_there else make_secret())
    # What can be said of a route is checked here as well: the sentence names the options.
    validate_route(Route(secret=given or make_secret(), **fields))
    document = json.loads(json.dumps(asdict(Route(secret="", **fields))))
    del document["secret"]
    return client.add_webhook_route(secret=given, replaces=replaces, **document), given


def find_route(client: HermesClient, name: str) -> RouteObject:
    """Return the route of this name. Raises ``RouteNotFound``."""
    for route in client.webhook_routes():
        if route.name == name:
            return route
    raise RouteNotFound(f"there is no route {name!r}")


def _find_address(settings: Settings) -> str:
    """Find the address at which the API of this home listens."""
    stack = find_running_stack(settings.home)
    if stack is not None and stack.api_url:
        return stack.api_url
    host = f"[{settings.server.host}]" if ":" in settings.server.host else settings.server.host
    return f"{settings.server.scheme}://{host}:{settings.server.port}"
