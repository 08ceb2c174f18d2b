"""``POST /v1/embeddings``, passed through to the service that the operator names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema
from starlette.concurrency import run_in_threadpool

from hermes_worker.api import schema
from hermes_worker.api.auth import WRITES, Caller
from hermes_worker.api.bodies import make_body_reader
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.net.http import HttpRequest, HttpResponse, NoAnswer
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy
from hermes_worker.net.wire import send
from hermes_worker.settings import ServerSettings

router = APIRouter(prefix="/v1/embeddings", tags=["openai"], responses=schema.declare_errors(502))

_BODY_BYTES_MAX = 64_000_000
_PASSED_ON = ("input", "model", "encoding_format", "dimensions", "user")
_INPUT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {}}]}


def _read_whole_number(value: object) -> object:
    """Take ``5.0`` for 5, as JSON Schema does."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class EmbeddingsRequest(BaseModel, extra="ignore", strict=True):
    """Texts to embed, as the service takes them."""

    input: Annotated[Any, WithJsonSchema(_INPUT)]
    model: str = Field(min_length=1, max_length=256)
    encoding_format: str | None = Field(None, max_length=40)
    dimensions: Annotated[int | None, BeforeValidator(_read_whole_number)] = Field(None, ge=1, le=1_000_000)
    user: str | None = Field(None, max_length=1_000)


_ANSWER = {"type": "object", "properties": {"object": {"const": "list"}}, "required": ["object"]}


@router.post(
    "",
    response_model=None,
    openapi_extra=schema.declare_body(EmbeddingsRequest, is_required=True),
    responses={
        200: {"description": "What the service answered.", "content": {"application/json": {"schema": _ANSWER}}},
        **schema.declare_errors(404, 408, 429),
    },
    dependencies=[WRITES],
)
async def create_embeddings(
    context: Context, caller: Caller, body: Annotated[EmbeddingsRequest, Depends(make_body_reader(EmbeddingsRequest))]
) -> Response:
    """Embed texts with the service that ``server.embeddings_url`` names. No agent works, and no budget counts it."""
    service = find_service(context.client.settings.server)
    if service is None:
        message = "Nothing here makes embeddings. The operator names a service in HERMES_EMBEDDINGS_URL."
        raise ApiError(404, message, code="embeddings_not_configured")
    answer = await run_in_threadpool(partial(_ask, service, body))
    if answer.status == 200:
        return Response(answer.body, media_type="application/json")
    if answer.status in (400, 404, 422, 429):
        # Its own words may be anything; what can be changed is in the request.
        wait = {"Retry-After": answer.headers["retry-after"]} if "retry-after" in answer.headers else None
        status = 429 if answer.status == 429 else 400
        message = f"The embeddings service refused the request ({answer.status})."
        raise ApiError(status, message, code="embeddings_refused", headers=wait)
    raise ApiError(502, f"The embeddings service answered {answer.status}.", code="embeddings_failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsService:
    """A service with OpenAI's ``/embeddings``."""

    url: str
    headers: Mapping[str, str] = field(repr=False)


def find_service(server: ServerSettings) -> EmbeddingsService | None:
    """Find the service that the operator named; ``None`` for none."""
    if server.embeddings_url is None:
        return None
    key = server.embeddings_key
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key.reveal()}"} if key else {})
    return EmbeddingsService(url=f"{server.embeddings_url.rstrip('/')}/embeddings", headers=headers)


def _ask(service: EmbeddingsService, body: EmbeddingsRequest) -> HttpResponse:
    """Pass the request on. Raises ``ApiError`` where no answer comes."""
    given = {name: value for name in _PASSED_ON if (value := getattr(body, name)) is not None}
    request = HttpRequest(
        method="POST", url=service.url, headers=service.headers, body=dump_canonical_json(given).encode()
    )
    try:
        # The operator configures the address.
        return send(request, UrlPolicy(allows_private=True), body_bytes_max=_BODY_BYTES_MAX)
    except (NoAnswer, UnsafeUrl, ValueError):
        raise ApiError(502, "The embeddings service could not be reached.", code="embeddings_failed") from None
