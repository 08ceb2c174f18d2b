"""Runs of a worker whose tools are those of an MCP server, one step at a time, without Celery."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hermes_worker import installed, plugins
from hermes_worker.agent.source_tools import build_definitions
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.core.messages import ModelReply, ToolRequest
from hermes_worker.core.run import RunStatus
from hermes_worker.mcp.servers import McpServer, write_servers
from hermes_worker.settings import load_settings
from hermes_worker.store.runs.remote_tasks import RemoteTasks
from hermes_worker.store.runs.waits import Waits
from hermes_worker.tasks.iteration.planning import plan_calls
from hermes_worker.tasks.remote_tasks import TaskCloser
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef
from support.store import Store
from support.turns import Turns, change_parts, do_calls

_OPENING = OpeningOptions(base_env={}, hermes_home="")


@dataclass(slots=True, kw_only=True)
class McpCalls:
    """A store, one worker over it, and a server that is called ``desk``."""

    store: Store
    turns: Turns
    rows: RemoteTasks
    closer: TaskCloser
    definitions: list[str]
    folder: Path

    def begin(self, tool: str, arguments: str = "{}") -> str:
        """A run whose model has just asked for ``tool``; nobody has called it."""
        ref = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(self.folder)).to_json()
        run_id = self.turns.submit(tools=f"[{','.join(self.definitions)}]", workspace=ref)
        request = ToolRequest(id="c1", name=f"mcp_desk_{tool}", arguments=arguments)
        session = self.turns.parts.catalog.for_session(f"[{','.join(self.definitions)}]")
        reply, planned = plan_calls(ModelReply(text="", tool_requests=(request,)), session)
        self.store.runs.commit_reply(self.store.turn(run_id), reply, planned)
        return run_id

    def go_on(self, run_id: str) -> RunStatus:
        """Do what is due of its calls."""
        do_calls(self.turns.parts, self.store, run_id)
        return self.store.status(run_id)

    def look(self, run_id: str, *, after_s: float = 700.0) -> RunStatus:
        """Let the time of the next look come, and take it."""
        self.store.let_pass(after_s)
        self.store.sweep()
        return self.go_on(run_id)


@contextmanager
def mcp_calls(store: Store, folder: Path, server: McpServer, token: str | None = None) -> Iterator[McpCalls]:
    """With a server whose tools are approved."""
    home = folder / "client-home"
    home.mkdir(mode=0o700)
    write_servers(home, {"desk": server})
    environ = {"HERMES_PROVIDER": "scripted", **({"HERMES_MCP_DESK_TOKEN": token} if token else {})}
    plugins.begin_extensions(load_settings(environ, home=home))
    try:
        catalog = build_default_catalog(
            services={"jobs": None, "messages": None, "fetching": None, "resources": None, "grants": None}
        )
        definitions, _ = build_definitions("desk", catalog.get_source("desk").list_tools(), ())
        rows = RemoteTasks(store.database)
        turns = Turns.over(store)
        turns.parts = change_parts(
            turns.parts,
            catalog=catalog,
            remote_tasks=rows,
            waits=Waits(store.database),
            workspace=lambda ref: open_workspace(WorkspaceRef.from_json(ref), _OPENING),
        )
        closer = TaskCloser(rows, catalog.get_source, clock=store.database.read_clock)
        yield McpCalls(store=store, turns=turns, rows=rows, closer=closer, definitions=list(definitions), folder=folder)
    finally:
        installed.put_in_force(None)
        plugins._BegunFor.key = plugins._BegunFor.installed = None
