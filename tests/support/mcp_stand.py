"""A host of MCP servers that are processes, in this process, and workers that call them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.hosting.host import HostOptions
from hermes_worker.mcp.bridge import McpBridge, build_mcp_host
from hermes_worker.mcp.servers import McpServer
from hermes_worker.mcp.source import McpSource
from hermes_worker.settings import load_settings
from hermes_worker.store.resources import Resources, ResourceView
from hermes_worker.workspaces.build import build_sandbox
from hermes_worker.workspaces.sandbox.backends import Sandbox
from support.store import opened


def sandbox() -> Sandbox:
    return build_sandbox(load_settings({"HERMES_PROVIDER": "scripted"}))


class McpStand:
    """A host, and workers that are nothing but their rows."""

    def __init__(self, folder: Path, servers: dict[str, McpServer]) -> None:
        self._entered = opened(f"sqlite:///{folder / 'x.db'}")
        self.store = self._entered.__enter__()
        self.rows = Resources(self.store.database)
        self.folder, self.servers = folder, servers
        self.session_id = self.store.submit().run_id
        self.bridges: list[McpBridge] = []
        self.begin()

    def begin(self, **options: Any) -> None:
        given = {"name": "stand", "folder": self.folder / "mcp-servers", "ttl_s": 2.0, **options}

        def bridge_of(may_use: Any) -> McpBridge:
            self.bridges.append(McpBridge("127.0.0.1", "127.0.0.1", may_use))
            return self.bridges[-1]

        def known(resource: ResourceView) -> tuple[McpServer, str | None] | None:
            return (self.servers[resource.name], "s3cret") if resource.name in self.servers else None

        self.host = build_mcp_host(self.rows, known, sandbox(), HostOptions(**given), bridge_of)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self.host.run, args=(self._stopping,))
        self._thread.start()

    def end(self) -> None:
        self._stopping.set()
        self._thread.join()
        self.bridges[-1].close()

    def close(self) -> None:
        self.end()
        self._entered.__exit__(None, None, None)

    def call(self, context: ToolContext, tool: str, session_id: str | None = None, **arguments: Any) -> ToolResult:
        name, server = next(iter(self.servers.items()))
        source = McpSource(name, server, None, self.rows)
        return source.call(f"mcp_{name}_{tool}", arguments, replace(context, session_id=session_id or self.session_id))


@contextmanager
def standing(folder: Path, **servers: McpServer) -> Iterator[McpStand]:
    stand = McpStand(folder, servers)
    try:
        yield stand
    finally:
        stand.close()
