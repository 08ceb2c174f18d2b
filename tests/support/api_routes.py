"""One set of routes, and one document of them, for all applications of a test session.

FastAPI works out what each route takes when an application is first asked for something, and describes it all when the
document is: together more than a second of CPU, which most tests of the API spent anew. The product does it once in a
process. Here as well: an application of the same routers gets the routes of the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import FastAPI

from hermes_worker.api import app as app_module
from hermes_worker.api.app import Api
from hermes_worker.extension import RouterDeclaration


def share_routes() -> None:
    """From now on applications of the same routers share what they have worked out. Idempotent."""
    if hasattr(Api.openapi, "__wrapped__"):
        return
    serve, describe = app_module._serve_routes, Api.openapi
    served: dict[Any, list[Any]] = {}
    described: dict[Any, dict[str, Any]] = {}

    def serve_shared(app: FastAPI, routers: Iterable[RouterDeclaration]) -> None:
        declared = list(routers)
        key = app.state.of_routers = tuple((each.name, str(each.implementation)) for each in declared)
        if key in served:
            app.router.routes.extend(served[key])
            return
        before = len(app.router.routes)
        serve(app, declared)
        served[key] = app.router.routes[before:]

    def describe_shared(app: Api) -> dict[str, Any]:
        routers = app.state.of_routers
        if app.openapi_schema is None and _ends_with(app.router.routes, served.get(routers, ())):
            key = routers, repr(app.state.deprecated)
            if key not in described:
                described[key] = describe(app)
            app.openapi_schema = described[key]
        return describe(app)

    describe_shared.__wrapped__ = describe  # type: ignore[attr-defined]
    app_module._serve_routes = serve_shared
    Api.openapi = describe_shared  # type: ignore[method-assign]


def _ends_with(routes: Sequence[Any], shared: Sequence[Any]) -> bool:
    """Whether nobody added a route to those that applications share."""
    return bool(shared) and all(a is b for a, b in zip(routes[-len(shared) :], shared, strict=True))
