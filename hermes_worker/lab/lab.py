"""Run the experiment: submit, break on schedule, watch the recovery, audit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker import settings
from hermes_worker.agent.tools.catalog import default_catalog
from hermes_worker.broker.queue import KEY_PREFIX, HintPublisher, QueueName, build_redis_client
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.spec import RunSpec
from hermes_worker.lab.audit import AuditFinding, check_invariants, sum_model_requests
from hermes_worker.lab.fleet import LabFleet, LabWorker
from hermes_worker.lab.plan import FaultKind, PlannedFault, make_schedule
from hermes_worker.lab.script import ScriptPart, build_prompt, choose_part, count_expected_iterations
from hermes_worker.lab.sink import TOOLSET, make_sink_tools
from hermes_worker.lab.stack import LabStack
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store.engine.database import Database
from hermes_worker.store.runs.runs import NewRun, Runs
from hermes_worker.store.runs.waits import NothingAsked, NotWaiting, Waits
from hermes_worker.store.tables import runs, tool_calls, workers
from hermes_worker.system.faults import FaultPoint
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

_LOOK_EVERY_S = 0.03
_STUCK_AFTER_S = 90.0
"""No step for this long means that something is lost for good."""
_DATABASE_PATIENCE_S = 30.0
_MODEL_POISON = "badbadbad0"
_TOOL_POISON = "badbadbad1"
"""The beginning of the ids of poisonous runs."""
_POISONS = (
    f"{FaultPoint.ITERATE_AFTER_REPLY.value}=kill?{_MODEL_POISON};"
    f"{FaultPoint.CALL_TOOL_AFTER_RUN.value}=kill?{_TOOL_POISON}"
)
_WORK_S = 0.02
"""How many seconds a sink tool takes after its effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabOptions:
    runs: int = 20
    steps: int = 10
    """Model calls with tool calls, for each run."""
    kills: int = 20
    seed: int = 1
    database_url: str | None = None
    """An empty database to work in; ``None`` for SQLite in the lab's directory."""
    own_postgres: bool = False
    """Start a PostgreSQL of the lab's own, which may then be restarted too."""
    ttl_s: float = 3.0
    only_kills: bool = False
    """Inject nothing but kills, each when the one before has been recovered from: this measures one takeover at a
    time, not the queue of them that a storm of kills makes."""
    has_trees: bool = False
    """A quarter of the runs delegate, a quarter ask for approval, and a quarter are stopped with their children."""
    workers_per_role: int = 2
    concurrency: int = 8
    poisons: int = 0
    """Runs beside the others that kill every worker which works on them, by turns in a model call and in a tool."""

    @property
    def poison_runs(self) -> list[str]:
        points = (_MODEL_POISON, _TOOL_POISON)
        return [f"run_{points[n % 2]}{n:0{32 - len(_MODEL_POISON)}x}" for n in range(self.poisons)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabProgress:
    steps_done: int
    steps_total: int
    runs_open: int
    faults_done: int
    faults_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabReport:
    options: LabOptions
    database: str
    duration_s: float
    faults: dict[str, int]
    """Injected faults, by kind."""
    findings: Sequence[AuditFinding]
    recovery_s: Sequence[float]
    """For every claim whose worker was killed: seconds until another worker went on with it."""
    unknown_calls: int
    """``once`` calls settled as outcome unknown: the honest price of a kill."""
    steps_per_s: float
    model_requests: int = 0
    """How often the model was asked, as its server counted."""
    unknown_attempts: int = 0
    """How many of these brought no reply that was written; they may have been billed."""
    answered: int = 0
    """Commands that the lab allowed."""
    stopped: int = 0
    """Runs that the lab stopped, their children not counted."""

    @property
    def is_green(self) -> bool:
        return all(finding.broken == 0 for finding in self.findings)

    def recovery(self, share: float) -> float | None:
        """A quantile of the recovery times; ``None`` when no claim was hit."""
        if not self.recovery_s:
            return None
        ordered = sorted(self.recovery_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@dataclass(slots=True)
class _KilledClaim:
    """A claim whose worker was killed."""

    at: float
    run_pk: int
    token: str
    position: int | None


@dataclass(slots=True)
class _Experiment:
    """The parts of the experiment while it runs."""

    stack: LabStack
    fleet: LabFleet
    database: Database
    redis: redis.Redis
    hits: list[_KilledClaim] = field(default_factory=list)
    recovery_s: list[float] = field(default_factory=list)
    thaw_at: list[tuple[float, LabWorker]] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)
    to_stop: set[str] = field(default_factory=set)
    """Runs to stop once one of their children is at work."""
    answered: int = 0
    stopped: int = 0


def _make_stack(options: LabOptions, directory: Path, *, prepares: bool) -> LabStack:
    return LabStack(
        directory,
        database_url=options.database_url,
        own_postgres=options.own_postgres,
        ttl_s=options.ttl_s,
        prepares=prepares,
    )


def run_lab(options: LabOptions, directory: Path, *, progress: Callable[[LabProgress], None]) -> LabReport:
    """Do the whole experiment in ``directory``. Raises ``ConfigurationError`` when a server cannot be had."""
    given = settings.load_settings()
    with _make_stack(options, directory, prepares=given.database.prepared_statements) as stack:
        database = stack.open_database()
        client = build_redis_client(stack.breaking_url)
        fleet = LabFleet(
            environ={**stack.build_environ(given.environ), "HERMES_FAULTS": _POISONS},
            directory=directory,
            workers_per_role=options.workers_per_role,
            concurrency=options.concurrency,
            work_s=_WORK_S,
        )
        schedule = make_schedule(
            seed=options.seed,
            kills=options.kills,
            steps_total=options.runs * options.steps,
            workers_per_role=options.workers_per_role,
            restarts_database=stack.may_restart_database,
            only_kills=options.only_kills,
        )
        with fleet:
            bench = _Experiment(stack=stack, fleet=fleet, database=database, redis=client)
            began = time.monotonic()
            submitted = _submit(bench, options, directory)
            bench.done["poison"] = options.poisons
            bench.to_stop = {run_id for run_id, part in submitted.items() if part is ScriptPart.IS_STOPPED}
            _break_and_watch(bench, options, schedule, progress)
            duration_s = time.monotonic() - began
        whole = [(run_id, part) for run_id, part in submitted.items() if part is not ScriptPart.IS_STOPPED]
        expected = {run_id: count_expected_iterations(options.steps, part) for run_id, part in whole}
        asked = stack.model_requests
        findings = check_invariants(
            database,
            fleet.sink,
            submitted=list(submitted),
            expected=expected,
            model_requests=asked,
            poisons=options.poison_runs,
        )
        unknown = _count_unknown_calls(database)
        with database.read() as connection:
            totals = sum_model_requests(connection)
        kind = database.url.get_backend_name()
        database.close()
    return LabReport(
        options=options,
        database=kind,
        duration_s=duration_s,
        faults=bench.done,
        findings=findings,
        recovery_s=bench.recovery_s,
        unknown_calls=unknown,
        model_requests=asked,
        unknown_attempts=totals.unknown,
        steps_per_s=options.runs * options.steps / duration_s,
        answered=bench.answered,
        stopped=bench.stopped,
    )


def _submit(bench: _Experiment, options: LabOptions, directory: Path) -> dict[str, ScriptPart]:
    """The runs and what each is there for."""
    catalog = default_catalog(*make_sink_tools(bench.fleet.sink, work_s=_WORK_S))
    toolsets = [TOOLSET, "delegation", "terminal"] if options.has_trees else [TOOLSET]
    tools = f"[{','.join(catalog.tool_definitions(catalog.resolve(toolsets)))}]"
    workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(directory / "workspace")).to_json()
    publisher = HintPublisher(bench.redis)
    store = Runs(bench.database)
    submitted = {}
    ids = [None] * options.runs + options.poison_runs
    for number, run_id in enumerate(ids):
        part = choose_part(number, has_trees=options.has_trees) if run_id is None else ScriptPart.WORKS
        prompt = build_prompt(number, options.steps, part)
        spec = RunSpec(input=prompt, model="scripted", toolsets=(TOOLSET,), iterations_max=1_000)
        created = store.create(
            NewRun(
                spec=spec, run_id=run_id, system_prompt="You are in the crash lab.", tools=tools, workspace=workspace
            )
        )
        publisher.send(created.hints)
        submitted[created.run_id] = part
    return submitted


def _break_and_watch(
    bench: _Experiment, options: LabOptions, schedule: Sequence[PlannedFault], progress: Callable[[LabProgress], None]
) -> None:
    waiting = list(schedule)
    last_change = time.monotonic()
    seen = -1
    while True:
        done, open_runs = _read_state(bench.database)
        if options.only_kills and not open_runs:
            return
        if done != seen:
            seen, last_change = done, time.monotonic()
        progress(
            LabProgress(
                steps_done=done,
                steps_total=options.runs * options.steps,
                runs_open=open_runs,
                faults_done=len(schedule) - len(waiting),
                faults_total=len(schedule),
            )
        )
        while waiting and waiting[0].after_steps <= done and not (options.only_kills and bench.hits):
            _inject(bench, waiting.pop(0), options.ttl_s)
        _tend_workers(bench)
        if options.has_trees:
            _play_the_user(bench)
        if not open_runs and not bench.thaw_at:
            return
        if time.monotonic() - last_change > _STUCK_AFTER_S:
            return  # the audit will name what is lost
        time.sleep(_LOOK_EVERY_S)


def _play_the_user(bench: _Experiment) -> None:
    """Allow what is asked for, and stop the runs that are there for that. Does nothing while the database is away."""
    waits, store, publisher = Waits(bench.database), Runs(bench.database), HintPublisher(bench.redis)
    try:
        for question in waits.list_open():
            publisher.send(
                waits.approve(question.run_id, ApprovalChoice.ONCE, by="chaos:lab", wait_id=question.wait_id)
            )
            bench.answered += 1
        for run_id in _with_children_at_work(bench.database) & bench.to_stop:
            stopped = store.stop_tree(run_id)
            publisher.publish_stops(stopped.run_ids, stopped.hints)
            bench.to_stop.discard(run_id)
            bench.stopped += 1
    except (UnavailableError, NotWaiting, NothingAsked):
        return


def _with_children_at_work(database: Database) -> set[str]:
    parents = runs.alias("parents")
    with _read_patiently(database) as connection:
        found = connection.execute(
            sa.select(parents.c.run_id).join(runs, runs.c.parent_pk == parents.c.pk).where(runs.c.iteration > 0)
        )
        return set(found.scalars())


@contextmanager
def _read_patiently(database: Database) -> Iterator[Connection]:
    """Like ``database.read``, but a server that we restarted ourselves gets the time to come back."""
    deadline = time.monotonic() + _DATABASE_PATIENCE_S
    while True:
        try:
            with database.read() as connection:
                connection.execute(sa.select(1))
                yield connection
                return
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _read_state(database: Database) -> tuple[int, int]:
    """Steps committed by the fleet, and runs that have not ended."""
    with _read_patiently(database) as connection:
        row = connection.execute(
            sa.select(
                sa.func.coalesce(sa.func.sum(runs.c.iteration), 0),
                sa.func.count().filter(runs.c.exit_reason.is_(None)),
            )
        ).one()
    return int(row[0]), int(row[1])


def _inject(bench: _Experiment, fault: PlannedFault, ttl_s: float) -> None:
    worker = bench.fleet.find_worker(fault.role, fault.index)
    match fault.kind:
        case FaultKind.KILL:
            _kill(bench, worker)
            bench.fleet.replace(worker)
        case FaultKind.KILL_AT_POINT:
            assert fault.point is not None
            bench.fleet.arm(worker, f"{fault.point.value}=kill@1;{_POISONS}")
        case FaultKind.FREEZE:
            if not worker.is_frozen:
                bench.fleet.freeze(worker)
                bench.thaw_at.append((time.monotonic() + 2 * ttl_s, worker))
        case FaultKind.FLUSH_BROKER:
            bench.redis.flushall()
        case FaultKind.RESTART_BROKER:
            bench.stack.wipe_broker()
        case FaultKind.RESTART_DATABASE:
            bench.stack.restart_database(away_s=1.0)
        case FaultKind.DUPLICATE_MESSAGES:
            _duplicate_messages(bench.redis)
        case FaultKind.DROP_MESSAGES:
            for queue in QueueName:
                bench.redis.lpop(f"{KEY_PREFIX}{queue.value}", 5)
        case FaultKind.JUMP_CLOCK:
            _kill(bench, worker)
            bench.fleet.replace(worker, clock_offset_s=fault.clock_offset_s)
    bench.done[fault.kind.value] = bench.done.get(fault.kind.value, 0) + 1


def _duplicate_messages(client: redis.Redis) -> None:
    """Send every waiting message two more times."""
    for queue in QueueName:
        key = f"{KEY_PREFIX}{queue.value}"
        waiting = client.lrange(key, 0, 99)
        if waiting:
            client.lpush(key, *waiting, *waiting)


def _kill(bench: _Experiment, worker: LabWorker) -> None:
    """SIGKILL, and remember what the process held."""
    held = _list_claims_of(bench.database, worker.name)
    bench.fleet.kill(worker)
    now = time.monotonic()
    bench.hits += [
        _KilledClaim(at=now, run_pk=run_pk, token=token, position=position) for run_pk, token, position in held
    ]


def _list_claims_of(database: Database, name: str) -> list[tuple[int, str, int | None]]:
    owner = sa.select(workers.c.pk).where(workers.c.name == name)
    with _read_patiently(database) as connection:
        turns = connection.execute(sa.select(runs.c.pk, runs.c.lease_token).where(runs.c.lease_owner.in_(owner))).all()
        calls = connection.execute(
            sa.select(tool_calls.c.run_pk, tool_calls.c.lease_token, tool_calls.c.position).where(
                tool_calls.c.lease_owner.in_(owner)
            )
        ).all()
    return [(pk, token, None) for pk, token in turns] + [(pk, token, position) for pk, token, position in calls]


def _tend_workers(bench: _Experiment) -> None:
    """Thaw what was frozen long enough, replace what died by itself, and see which hits have recovered."""
    now = time.monotonic()
    for entry in [entry for entry in bench.thaw_at if entry[0] <= now]:
        bench.thaw_at.remove(entry)
        bench.fleet.thaw(entry[1])
    for worker in list(bench.fleet.workers):
        if not bench.fleet.is_alive(worker):
            held = _list_claims_of(bench.database, worker.name)
            bench.hits += [
                _KilledClaim(at=now, run_pk=pk, token=token, position=position) for pk, token, position in held
            ]
            bench.fleet.replace(worker)
    if bench.hits:
        _notice_recoveries(bench)


def _notice_recoveries(bench: _Experiment) -> None:
    with _read_patiently(bench.database) as connection:
        turns = {row.pk: row.lease_token for row in connection.execute(sa.select(runs.c.pk, runs.c.lease_token))}
        due = set(connection.execute(sa.select(runs.c.pk).where(runs.c.hinted_at.is_not(None))).scalars())
        calls = {
            (row.run_pk, row.position): (row.lease_token, row.status)
            for row in connection.execute(
                sa.select(
                    tool_calls.c.run_pk, tool_calls.c.position, tool_calls.c.lease_token, tool_calls.c.status
                ).join(runs, (runs.c.pk == tool_calls.c.run_pk) & (runs.c.iteration == tool_calls.c.iteration))
            )
        }
    now = time.monotonic()
    for hit in list(bench.hits):
        if hit.position is None:
            gone_on = turns.get(hit.run_pk) != hit.token and hit.run_pk not in due
        else:
            token, status = calls.get((hit.run_pk, hit.position), (None, "succeeded"))
            gone_on = token != hit.token and status != "pending"
        if gone_on:
            bench.hits.remove(hit)
            bench.recovery_s.append(now - hit.at)


def _count_unknown_calls(database: Database) -> int:
    with database.read() as connection:
        return connection.execute(sa.select(sa.func.count()).where(tool_calls.c.status == "unknown")).scalar_one()
