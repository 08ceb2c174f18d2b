"""Bodies of requests, read as JSON and nothing else."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from hermes_worker.api.errors import ApiError, invalid, wrong_field

BodyModel = TypeVar("BodyModel", bound=BaseModel)


async def read_json(request: Request, *, without_body: Any = None) -> Any:
    """Read a body as JSON; ``without_body`` where it is empty and may be. Raises ``ApiError``."""
    try:
        body = await request.body()
    except ClientDisconnect:
        raise ApiError(400, "The connection was closed before the body was complete.", code="incomplete_body") from None
    if not body and without_body is not None:
        return without_body
    try:
        return parse_json(body)
    except ValueError as error:
        raise invalid("body", f"Invalid JSON: {error}", "invalid_json") from None


def parse_json(body: bytes) -> Any:
    """Parse a body as JSON (RFC 8259), which knows no NaN. Raises ``ValueError`` that says what is wrong with it."""
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply.") from None
    except ValueError as error:
        raise ValueError(_describe_place(error)) from None


async def read_object(request: Request, **more: Any) -> dict[str, Any]:
    """Read a body that must be a JSON object; ``more`` is passed to ``read_json``. Raises ``ApiError``."""
    document = await read_json(request, **more)
    if not isinstance(document, dict):
        raise invalid("body", "The request body must be a JSON object.", "invalid_type")
    return document


def validate_body(document: object, kind: type[BodyModel]) -> BodyModel:
    """Validate a body as the model that its route takes. Raises ``ApiError`` for the first field that does not fit."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise wrong_field(error) from None


def make_body_reader(kind: type[BodyModel], **more: Any) -> Callable[[Request], Awaitable[BodyModel]]:
    """Make the dependency of a route that reads its body as ``kind``. ``more`` is passed to ``read_json``."""

    async def read_body(request: Request) -> BodyModel:
        return validate_body(await read_object(request, **more), kind)

    return read_body


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _describe_place(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}."
    return "it is not UTF-8 text." if isinstance(error, UnicodeDecodeError) else f"{error}."


class _JsonRequest(Request):
    async def json(self) -> Any:
        return await read_json(self)


class JsonRoute(APIRoute):
    """A route whose body FastAPI parses, with our reader of JSON: ``NaN`` is refused, and an error names its place."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_request(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_request
