"""The operations of the API about webhook routes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hermes_worker.features.webhooks.schema import EventSignature, RouteObject
from hermes_worker.operation import ApiRequest, build_get, build_post, make_reader, read_nothing


def webhook_routes() -> ApiRequest[list[RouteObject]]:
    """The routes on which others may send events to the tenant, without their secrets."""
    return build_get("/v1/webhook-routes", make_reader(list[RouteObject], "data"))


def add_webhook_route(
    name: str, *, secret: str | None = None, replaces: bool = False, **fields: Any
) -> ApiRequest[RouteObject]:
    """Keep a route; ``secret`` may be left out only where one is replaced. ``fields`` are further
    fields of the body of ``POST /v1/webhook-routes``."""
    body = {"name": name, "secret": secret, "replace": replaces, **fields}
    return build_post("/v1/webhook-routes", make_reader(RouteObject), body=body)


def remove_webhook_route(name: str) -> ApiRequest[None]:
    """Remove a route; its runs stay."""
    return ApiRequest(method="DELETE", template="/v1/webhook-routes/{name}", read=read_nothing, names={"name": name})


def sign_webhook_event(name: str, payload: str) -> ApiRequest[EventSignature]:
    """What proves that ``payload`` comes from the holder of a route's secret: ``path`` and ``headers``."""
    read = make_reader(EventSignature)
    asked = build_post("/v1/webhook-routes/{name}/signature", read, {"name": name}, body={"payload": payload})
    return replace(asked, only_reads=True)
