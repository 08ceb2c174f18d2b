"""Log a browser in to the page in exchange for a key (docs/page.md). The page keeps no key: it gets a cookie that no
script can read."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, Caller, read_bearer
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError
from hermes_worker.api.page import COOKIE, LOGIN_PATH, read_login
from hermes_worker.api.schema import RequestBody
from hermes_worker.core.principals import KeyScope
from hermes_worker.schemas.page import PageLoginObject

router = APIRouter(prefix=LOGIN_PATH, tags=["page"], route_class=JsonRoute, responses=schema.declare_errors(503))

_Path = Annotated[str, Field(max_length=500, pattern=r"^/([A-Za-z0-9._~-]+/)*$")]


class LogIn(RequestBody):
    """The path of the page, for the cookie."""

    path: _Path = Field(
        "/", description="The path of the page as its browser sees it: the cookie is sent to addresses below it."
    )


@router.put("", response_model=PageLoginObject, responses=schema.declare_errors(408, 409), dependencies=[READS])
async def open_page_login(
    context: Context, caller: Caller, request: Request, response: Response, body: LogIn
) -> PageLoginObject:
    """Let the browser in that sends this: the answer sets a cookie that stands for the key of the request."""
    key = read_bearer(request.headers)
    if key is None:
        raise ApiError(409, "This browser is let in already. Send a key to let it in as somebody else.", code="let_in")
    made = await context.call_store(context.page_logins.open, key, caller)
    response.set_cookie(
        COOKIE,
        made.token,
        path=body.path,
        max_age=int(made.lasts_s),
        httponly=True,
        samesite="strict",
        secure=_is_https(request),
    )
    return _build_object(caller, made.expires_at)


def _is_https(request: Request) -> bool:
    """Whether the browser used https, also behind a proxy that ends TLS: then ``Origin`` says so."""
    return request.url.scheme == "https" or urlsplit(request.headers.get("origin", "")).scheme == "https"


@router.get("", response_model=PageLoginObject, dependencies=[READS])
async def get_page_login(context: Context, caller: Caller, request: Request) -> PageLoginObject:
    """The caller, and what the key allows."""
    token = read_login(request.headers) if read_bearer(request.headers) is None else None
    return _build_object(caller, await context.call_store(context.page_logins.find_expiry, token) if token else None)


@router.delete("", status_code=204, dependencies=[READS])
async def close_page_login(
    context: Context,
    caller: Caller,
    request: Request,
    response: Response,
    path: Annotated[_Path, Query(description="As it was given when the login was opened.")] = "/",
) -> None:
    """End the login of the browser that sends this. Idempotent."""
    token = read_login(request.headers)
    if token is not None:
        await context.call_store(context.page_logins.close, token, caller)
        request.app.state.holders.forget(token)
    response.delete_cookie(COOKIE, path=path, httponly=True, samesite="strict")


def _build_object(caller: Caller, expires_at: float | None) -> PageLoginObject:
    scopes = [scope for scope in KeyScope if caller.has_scope(scope)]
    return PageLoginObject(
        tenant=caller.tenant,
        name=caller.display_name,
        scopes=scopes,
        is_operator=caller.is_of_operators,
        expires_at=expires_at,
    )
