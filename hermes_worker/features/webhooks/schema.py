"""Routes of others' events, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from typing import Literal

from hermes_worker.resource import ListOf, Resource


class RouteObject(Resource):
    """A route, without its secret."""

    object: Literal["hermes.webhook_route"] = "hermes.webhook_route"
    name: str
    path: str
    """Where its events are sent to, relative to the server."""
    state: Literal["enabled", "disabled", "locked"]
    """``locked``: the server has not the key with which its secret was sealed."""
    definition: str
    """The route as JSON."""
    created_at: float


class RouteList(ListOf[RouteObject]):
    """Routes by name."""


class RouteRemoved(Resource):
    name: str
    removed: Literal[True] = True


class EventSignature(Resource):
    """What proves that an event came from the holder of the route's secret, for some minutes."""

    path: str
    headers: dict[str, str]
