"""A fleet in one thread of time: the real task bodies over a store, a broker and workers that fail on demand.

Every task runs in a greenlet of its own and gives up control at its *pauses*: before and after each call of the store,
while the model thinks, around a tool's effect, before each message is sent. One of them runs at a time, and a seeded
random number says which, when, and what goes wrong meanwhile. Time is a number that jumps to the next thing that
happens. The same seed gives the same history.
"""

from __future__ import annotations

import heapq
import itertools
import random as random_module
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from greenlet import greenlet
from simulation.memory import BARE_PROMPT, MemoryStore, Report, filled

from hermes_worker import observe
from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.catalog import ToolCatalog
from hermes_worker.agent.tools.delegation import DelegateTool
from hermes_worker.broker.queue import QueueName, build_message
from hermes_worker.core import abort as abort_module
from hermes_worker.core.auxiliary import AuxiliaryAnswer, AuxiliaryQuestion, AuxTask, Consultation
from hermes_worker.core.delegation import DELEGATE_TOOL, DelegationPolicy
from hermes_worker.core.effects import AskAuxiliary, Effect, Iterate, Prepare, RunTool
from hermes_worker.core.errors import FailureKind, LeaseLost, ModelCallError, UnavailableError
from hermes_worker.core.messages import (
    ModelReply,
    ModelRequest,
    ToolRequest,
    Usage,
    build_user_body,
    dump_canonical_json,
)
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.extension import ToolSpec
from hermes_worker.safety.approvals import VERDICT_RULES, ApprovalChoice, ApprovalMode
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.runs import RunNotFound
from hermes_worker.store.runs.waits import NothingAsked, NotWaiting
from hermes_worker.store.sweep import SweepPolicy
from hermes_worker.tasks import leases as leases_module
from hermes_worker.tasks.calls import call_tool as call_tool_module
from hermes_worker.tasks.calls import delegating as delegating_module
from hermes_worker.tasks.calls.approval_rules import ApprovalRules
from hermes_worker.tasks.calls.ask_auxiliary import ask_auxiliary
from hermes_worker.tasks.calls.call_tool import call_tool
from hermes_worker.tasks.context import RunRules, WorkerContext, WorkerModels, WorkerRows
from hermes_worker.tasks.iteration import persistence as persistence_module
from hermes_worker.tasks.iteration.iterate import iterate
from hermes_worker.tasks.leases import AbortReason, Leases
from hermes_worker.tasks.prepare import prepare
from hermes_worker.testing.models import ModelChainOfOne
from hermes_worker.workspaces.base import WorkspaceError

TTL_S = 3.0
POLICY = SweepPolicy(interval_s=0.4, ttl_s=TTL_S, resend_grace_s=0.5)
TROUBLE_ENDS_S = 40.0
"""From here on nothing more goes wrong, and everything has to come to its end."""
HORIZON_S = 900.0
EPOCH_S = 1_000_000.0
_ITERATIONS_MAX = 8
"""Of a run, or of all runs of a tree."""
NOTES = "What the notes said when they were read for the time"
DELEGATION = DelegationPolicy(children_max=3, depth_max=2, turns_max=3)
APPROVALS = ApprovalRules(mode=ApprovalMode.SMART, timeout_s=90.0)


class Killed(BaseException):
    """The process of this task is gone."""


class Violation(AssertionError):
    """An invariant is broken. The message begins with the seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """How often things go wrong, each as a probability."""

    drop: float = 0.06
    """A message is lost."""
    duplicate: float = 0.15
    """A message is delivered two or three times."""
    crash: float = 0.012
    """At a pause, the process is killed."""
    freeze: float = 0.012
    """At a pause, the process stands still, for up to three terms."""
    unknown: float = 0.01
    """A transaction is committed and its answer is lost."""
    outages: int = 1
    """Times in which the database is away."""
    flushes: int = 1
    """Times at which the broker forgets everything."""
    stops: float = 0.15
    """A run is stopped by its user, with all that it delegated."""
    half: float = 0.5
    """Whoever stops a tree dies after its top."""
    silence: float = 0.15
    """Nobody answers a question."""
    defect: float = 0.004
    """Our own code fails in a model call."""
    provider: float = 0.06
    """A model call fails and is worth trying again, at once or later."""
    blind: float = 0.06
    """No model answers an auxiliary call."""
    drain: float = 0.3
    """A process is told to leave, once."""
    poison: float = 0.02
    """A model asks for a tool that takes down whatever process it runs in."""
    blindness: float = 0.2
    """Nobody sees how a lane came to its end."""


PEACE = Trouble(
    drop=0,
    duplicate=0,
    crash=0,
    freeze=0,
    unknown=0,
    outages=0,
    flushes=0,
    stops=0,
    defect=0,
    half=0,
    silence=0,
    provider=0,
    blind=0,
    drain=0,
    poison=0,
)


class Backend(Protocol):
    """A store as the world needs it; ``memory.MemoryStore`` and ``database.SqlStore`` are two."""

    runs: Any
    calls: Any
    waits: Any
    auxiliary_calls: Any
    transcripts: Any
    workers: Any

    def submit(self, run_id: str, *, iterations_max: int, attempts_max: int, prepares: bool) -> list[Hint]: ...
    def stop(self, run_id: str, *, is_whole: bool) -> tuple[list[str], list[Hint]]: ...
    def approve(self, run_id: str, choice: ApprovalChoice) -> list[Hint]: ...
    def end_broken_step(self, effect: Effect, owner: int, message: str) -> list[Hint]: ...
    def stopping(self, run_ids: Collection[str]) -> set[str]: ...
    def sweep(self, depths: Mapping[str, int] | None) -> Sequence[Hint]: ...
    def ended(self) -> bool: ...
    def reports(self) -> list[Report]: ...
    def close(self) -> None: ...


# --- work that takes turns -------------------------------------------------------------------------------------------


class Actor:
    """A piece of work that can be paused, resumed and killed at its pauses."""

    def __init__(self, world: World, process: Process, body: Callable[[], None]) -> None:
        self.process = process
        self.is_killed = False
        self.is_over = False
        self._world = world
        self._body = body
        self._strand: greenlet | None = None

    def resume(self) -> None:
        """Let it run to its next pause or its end. Called by the scheduler only."""
        if self._strand is None:
            self._strand = greenlet(self._run)
        self._world.current = self
        self._strand.switch()
        self._world.current = None

    def kill(self) -> None:
        """End it where it stands. It gets to unwind, as if it were never resumed."""
        self.is_killed = True
        if self._strand is None:
            self.is_over = True
        elif not self.is_over:
            self.resume()

    def pause(self) -> None:
        """Give up control. Called by the actor itself."""
        if self.is_killed:
            raise Killed
        assert self._strand is not None and self._strand.parent is not None
        self._strand.parent.switch()
        if self.is_killed:
            raise Killed

    def _run(self) -> None:
        try:
            self._body()
        except Killed:
            pass
        except BaseException as error:
            self._world.defects.append(error)
        finally:
            self.is_over = True


class Clock:
    """``time`` for the modules under test."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.now

    def clock_gettime(self, clock: int) -> float:
        return self._world.now

    def sleep(self, seconds: float) -> None:
        self._world.pause(seconds)


# --- workers ---------------------------------------------------------------------------------------------------------


class Process:
    """A worker process: real leases, a few threads, and one life."""

    def __init__(self, world: World, name: str, *, is_lane: bool = False) -> None:
        self.world = world
        self.name = name
        self.is_lane = is_lane
        """It does suspects, one at a time."""
        self.actors: list[Actor] = []
        self.is_alive = True
        self.frozen_until = 0.0
        self.leases = Leases(world.guarded_workers, name=name, queues="model,tools", ttl_s=TTL_S)
        self.parts = filled(
            WorkerContext,
            rows=WorkerRows(
                runs=Paused(world, world.backend.runs),
                calls=Paused(world, world.backend.calls),
                waits=Paused(world, world.backend.waits),
                auxiliary_calls=Paused(world, world.backend.auxiliary_calls),
                transcripts=Paused(world, world.backend.transcripts),
                now=world.clock_of_database,
            ),
            models=WorkerModels(chain=ModelChainOfOne(world.model)),
            rules=RunRules(delegation=DELEGATION, approvals=APPROVALS),
            sender=Sender(world),
            leases=self.leases,
            live=NoLive(),
            catalog=world.catalog,
            workspace=lambda ref: Notes(world),
        )
        self._strays_at = world.now + TTL_S

    @property
    def is_frozen(self) -> bool:
        return self.frozen_until > self.world.now

    def take(self, effect: Effect, at: float) -> None:
        """Start the task of a message."""
        actor = Actor(self.world, self, lambda: self._task(effect, at))
        self.actors = [actor, *(one for one in self.actors if not one.is_over)]
        self.world.wake(actor, 0.0)

    def _task(self, effect: Effect, at: float) -> None:
        """As ``worker.app`` guards its tasks."""
        try:
            if isinstance(effect, Iterate):
                iterate(self.parts, effect, at)
            elif isinstance(effect, Prepare):
                prepare(self.parts, effect, at)
            elif isinstance(effect, AskAuxiliary):
                ask_auxiliary(self.parts, effect, at)
            elif isinstance(effect, RunTool):
                call_tool(self.parts, effect, at)
        except (UnavailableError, LeaseLost):
            self.world.seen["interrupted"] += 1
            if self.is_lane:
                self.world.at(0.0, self._leave)  # it may hold a claim that it does not know of
        except InjectedDefect as defect:
            self.world.seen["defect"] += 1
            try:
                broken = Paused(self.world, self.world.backend)
                self.parts.sender.send(broken.end_broken_step(effect, self.leases.owner, str(defect)))
            except UnavailableError:
                return

    def beat(self) -> None:
        """What the keeper's threads do, once."""
        if not self.is_alive:
            return
        if not self.is_frozen:
            try:
                self._keep()
            except UnavailableError:
                self.world.seen["silent heartbeat"] += 1
        wait = max(self.frozen_until - self.world.now, 0.0) + TTL_S / 4
        self.world.at(wait, self.beat)

    def _keep(self) -> None:
        if not self.leases.renew():
            self.world.seen["place lost"] += 1
            if self.is_lane:
                self.world.at(0.0, self.crash)
        self.world.require_database()
        for run_id in sorted(self.world.backend.stopping(self.leases.list_held_runs())):
            self.leases.abort_run(run_id, AbortReason.STOP)
        if self.world.now > self._strays_at:
            self._strays_at = self.world.now + TTL_S
            self.world.seen["stray"] += self.leases.release_orphaned_claims()

    def freeze(self, seconds: float) -> None:
        self.frozen_until = max(self.frozen_until, self.world.now + seconds)
        self.world.seen["freeze"] += 1

    def crash(self) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        self.world.seen["crash"] += 1
        for actor in self.actors:
            actor.kill()
        again = self.world.spawn_lane if self.is_lane else self.world.spawn
        self.world.at(self.world.random.uniform(0.1, 2.0), again)

    def blow_up(self, key: str) -> None:
        """A step takes this process down; of a lane, its parent may see it."""
        if self.is_alive and self.is_lane and not self.world.rolls("blindness"):
            try:
                if self.world.guarded_workers.mark_crashed(self.name):
                    self.world.verdicts[key] += 1
            except UnavailableError:
                pass
        self.world.seen["blown up alone" if self.is_lane else "blown up in company"] += 1
        self.crash()

    def drain(self) -> None:
        """SIGTERM: nothing new, some time for what runs, then what can be handed over is."""
        if self.is_alive:
            self.leases.drain()
            self.world.at(self.world.random.uniform(0.0, 3.0), self._hand_over)

    def _hand_over(self) -> None:
        if not self.is_alive:
            return
        self.leases.hand_over()
        self.world.at(5.0, self._leave)

    def _leave(self) -> None:
        if self.is_alive:
            try:
                self.world.require_database()
                self.leases.retire()
            except UnavailableError:
                pass
            self.world.seen["left"] += 1
            self.crash()


class Paused:
    """A store whose every call is a place where things happen, before it and after it."""

    def __init__(self, world: World, inner: Any) -> None:
        self._world = world
        self._inner = inner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)
        world = self._world

        def call(*args: Any, **more: Any) -> Any:
            world.pause()
            world.require_database()
            try:
                result = method(*args, **more)
            except LeaseLost:
                world.seen["refused"] += 1
                raise
            world.note(name, args)
            if world.rolls("unknown"):
                raise UnavailableError("the answer was lost")
            if name == "ask":
                world.was_asked(args[0].run_id)
            world.pause()
            return result

        return call


class GuardedWorkers:
    """``Workers`` that fail while the database is away."""

    def __init__(self, world: World, inner: Any) -> None:
        self._world = world
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        self._world.require_database()
        return getattr(self._inner, name)


class NoLive:
    def append(self, *_: object) -> None: ...
    def nudge(self, *_: object) -> None: ...


class Notes:
    """The workspace of a world in which there is nothing but a file for agents, which says something else every time it
    is read."""

    root = "/"

    def __init__(self, world: World) -> None:
        self._world = world

    def entries(self, path: str) -> tuple[str, ...]:
        self._world.pause()
        return ("AGENTS.md",)

    def may_read(self, path: str) -> bool:
        return True

    def read_bytes(self, path: str, *, limit: int) -> bytes:
        self._world.pause()
        self._world.seen["read"] += 1
        return f"{NOTES} {self._world.seen['read']}.".encode()

    def resolve(self, path: str, **_: object) -> str:
        raise WorkspaceError(f"{path!r} is not there")


class Sender:
    """``queue.Publisher``."""

    def __init__(self, world: World) -> None:
        self._world = world

    def send(self, hints: Sequence[Hint]) -> int:
        for hint in hints:
            self._world.pause()
            self._world.post(hint)
        return len(hints)

    def count_waiting(self) -> Mapping[str, int]:
        return self._world.count_waiting()


# --- what the runs do ------------------------------------------------------------------------------------------------


class InjectedDefect(Exception):
    """Our own code fails."""


class Model:
    """A provider that says something else every time it is asked."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ids = itertools.count(1)

    def ask(self, request: ModelRequest, *, on_delta: object, abort: Any) -> ModelReply:
        world, random = self._world, self._world.random
        self._require_whole(request)
        if not _is_aside(request):
            self._require_same(request)
        for _ in range(random.randint(1, 3)):
            world.pause(random.choice((0.01, 0.3, 1.5)))
            if abort.is_set():
                raise ModelCallError(FailureKind.INTERRUPTED, "aborted")
        if world.rolls("defect"):
            raise InjectedDefect("boom")
        if world.rolls("provider"):
            raise self._failure()
        if _is_aside(request):
            if world.rolls("blind"):
                raise ModelCallError(FailureKind.FORMAT_ERROR, "no images")
            world.seen["aside"] += 1
            return ModelReply(text="looks good", usage=Usage(cache_read=1, output=1))
        usage = Usage(input=1)
        if not request.tools or random.random() < 0.25:
            return ModelReply(text="done", usage=usage)
        requests = tuple(self._request() for _ in range(random.randint(1, 4)))
        return ModelReply(text="", tool_requests=requests, finish_reason="tool_calls", usage=usage)

    def _require_same(self, request: ModelRequest) -> None:
        """All requests of a conversation begin with the same bytes, which say what its workspace says."""
        first, session = request.messages[0], request.session_id
        if first != self._world.prompts.setdefault(session or "", first):
            raise Violation(f"seed {self._world.seed}: the prompt of {session} changed to {first}")
        if self._world.prepares and BARE_PROMPT in first and NOTES not in first:
            raise Violation(f"seed {self._world.seed}: {session} was asked before its workspace was read: {first}")

    def _require_whole(self, request: ModelRequest) -> None:
        """A prompt without one of its results would be refused by a real provider."""
        open_ids: list[str] = []
        for row in request.messages:
            if '"tool_calls"' in row:
                open_ids = [f'"tool_call_id":"{part.split(chr(34))[0]}"' for part in row.split('"id":"')[1:]]
            elif '"role":"tool"' in row and (not open_ids or open_ids.pop(0) not in row):
                raise Violation(f"seed {self._world.seed}: a prompt has a result out of its place: {row}")
        if open_ids:
            raise Violation(f"seed {self._world.seed}: a prompt lacks the results of {open_ids}")

    def _failure(self) -> ModelCallError:
        kind = self._world.random.choice((FailureKind.RATE_LIMIT, FailureKind.SERVER_ERROR, FailureKind.OVERLOADED))
        wait_s = self._world.random.choice((None, 2.0, 9.0))
        return ModelCallError(kind, "not now", status=429, retry_after_s=wait_s)

    def _request(self) -> ToolRequest:
        random, number = self._world.random, next(self._ids)
        name = random.choices(_ASKED_FOR, self._world.habits)[0]
        if self._world.rolls("poison"):
            name = "bomb"
        arguments: dict[str, Any] = {"n": number}
        if name == "run":
            arguments = {"command": f"rm -rf /srv/{number}"}
        if name == DELEGATE_TOOL:
            role = random.choice(("leaf", "orchestrator"))
            arguments = {"tasks": [{"goal": f"goal {n}", "role": role} for n in range(random.randint(1, 4))]}
            if random.random() < 0.3:
                arguments["background"] = True
        return ToolRequest(id=f"call_{number}", name=name, arguments=dump_canonical_json(arguments))


def _is_aside(request: ModelRequest) -> bool:
    return _LOOK in request.messages[0] or VERDICT_RULES[:40] in request.messages[0]


_LOOK = "what is to be seen there"
_ASKED_FOR = ("peek", "put", "pay", "pay_slowly", "no_such_tool", "look", "run", DELEGATE_TOOL)
USUAL = (5, 5, 5, 5, 5, 3, 1, 1)
TREES = (2, 1, 2, 1, 1, 1, 3, 6)
"""How often a model asks for each of these tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """That a tool took effect."""

    tool: str
    key: str
    attempt: int
    run_id: str


class Tool:
    """Acts in the middle of its run, so that a crash may come before and after it has."""

    def __init__(
        self, world: World, name: str, replay: Replay, *, parallel: bool, slow: bool = False, command: str | None = None
    ) -> None:
        self._world = world
        self._slow = slow
        self.spec = ToolSpec(
            name=name,
            description="",
            parameters={"type": "object", "properties": {"n": {"type": "integer"}, "command": {"type": "string"}}},
            toolset="sim",
            is_untrusted=False,
            replay=replay,
            timeout_s=20.0,
            is_parallel_safe=parallel,
            command_argument=command,
        )

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        world, random = self._world, self._world.random
        world.pause(2.0 if self._slow else None)
        if context.cancelled.is_set():
            return ToolResult(text="cancelled before it acted", is_error=True)
        world.deeds.append(
            Deed(tool=self.spec.name, key=context.idempotency_key, attempt=context.attempt, run_id=context.run_id)
        )
        world.pause(1.0 if self._slow else None)
        if random.random() < 0.05:
            raise WorkspaceError("the tool is broken")
        return ToolResult(text=f"did {context.idempotency_key}", is_error=random.random() < 0.1)


class Looking(Tool):
    """Asks models before it goes on, and goes on with nothing but their answers."""

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        result = super().run(arguments, context)
        if result.is_error:
            return result
        number = self._world.random.randint(1, 3)
        questions = [
            AuxiliaryQuestion(task=AuxTask.VISION, messages=(build_user_body(f"{_LOOK}? ({n})"),))
            for n in range(number)
        ]
        material = {"key": context.idempotency_key, "questions": number}
        return ToolResult(text="", consultation=Consultation(questions=questions, material=material))

    def finish(self, material: Mapping[str, Any], answers: Sequence[AuxiliaryAnswer]) -> ToolResult:
        self._world.pause()
        if len(answers) != material["questions"]:
            raise Violation(f"seed {self._world.seed}: {len(answers)} answers to {material['questions']} questions")
        self._world.seen["unanswered"] += sum(answer.text is None for answer in answers)
        return ToolResult(text=f"saw {material['key']}")


class Bomb(Tool):
    """Takes down the process that it runs in, whenever it runs."""

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        actor = self._world.current
        assert actor is not None
        busy = [one for one in actor.process.actors if not one.is_over]
        if actor.process.is_lane and len(busy) != 1:
            raise Violation(f"seed {self._world.seed}: {len(busy)} steps are in one lane")
        self._world.at(0.0, lambda: actor.process.blow_up(context.idempotency_key))
        while True:
            self._world.pause(0.01)


# --- the world -------------------------------------------------------------------------------------------------------

_PROCESSES = 3
_CAPACITY = 4
_LANES = 2
_ATTEMPTS_MAX = 3


@dataclass(slots=True)
class World:
    """Everything there is, and the heap of what happens next."""

    seed: int
    trouble: Trouble = field(default_factory=Trouble)
    make: Callable[[Callable[[], float], SweepPolicy, str], Backend] = MemoryStore
    runs: int = 2
    habits: Sequence[int] = USUAL
    sweep_s: float = 0.5
    now: float = 0.0
    """Seconds since the world began."""
    random: Random = field(init=False)
    backend: Backend = field(init=False)
    guarded_workers: Any = field(init=False)
    catalog: ToolCatalog = field(init=False)
    model: Any = field(init=False)
    current: Actor | None = None
    deeds: list[Deed] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    """All that anybody began to make."""
    stopped_at: dict[str, float] = field(default_factory=dict)
    defects: list[BaseException] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    """How often each call was seen to take a lane down."""
    seen: Counter[str] = field(default_factory=Counter)
    prepares: bool = False
    """Sessions begin with what their workspace says."""
    prompts: dict[str, str] = field(default_factory=dict)
    """What the requests of each conversation began with."""
    """What went wrong, and what was done about it: a test that sees nothing proves nothing."""
    trace: list[tuple[float, str]] = field(default_factory=list)
    reports: Sequence[Report] = ()
    """What the store says of all runs when it is over."""
    sent: int = 0
    _heap: list[tuple[float, float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: Any = field(default_factory=itertools.count)
    _processes: list[Process] = field(default_factory=list)
    _queued: Counter[str] = field(default_factory=Counter)
    """Messages on their way, by queue."""
    _submitted: int = 0
    _generation: int = 0
    _outages: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.catalog = ToolCatalog(
            [
                Tool(self, "peek", Replay.PURE, parallel=True),
                Tool(self, "put", Replay.KEYED, parallel=True),
                Tool(self, "pay", Replay.ONCE, parallel=True),
                Tool(self, "pay_slowly", Replay.ONCE, parallel=False, slow=True),
                Tool(self, "run", Replay.ONCE, parallel=False, command="command"),
                Looking(self, "look", Replay.PURE, parallel=True),
                DelegateTool(),
                Bomb(self, "bomb", Replay.KEYED, parallel=True),
            ]
        )
        definitions = self.catalog.render_definitions(self.catalog.names)
        self.backend = self.make(self.clock_of_database, POLICY, f"[{','.join(definitions)}]")
        self.guarded_workers = GuardedWorkers(self, self.backend.workers)
        self.model = Model(self)

    # --- time ---

    def clock_of_database(self) -> float:
        return EPOCH_S + self.now

    def at(self, delay: float, action: Callable[[], None]) -> None:
        """Do ``action`` in ``delay`` seconds; what falls on the same moment comes in random order."""
        heapq.heappush(self._heap, (self.now + delay, self.random.random(), next(self._numbers), action))

    def wake(self, actor: Actor, delay: float) -> None:
        self.at(delay, lambda: self._resume(actor))

    def _resume(self, actor: Actor) -> None:
        if actor.is_over or actor.is_killed:
            return
        if actor.process.is_frozen:
            self.wake(actor, actor.process.frozen_until - self.now + self.random.uniform(0, 0.05))
            return
        actor.resume()

    def pause(self, seconds: float | None = None) -> None:
        """A place where a task may be interrupted; outside of tasks nothing happens."""
        actor = self.current
        if actor is None:
            return
        if seconds is None:
            roll = self.random.random()
            seconds = 0.002 if roll < 0.7 else self.random.uniform(0, 0.4) if roll < 0.97 else TTL_S * 0.9
        if self.rolls("crash"):
            self.at(0.0, actor.process.crash)
        if self.rolls("freeze"):
            actor.process.freeze(self.random.uniform(0.2, 3.0) * TTL_S)
        if self._heap[0][0] > self.now + seconds and not actor.process.is_frozen and not actor.is_killed:
            self.now += seconds  # nothing else happens until then, so nobody else need have the turn
            return
        self.wake(actor, seconds)
        actor.pause()

    # --- trouble ---

    def rolls(self, kind: str) -> bool:
        if self.now >= TROUBLE_ENDS_S or self.random.random() >= getattr(self.trouble, kind):
            return False
        self.seen[kind] += 1
        return True

    def require_database(self) -> None:
        for begin, end in self._outages:
            if begin <= self.now < end:
                self.seen["outage"] += 1
                raise UnavailableError("the database is away")

    def note(self, what: str, args: Sequence[Any]) -> None:
        self.trace.append((round(self.now, 6), what))

    # --- the broker ---

    def post(self, hint: Hint) -> None:
        """Publish one message, which may be lost, doubled and overtaken."""
        self.sent += 1
        if self.rolls("drop"):
            return
        copies = self.random.choice((2, 3)) if self.rolls("duplicate") else 1
        for _ in range(copies):
            self._enqueue(hint)

    def _enqueue(self, hint: Hint) -> None:
        queue = build_message(hint)[1].value
        self._queued[queue] += 1
        generation = self._generation
        delay = self.random.choice((0.001, 0.001, 0.05, 0.8))
        self.at(delay, lambda: self._deliver(hint, queue, generation))

    def _deliver(self, hint: Hint, queue: str, generation: int) -> None:
        if generation != self._generation:
            return  # it was flushed
        self._queued[queue] -= 1
        is_apart = QueueName(queue).is_for_lanes
        capacity = 1 if is_apart else _CAPACITY
        able = [one for one in self._processes if one.is_alive and one.is_lane == is_apart]
        ready = [one for one in able if self._load(one) < capacity]
        if not ready:
            self._enqueue(hint)
            return
        assert isinstance(hint.effect, Effect)
        self.random.choice(ready).take(hint.effect, hint.at)

    @staticmethod
    def _load(process: Process) -> int:
        return sum(not actor.is_over for actor in process.actors)

    def count_waiting(self) -> Mapping[str, int]:
        return self._queued

    def _flush(self) -> None:
        self._generation += 1
        self._queued.clear()
        self.seen["flush"] += 1

    # --- life ---

    def spawn(self) -> None:
        self._begin(Process(self, f"w{next(self._numbers)}"))

    def spawn_lane(self) -> None:
        self._begin(Process(self, f"lane{next(self._numbers)}", is_lane=True))

    def _begin(self, process: Process) -> None:
        self._processes = [*(one for one in self._processes if one.is_alive), process]
        process.beat()

    def _sweep(self) -> None:
        self.at(self.random.uniform(0.8, 1.2) * self.sweep_s, self._sweep)
        if not any(one.is_alive and not one.is_frozen for one in self._processes):
            return
        try:
            self.require_database()
        except UnavailableError:
            return
        hints = self.backend.sweep(self.count_waiting())
        self.seen["repaired"] += len(hints)
        if self.rolls("crash"):
            return  # the sweeper died between its commit and its messages
        for hint in hints:
            self.post(hint)

    def _stop(self, run_id: str) -> None:
        try:
            self.require_database()
        except UnavailableError:
            return
        if self.children and self.random.random() < 0.3:
            run_id = self.random.choice(self.children)
        try:
            run_ids, hints = self.backend.stop(run_id, is_whole=not self.rolls("half"))
        except RunNotFound:
            return  # the transaction that was to make this child came to nothing
        self.seen["stop"] += 1
        self.stopped_at[run_id] = self.clock_of_database()
        for process in self._processes:
            for one in run_ids:
                process.leases.abort_run(one, AbortReason.STOP)
        for hint in hints:
            self.post(hint)

    def was_asked(self, run_id: str) -> None:
        """Somebody may answer, or two at once, or nobody."""
        self.seen["question"] += 1
        if self.random.random() < self.trouble.silence:
            return
        for _ in range(self.random.randint(1, 2)):
            self.at(self.random.uniform(0.1, 8.0), lambda: self._answer(run_id))

    def _answer(self, run_id: str) -> None:
        choice = self.random.choice((ApprovalChoice.ONCE, ApprovalChoice.ONCE, ApprovalChoice.DENY))
        try:
            self.require_database()
            hints = self.backend.approve(run_id, choice)
        except (UnavailableError, NothingAsked, NotWaiting):
            self.seen["answer in vain"] += 1
            return
        self.seen["answer"] += 1
        for hint in hints:
            self.post(hint)

    def _accepted(self, run_id: str) -> list[Hint]:
        limits = {"iterations_max": _ITERATIONS_MAX, "attempts_max": _ATTEMPTS_MAX}
        return self.backend.submit(run_id, **limits, prepares=self.prepares)

    def _submit(self, run_id: str) -> None:
        self._submitted += 1
        for hint in self._accepted(run_id):
            self.post(hint)
        if self.random.random() < self.trouble.stops:
            self.at(self.random.uniform(0.0, 12.0), lambda: self._stop(run_id))

    def run(self) -> World:
        """Play it through. Raises ``Violation`` when an invariant is broken."""
        with virtual_time(self):
            for _ in range(_PROCESSES):
                self.spawn()
            for _ in range(_LANES):
                self.spawn_lane()
            self._plan_trouble()
            for number in range(self.runs):
                run_id = f"run{number}"
                self.at(self.random.uniform(0.0, 3.0), lambda run_id=run_id: self._submit(run_id))  # type: ignore[misc]
            self.at(0.1, self._sweep)
            try:
                self._play()
                self._bury()
                self.check()
            finally:
                self.backend.close()
        return self

    def _plan_trouble(self) -> None:
        for _ in range(self.trouble.outages):
            begin = self.random.uniform(0, TROUBLE_ENDS_S / 2)
            self._outages.append((begin, begin + self.random.uniform(0.1, 2.5 * TTL_S)))
        for _ in range(self.trouble.flushes):
            self.at(self.random.uniform(0, TROUBLE_ENDS_S / 2), self._flush)
        if self.random.random() < self.trouble.drain:
            self.at(self.random.uniform(0, 10.0), lambda: self._processes[0].drain())

    def _play(self) -> None:
        looked_at = 0.0
        while self._heap and self.now < HORIZON_S and not self.defects:
            self.now, _, _, action = heapq.heappop(self._heap)
            action()
            if self.now - looked_at > 2.0:
                looked_at = self.now
                if self._is_over():
                    return

    def _is_over(self) -> bool:
        return self._submitted == self.runs and self.backend.ended()

    def _bury(self) -> None:
        """End what is left: zombies get to try to write first, since they are the ones that may break something."""
        deadline = self.now + 4 * TTL_S
        while self._heap and self.now < deadline and self._has_tasks() and not self.defects:
            self.now, _, _, action = heapq.heappop(self._heap)
            action()
        for process in self._processes:
            for actor in process.actors:
                actor.kill()

    def _has_tasks(self) -> bool:
        return any(self._load(process) for process in self._processes)

    # --- what must hold ---

    def check(self) -> None:
        for defect in self.defects:
            if isinstance(defect, Violation):
                raise defect
            raise Violation(f"seed {self.seed}: {type(defect).__name__}: {defect}") from defect
        reports = self.backend.reports()
        self.reports = sorted(reports, key=lambda report: report.run_id)
        tops = sum(report.root == report.run_id for report in reports)
        self._require(tops == self.runs, f"{tops} runs began something, and {self.runs} were asked for")
        for report in reports:
            self._check_run(report)
        for root in reports:
            if root.root == root.run_id:
                self._check_tree(root, [report for report in reports if report.root == root.run_id])
        self._check_deeds()

    def _require(self, holds: bool, message: str) -> None:
        if not holds:
            raise Violation(f"seed {self.seed}: {message}")

    def _check_run(self, report: Report) -> None:
        run = f"{report.run_id} ({report.status.value}, {report.exit_reason}, iteration {report.iteration})"
        self._require(report.status.is_terminal, f"{run} has not ended after {HORIZON_S:.0f} s")
        self._require(not report.is_held and not report.is_due, f"{run} has ended and is not at rest")
        unexpected = {"corrupt_state"} | ({"internal_error"} if not self.seen["defect"] else set())
        self._require(report.exit_reason not in unexpected, f"{run}: nothing was corrupt and no code failed")
        self._require(list(report.event_seqs) == list(range(1, len(report.events) + 1)), f"{run}: events have gaps")
        ends = [index for index, name in enumerate(report.events) if name in _ENDS]
        self._require(ends == [len(report.events) - 1], f"{run}: terminal events at {ends} of {report.events}")
        replies = sum(name == "message.completed" for name in report.events)
        summaries = int(report.exit_reason == "max_iterations_reached")
        self._require(replies == report.iteration + summaries, f"{run}: {replies} replies")
        paid_in_vain = report.charged - replies
        is_given_up = report.exit_reason == "unknown_tools"  # the reply that was one too many is paid and not stored
        self._require(
            paid_in_vain == 0 or (paid_in_vain == 1 and (report.status is RunStatus.CANCELLED or is_given_up)),
            f"{run}: {report.charged} model calls were charged for {replies} replies",
        )
        self._require(
            report.asides_charged == report.asides_answered,
            f"{run}: {report.asides_charged} auxiliary calls were charged for {report.asides_answered} answers",
        )
        is_poison = any(call["function"]["name"] == "bomb" for body in report.bodies for call in _calls_of(body))
        is_condemned = report.exit_reason == "step_quarantined"
        self._require(is_poison or not is_condemned, f"{run}: it harmed nobody")
        self._require(not is_poison or report.status is not RunStatus.COMPLETED, f"{run}: nobody survives its bomb")
        self.seen["condemned"] += is_condemned
        self._check_transcript(run, report)

    def _check_tree(self, root: Report, tree: Sequence[Report]) -> None:
        turns = sum(report.is_turn for report in tree)
        self.seen["turn"] += turns
        self.seen["child"] += len(tree) - 1 - turns
        self._require(turns <= DELEGATION.turns_max, f"{root.run_id} went on by itself for {turns} turns")
        last = max(tree, key=lambda report: report.ended_at)
        stopped_at = self.stopped_at.get(root.run_id)
        if stopped_at is not None:
            away_s = sum(end - begin for begin, end in self._outages)
            self.seen["stopped child"] += sum(report.status is RunStatus.CANCELLED for report in tree[1:])
            if root.ended_at < stopped_at:
                self.seen["stopped late"] += sum(report.ended_at > stopped_at for report in tree)
            took_s = last.ended_at - stopped_at
            self._require(
                took_s < _STOP_S_MAX + away_s, f"{last.run_id} ended {took_s:.0f} s after {root.run_id} was stopped"
            )
        budget = root.budget
        if budget is None:
            self._require(len(tree) == 1, f"the tree of {root.run_id} has no budget")
            return
        used = sum(report.iteration for report in tree)
        self._require(budget.reserved.iterations == 0, f"{root.run_id}: {budget.reserved} is still reserved")
        self._require(used <= budget.limits.iterations, f"{root.run_id}: the tree spent {used} of {budget.limits}")
        self._require(
            budget.spent.iterations == used, f"{root.run_id}: {budget.spent} was spent for {used} model calls"
        )
        self.seen["exhausted"] += sum(report.exit_reason == "max_iterations_reached" for report in tree[1:])

    def _check_transcript(self, run: str, report: Report) -> None:
        if not report.seqs:
            self._require(report.iteration == 0, f"{run} has no transcript")
            return  # it was stopped while it waited for its session
        self._require(
            list(report.seqs) == list(range(report.seqs[0], report.seqs[0] + len(report.seqs))),
            f"{run}: the transcript has holes: {report.seqs}",
        )
        expected: list[str] = []
        for body in report.bodies:
            if body["role"] == "tool":
                self._require(bool(expected) and body["tool_call_id"] == expected.pop(0), f"{run}: {body} is misplaced")
                continue
            self._require(not expected, f"{run}: the results of {expected} are missing")
            expected = [call["id"] for call in body.get("tool_calls", ())]
        self._require(not expected, f"{run}: the results of {expected} are missing")
        self._require(report.bodies[-1]["role"] != "tool", f"{run} ends with a result")

    def _check_deeds(self) -> None:
        times = Counter(deed.key for deed in self.deeds if deed.tool.startswith("pay"))
        for key, count in times.items():
            self._require(count == 1, f"the once call {key} took effect {count} times")
        attempts = Counter((deed.key, deed.attempt) for deed in self.deeds)
        keys_of_a_call = {deed.key: deed.tool for deed in self.deeds}
        for deed in self.deeds:
            self._require(keys_of_a_call[deed.key] == deed.tool, f"key {deed.key} stands for two tools")
            self._require(deed.key.startswith(f"{deed.run_id}."), f"key {deed.key} is not of {deed.run_id}")
        for key, count in self.verdicts.items():
            self._require(count <= _ATTEMPTS_MAX, f"{key} was tried again after it took {count} lanes down")
        self.seen["repeated deeds"] += sum(count > 1 for count in Counter(key for key, _ in attempts).values())


def _calls_of(body: Mapping[str, Any]) -> Sequence[Any]:
    return body.get("tool_calls") or ()


_STOP_S_MAX = 45.0
"""After a stop of its tree: a frozen worker's lease, a sweep, and what was in flight."""
_ENDS = ("run.completed", "run.failed", "run.cancelled")


@contextmanager
def virtual_time(world: World) -> Iterator[None]:
    """Put the world's clock and chance where the task bodies look for theirs."""
    clock = Clock(world)
    modules: list[Any] = [
        module for module in (call_tool_module, leases_module, persistence_module) if hasattr(module, "time")
    ]
    before = [module.time for module in modules]
    new_run_id = delegating_module.create_run_id
    wait, chance, level = abort_module.AbortSignal.wait, random_module.random, observe.log._level

    def name_child() -> str:
        world.children.append(f"child{len(world.children) + 1}")
        return world.children[-1]

    def wait_in_world(signal: abort_module.AbortSignal, timeout: float | None = None) -> bool:
        world.pause(timeout)
        return signal.is_set()

    for module in modules:
        module.time = clock
    abort_module.AbortSignal.wait = wait_in_world  # type: ignore[assignment,method-assign]
    random_module.random = world.random.random
    delegating_module.create_run_id = name_child
    observe.log._level = _SILENT
    try:
        yield
    finally:
        for module, original in zip(modules, before, strict=True):
            module.time = original
        abort_module.AbortSignal.wait = wait  # type: ignore[method-assign]
        random_module.random = chance
        delegating_module.create_run_id = new_run_id
        observe.log._level = level


_SILENT = 100
"""A level above all others."""
