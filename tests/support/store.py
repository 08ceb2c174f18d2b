"""A store to test with: its parts, short ways to drive a run, time that passes on demand, and its invariants."""

from __future__ import annotations

import json
import time
from collections import defaultdict, namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from hermes_worker.broker.queue import QueueName
from hermes_worker.core import events as ev
from hermes_worker.core.clock_steps import ClockLook
from hermes_worker.core.effects import AskAuxiliary, Effect, Iterate, Prepare, RunTool, list_outstanding
from hermes_worker.core.fair_share import FleetPlace
from hermes_worker.core.messages import ModelReply, ToolRequest, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus, RunStatus
from hermes_worker.core.spec import RunSpec
from hermes_worker.store.clock import CLOCK
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import Prepared, list_columns
from hermes_worker.store.rows import CALL_COLUMNS, RUN_COLUMNS, Hint, to_loaded
from hermes_worker.store.runs.auxiliary import AuxiliaryCalls, AuxiliaryClaim
from hermes_worker.store.runs.calls import CallClaim, Settlement, ToolCalls
from hermes_worker.store.runs.new_children import NewChild
from hermes_worker.store.runs.runs import Created, IterationClaim, NewRun, Runs, create_run_id
from hermes_worker.store.runs.transcripts import Transcripts
from hermes_worker.store.runs.views import Views
from hermes_worker.store.sweep import Sweeper, SweepPolicy, SweepResult
from hermes_worker.store.tables import (
    audit_log,
    events,
    maintenance,
    messages,
    runs,
    sessions,
    tenant_shares,
    tool_calls,
    workers,
)
from hermes_worker.store.whole_schema import load_schema
from hermes_worker.store.workers import Registration, Workers
from support.migrated import bring_up

TTL_S = 15.0
GRACE_S = 2.0
POLICY = SweepPolicy(interval_s=0.0, ttl_s=TTL_S, resend_grace_s=GRACE_S)
EMPTY: Mapping[str, int] = dict.fromkeys(QueueName, 0)
"""Queue depths of a broker that holds nothing."""
FULL: Mapping[str, int] = dict.fromkeys(QueueName, 20_000)
SPEC = RunSpec(input="hello", model="scripted")


def new_run(**changes: Any) -> NewRun:
    """A submission; fields of ``RunSpec`` and of ``NewRun`` may be given."""
    of_spec = {name: changes.pop(name) for name in list(changes) if name in RunSpec.__dataclass_fields__}
    facts = {"system_prompt": "You are a test.", "tools": "[]", "workspace": "{}"}
    return NewRun(spec=replace(SPEC, **of_spec), **{**facts, **changes})


def new_children(count: int, **spec: Any) -> list[NewChild]:
    """Children to be made; ``spec`` are fields of ``RunSpec``."""
    return [
        NewChild(
            run_id=create_run_id(),
            spec=replace(SPEC, input=f"task {number}", **spec),
            system_prompt="You are a child.",
            tools="[]",
            workspace="{}",
        )
        for number in range(count)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A reply that asks for tools, with its plan."""

    reply: ModelReply
    calls: tuple[ev.PlannedCall, ...]


def asks(*replays: Replay, segments: Sequence[int] | None = None, timeout_s: float = 60.0) -> Asked:
    """A reply with one call per replay class; all in one segment unless ``segments`` says otherwise."""
    requests = tuple(
        ToolRequest(id=f"call_{n}", name=f"tool{n}", arguments=f'{{"n":{n}}}') for n in range(len(replays))
    )
    where = segments if segments is not None else [0] * len(replays)
    calls = tuple(
        ev.PlannedCall(name=f"tool{n}", replay=replay, segment=where[n], timeout_s=timeout_s)
        for n, replay in enumerate(replays)
    )
    reply = ModelReply(text="", tool_requests=requests, finish_reason="tool_calls", usage=Usage(input=10, output=5))
    return Asked(reply=reply, calls=calls)


ANSWER = ModelReply(text="done", usage=Usage(input=3, output=2))


def settlement(text: str = "ok", *, status: CallStatus = CallStatus.SUCCEEDED, **updates: Any) -> Settlement:
    return Settlement(status=status, text=text, duration_s=0.01, session_updates=updates)


def before_step(look: ClockLook, seconds: float) -> ClockLook:
    """What a process remembers, seen after the database's clock was set ahead by ``seconds``."""
    return replace(look, at=look.at - seconds, swept_at=look.swept_at - seconds)


@dataclass(slots=True, kw_only=True)
class Store:
    """Every part of the store over one database."""

    database: Database
    runs: Runs
    calls: ToolCalls
    auxiliary_calls: AuxiliaryCalls
    workers: Workers
    views: Views
    transcripts: Transcripts
    sweeper: Sweeper
    _owner: Registration | None = field(default=None)

    @classmethod
    def over(cls, database: Database, policy: SweepPolicy = POLICY) -> Store:
        return cls(
            database=database,
            runs=Runs(database),
            calls=ToolCalls(database),
            auxiliary_calls=AuxiliaryCalls(database),
            workers=Workers(database),
            views=Views(database),
            transcripts=Transcripts(database),
            sweeper=Sweeper(database, policy),
        )

    # --- driving a run ---

    def worker(self, name: str = "worker", *, ttl_s: float = TTL_S) -> Registration:
        return self.workers.register(name=name, queues="model,tools", ttl_s=ttl_s)

    @property
    def owner(self) -> int:
        """The number of a worker that is there whenever a test does not care which."""
        if self._owner is None:
            self._owner = self.worker("default", ttl_s=1e9)
        return self._owner.pk

    def submit(self, **changes: Any) -> Created:
        return self.runs.create(new_run(**changes))

    def due(self, run_id: str) -> list[Effect]:
        """What the rows say is due, in order."""
        with self.database.read() as connection:
            row = _RUN.first(connection, {"run_id": run_id})
            return due_of(row, _DUE_CALLS.all(connection, {"run_pk": row.pk}))

    def turn(self, run_id: str, owner: int | None = None) -> IterationClaim:
        """Claim the model call that is due."""
        effect = next(effect for effect in self.due(run_id) if isinstance(effect, Iterate))
        claim = self.runs.claim_iteration(effect, owner if owner is not None else self.owner)
        assert claim is not None
        return claim

    def call(self, run_id: str, position: int = 0, owner: int | None = None) -> CallClaim:
        """Claim a tool call that is due, and begin it."""
        claim = self.claimed_call(run_id, position, owner)
        if claim.replay is Replay.ONCE:
            self.calls.begin(claim)
        return claim

    def claimed_call(self, run_id: str, position: int = 0, owner: int | None = None) -> CallClaim:
        """Claim a tool call that is due. Its tool has not begun."""
        effect = next(
            effect for effect in self.due(run_id) if isinstance(effect, RunTool) and effect.position == position
        )
        claim = self.calls.claim(effect, owner if owner is not None else self.owner)
        assert claim is not None
        return claim

    def question(self, run_id: str, position: int = 0, owner: int | None = None) -> AuxiliaryClaim:
        """Claim the auxiliary call that is due of a tool call."""
        effect = next(
            effect for effect in self.due(run_id) if isinstance(effect, AskAuxiliary) and effect.position == position
        )
        claim = self.auxiliary_calls.claim(effect, owner if owner is not None else self.owner)
        assert claim is not None
        return claim

    def ask_tools(self, run_id: str, asked: Asked, owner: int | None = None) -> list[Hint]:
        """One iteration up to its tools: claim the call and commit a reply that asks for them."""
        return self.ask_tools_with(self.turn(run_id, owner), asked)

    def ask_tools_with(self, claim: IterationClaim, asked: Asked) -> list[Hint]:
        return self.runs.commit_reply(claim, asked.reply, asked.calls)

    def answer(self, run_id: str, reply: ModelReply = ANSWER) -> list[Hint]:
        return self.runs.commit_reply(self.turn(run_id), reply, ())

    def settle(self, run_id: str, position: int = 0, text: str = "ok", **more: Any) -> list[Hint]:
        return self.calls.settle(self.call(run_id, position), settlement(text, **more))

    def with_tools(self, *replays: Replay, segments: Sequence[int] | None = None, **changes: Any) -> str:
        """A run whose model has asked for tools that nobody has claimed yet."""
        run_id = self.submit(**changes).run_id
        self.ask_tools(run_id, asks(*replays, segments=segments))
        return run_id

    def delegate(self, run_id: str, count: int, *, children_max: int = 1_000, note: str | None = None) -> list[str]:
        """Hand the call that is due of a run to children, in the background with a ``note``; their ids."""
        new = new_children(count, iterations_max=100_000)
        self.calls.delegate(self.call(run_id), new, children_max=children_max, note=note)
        return [child.run_id for child in new]

    def status(self, run_id: str) -> RunStatus:
        with self.database.read() as connection:
            return RunStatus(_RUN.first(connection, {"run_id": run_id}).status)

    def bodies(self, run_id: str) -> list[dict[str, Any]]:
        """The transcript of the run's session, parsed."""
        return [json.loads(row.body) for row in self.views.load_transcript(run_id)]

    def results(self, run_id: str) -> list[str]:
        return [row["content"] for row in self.bodies(run_id) if row["role"] == "tool"]

    def event_names(self, run_id: str) -> list[str]:
        return [event.name for event in self.views.list_events_after(run_id, 0)]

    # --- time ---

    def sweep(self, depths: Mapping[str, int] | None = FULL) -> SweepResult:
        """One round of the sweeper; by default the broker holds a backlog, so that nothing is sent again."""
        swept = self.sweeper.sweep(depths)
        if swept is None:  # the very first offer only makes the row
            swept = self.sweeper.sweep(depths)
        assert swept is not None
        return swept

    def let_pass(self, seconds: float, *, nobody_swept: bool = False) -> None:
        """Move every stored time into the past, as if ``seconds`` had passed.

        With ``nobody_swept`` the sweeper was away as well: the database was down.
        """
        with self.database.write() as connection:
            if self.database.is_sqlite:
                for change in _TIMES.values():
                    connection.exec_driver_sql(change.format(seconds))
            else:
                connection.exec_driver_sql(_AGE_ROWS.format(seconds))
            if nobody_swept:
                connection.exec_driver_sql(_NOBODY_SWEPT.format(seconds))
            for row in connection.execute(sa.select(workers.c.pk, workers.c.watermarks)).all():
                marks = {queue: at - seconds for queue, at in json.loads(row.watermarks).items()}
                connection.execute(
                    sa.update(workers).where(workers.c.pk == row.pk).values(watermarks=json.dumps(marks))
                )

    def step_clock(self, seconds: float) -> None:
        """Set the database's clock ahead by ``seconds``, or back: everything that was read of it or stored before lies
        as much farther behind."""
        assert self.sweeper.clock.last is not None, "nobody has looked at the clock"
        self.let_pass(seconds, nobody_swept=True)
        self.sweeper.clock.last = before_step(self.sweeper.clock.last, seconds)

    def vanish(self, registration: Registration) -> None:
        """The worker's process is gone and its term is over; nobody has noticed yet."""
        with self.database.write() as connection:
            _VANISH.run(connection, {"worker": registration.pk})

    def crash(self, registration: Registration) -> None:
        """The worker is a lane, and its parent saw it end by itself."""
        with self.database.write() as connection:
            _CRASH.run(connection, {"worker": registration.pk})

    def change(self, table: sa.Table, run_id: str, **values: Any) -> None:
        """Write into rows behind the store's back, as a defect or an operator would."""
        with self.database.write() as connection:
            pk = connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == run_id)).scalar_one()
            key = table.c.pk if table is runs else table.c.run_pk
            connection.execute(sa.update(table).where(key == pk).values(**values))


def _write_change(table: sa.Table) -> str:
    """Write the statement that moves all times of ``table`` into the past by so many seconds; "" if it has none."""
    times = [column.name for column in table.c if isinstance(column.type, sa.Double)]
    moved = [f"{name} = {name} - {{0!r}}" for name in times if name not in ("idle_s_max", "watched_until", "tokens")]
    return f"update {table.name} set {', '.join(moved)}" if moved else ""


# As texts: to build the statements of sixty tables anew took ten times as long as a sweep.
_AGING = [table for table in load_schema().tables.values() if table not in (audit_log, tenant_shares, maintenance)]
_TIMES = {table.name: change for table in _AGING if (change := _write_change(table))}
_NOBODY_SWEPT = f"{_write_change(maintenance)} where name <> '{CLOCK}'"
# Only where there are rows: on PostgreSQL most of the time would be spent on plans for tables that hold none.
_AGE_ROWS = "do $$ begin {} end $$".format(
    " ".join(f"if pg_relation_size('{name}') > 0 then {change}; end if;" for name, change in _TIMES.items())
)


def prepared(statement: Any) -> Prepared[Any, Any]:
    """A statement of a test: what it takes and gives is read from itself."""
    columns, binds = list_columns(statement), statement.compile(dialect=postgresql.dialect()).binds
    names = {name for name, bind in binds.items() if bind.required}
    return Prepared(statement, names=names, gives=namedtuple("Row", columns) if columns else None)  # type: ignore[call-overload]


_RUN = prepared(
    sa.select(
        runs.c.pk,
        runs.c.run_id,
        runs.c.status,
        runs.c.iteration,
        runs.c.attempt,
        runs.c.deaths,
        runs.c.hinted_at,
        runs.c.prepares,
    ).where(runs.c.run_id == sa.bindparam("run_id"))
)
_VANISH = prepared(sa.update(workers).where(workers.c.pk == sa.bindparam("worker")).values(expires_at=1.0))
_CRASH = prepared(sa.update(workers).where(workers.c.pk == sa.bindparam("worker")).values(state="crashed"))
_DUE_CALLS = prepared(
    sa.select(
        tool_calls.c.iteration, tool_calls.c.position, tool_calls.c.attempt, tool_calls.c.deaths, tool_calls.c.asks
    )
    .where(tool_calls.c.run_pk == sa.bindparam("run_pk"), tool_calls.c.hinted_at.is_not(None))
    .order_by(tool_calls.c.iteration, tool_calls.c.position)
)


def due_of(row: Any, calls: Iterable[Any]) -> list[Effect]:
    """What is due of a run, of whose calls ``calls`` are."""
    effects: list[Effect] = [
        (AskAuxiliary if call.asks == 1 else RunTool)(
            run_id=row.run_id,
            iteration=call.iteration,
            position=call.position,
            attempt=call.attempt,
            is_suspect=call.deaths is not None,
        )
        for call in calls
    ]
    if row.hinted_at is not None:
        is_suspect = row.deaths is not None
        effects.append(
            Prepare(run_id=row.run_id, attempt=row.attempt, is_suspect=is_suspect)
            if row.prepares is not None and row.iteration == 0
            else Iterate(run_id=row.run_id, iteration=row.iteration + 1, attempt=row.attempt, is_suspect=is_suspect)
        )
    return effects


def is_blocked(store: Store, count: int = 1) -> bool:
    """Whether ``count`` connections of this PostgreSQL database wait for somebody's lock."""
    waiting = sa.text(
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )
    with store.database.read() as connection:
        return int(connection.execute(waiting).scalar_one()) >= count


def wait_until_blocked(store: Store, count: int = 1) -> None:
    for _ in range(2_000):
        if is_blocked(store, count):
            return
        time.sleep(0.005)
    raise AssertionError(f"fewer than {count} connections came to wait for a lock")


def deadlocks(store: Store) -> int:
    """How many deadlocks this PostgreSQL database has had to break."""
    with store.database.read() as connection:
        connection.execute(sa.text("select pg_stat_force_next_flush()"))
        found = sa.text("select deadlocks from pg_stat_database where datname = current_database()")
        return int(connection.execute(found).scalar_one())


@contextmanager
def opened(url: str, *, pool_size: int = 40, is_migrated: bool = False) -> Iterator[Store]:
    """The store over a database that is brought to the newest schema first, unless it has that already."""
    if not is_migrated:
        bring_up(url)
    database = Database(url, pool_size=pool_size)
    try:
        yield Store.over(database)
    finally:
        database.close()


# --- invariants ------------------------------------------------------------------------------------------------------

_ALL_RUNS = prepared(sa.select(*RUN_COLUMNS, runs.c.hinted_at, runs.c.not_before).order_by(runs.c.pk))
_ALL_SESSIONS = prepared(sa.select(sessions.c.pk, sessions.c.session_id, sessions.c.active_run_pk))
_ALL_CALLS = prepared(
    sa.select(
        tool_calls.c.run_pk,
        tool_calls.c.iteration,
        *CALL_COLUMNS,
        tool_calls.c.hinted_at,
        tool_calls.c.settled_at,
    ).order_by(tool_calls.c.run_pk, tool_calls.c.iteration, tool_calls.c.position)
)
_ALL_EVENTS = prepared(sa.select(events.c.run_pk, events.c.seq, events.c.event).order_by(events.c.run_pk, events.c.seq))
_ALL_MESSAGES = prepared(
    sa.select(messages.c.session_pk, messages.c.run_pk, messages.c.seq, messages.c.body).order_by(messages.c.seq)
)


def check(store: Store) -> None:
    """Assert what must hold of every run in the database at any moment when no transaction is open."""
    with store.database.read() as connection:
        rows = _ALL_RUNS.all(connection, {})
        held = _ALL_SESSIONS.all(connection, {})
        calls = _by_run(_ALL_CALLS.all(connection, {}))
        happened = _by_run(_ALL_EVENTS.all(connection, {}))
        said = _by_run(_ALL_MESSAGES.all(connection, {}))
    active = {session.pk: session.active_run_pk for session in held}
    for row in rows:
        what = f"run {row.run_id} ({row.status}, iteration {row.iteration})"
        _check_run(row, calls[row.pk], is_active=row.pk in active.values(), what=what)
        _check_events(row, happened[row.pk], what)
        _check_transcript(row, [m for m in said[row.pk] if m.session_pk == row.session_pk], calls[row.pk], what)
    for row in rows:
        ended = RunStatus(row.status).is_terminal
        if active[row.session_pk] == row.pk:
            assert not ended, f"{row.run_id} has ended and still holds its session"
        elif not ended:
            assert row.status in ("queued", "paused") and row.hinted_at is None, (
                f"{row.run_id} works and is not its session's active run"
            )
    for session in held:
        mine = [row for row in rows if row.session_pk == session.pk and not RunStatus(row.status).is_terminal]
        # A child that waits for a place among its siblings is not its session's active run yet.
        waiting = [row for row in mine if row.parent_pk is None or row.status != "queued" or row.hinted_at]
        waiting = [row for row in waiting if row.status != "paused" or row.pk == session.active_run_pk]
        # The sweeper begins what was put off.
        waiting = [row for row in waiting if row.not_before is None or row.pk == session.active_run_pk]
        # A run that is held for want of a place leaves its session free.
        if any(row.place == FleetPlace.HELD and row.status == "queued" for row in waiting):
            waiting = [row for row in waiting if row.pk == session.active_run_pk]
        assert (session.active_run_pk is None) == (not waiting), f"session {session.session_id} lost its active run"


def _by_run(rows: Iterable[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        found[row.run_pk].append(row)
    return found


def _check_run(row: Any, calls: Sequence[Any], *, is_active: bool, what: str) -> None:
    run = to_loaded(row, [call for call in calls if call.iteration == row.iteration]).run
    if is_active or run.status.is_terminal:
        due = due_of(row, [call for call in calls if call.hinted_at is not None])
        assert set(due) == list_outstanding(run), f"{what}: due rows and the state disagree"
    if not run.status.is_terminal and not run.status.is_parked and is_active:
        assert run.is_held or list_outstanding(run), f"{what}: nobody holds it and nothing is due"
    if run.status.is_terminal:
        assert not run.unsettled_calls and not run.is_asking, f"{what}: ended with something open"


def _check_events(row: Any, found: Sequence[Any], what: str) -> None:
    assert [event.seq for event in found] == list(range(1, row.event_seq + 1)), f"{what}: events have gaps"
    ends = [event.seq for event in found if event.event in ("run.completed", "run.failed", "run.cancelled")]
    expected = [row.event_seq] if RunStatus(row.status).is_terminal else []
    assert ends == expected, f"{what}: terminal events at {ends}, expected at {expected}"
    replies = [event for event in found if event.event == "message.completed"]
    discarded = [event for event in found if event.event == "reply.discarded"]
    assert len(replies) <= row.iteration + 1 <= len(replies) + len(discarded) + 1, f"{what}: {len(replies)} replies"


def _check_transcript(row: Any, found: Sequence[Any], calls: Sequence[Any], what: str) -> None:
    """Each reply that asks for tools is followed by one result per call, in call order, before anything else."""
    open_seqs = {call.result_seq for call in calls if call.settled_at is None}
    at = {message.seq: message for message in found}
    for message in found:
        body = json.loads(message.body) if message.body else {}
        for offset, call in enumerate(body.get("tool_calls", ()), start=1):
            seq = message.seq + offset
            if seq in open_seqs:
                assert seq not in at, f"{what}: call {offset - 1} has a result but is open"
                continue
            assert seq in at, f"{what}: row {seq}, the result of call {offset - 1}, is missing"
            answer = json.loads(at[seq].body) if at[seq].body else {"tool_call_id": call["id"]}
            assert answer["tool_call_id"] == call["id"], f"{what}: row {seq} answers another call"
    if found:
        expected = set(range(found[0].seq, row.message_seq + 1)) - open_seqs
        assert set(at) == expected, f"{what}: rows {sorted(set(at) ^ expected)} are missing or too many"
