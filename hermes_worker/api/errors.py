"""Errors of the API. All have one shape, OpenAI's: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from hermes_worker.api.middleware import Middleware
from hermes_worker.api.operations import find_operations
from hermes_worker.core.errors import HermesError, UnavailableError
from hermes_worker.core.limits import LimitName, LimitReached
from hermes_worker.observe import log
from hermes_worker.safety.redaction import redact
from hermes_worker.services.submission_rules import InvalidSubmission
from hermes_worker.store.access.idempotency_keys import IdempotencyConflict
from hermes_worker.store.outbox.deliveries import DeliveryBusy, DeliveryNotFound
from hermes_worker.store.runs.runs import RunDeleted, RunNotFound, SessionActive, SessionBusy, SessionNotFound
from hermes_worker.stream.readers import ReadersOf, TooManyReaders

INVALID_REQUEST = "invalid_request_error"
RATE_LIMIT = "rate_limit_error"
SERVER_ERROR = "server_error"
_MESSAGE_CHARS_MAX = 1_000


class FlatRefusal(Exception):
    """Refuses an event or a message that others sent here, in the flat shape that they expect: ``{"error":
    message}``."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.response = JSONResponse({"error": message}, status_code=status)


class ApiError(HTTPException):
    """Answers a request with an error. It is an ``HTTPException`` because FastAPI passes one on that is raised while it
    reads a body; of any other exception it says that the body cannot be parsed."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        """The field of the request that is wrong."""
        self.headers = dict(headers or {})

    def __str__(self) -> str:
        return self.message

    @property
    def document(self) -> dict[str, Any]:
        kind = SERVER_ERROR if self.status >= 500 else RATE_LIMIT if self.status == 429 else INVALID_REQUEST
        message = redact(self.message)[:_MESSAGE_CHARS_MAX]
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def response(self) -> JSONResponse:
        return JSONResponse(self.document, status_code=self.status, headers=self.headers)


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """Make the error for a wrong field of the request."""
    return ApiError(400, message, code=code, param=param)


class RouteRefusal(NamedTuple):
    """The answer to an exception that leaves a route."""

    status: int
    code: str
    param: str | None = None
    text: str = "{error}."
    """Names the exception as ``error``, and parameters of the path."""


def answer_errors(
    refusals: Mapping[type[HermesError], RouteRefusal | Callable[[Any], ApiError]], kind: type[APIRoute] = APIRoute
) -> type[APIRoute]:
    """Build the class of routes that answer these exceptions like this."""

    class AnsweringRoute(kind):  # type: ignore[misc, valid-type]
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle: Callable[[Request], Coroutine[Any, Any, Response]] = super().get_route_handler()

            async def handle_request(request: Request) -> Response:
                try:
                    return await handle(request)
                except tuple(refusals) as error:
                    found = next(refusals[each] for each in type(error).__mro__ if each in refusals)
                    if not isinstance(found, RouteRefusal):
                        raise found(error) from None
                    message = found.text.format(error=error, **request.path_params)
                    raise ApiError(found.status, message, code=found.code, param=found.param) from None

            return handle_request

    return AnsweringRoute


def tenant_not_found(tenant: str | None) -> ApiError:
    return ApiError(404, f"Tenant not found: {tenant}", code="tenant_not_found", param="tenant")


def run_not_found(run_id: str) -> ApiError:
    return ApiError(404, f"Run not found: {run_id[:80]}", code="run_not_found")


def run_deleted(run_id: str) -> ApiError:
    return ApiError(410, f"Run was deleted: {run_id[:80]}", code="run_deleted")


def unavailable() -> ApiError:
    """Make the error for a database that did not answer."""
    return ApiError(
        503,
        "The state database does not answer. A submission may or may not have been accepted: "
        "repeat it with the same Idempotency-Key.",
        code="database_unavailable",
        headers={"Retry-After": "1"},
    )


def wrong_field(error: ValidationError | RequestValidationError) -> ApiError:
    """Make the error for the first field that a model did not take."""
    first = error.errors()[0]
    where = [part for part in first["loc"] if part not in ("body", "query", "path", "header")]
    # A parameter of an address may be repeated, but its places have no numbers.
    param = _format_path(where[:1] if "query" in first["loc"] else where)
    kind = str(first["type"])
    if kind == "extra_forbidden":
        return invalid(param, f"Unknown parameter: {param!r}.", "unknown_parameter")
    if kind == "missing":
        return invalid(param, f"Missing required parameter: {param!r}.", "missing_required_parameter")
    code = "invalid_type" if kind.endswith("_type") else "invalid_value"
    reason = str(first["msg"]).removeprefix("Value error, ")
    return invalid(param, f"Invalid {param!r}: {reason}.", code)


def _format_path(where: list[str | int]) -> str:
    """Format a place in the request: ``metadata.user``, ``input[2]``."""
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)[:80]
    return text or "body"


_PARAMS = {"idempotency_key": "Idempotency-Key", "cost_usd_max": "max_cost_usd"}
"""Fields of a submission that have another name in the API."""


def _http_error(request: Request, error: HTTPException) -> ApiError:
    if error.status_code == 405:
        # Starlette names the methods of the first route of this path only.
        error.headers = {"Allow": ", ".join(sorted(find_operations(request.app.openapi(), request.url.path)))}
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    message = {404: _describe_nothing(request.url.path), 405: "This path does not take this method."}
    text = message.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, text, code=code, headers=error.headers)


_NOT_SERVED = re.compile(
    r"/v1/(assistants|audio|batches|completions|containers|evals|fine_tuning|images|moderations|realtime|threads|uploads"
    r"|vector_stores|videos)\b"
)
"""Paths of OpenAI's API that are not here."""


def _describe_nothing(path: str) -> str:
    found = _NOT_SERVED.match(path)
    if found is None:
        return "There is nothing at this path."
    served = "chat/completions, responses, conversations, files, embeddings and models"
    return f"There is nothing at this path: of OpenAI's API, {served} are served, and no {found[1]}."


def _invalid_submission(_request: Request, error: InvalidSubmission) -> ApiError:
    param = _PARAMS.get(error.field, error.field)
    return invalid(param, f"Invalid {param!r}: {error}.")


def submission_error(error: HermesError) -> ApiError:
    """Make the answer for one submission of several that was refused. Raises ``error`` itself when submissions do not
    raise it."""
    match error:
        case InvalidSubmission():
            param = _PARAMS.get(error.field, error.field)
            return invalid(param, f"Invalid {param!r}: {error}.")
        case IdempotencyConflict():
            message = "This idempotency key was used with another request. Use a new key for a new request."
            return ApiError(409, message, code="idempotency_key_reused", param="idempotency_key")
        case SessionActive():
            return ApiError(409, str(error), code="session_active", param="session_id")
        case SessionBusy():
            return ApiError(429, str(error), code="rate_limit_exceeded", param="session_id")
        case _:
            raise error


def _delivery_not_found(request: Request, _error: DeliveryNotFound) -> ApiError:
    given = str(request.path_params.get("delivery_id", ""))[:80]
    return ApiError(404, f"Delivery not found: {given}", code="delivery_not_found")


def _delivery_busy(_request: Request, error: DeliveryBusy) -> ApiError:
    return ApiError(409, f"{error}.", code="delivery_not_settled")


def key_reused() -> ApiError:
    message = "This Idempotency-Key was used with another request. Use a new key for a new request."
    return ApiError(409, message, code="idempotency_key_reused", param="Idempotency-Key")


def _session_active(_request: Request, error: SessionActive) -> ApiError:
    return ApiError(409, str(error), code="session_active", param="session_id")


def _session_not_found(request: Request, _error: SessionNotFound) -> ApiError:
    given = str(request.path_params.get("session_id", ""))[:80]
    return ApiError(404, f"Session not found: {given}", code="session_not_found")


def _session_busy(_request: Request, error: SessionBusy) -> ApiError:
    headers = {"Retry-After": "5"}
    return ApiError(429, str(error), code="rate_limit_exceeded", param="session_id", headers=headers)


def _limit_reached(_request: Request, error: LimitReached) -> ApiError:
    headers = {"Retry-After": str(math.ceil(error.retry_after_s)), **_build_rate_headers(error)}
    return ApiError(429, str(error), code="rate_limit_exceeded", param=error.limit.name.value, headers=headers)


_WINDOWS_S = {LimitName.SUBMITS_PER_MIN: 60, LimitName.TOKENS_PER_DAY: 86_400, LimitName.USD_PER_DAY: 86_400}


def _build_rate_headers(error: LimitReached) -> dict[str, str]:
    """Say what the limit is and when it gives room: as the IETF does (draft-ietf-httpapi-ratelimit-headers-10), and for
    submissions as OpenAI does."""
    name, wait_s = error.limit.name, math.ceil(error.retry_after_s)
    window = f";w={_WINDOWS_S[name]}" if name in _WINDOWS_S else ""
    headers = {
        "RateLimit-Policy": f'"{name.value}";q={error.limit.value}{window}',
        "RateLimit": f'"{name.value}";r=0;t={wait_s}',
    }
    if name is not LimitName.SUBMITS_PER_MIN:
        return headers
    of_openai = {"limit": str(error.limit.value), "remaining": "0", "reset": f"{wait_s}s"}
    return headers | {f"X-RateLimit-{key}-Requests": value for key, value in of_openai.items()}


def _too_many_readers(_request: Request, error: TooManyReaders) -> ApiError:
    status, code = (503, "too_many_readers") if error.whose is ReadersOf.SERVER else (429, "rate_limit_exceeded")
    message = f"No more streams: {error}. Close one that is no longer read, or try again later."
    return ApiError(status, message, code=code, headers={"Retry-After": "5"})


def _database_away(request: Request, error: UnavailableError) -> ApiError:
    log.warning("database.unreachable", doing=f"{request.method} {request.url.path}", error=str(error))
    return unavailable()


def _build_defect_error(_request: Request, _error: Exception) -> ApiError:
    # Starlette raises it again after this answer, for ``DefectLog``.
    return ApiError(500, "Internal server error; the server's log says more.", code="internal_error")


_ANSWERS: Mapping[type[Exception], Callable[[Request, Any], ApiError]] = {
    ApiError: lambda _request, error: error,
    RequestValidationError: lambda _request, error: wrong_field(error),
    HTTPException: _http_error,
    InvalidSubmission: _invalid_submission,
    DeliveryNotFound: _delivery_not_found,
    DeliveryBusy: _delivery_busy,
    RunNotFound: lambda request, _error: run_not_found(str(request.path_params.get("run_id", ""))),
    RunDeleted: lambda request, _error: run_deleted(str(request.path_params.get("run_id", ""))),
    IdempotencyConflict: lambda _request, _error: key_reused(),
    SessionActive: _session_active,
    SessionNotFound: _session_not_found,
    SessionBusy: _session_busy,
    LimitReached: _limit_reached,
    TooManyReaders: _too_many_readers,
    UnavailableError: _database_away,
    Exception: _build_defect_error,
}
"""How each exception that leaves a route is answered."""


def install_handlers(app: FastAPI) -> None:
    """Answer every exception that leaves a route with our error shape."""
    for kind, answer in _ANSWERS.items():
        app.add_exception_handler(kind, partial(_answer_error, answer))


async def _answer_error(answer: Callable[[Request, Any], ApiError], request: Request, error: Exception) -> JSONResponse:
    return answer(request, error).response


class DefectLog(Middleware):
    """Logs exceptions that no route should raise. Outermost: ``install_handlers`` has already given the answer further
    in.

    uvicorn would log them too, and then close a connection on which the client may have sent its next request.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_answered = False

        async def note_answer(message: Message) -> None:
            nonlocal is_answered
            is_answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, receive, note_answer)
        except Exception:
            if not is_answered:
                raise  # in the middle of a stream: only closing the connection tells the client
            log.exception("request.failed", method=scope.get("method"), path=scope.get("path"))
