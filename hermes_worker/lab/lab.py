"""Run the experiment: submit, break on schedule, watch the recovery, audit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import redis
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker import settings
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.broker.queue import KEY_PREFIX, HintPublisher, QueueName, build_redis_client
from hermes_worker.core.errors import InvalidTransition, UnavailableError
from hermes_worker.core.run_views import WaitView
from hermes_worker.core.spec import RunSpec
from hermes_worker.lab.audit import check_invariants, is_at_rest, list_unfinished, sum_model_requests
from hermes_worker.lab.audit_outside import OutsideFacts
from hermes_worker.lab.duels import DuelKind, DuelReferee, choose_duels, write_duel_plan
from hermes_worker.lab.findings import AuditFinding
from hermes_worker.lab.fleet import QUEUES, LabFleet, LabWorker
from hermes_worker.lab.people import People, do_at_once
from hermes_worker.lab.plan import FaultKind, FleetRole, PlannedFault, make_schedule
from hermes_worker.lab.script import (
    ScriptPart,
    build_duel_prompt,
    build_prompt,
    choose_part,
    count_expected_iterations,
)
from hermes_worker.lab.sink import TOOLSET, make_sink_tools
from hermes_worker.lab.stack import PRICES_USD, LabStack
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store.engine.database import Database
from hermes_worker.store.runs.runs import NewRun, Runs
from hermes_worker.store.runs.waits import NothingAsked, NotWaiting, Waits
from hermes_worker.store.tables import deliveries, processes, runs, tool_calls, workers
from hermes_worker.system.faults import FaultPoint
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

_LOOK_EVERY_S = 0.03
_REST_S = 30.0
"""How long the rows may rest, with runs open that nothing will move on, before the audit names them as lost."""
_PATIENCE_S = 600.0
"""How long the lab waits for a change, of whatever kind, before it calls what is open not finished in time."""
_DATABASE_PATIENCE_S = 30.0
_MODEL_POISON = "badbadbad0"
_TOOL_POISON = "badbadbad1"
"""The beginning of the ids of poisonous runs."""
_POISONS = (
    f"{FaultPoint.ITERATE_AFTER_REPLY.value}=kill?{_MODEL_POISON};"
    f"{FaultPoint.CALL_TOOL_AFTER_RUN.value}=kill?{_TOOL_POISON}"
)
_QUEUES = {**QUEUES, FleetRole.TOOLS: (*QUEUES[FleetRole.TOOLS], "delivery")}
_PROCESSES = "processes.txt"
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
    duels: int = 0
    """Runs in which two workers are brought to one row (``lab.duels``), of every kind by turns."""
    duel_kinds: Sequence[DuelKind] = ()
    """Kinds of more such runs, one of each."""
    people: int = 0
    """People and programs outside that do everything twice at once (``lab.people``)."""
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
    duels: dict[str, int] = field(default_factory=dict)
    """Duels in which two workers met, by kind."""
    deliveries: int = 0
    """Requests that the sink of deliveries took."""
    unfinished: Sequence[str] = ()
    """Runs and deliveries that were not finished in time: slow, and neither lost nor judged."""

    @property
    def is_green(self) -> bool:
        """No invariant was found broken. Says nothing about what was not finished in time."""
        return all(finding.broken == 0 for finding in self.findings)

    def compute_recovery_s(self, share: float) -> float | None:
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
    people: People
    referee: DuelReferee
    hits: list[_KilledClaim] = field(default_factory=list)
    recovery_s: list[float] = field(default_factory=list)
    thaw_at: list[tuple[float, LabWorker]] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)
    to_stop: set[str] = field(default_factory=set)
    """Runs to stop once one of their children is at work."""
    answered: int = 0
    stopped: int = 0
    plan: str = ""
    """Faults that every worker is armed with."""


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
    duels = choose_duels(options.duels, options.seed, options.duel_kinds)
    plan = ";".join(filter(None, (_POISONS, write_duel_plan(duels, directory))))
    with _make_stack(options, directory, prepares=given.database.prepared_statements) as stack:
        database = stack.open_database()
        client = build_redis_client(stack.breaking_url)
        fleet = LabFleet(
            environ={**stack.build_environ(given.environ), "HERMES_FAULTS": plan},
            directory=directory,
            workers_per_role=options.workers_per_role,
            concurrency=options.concurrency,
            work_s=_WORK_S,
            queues=_QUEUES,
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
            publisher = HintPublisher(client)
            bench = _Experiment(
                stack=stack,
                fleet=fleet,
                database=database,
                redis=client,
                people=People(database, publisher, partial(_build_run, fleet, directory), options.people),
                referee=DuelReferee(duels, directory, fleet, publisher, options.ttl_s),
                plan=plan,
            )
            began = time.monotonic()
            submitted = _submit(bench, options, directory, duels)
            bench.people.start()
            bench.done["poison"] = options.poisons
            bench.to_stop = {run_id for run_id, part in submitted.items() if part is ScriptPart.IS_STOPPED}
            _break_and_watch(bench, options, schedule, progress)
            duration_s = time.monotonic() - began
        whole = [(run_id, part) for run_id, part in submitted.items() if part is not ScriptPart.IS_STOPPED]
        expected = {
            run_id: 2 if run_id in duels else count_expected_iterations(options.steps, part) for run_id, part in whole
        }
        return _audit_experiment(bench, options, directory, [*submitted, *bench.people.submitted], expected, duration_s)


def _audit_experiment(
    bench: _Experiment,
    options: LabOptions,
    directory: Path,
    submitted: Sequence[str],
    expected: Mapping[str, int],
    duration_s: float,
) -> LabReport:
    asked, database = bench.stack.model_requests, bench.database
    findings = check_invariants(
        database,
        bench.fleet.sink,
        submitted=submitted,
        expected=expected,
        model_requests=asked,
        poisons=options.poison_runs,
        usage=bench.stack.model_usage,
        prices_usd=PRICES_USD,
        outside=OutsideFacts(
            taken=bench.stack.sink.taken,
            frozen_before_sending=bench.referee.frozen_before_sending,
            process_marks=directory / "workspace" / _PROCESSES,
            wrong_answers=bench.people.wrong,
        ),
    )
    unknown = _count_unknown_calls(database)
    with database.read() as connection:
        totals = sum_model_requests(connection)
        unfinished = [*list_unfinished(connection), *_list_open_deliveries(connection)]
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
        duels=bench.referee.fought,
        deliveries=sum(map(len, bench.stack.sink.taken.values())),
        unfinished=unfinished,
    )


def _build_run(fleet: LabFleet, directory: Path, prompt: str, *toolsets: str, has_limits: bool = True) -> NewRun:
    """Build a run of the lab. One with limits has a budget of its own, from which each model call reserves."""
    catalog = build_default_catalog(*make_sink_tools(fleet.sink, work_s=_WORK_S))
    tools = f"[{','.join(catalog.render_definitions(catalog.resolve([TOOLSET, *toolsets])))}]"
    workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(directory / "workspace")).to_json()
    spec = RunSpec(input=prompt, model="scripted", toolsets=(TOOLSET,), iterations_max=1_000)
    if has_limits:
        spec = replace(spec, tokens_max=10**9, nano_usd_max=10**15)
    return NewRun(spec=spec, system_prompt="You are in the crash lab.", tools=tools, workspace=workspace)


def _submit(
    bench: _Experiment, options: LabOptions, directory: Path, duels: Mapping[str, DuelKind]
) -> dict[str, ScriptPart]:
    """Submit all runs, and return what each is there for."""
    publisher, store = HintPublisher(bench.redis), Runs(bench.database)
    submitted = {}
    more = ("delegation", "terminal") if options.has_trees else ()
    ids = [None] * options.runs + options.poison_runs
    deliver = (bench.stack.sink.target,)
    new: list[tuple[NewRun, ScriptPart]] = []
    for number, run_id in enumerate(ids):
        part = choose_part(number, has_trees=options.has_trees) if run_id is None else ScriptPart.WORKS
        built = _build_run(
            bench.fleet, directory, build_prompt(number, options.steps, part), *more, has_limits=number % 2 == 0
        )
        new.append((replace(built, run_id=run_id, deliver=deliver if number % 3 == 0 and run_id is None else ()), part))
    for number, (run_id, kind) in enumerate(duels.items()):
        prompt = build_duel_prompt(number, kind, _PROCESSES)
        built = _build_run(bench.fleet, directory, prompt, "memory", "terminal")
        new.append((replace(built, run_id=run_id, deliver=deliver if kind.delivers else ()), ScriptPart.WORKS))
    for each, part in new:
        created = store.create(each)
        publisher.send(created.hints)
        submitted[created.run_id] = part
    return submitted


def _break_and_watch(
    bench: _Experiment, options: LabOptions, schedule: Sequence[PlannedFault], progress: Callable[[LabProgress], None]
) -> None:
    waiting = list(schedule)
    last_change, last_moves = time.monotonic(), -1
    while True:
        state = _read_state(bench.database)
        if options.only_kills and not state.is_busy and _are_all_done(bench):
            return
        if state.moves != last_moves:
            last_moves, last_change = state.moves, time.monotonic()
        progress(
            LabProgress(
                steps_done=state.steps_done,
                steps_total=options.runs * options.steps,
                runs_open=state.runs_open,
                faults_done=len(schedule) - len(waiting),
                faults_total=len(schedule),
            )
        )
        while waiting and waiting[0].after_steps <= state.steps_done and not (options.only_kills and bench.hits):
            _inject(bench, waiting.pop(0), options.ttl_s)
        _tend_workers(bench)
        if options.has_trees:
            _play_the_user(bench)
        if not state.is_busy and not bench.thaw_at and _are_all_done(bench):
            return
        quiet_s = time.monotonic() - last_change
        if quiet_s > _PATIENCE_S or (quiet_s > _REST_S and state.is_at_rest and _are_all_done(bench)):
            return  # the audit will name what is lost, and the report what was not finished in time
        time.sleep(_LOOK_EVERY_S)


def _are_all_done(bench: _Experiment) -> bool:
    return bench.people.is_done and bench.referee.is_over


def _play_the_user(bench: _Experiment) -> None:
    """Allow what is asked for, and stop the runs that are there for that. Does nothing while the database is away."""
    waits, store, publisher = Waits(bench.database), Runs(bench.database), HintPublisher(bench.redis)
    try:
        for question in waits.list_open():
            bench.answered += _answer_twice(bench, publisher, question)
        for run_id in _list_with_children_at_work(bench.database) & bench.to_stop:
            stopped = store.stop_tree(run_id)
            publisher.publish_stops(stopped.run_ids, stopped.hints)
            bench.to_stop.discard(run_id)
            bench.stopped += 1
    except (UnavailableError, NotWaiting, NothingAsked):
        return


def _answer_twice(bench: _Experiment, publisher: HintPublisher, question: WaitView) -> int:
    """Two people allow a command at once; returns how many answers were taken."""
    wrong, waits = bench.people.wrong, Waits(bench.database)

    def answer() -> None:
        try:
            hints = waits.approve(question.run_id, ApprovalChoice.ONCE, by="chaos:lab", wait_id=question.wait_id)
        except InvalidTransition as error:
            wrong.setdefault("answers that met no question", []).append(str(error))
        else:
            publisher.send(hints)

    return len(do_at_once(answer, (NotWaiting, NothingAsked, UnavailableError)))


def _list_with_children_at_work(database: Database) -> set[str]:
    parents = runs.alias("parents")
    with _read_patiently(database) as connection:
        found = connection.execute(
            sa.select(parents.c.run_id).join(runs, runs.c.parent_pk == parents.c.pk).where(runs.c.iteration > 0)
        )
        return set(found.scalars())


@contextmanager
def _read_patiently(database: Database) -> Iterator[Connection]:
    """Open a connection for reading; a server that we restarted ourselves gets the time to come back."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _LabState:
    """The state of the experiment, read from its rows."""

    steps_done: int
    runs_open: int
    moves: int
    """Changes whenever a step, a claim's loss or a settled call is written."""
    is_at_rest: bool
    is_busy: bool
    """Runs, deliveries or background processes are open."""


def _read_state(database: Database) -> _LabState:
    with _read_patiently(database) as connection:
        row = connection.execute(
            sa.select(
                sa.func.coalesce(sa.func.sum(runs.c.iteration), 0).label("steps"),
                sa.func.coalesce(sa.func.sum(runs.c.event_seq + runs.c.attempt), 0).label("moves"),
                sa.func.count().filter(runs.c.exit_reason.is_(None)).label("open"),
            )
        ).one()
        started = sa.select(sa.func.count()).where(processes.c.ended_at.is_(None))
        others = len(_list_open_deliveries(connection)) + connection.execute(started).scalar_one()
        rests = is_at_rest(connection)
    return _LabState(
        steps_done=int(row.steps),
        runs_open=int(row.open),
        moves=int(row.moves),
        is_at_rest=rests and not others,
        is_busy=bool(row.open or others),
    )


def _list_open_deliveries(connection: Connection) -> list[str]:
    return list(
        connection.execute(sa.select(deliveries.c.delivery_id).where(deliveries.c.settled_at.is_(None))).scalars()
    )


def _inject(bench: _Experiment, fault: PlannedFault, ttl_s: float) -> None:
    worker = bench.fleet.find_worker(fault.role, fault.index)
    match fault.kind:
        case FaultKind.KILL:
            _kill(bench, worker)
            bench.fleet.replace(worker)
        case FaultKind.KILL_AT_POINT:
            bench.fleet.arm(worker, f"{fault.point}=kill@1;{bench.plan}")
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
    """Kill the process with SIGKILL, and remember what it held."""
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
    with _read_patiently(bench.database) as connection:
        bench.referee.tend(connection)


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
    return int(database.select(sa.select(sa.func.count()).where(tool_calls.c.status == "unknown")).scalar_one())
