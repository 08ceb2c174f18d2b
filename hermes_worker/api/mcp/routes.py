"""``POST /mcp``. There is no stream to get with ``GET`` and no session to end with ``DELETE``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, Caller, is_for_loopback
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import ApiError
from hermes_worker.api.mcp.calling import RpcCaller
from hermes_worker.api.mcp.definitions import build_discovery, build_initialization, build_tool_list
from hermes_worker.api.mcp.envelope import UNKNOWN_METHOD, RpcRefusal, RpcRequest, choose_version, parse_request
from hermes_worker.api.mcp.resources import ResourceReader, build_template_list
from hermes_worker.core.principals import Principal

router = APIRouter(tags=["mcp"], responses=schema.declare_errors(503))
_MESSAGE = {"type": "object", "required": ["jsonrpc"], "properties": {"jsonrpc": {"const": "2.0"}}}
_DESCRIBED: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
    "x-hermes-protocol": "https://modelcontextprotocol.io",
}


@router.post(
    "/mcp",
    response_model=None,
    responses={
        200: {"description": "An answer of JSON-RPC.", "content": {"application/json": {"schema": _MESSAGE}}},
        202: {"description": "A notification was taken."},
        400: {"description": "An error of JSON-RPC.", "content": {"application/json": {"schema": {"type": "object"}}}},
        404: {"description": "An unknown method.", "content": {"application/json": {"schema": _MESSAGE}}},
    },
    openapi_extra=_DESCRIBED,
    dependencies=[READS],
)
async def speak_mcp(context: Context, caller: Caller, request: Request) -> Response:
    """The Model Context Protocol: run_agent, get_run, answer, steer and stop as tools, runs, sessions and artifacts
    as resources, skills as prompts (docs/mcp.md)."""
    _require_known_host(context, request.headers)
    try:
        asked = parse_request(request.headers, await _read_body(request))
        if asked.request_id is None:
            return Response(status_code=202)
        return JSONResponse(asked.build_response(await _answer_request(context, caller, asked)))
    except RpcRefusal as refused:
        return JSONResponse(refused.document, status_code=refused.status)


async def _read_body(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect:
        raise ApiError(400, "The connection was closed before the body was complete.", code="incomplete_body") from None


async def _answer_request(context: ApiContext, caller: Principal, asked: RpcRequest) -> dict[str, Any]:
    answering = RpcCaller(context=context, principal=caller)
    reading = ResourceReader(context=context, principal=caller)
    match asked.method, asked.is_stateless:
        case "tools/list", _:
            return build_tool_list()
        case "tools/call", _:
            return await answering.call(asked)
        case "resources/list", _:
            return await reading.list_resources()
        case "resources/templates/list", _:
            return build_template_list()
        case "resources/read", _:
            return await reading.read(asked)
        case "prompts/list", _:
            return await reading.list_prompts()
        case "prompts/get", _:
            return await reading.get_prompt(asked)
        case "server/discover", True:
            return build_discovery()
        case "initialize", False:
            return build_initialization(choose_version(asked.params.get("protocolVersion")))
        case "ping", False:
            return {}
        case (("tasks/get" | "tasks/update" | "tasks/cancel"), True):
            return await answering.call_task_method(asked)
        case _:
            raise asked.refusal(UNKNOWN_METHOD, f"Unknown method: {asked.method[:80]!r}.")


def _require_known_host(context: ApiContext, headers: Headers) -> None:
    """Raise ``ApiError`` for a foreign name in ``Host``: a page whose own name resolves to this machine names itself
    there."""
    server = context.client.settings.server
    known = {origin.partition("://")[2] for origin in server.cors_origins}
    if server.is_loopback and not is_for_loopback(headers) and headers.get("host") not in known:
        raise ApiError(403, "Requests under this name are not allowed.", code="host_not_allowed")
