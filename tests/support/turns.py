"""Runs driven through the real task bodies, one step at a time, without Celery: what is due in the rows is done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import redis

from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.core.effects import AskAuxiliary, CallEffect, Effect, Iterate, RunTool
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.run import RunStatus
from hermes_worker.models.chain import ModelChoice, ProviderChain
from hermes_worker.models.credentials import FirstKey, KeyPool
from hermes_worker.models.governor import CallGovernor, NoGovernor
from hermes_worker.models.key_watch import KeyStateLookup, NoKeyStates
from hermes_worker.models.login import TokenSource
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.waits import Waits
from hermes_worker.stream.live import Live
from hermes_worker.tasks.calls.ask_auxiliary import ask_auxiliary
from hermes_worker.tasks.calls.call_tool import call_tool
from hermes_worker.tasks.context import RunRules, WorkerContext, WorkerModels, WorkerRows
from hermes_worker.tasks.iteration.iterate import iterate
from hermes_worker.tasks.iteration.requests import ModelOptions
from hermes_worker.tasks.leases import Leases
from hermes_worker.workspaces.base import Workspace
from support.store import Store

TOOLS = dump_canonical_json(
    [{"type": "function", "function": {"name": "todo", "description": "t", "parameters": {"type": "object"}}}]
)
KEY = "sk-test-0123456789abcdefghij"


@dataclass(slots=True)
class _Sent:
    """A sender that keeps what it is given; the rows say what is due."""

    hints: list[Hint] = field(default_factory=list)

    def send(self, hints: Any) -> int:
        self.hints.extend(hints)
        return len(hints)

    def count_waiting(self) -> Mapping[str, int] | None:
        return None


@dataclass(slots=True, kw_only=True)
class Turns:
    """A store and one worker's parts over it."""

    store: Store
    parts: WorkerContext

    @classmethod
    def over(
        cls,
        store: Store,
        base_url: str = "",
        *,
        choice: ModelChoice | None = None,
        api_key: str = KEY,
        api_mode: str = "chat_completions",
        provider: str | None = None,
        fallbacks: tuple[ModelChoice, ...] = (),
        more_keys: tuple[str, ...] = (),
        pool: KeyPool | None = None,
        aside: Mapping[str, ProviderChain] | None = None,
        grants: TokenSource | None = None,
        governor: CallGovernor | None = None,
        keys: KeyStateLookup | None = None,
        live: redis.Redis | None = None,
        options: ModelOptions | None = None,
    ) -> Turns:
        choice = choice or ModelChoice(
            base_url=base_url,
            api_key=api_key,
            api_mode=api_mode,
            model="strict",
            provider=provider,
            more_keys=more_keys,
        )
        leases = Leases(store.workers, name="test", queues="model,tools", ttl_s=1e6)
        leases.register()
        nowhere = live or redis.Redis(port=1, socket_connect_timeout=0.1)
        parts = WorkerContext(
            rows=WorkerRows(
                runs=store.runs,
                calls=store.calls,
                waits=cast(Waits, None),  # nothing here asks a person
                auxiliary_calls=store.auxiliary_calls,
                transcripts=store.transcripts,
                now=store.database.read_clock,
            ),
            models=WorkerModels(
                chain=ProviderChain(choice, fallbacks, grants=grants),
                auxiliary=aside or {},
                governor=governor or NoGovernor(),
                pool=pool or FirstKey(),
                keys=keys or NoKeyStates(),
            ),
            rules=RunRules(model=options or ModelOptions()),
            sender=_Sent(),
            leases=leases,
            live=Live(nowhere),
            catalog=build_default_catalog(),
            workspace=_no_workspace,
        )
        return cls(store=store, parts=parts)

    def submit(self, **changes: Any) -> str:
        return self.store.submit(**{"tools": TOOLS, "model": "strict", **changes}).run_id

    def step(self, run_id: str) -> bool:
        """Do what is due next: a model call for real, a tool call by settling it. False when nothing is."""
        due = self.store.due(run_id)
        if not due:
            return False
        if isinstance(due[0], Iterate):
            iterate(self.parts, due[0], self.store.database.read_clock())
        elif isinstance(due[0], AskAuxiliary):
            ask_auxiliary(self.parts, due[0], self.store.database.read_clock())
        else:
            self.store.settle(run_id, due[0].position, text="done")
        return True

    def finish(self, run_id: str, *, steps_max: int = 100) -> int:
        """Go on to the end; parked runs are woken as if the time had passed. Returns how often that was."""
        naps = 0
        for _ in range(steps_max):
            if self.store.status(run_id).is_terminal:
                return naps
            if not self.step(run_id):
                assert self.store.status(run_id) is RunStatus.WAITING_FOR_CAPACITY, self.store.status(run_id)
                self.wake(run_id)
                naps += 1
        raise AssertionError(f"run {run_id} has not ended after {steps_max} steps")

    def wake(self, run_id: str) -> None:
        """Let the time come until which the run is parked."""
        resume_at = self.store.views.load_run(run_id).resume_at
        assert resume_at is not None
        self.store.let_pass(resume_at - self.store.database.read_clock() + 1)
        self.store.sweep()

    def said(self, run_id: str) -> list[tuple[str, Any]]:
        """The transcript: who said what."""
        return [(row["role"], row.get("content")) for row in self.store.bodies(run_id)]

    def memory(self, run_id: str) -> dict[str, Any]:
        """What the turn remembers, parsed; empty for nothing."""
        claim = self.store.turn(run_id)
        self.store.runs.release_iteration(claim)
        parsed: dict[str, Any] = json.loads(claim.loaded.run.memory or "{}")
        return parsed


def change_parts(parts: WorkerContext, **changes: Any) -> WorkerContext:
    """Replace fields of a worker's context, in whichever of its records they stand."""
    for name, value in changes.items():
        record = next((each for each in ("rows", "models", "rules") if hasattr(getattr(parts, each), name)), None)
        found = {name: value} if record is None else {record: replace(getattr(parts, record), **{name: value})}
        parts = replace(parts, **found)
    return parts


def do_calls(parts: WorkerContext, store: Store, run_id: str) -> None:
    """Do what is due of a run's tool calls, and what they ask of models, until nothing of them is."""
    while due := [effect for effect in store.due(run_id) if isinstance(effect, CallEffect)]:
        do_call(parts, store, due[0])


def do_call(parts: WorkerContext, store: Store, effect: Effect) -> None:
    """One step of a tool call."""
    if isinstance(effect, AskAuxiliary):
        ask_auxiliary(parts, effect, store.database.read_clock())
    else:
        assert isinstance(effect, RunTool)
        call_tool(parts, effect, store.database.read_clock())


def _no_workspace(ref: str) -> Workspace:
    raise AssertionError("nothing here works in a directory")
