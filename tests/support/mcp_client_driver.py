"""Our MCP client as a program, as ``conformance client --command`` wants one: lists the tools of the server whose
address is its last argument, signs in where that is refused, and calls the tools."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hermes_worker.mcp.protocol import McpRefusal, ScopesLacking
from hermes_worker.mcp.requests import McpExchange, call_tool, list_tools, negotiate_protocol
from hermes_worker.mcp.servers import WITH_SESSIONS, McpServer
from hermes_worker.mcp.sessions import McpSession
from hermes_worker.mcp.sign_in import SignInClient, sign_in
from support.sign_in_server import approve

METADATA_CLIENT = "https://conformance-test.local/client-metadata.json"


def main(url: str) -> None:
    token = None
    if os.environ.get("MCP_CONFORMANCE_SCENARIO") == "sse-retry":
        # Its server answers requests of every revision, as one that is stateless would.
        server = McpServer(url=url, protocol=WITH_SESSIONS)
        return _call(server, list_tools(server, token), token)
    try:
        server, tools = negotiate_protocol(McpServer(url=url), token)
    except McpRefusal:
        token = _signed_in(url)
        server, tools = negotiate_protocol(McpServer(url=url), token)
    return _call(server, tools, token)


def _call(server: McpServer, tools: Sequence[Mapping[str, Any]], token: str | None) -> None:
    session = McpSession(url=server.url)
    for tool in tools:
        asking = McpExchange(server=server, token=token, ends_at=time.monotonic() + 20, session=session)
        arguments = {"a": 5, "b": 3} if tool["name"] == "add_numbers" else {}
        called = partial(call_tool, tool=str(tool["name"]), arguments=arguments, key="key", cancelled=threading.Event())
        try:
            print(called(asking).text)
        except ScopesLacking as error:
            token = _signed_in(server.url, error.scopes or "")
            print(called(replace(asking, token=token, ends_at=time.monotonic() + 20)).text)


def _signed_in(url: str, scopes: str = "") -> str:
    told = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    client_id = told.get("client_id", "")
    if os.environ.get("MCP_CONFORMANCE_SCENARIO") == "auth/basic-cimd":
        client_id = METADATA_CLIENT
    own = SignInClient(
        redirect_url="http://127.0.0.1:3000/callback",
        client_id=client_id,
        client_secret=told.get("client_secret", ""),
        scopes=scopes,
    )
    return sign_in(url, own, lambda asked: approve(asked.address)).granted.access_token


if __name__ == "__main__":
    main(sys.argv[-1])
