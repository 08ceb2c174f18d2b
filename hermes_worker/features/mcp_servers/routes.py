"""MCP servers that a tenant keeps for its own agents. For the tenant's administrators (docs/mcp.md)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field, SecretStr, WithJsonSchema

from hermes_worker.api import schema
from hermes_worker.api.auth import Caller, declare_scope
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import RouteRefusal, answer_errors
from hermes_worker.api.formats import NO_NUL
from hermes_worker.api.schema import RequestBody
from hermes_worker.core.principals import KeyScope
from hermes_worker.features.mcp_servers.rows import (
    McpServerChanged,
    McpServerExists,
    McpServerNotFound,
    McpServers,
    McpServersFull,
)
from hermes_worker.features.mcp_servers.schema import McpServerList, McpServerObject, McpServerRemoved
from hermes_worker.features.mcp_servers.service import (
    TOKEN_CHARS_MAX,
    McpOfferChanged,
    McpRowsOff,
    McpServerDraft,
    McpServerInvalid,
    approve_mcp_server,
    ask_mcp_server_again,
    build_mcp_server_view,
    store_mcp_server,
)
from hermes_worker.store.engine.database import TextsInClear

router = APIRouter(
    prefix="/v1/mcp-servers",
    tags=["mcp"],
    route_class=answer_errors(
        {
            McpServerNotFound: RouteRefusal(404, "mcp_server_not_found", "mcp_server", "{error}"),
            McpServerInvalid: RouteRefusal(400, "mcp_server_invalid", "mcp_server", "{error}"),
            McpRowsOff: RouteRefusal(409, "mcp_rows_off", "mcp_server", "{error}"),
            McpOfferChanged: RouteRefusal(409, "mcp_offer_changed", "mcp_server", "{error}"),
            McpServerChanged: RouteRefusal(409, "mcp_server_changed", "mcp_server", "{error}"),
            McpServerExists: RouteRefusal(409, "mcp_server_exists", "mcp_server", "{error}"),
            McpServersFull: RouteRefusal(409, "too_many_mcp_servers", "mcp_server", "{error}"),
            TextsInClear: RouteRefusal(409, "texts_in_clear", "mcp_server", "{error}"),
        },
        JsonRoute,
    ),
    dependencies=[declare_scope(KeyScope.ADMIN)],
    responses=schema.declare_errors(503),
)
_NAME = r"^[a-z][a-z0-9-]{0,23}$"
_ServerName = Annotated[str, Path(pattern=_NAME)]
_Word = Annotated[str, Field(min_length=1, max_length=4_000, pattern=NO_NUL)]
_TOKEN = {"type": "string", "pattern": f"^[ -~]{{1,{TOKEN_CHARS_MAX}}}$", "writeOnly": True}


class McpServerBody(BaseModel, extra="forbid", strict=True, hide_input_in_errors=True):
    """A server that is to be kept: one with an address, or one with a command that the operator allows."""

    name: str = Field(pattern=_NAME)
    url: str = Field("", max_length=2_000, pattern=NO_NUL, description="Its address; empty for one with a command.")
    command: list[_Word] = Field(
        default_factory=list, max_length=100, description="A command of mcp.row_commands, word for word."
    )
    token: Annotated[SecretStr, WithJsonSchema(_TOKEN)] | None = Field(
        None,
        max_length=TOKEN_CHARS_MAX,
        description="Sent to the address, or given to the command. Left out where a server is replaced: the one that "
        "it has stays, if the server stays where it is.",
    )
    token_as: str | None = Field(
        None, pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$", description="The variable in which a command finds its token."
    )
    trusted: bool = Field(False, description="Believe what the server says about repeating its tools.")
    timeout_s: float = Field(60.0, ge=1, le=600, description="Of one call.")
    replace: bool = Field(False, description="Change the server of this name, if there is one.")


class McpApprovalBody(RequestBody):
    offer: str = Field(pattern=r"^[0-9a-f]{16}$", description="The offer that was looked at.")


@router.get("")
async def list_mcp_servers(context: Context, caller: Caller) -> McpServerList:
    """The MCP servers that the tenant keeps. None is asked."""
    found = await context.call_store(_open_rows(context).list_of_tenant, caller.tenant)
    takes = context.client.settings.mcp.has_rows
    return McpServerList(data=[build_mcp_server_view(row) for row in found], takes_servers=takes)


@router.get("/{mcp_server}", responses=schema.declare_errors(404))
async def get_mcp_server(context: Context, caller: Caller, mcp_server: _ServerName) -> McpServerObject:
    """An MCP server, with what it offered when it was last asked."""
    return await context.call_store(
        lambda: build_mcp_server_view(_open_rows(context).require(caller.tenant, mcp_server))
    )


@router.post("", status_code=201, responses=schema.declare_errors(400, 409))
async def add_mcp_server(context: Context, caller: Caller, body: McpServerBody) -> McpServerObject:
    """Keep a server. A worker or a host asks it within some seconds what it offers; nothing of it is offered to agents
    before that is approved. A token is encrypted, and none is taken in where texts are not."""
    wanted = McpServerDraft(
        url=body.url,
        command=tuple(body.command),
        token=None if body.token is None else body.token.get_secret_value(),
        token_as=body.token_as,
        trusted=body.trusted,
        timeout_s=body.timeout_s,
        replaces=body.replace,
    )
    settings = context.client.settings.mcp
    return await context.call_store(
        lambda: store_mcp_server(_open_rows(context), settings, caller.tenant, body.name, wanted)
    )


@router.post("/{mcp_server}/approve", responses=schema.declare_errors(404, 409))
async def approve_mcp_server_tools(
    context: Context, caller: Caller, mcp_server: _ServerName, body: McpApprovalBody
) -> McpServerObject:
    """Approve all that the server offered when ``offer`` was looked at. Sessions that begin some seconds later have
    it. Idempotent."""
    settings = context.client.settings.mcp
    return await context.call_store(
        lambda: approve_mcp_server(_open_rows(context), settings, caller.tenant, mcp_server, body.offer)
    )


@router.post("/{mcp_server}/test", responses=schema.declare_errors(404, 409))
async def test_mcp_server(context: Context, caller: Caller, mcp_server: _ServerName) -> McpServerObject:
    """Have the server be asked at once what it offers; ``looked_at`` says when that was done."""
    settings = context.client.settings.mcp
    return await context.call_store(
        lambda: ask_mcp_server_again(_open_rows(context), settings, caller.tenant, mcp_server)
    )


@router.delete("/{mcp_server}", responses=schema.declare_errors(404))
async def remove_mcp_server(context: Context, caller: Caller, mcp_server: _ServerName) -> McpServerRemoved:
    """Forget a server, with its token. Its processes are ended, and sessions that have its tools are told that they
    are gone."""
    await context.call_store(_open_rows(context).remove, caller.tenant, mcp_server)
    return McpServerRemoved(name=mcp_server)


def _open_rows(context: ApiContext) -> McpServers:
    return McpServers(context.client.database)
