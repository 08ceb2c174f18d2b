"""Hooks under kills, lost and repeated messages and takeovers: what rewriters changed is replayed byte for byte, and
what observers did is recorded once.

The task bodies and the store are the real ones, on SQLite; the model is a server that the test starts. A process is
killed at the fault points of the product, by an exception that nothing there catches. Everything follows from a seed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa
from support.fault_server import USAGE_CHUNK, FaultServer, Received, Reply, finish_chunk, text_chunk
from support.store import EMPTY, Store, new_run, opened
from support.turns import Turns

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.core.effects import CallHook, Iterate, RunTool
from hermes_worker.core.hooks import HookEvent, build_observed, list_pending_calls
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.replay import Replay
from hermes_worker.core.run_events import RunEventName
from hermes_worker.extension import ToolSpec
from hermes_worker.store.engine.database import Database
from hermes_worker.store.hooks.calls import HookCalls
from hermes_worker.store.rows import Hint
from hermes_worker.store.tables import events, hook_calls, runs
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.tasks.calls.call_tool import call_tool
from hermes_worker.tasks.context import WorkerContext, WorkerHooks
from hermes_worker.tasks.hooks.observing import call_hook
from hermes_worker.tasks.hooks.running import HookRunner, LoadedHook
from hermes_worker.tasks.iteration.iterate import iterate
from hermes_worker.tasks.leases import Leases
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

OBSERVED = build_observed([("audit", ("agent:*", "post_tool_call")), ("bell", ("agent:end",))])
STEPS = 2
KILL, DROP, REPEAT = 0.12, 0.1, 0.25
MOVES_MAX = 2_000


class Killed(BaseException):
    """The process of this task is gone."""


SPEC = ToolSpec(
    name="record",
    description="Note it.",
    parameters={"type": "object", "properties": {"n": {"type": "integer"}}},
    toolset="test",
    replay=Replay.KEYED,
    is_untrusted=False,
)


@dataclass
class Recorder:
    """A tool that notes with which arguments it ran."""

    ran: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    spec: ToolSpec = SPEC

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        self.ran[context.idempotency_key].append(dump_canonical_json(dict(arguments)))
        return ToolResult(text=f"noted {arguments['n']}")


@dataclass
class World:
    store: Store
    turns: Turns
    random: Random
    workspace: Path
    recorder: Recorder = field(default_factory=Recorder)
    asked: int = 0
    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    hints: list[Hint] = field(default_factory=list)
    kills: int = 0
    worker: int = 0
    requests: dict[str, list[list[str]]] = field(default_factory=lambda: defaultdict(list))

    # --- hooks, whose answers are never the same twice ---

    def rewrite(self, event: HookEvent) -> dict[str, Any]:
        self.asked += 1
        return {"args": {"n": self.asked}}

    def add(self, event: HookEvent) -> str:
        self.asked += 1
        return f"context {self.asked}"

    def answer(self, event: HookEvent) -> str:
        self.asked += 1
        return f"{event.payload['response_text']} ({self.asked})"

    def audit(self, event: HookEvent) -> None:
        self.told[event.id, "audit"] += 1

    def bell(self, event: HookEvent) -> None:
        self.told[event.id, "bell"] += 1

    # --- processes ---

    def start_worker(self) -> None:
        leases = Leases(self.store.workers, name=f"w{self.kills}", queues="model,tools", ttl_s=1e6)
        self.worker = leases.register().pk
        rewriters = {
            "rewrite": ("pre_tool_call",),
            "add": ("pre_llm_call",),
            "answer": ("transform_llm_output",),
        }
        observers = {"audit": ("agent:start", "agent:step", "agent:end", "post_tool_call"), "bell": ("agent:end",)}
        hooks = [
            LoadedHook(name=name, events=frozenset(names), call=getattr(self, name), timeout_s=30.0)
            for name, names in {**rewriters, **observers}.items()
        ]
        self.turns.parts = replace(
            self.turns.parts,
            leases=leases,
            catalog=build_default_catalog(self.recorder),
            hooks=WorkerHooks(runner=HookRunner(hooks), store=HookCalls(self.store.database), observed=OBSERVED),
            workspace=lambda _: open_workspace(
                WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(self.workspace)),
                OpeningOptions(base_env={}, hermes_home=""),
            ),
            sender=self,
        )

    def send(self, hints: Any) -> int:
        for hint in hints:
            copies = 0 if self.random.random() < DROP else 2 if self.random.random() < REPEAT else 1
            self.hints += [hint] * copies
        return len(hints)

    def count_waiting(self) -> Mapping[str, int] | None:
        return EMPTY

    def point(self, name: FaultPoint, *_: Any) -> None:
        """More often where the tool has acted and its result is not stored yet."""
        if self.random.random() < (0.4 if name is FaultPoint.CALL_TOOL_AFTER_RUN else KILL):
            raise Killed

    def do(self, hint: Hint) -> None:
        task: Any = {Iterate: iterate, RunTool: call_tool, CallHook: call_hook}[type(hint.effect)]
        parts: WorkerContext = self.turns.parts
        try:
            task(parts, hint.effect, hint.at)
        except Killed:
            self.kills += 1
            self.store.database.engine.dispose()
            with self.store.database.write() as connection:
                connection.execute(
                    sa.text("update workers set expires_at = 1 where pk = :worker"), {"worker": self.worker}
                )
            self.start_worker()

    def sweep(self) -> None:
        self.store.let_pass(30.0)
        self.send(self.store.sweep(EMPTY).hints)

    def is_over(self) -> bool:
        with self.store.database.read() as connection:
            open_runs = sa.select(runs.c.pk).where(runs.c.exit_reason.is_(None))
            untold = sa.select(hook_calls.c.pk).where(hook_calls.c.settled_at.is_(None))
            return all(connection.execute(query.limit(1)).first() is None for query in (open_runs, untold))

    def play(self) -> None:
        for _ in range(MOVES_MAX):
            if self.hints and self.random.random() < 0.98:
                self.do(self.hints.pop(self.random.randrange(len(self.hints))))
            else:
                self.sweep()
            if self.is_over():
                return
        raise AssertionError("the runs have not ended")


def model(world: World) -> Any:
    """Asks for the tool until the turn has had its steps, then answers."""

    def handler(request: Received, reply: Reply) -> None:
        rows = request.document["messages"]
        world.requests[rows[1]["content"].split(" ")[0]].append([dump_canonical_json(row) for row in rows])
        last_user = max(n for n, row in enumerate(rows) if row["role"] == "user")
        if sum(row["role"] == "tool" for row in rows[last_user:]) >= STEPS:
            reply.sse(text_chunk("done"), finish_chunk(), USAGE_CHUNK, "[DONE]")
            return
        call = {"index": 0, "id": f"c{len(rows)}", "function": {"name": "record", "arguments": '{"n":0}'}}
        asks = {"choices": [{"index": 0, "delta": {"tool_calls": [{"type": "function", **call}]}}]}
        reply.sse(asks, finish_chunk("tool_calls"), USAGE_CHUNK, "[DONE]")

    return handler


@pytest.fixture(params=range(3))
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with opened(f"sqlite:///{tmp_path / 'test.db'}") as plain:
        store = Store.over(Database(plain.database.url.render_as_string(hide_password=False), observed=OBSERVED))
        found = World(store, Turns.over(store), Random(request.param), tmp_path)
        with FaultServer(model(found)) as server:
            found.turns = Turns.over(store, server.base_url)
            found.start_worker()
            monkeypatch.setattr(faults, "pass_point", found.point)
            yield found
        store.database.close()


def test_what_hooks_change_is_replayed_and_what_they_observe_is_recorded_once(world: World) -> None:
    tools = f"[{world.turns.parts.catalog.render_definitions(['record'])[0]}]"
    names = ["a"]
    submitted = []
    for turn in range(3):
        for name in names:
            created = world.store.runs.create(
                new_run(model="strict", tools=tools, session_id=name, input=f"{name} turn {turn}", attempts_max=10_000)
            )
            world.send(created.hints)
            submitted.append(created.run_id)
    world.play()
    assert world.kills > 0

    # A call that ran twice ran with the same arguments, although its hook never answers the same.
    assert len(world.recorder.ran) == len(submitted) * STEPS
    for key, arguments in world.recorder.ran.items():
        assert len(set(arguments)) == 1, f"{key} ran with {arguments}"
        assert arguments[0] != '{"n":0}'
    # The prompt of a step that came later begins with the prompts of all steps before it that were committed.
    for name in names:
        [*earlier, last] = _committed(world.requests[name])
        for rows in earlier:
            assert last[: len(rows)] == rows
    # Of each event one row for each hook, and each was told at least once.
    with world.store.database.read() as connection:
        kept = connection.execute(sa.select(hook_calls.c.event_id, hook_calls.c.hook, hook_calls.c.state)).all()
        happened = connection.execute(
            sa.select(runs.c.run_id, events.c.seq, events.c.event).join(runs, runs.c.pk == events.c.run_pk)
        ).all()
    expected = {
        (f"{row.run_id}.{row.seq}.{owed.event}", owed.hook)
        for row in happened
        for owed in list_pending_calls(RunEventName(row.event), OBSERVED, is_child=False)
    } | {(f"{run_id}.0.agent:start", "audit") for run_id in submitted}
    assert sorted((row.event_id, row.hook) for row in kept) == sorted(expected)
    assert {row.state for row in kept} <= {"done", "lost"}
    assert {(row.event_id, row.hook) for row in kept if row.state == "done"} <= world.told.keys()
    assert sum(world.told.values()) <= len(kept) + world.kills


def _committed(requests: list[list[str]]) -> list[list[str]]:
    """Of the requests with so many rows the last: one whose worker died before its commit was made again."""
    newest = {len(rows): rows for rows in requests}
    return [newest[length] for length in sorted(newest)]
