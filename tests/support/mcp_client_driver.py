"""Our MCP client as a program, as ``conformance client --command`` wants one: lists the tools of the server whose
address is its last argument, and calls the one that adds two numbers."""

from __future__ import annotations

import sys
import threading
import time

from hermes_worker.mcp.requests import McpExchange, McpSession, call_tool, spoken
from hermes_worker.mcp.servers import McpServer


def main(url: str) -> None:
    server, tools = spoken(McpServer(url=url), None)
    session = McpSession(url=server.url)
    for tool in tools:
        asking = McpExchange(server=server, token=None, ends_at=time.monotonic() + 20, session=session)
        if tool["name"] == "add_numbers":
            print(call_tool(asking, "add_numbers", {"a": 5, "b": 3}, "key", threading.Event()).text)


if __name__ == "__main__":
    main(sys.argv[-1])
