"""Hermes worker: one whole worker process over SQLite or PostgreSQL, with a broker that remembers nothing.

Each call starts a worker with its Celery pool and an empty Valkey of its own: what a killed worker left is known from
the rows alone. A payment is a ``keyed`` tool, so that its key is the call's; one that a person must allow is a ``once``
tool, which has no key.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from agent import FIRST, OUTSIDE, pass_point, pay

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.core.errors import HermesError
from hermes_worker.core.principals import OPERATOR
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.core.spec import RunSpec
from hermes_worker.extension import ToolSpec
from hermes_worker.features.forks.rules import ForkTools
from hermes_worker.features.forks.service import ForkRequest, fork_run
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.settings import load_settings
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate
from hermes_worker.store.runs.runs import NewRun
from hermes_worker.store.runs.waits import NothingAsked, NotWaiting
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.tasks.build import WorkerOptions
from hermes_worker.wiring import Client, open_client
from hermes_worker.worker.main import WorkerPool, run_worker
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

POINTS = {FaultPoint.ITERATE_AFTER_CLAIM: "before_model", FaultPoint.ITERATE_AFTER_REPLY: "after_model"}
SERVER = os.environ.get("RESUME_POSTGRES", "")


class Pay:
    """The payment. Under the verb ``ask`` it only asks a person, who must allow it."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self.spec = ToolSpec(
            name="pay",
            description="Pay.",
            parameters={"type": "object", "properties": {"mark": {"type": "string"}}, "required": ["mark"]},
            toolset="resume",
            is_untrusted=False,
            replay=Replay.ONCE if verb in ("ask", "allow") else Replay.KEYED,
            timeout_s=60.0,
        )

    def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        if self._verb == "ask":
            asked = {"command": "pay", "description": "a payment", "pattern_key": "pay", "pattern_keys": ["pay"]}
            question = Question(kind=WaitKind.APPROVAL, request=asked, choices=["once", "deny"])
            return ToolResult(text="", question=question)
        call = {"id": "", "function": {"arguments": json.dumps(arguments)}}
        return ToolResult(text=pay(call, "" if self._verb == "allow" else context.idempotency_key)["content"])


def prepare_database(directory: Path) -> str:
    """The database of this directory, made or copied when it is missing."""
    if not SERVER:
        url = f"sqlite:///{directory / 'state.db'}"
        if not (directory / "state.db").exists():
            migrate(Database(url))
        return url
    name = re.sub("[^a-z0-9]", "_", f"{directory.parent.name}_{directory.name}".lower())
    known = directory / "database"
    if not known.exists() or known.read_text() != name:
        server = sa.create_engine(SERVER, isolation_level="AUTOCOMMIT")
        template = f" template {known.read_text()}" if known.exists() else ""
        with server.connect() as connection:
            connection.exec_driver_sql(f"create database {name}{template}")
        server.dispose()
        if not template:
            migrate(Database(sa.make_url(SERVER).set(database=name).render_as_string(hide_password=False)))
        known.write_text(name)
    return sa.make_url(SERVER).set(database=name).render_as_string(hide_password=False)


def submit(client: Client, directory: Path, tool: Pay) -> str:
    """Submit the run, once however often this is called."""
    catalog = build_default_catalog(tool)
    workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(directory / "workspace"))
    created = client.runs.create(
        NewRun(
            spec=RunSpec(input=FIRST["content"], model="scripted", toolsets=("resume",)),
            idempotency_key="w",
            fingerprint="w",
            system_prompt="You pay.",
            tools=f"[{','.join(catalog.render_definitions(['pay']))}]",
            workspace=workspace.to_json(),
        )
    )
    client.publisher.send(created.hints)
    return created.run_id


def work_until_over(client: Client, run_id: str, tool: Pay, environ: dict[str, str], *, rests: bool) -> None:
    """Run a worker in this process until the run has ended; with ``rests`` until it waits for a person."""

    def watch() -> None:
        while True:
            status = client.views.load_run(run_id).status
            if status.is_terminal or (rests and status.is_parked):
                return os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)

    threading.Thread(target=watch, daemon=True).start()
    options = WorkerOptions(name=f"resume-{os.getpid()}", queues=("model", "tools", "system"), more_tools=(tool,))
    run_worker(load_settings(environ), options, pool=WorkerPool.THREADS, concurrency=2)


def main() -> None:
    verb, directory = sys.argv[1], Path(sys.argv[2])
    passed = faults.pass_point

    def pass_here(name: FaultPoint, work: str = "") -> None:
        if name in POINTS:
            pass_point(POINTS[name])
        passed(name, work)

    faults.pass_point = pass_here
    broker = tempfile.TemporaryDirectory(prefix="resume-broker-", ignore_cleanup_errors=True)
    with broker, EmbeddedValkey(Path(broker.name)) as valkey:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "HERMES_HOME": str(directory / "home"),
            "HERMES_DATABASE_URL": prepare_database(directory),
            "HERMES_BROKER_URL": valkey.url,
            "HERMES_BASE_URL": f"{OUTSIDE}/v1",
            "HERMES_PROVIDER": "custom",
            "HERMES_MODEL": "scripted",
            "HERMES_LEASE_TTL_S": "2",
            "HERMES_SWEEP_INTERVAL_S": "0.25",
            "HERMES_RESEND_GRACE_S": "0.5",
            "HERMES_DRAIN_S": "2",
        }
        client, tool = open_client(load_settings(environ)), Pay(verb)
        run_id = submit(client, directory, tool)
        if verb == "fork":
            asked = ForkRequest(run_id=run_id, step=1, tools=ForkTools.LIVE)
            created = fork_run(client, asked, OPERATOR)
            client.publisher.send(created.hints)
            run_id = created.run_id
        if verb == "allow":
            try:
                client.publisher.send(client.waits.approve(run_id, ApprovalChoice.ONCE, by="cli:resume"))
            except (NothingAsked, NotWaiting):
                pass  # somebody else was first
        work_until_over(client, run_id, tool, environ, rests=verb == "ask")
        print(client.views.load_run(run_id).output)


if __name__ == "__main__":
    try:
        main()
    except HermesError as error:
        sys.exit(str(error))
