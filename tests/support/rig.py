"""A fleet of real workers for one test: submit scripted runs, break something, wait for facts."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar

import redis

from hermes_worker import settings as settings_module
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.broker.queue import build_redis_client
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_views import RunView
from hermes_worker.core.spec import RunSpec
from hermes_worker.lab.audit import check_invariants, list_unfinished
from hermes_worker.lab.findings import AuditFinding
from hermes_worker.lab.fleet import QUEUES, LabFleet, LabZygote
from hermes_worker.lab.plan import FleetRole
from hermes_worker.lab.sink import SinkEffect, make_sink_tools, read_sink
from hermes_worker.models.scripted.server import ScriptedOptions, ScriptedServer
from hermes_worker.store.runs.runs import NewRun
from hermes_worker.wiring import Client, open_client
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef
from support.migrated import bring_up
from support.patience import PATIENCE_S
from support.recount import counted
from support.valkey import for_administrator
from support.warm_commands import WarmProcess

T = TypeVar("T")
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.01, 0.1
"""Between two looks: what comes at once is seen at once, and a long wait costs little."""


@dataclass(slots=True)
class Rig:
    """Everything a fault test holds."""

    client: Client
    fleet: LabFleet
    model: ScriptedServer
    redis: redis.Redis
    directory: Path
    submitted: list[str] = field(default_factory=list)

    def submit(
        self,
        steps: Sequence[Mapping[str, Any]],
        *,
        final: str = "done",
        session_id: str | None = None,
        publish: bool = True,
        run_id: str | None = None,
        deliver: Sequence[str] = (),
        delay_s: float | None = None,
        tools: Collection[str] | None = None,
        opening: NewRun | None = None,
        **spec: Any,
    ) -> str:
        """Submit a run that follows a script (see ``models.scripted.script``). ``tools`` are the names of those that it
        is offered; ``None`` for all. A session that it opens has the prompt, the skills and the workspace of
        ``opening``."""
        catalog = build_default_catalog(*make_sink_tools(self.fleet.sink, work_s=0.0))
        offered = f"[{','.join(catalog.render_definitions(catalog.names if tools is None else tools))}]"
        prompt = f"scripted: {dump_canonical_json({'steps': list(steps), 'final': final})}"
        workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(self.directory / "workspace"))
        asked = RunSpec(**{"input": prompt, "model": "scripted", **spec})
        plain = NewRun(spec=asked, system_prompt="You are in a test.", tools=offered, workspace=workspace.to_json())
        created = self.client.runs.create(
            replace(
                opening or plain,
                spec=asked,
                tools=offered,
                session_id=session_id,
                run_id=run_id,
                deliver=deliver,
                delay_s=delay_s,
            )
        )
        if publish:
            self.client.publisher.send(created.hints)
        self.submitted.append(created.run_id)
        return created.run_id

    def view(self, run_id: str) -> RunView:
        return self.client.views.load_run(run_id)

    def ended(self, *run_ids: str, patience_s: float = PATIENCE_S) -> list[RunView]:
        """Wait until the runs have ended."""
        deadline = time.monotonic() + patience_s

        def ended(run_id: str) -> RunView | None:
            view = self.view(run_id)
            return view if view.status.is_terminal else None

        # One after the other: what is over stays so, and need not be looked at again.
        return [
            until(lambda run_id=run_id: ended(run_id), f"{run_id} to end", patience_s=deadline - time.monotonic())
            for run_id in list(run_ids) or self.submitted
        ]

    def all_ended(self) -> bool:
        """Whether every run that was submitted has ended."""
        return all(RunStatus(status).is_terminal for status in self.statuses())

    def statuses(self) -> dict[str, int]:
        return self.client.views.count_all()

    def effects(self) -> list[SinkEffect]:
        return read_sink(self.fleet.sink)

    def await_effect(self, mark: str) -> SinkEffect:
        """Wait until a sink tool has written ``mark``."""
        return until(
            lambda: next((effect for effect in self.effects() if effect.mark == mark), None), f"the effect {mark!r}"
        )

    def broken_invariants(self, *, poisons: Collection[str] = (), asked_before: int = 0) -> list[AuditFinding]:
        """What an audit finds wrong. ``asked_before`` is how many replies were written before there was this rig."""
        found = check_invariants(
            self.client.database,
            self.fleet.sink,
            submitted=self.submitted,
            expected={},
            model_requests=self.model.requests.completions + asked_before,
            poisons=poisons,
        )
        return [finding for finding in (*found, self._unfinished(), self._counters_off()) if finding.broken]

    def _unfinished(self) -> AuditFinding:
        """Runs that have not ended: a test has waited for them."""
        with self.client.database.read() as connection:
            open_runs = [run_id for run_id in list_unfinished(connection) if run_id in self.submitted]
        return AuditFinding(invariant="runs not finished", broken=len(open_runs), examples=tuple(open_runs[:5]))

    def _counters_off(self) -> AuditFinding:
        """Counters that do not say what the rows say."""
        said, true = counted(self.client.database)
        off = [
            f"{key}: {said.get(key)} and not {true.get(key)}"
            for key in said.keys() | true
            if said.get(key) != true.get(key)
        ]
        return AuditFinding(invariant="counters off", broken=len(off), examples=tuple(off[:5]))

    def tool_rows(self, run_id: str) -> list[dict[str, Any]]:
        """The tool results of a run's transcript, in order."""
        rows = [json.loads(row.body) for row in self.client.views.load_transcript(run_id)]
        return [row for row in rows if row["role"] == "tool"]

    def log_text(self) -> str:
        return "".join(path.read_text() for path in self.directory.glob("*.log"))


def sink_call(replay: str, mark: str) -> dict[str, Any]:
    """A call of a sink tool, as a script writes it."""
    return {"name": f"sink_{replay}", "arguments": {"mark": mark}}


def until(look: Callable[[], T | None], what: str, *, patience_s: float = PATIENCE_S) -> T:
    """Ask again until there is an answer; a database that a test took away counts as no answer."""
    deadline = time.monotonic() + patience_s
    pause_s = _PAUSE_MIN_S
    while True:
        try:
            found = look()
        except UnavailableError:
            found = None
        if found is not None:
            return found
        assert time.monotonic() < deadline, f"waited {patience_s:.0f} s for {what}"
        time.sleep(pause_s)
        pause_s = min(_PAUSE_MAX_S, pause_s * 1.2)


class WarmZygote(LabZygote):
    """Forked from a process that has imported everything for the tests of commands as well."""

    _MAIN = "from hermes_worker.lab import zygote; zygote.main()"

    def _start_program(self, channel: int, log: IO[str]) -> Any:
        with os.fdopen(channel, "rb", closefd=False) as both:
            return WarmProcess(["-c", self._MAIN, *self._more_imports], self._environ, None, (both, both, log))


@cache
def _zygote() -> LabZygote:
    """One for all rigs of this process; gone when the process ends."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-zygote-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    environ = settings_module.load_settings().environ
    kept = {name: environ[name] for name in ("PATH", "LANG", "HOME") if name in environ}
    wires = ["hermes_worker.models.wires.anthropic_messages", "hermes_worker.models.wires.openai_responses"]
    zygote = WarmZygote(directory, kept, more_imports=wires)
    atexit.register(zygote.__enter__().__exit__)
    return zygote


@contextmanager
def rig_on(
    directory: Path,
    *,
    database_url: str,
    broker_url: str,
    workers_per_role: int = 2,
    concurrency: int = 4,
    work_s: float = 0.0,
    more_environ: Mapping[str, str] | None = None,
    queues: Mapping[FleetRole, Sequence[str]] = QUEUES,
    is_migrated: bool = False,
    keeps_bodies: bool = False,
) -> Iterator[Rig]:
    """A rig with leases of 2 s. Everything it started ends with the block. ``is_migrated``: the database is not empty,
    and stays as it is. ``keeps_bodies``: the model remembers every request byte for byte."""
    if not is_migrated:
        bring_up(database_url)
    with ExitStack() as stack:
        model = stack.enter_context(
            ScriptedServer(options=ScriptedOptions(keeps_usage=keeps_bodies, keeps_bodies=keeps_bodies))
        )
        environ = {
            **{
                name: value
                for name, value in settings_module.load_settings().environ.items()
                if name in ("PATH", "LANG")
            },
            "HOME": str(directory),
            "HERMES_HOME": str(directory / "home"),
            "HERMES_DATABASE_URL": database_url,
            "HERMES_BROKER_URL": broker_url,
            "HERMES_BASE_URL": model.base_url,
            "HERMES_PROVIDER": "custom",
            "HERMES_MODEL": "scripted",
            "HERMES_LEASE_TTL_S": "2",
            "HERMES_SWEEP_INTERVAL_S": "0.25",
            "HERMES_RESEND_GRACE_S": "0.5",
            "HERMES_DRAIN_S": "2",
            **(more_environ or {}),
        }
        client = open_client(settings_module.load_settings(environ))
        stack.callback(client.close)
        fleet = LabFleet(
            environ=environ,
            directory=directory,
            workers_per_role=workers_per_role,
            concurrency=concurrency,
            work_s=work_s,
            queues=queues,
            zygote=_zygote(),
        )
        stack.enter_context(fleet)
        breaking = stack.enter_context(build_redis_client(for_administrator(broker_url)))
        yield Rig(client=client, fleet=fleet, model=model, redis=breaking, directory=directory)
