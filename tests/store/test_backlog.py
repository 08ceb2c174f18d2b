"""The view ``hermes_backlog`` counts what is due and what is claimed, as the rows and the publisher say."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.plans import plan_of, statements
from support.samples import take_turns
from support.store import ANSWER, Store, asks

from hermes_worker.broker.queue import QueueName, build_message
from hermes_worker.core.auxiliary import AuxiliaryQuestion, AuxTask, Consultation
from hermes_worker.core.effects import (
    AskAuxiliary,
    CallHook,
    Collect,
    Effect,
    FetchFile,
    GatherArtifacts,
    Iterate,
    RunTool,
    SendDelivery,
)
from hermes_worker.core.inbound import MediaRef
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.core.messages import build_user_body
from hermes_worker.core.replay import Replay
from hermes_worker.store.backlog import CLEARED_IN_S, STEP_S_MIN, QueueBacklog, read_backlog
from hermes_worker.store.hooks.calls import HookCalls
from hermes_worker.store.hooks.pending_calls import OwedHookRow, enqueue_hooks
from hermes_worker.store.inbound_files import InboundFiles, NewFile, NewFiles, enqueue_files
from hermes_worker.store.jobs.executions import Executions
from hermes_worker.store.outbox.deliveries import Deliveries, enqueue_deliveries
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.calls import CallClaim
from hermes_worker.store.runs.control import Control, NotAtWork
from hermes_worker.store.tables import (
    artifact_gatherings,
    deliveries,
    firings,
    hook_calls,
    inbound_files,
    jobs,
    runs,
    tool_calls,
)

MOVES = 70
QUESTION = AuxiliaryQuestion(task=AuxTask.VISION, messages=(build_user_body("what?"),))


def backlog(store: Store) -> dict[str, QueueBacklog]:
    return {each.queue: each for each in read_backlog(store.database)}


# --- random states ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Counted:
    """What Python finds in the same rows: by queue, when due steps were hinted and when others were claimed."""

    now: float
    hinted: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    claimed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, row: Any, effect: Effect) -> None:
        """The publisher says which queue an effect is for."""
        queue = build_message(Hint(effect=effect, at=0.0))[1].value
        if row.lease_token is not None:
            self.claimed[queue].append(row.claimed_at)
        elif row.hinted_at is not None and row.hinted_at <= self.now:
            self.hinted[queue].append(row.hinted_at)


def counted(store: Store) -> Counted:
    found = Counted(store.database.read_clock())
    with store.database.read() as connection:
        for run in connection.execute(sa.select(runs)):
            found.add(run, Iterate(run_id="", iteration=1, attempt=1, is_suspect=run.deaths is not None))
        for call in connection.execute(sa.select(tool_calls)):
            effect = AskAuxiliary if call.asks == 1 else RunTool
            suspect = call.deaths is not None
            found.add(call, effect(run_id="", iteration=1, position=0, attempt=1, is_suspect=suspect))
        for row in connection.execute(sa.select(deliveries)):
            found.add(row, SendDelivery(run_id="", delivery_id="", attempt=1, is_suspect=row.deaths is not None))
        for row in connection.execute(sa.select(firings)):
            found.add(row, Collect(run_id="", firing_id=0))
        for row in connection.execute(sa.select(hook_calls)):
            found.add(row, CallHook(run_id="", event_id="", hook="", attempt=1))
        for row in connection.execute(sa.select(artifact_gatherings)):
            found.add(row, GatherArtifacts(run_id="", attempt=1))
        for row in connection.execute(sa.select(inbound_files)):
            found.add(row, FetchFile(run_id="", file_id=row.pk, attempt=1))
    return found


class Commotion:
    """What workers and people do, drawn at random. A move that finds nothing to act on does nothing."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.control = Control(store.database)
        self.outbox = Deliveries(store.database)
        self.runs = [store.submit().run_id]
        self.suspects: list[Effect] = []
        self.claims: dict[type[Effect], Callable[[Any, int], object]] = {
            Iterate: store.runs.claim_iteration,
            RunTool: store.calls.claim,
            AskAuxiliary: store.auxiliary_calls.claim,
        }
        now = store.database.read_clock()
        job = {"job_id": "0123456789ab", "tenant": "default", "name": "j", "definition": "{}", "state": "scheduled"}
        with store.database.write() as connection:
            connection.execute(sa.insert(jobs).values(**job, created_at=now, updated_at=now))

    def play(self) -> None:
        moves = [getattr(self, name) for name in dir(self) if name.startswith("move_")]
        for _ in range(MOVES):
            self.random.choice(moves)()

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def move_submit(self) -> None:
        session = f"s{self.random.randrange(4)}" if self.chance(0.5) else None
        self.runs.append(self.store.submit(session_id=session, attempts_max=50).run_id)

    def move_ask_tools(self) -> None:
        run_id = self.store.submit(attempts_max=50).run_id
        self.runs.append(run_id)
        self.store.ask_tools(run_id, asks(*self.random.choices(list(Replay), k=self.random.randint(1, 4))))

    def move_claim(self) -> None:
        """Some steps of a run, by a worker that may be gone soon, and with it a lane that was seen to end."""
        run_id = self.random.choice(self.runs)
        worker = self.store.worker()
        for effect in self.store.due(run_id)[: self.random.randint(1, 2)]:
            claim = self.claims[type(effect)](effect, worker.pk)
            if isinstance(claim, CallClaim) and self.chance(0.4):
                self.store.auxiliary_calls.enqueue_questions(claim, Consultation(questions=[QUESTION], material={}))
        if self.chance(0.6):
            self.random.choice([self.store.vanish, self.store.crash])(worker)

    def move_answer(self) -> None:
        run_id = self.random.choice(self.runs)
        if any(isinstance(effect, Iterate) for effect in self.store.due(run_id)) and self.chance(0.5):
            self.store.answer(run_id, ANSWER)

    def move_order(self) -> None:
        """Pause, resume or stop."""
        orders: list[Callable[[str], object]] = [self.control.pause, self.control.resume, self.store.runs.request_stop]
        try:
            self.random.choice(orders)(self.random.choice(self.runs))
        except NotAtWork:
            pass

    def move_deliver(self) -> None:
        """Owe something; of some a worker takes the row, and vanishes, or gives it back for later."""
        with self.store.database.write() as connection:
            [hint] = enqueue_deliveries(connection, ["local"], body="news")
        if not self.chance(0.7):
            return
        assert isinstance(hint.effect, SendDelivery)
        worker = self.store.worker()
        claim = self.outbox.claim(hint.effect, worker.pk)
        assert claim is not None
        if self.chance(0.3):
            self.outbox.release(claim)
        elif self.chance(0.5):
            self.random.choice([self.store.vanish, self.store.crash])(worker)

    def move_fire(self) -> None:
        now = self.store.database.read_clock()
        slot = {"job_pk": 1, "slot": self.random.random(), "outcome": "fired", "reason": "", "settled_at": now}
        with self.store.database.write() as connection:
            due = sa.insert(firings).values(**slot, execution="pending", hinted_at=now)
            pk = connection.execute(due.returning(firings.c.pk)).scalar_one()
        if self.chance(0.5):
            assert Executions(self.store.database).claim(pk, self.store.worker().pk)

    def move_observe(self) -> None:
        """Owe an observer a call, which somebody may take and leave behind."""
        number, run_id = self.random.randrange(10**9), self.runs[0]
        row: OwedHookRow = {
            "run_pk": 1,
            "event_id": f"{run_id}.{number}.agent:end",
            "hook": "audit",
            "event": "agent:end",
            "event_seq": 1,
        }
        with self.store.database.write() as connection:
            [hint] = enqueue_hooks(connection, run_id, [row])
        assert isinstance(hint.effect, CallHook)
        if self.chance(0.5):
            assert HookCalls(self.store.database).claim(hint.effect, self.store.worker().pk)

    def move_send_file(self) -> None:
        """Somebody sends a file, which a worker may take and leave behind."""
        media = MediaRef(kind=MediaKind.DOCUMENT, id="f1")
        new = NewFiles(account="telegram:default", files=[NewFile(media=media)])
        with self.store.database.write() as connection:
            [hint] = enqueue_files(connection, self.random.choice(self.runs), new, "default")
        if self.chance(0.5):
            assert isinstance(hint.effect, FetchFile)
            assert InboundFiles(self.store.database).claim(hint.effect, self.store.worker().pk)

    def move_put_off(self) -> None:
        """The next try of a step has to wait."""
        if self.chance(0.3):
            table = self.random.choice([runs, tool_calls])
            late = sa.update(table).where(table.c.hinted_at.is_not(None)).values(hinted_at=table.c.hinted_at + 300.0)
            with self.store.database.write() as connection:
                connection.execute(late)

    def move_sweep(self) -> None:
        found = [hint.effect for hint in self.store.sweep().hints]
        self.suspects = [effect for effect in found if isinstance(effect, SendDelivery) and effect.is_suspect]

    def move_lane(self) -> None:
        """A lane takes a suspect of each kind, if there is one."""
        lane = self.store.worker()
        for effect in self.suspects[:1]:
            assert isinstance(effect, SendDelivery)
            self.outbox.claim(effect, lane.pk)
        due = [effect for run_id in self.runs for effect in self.store.due(run_id)]
        for kind, claim in self.claims.items():
            for suspect in [effect for effect in due if type(effect) is kind and effect.is_suspect][:1]:
                claim(suspect, lane.pk)

    def move_wait(self) -> None:
        self.store.let_pass(self.random.choice([1.0, 9.0, 400.0]))


@pytest.mark.parametrize(("store", "seed"), take_turns(("sqlite", "postgresql"), range(4)), indirect=["store"])
def test_it_says_what_python_counts_in_the_same_rows(store: Store, seed: int) -> None:
    commotion = Commotion(store, seed)
    for _ in range(3):
        commotion.play()
        expected, found = counted(store), backlog(store)
        assert list(found) == [name.value for name in QueueName if name is not QueueName.SYSTEM]
        for queue, each in found.items():
            hinted, claimed = expected.hinted[queue], expected.claimed[queue]
            assert (each.due, each.claimed) == (len(hinted), len(claimed)), queue
            assert each.oldest_age_s == pytest.approx(expected.now - min(hinted, default=expected.now), abs=3.0)
            age_s = max(0.0, expected.now - median(claimed)) if claimed else 0.0
            step_s = min(60.0, max(STEP_S_MIN[queue], (60.0 + 2 * age_s * len(claimed)) / (1 + len(claimed))))
            assert each.step_s == pytest.approx(step_s, abs=6.0)
            assert each.capacity_needed == each.claimed + ceil(each.due * each.step_s / CLEARED_IN_S)


def test_the_random_states_have_steps_of_every_queue_due_and_claimed(sqlite_store: Store) -> None:
    seen: set[tuple[str, str]] = set()
    commotion = Commotion(sqlite_store, 0)
    for _ in range(8):
        commotion.play()
        found = counted(sqlite_store)
        seen |= {("due", queue) for queue, at in found.hinted.items() if at}
        seen |= {("claimed", queue) for queue, at in found.claimed.items() if at}
    assert seen == {(word, queue) for queue in STEP_S_MIN for word in ("due", "claimed")}


# --- single facts ----------------------------------------------------------------------------------------------------


def test_the_oldest_age_and_the_step_are_in_seconds_of_the_databases_clock(store: Store) -> None:
    first = store.submit().run_id
    store.submit()
    store.let_pass(40.0)
    store.turn(first)
    store.let_pass(15.0)

    model = backlog(store)["model"]

    assert (model.due, model.claimed) == (1, 1)
    assert model.oldest_age_s == pytest.approx(55.0, abs=3.0)
    # Twice the age of the step at work, and one imagined step of a minute.
    assert model.step_s == pytest.approx((60.0 + 2 * 15.0) / 2, abs=3.0)
    assert model.capacity_needed == 2


def test_where_nothing_is_at_work_every_due_step_gets_a_place(store: Store) -> None:
    for _ in range(7):
        store.submit()
    assert backlog(store)["model"].capacity_needed == 7


def test_many_short_steps_share_places(store: Store) -> None:
    """120 due steps beside 12 that were just claimed: 10 s each, six a minute in each place."""
    run_ids = [store.submit().run_id for _ in range(132)]
    for run_id in run_ids[:12]:
        store.turn(run_id)
    model = backlog(store)["model"]
    assert (model.due, model.claimed, model.step_s) == (120, 12, 10.0)
    assert model.capacity_needed == 12 + 20


def test_a_step_that_takes_long_does_not_make_the_others_look_long(store: Store) -> None:
    """Five at work, of which one is an hour old."""
    run_ids = [store.submit().run_id for _ in range(65)]
    for run_id in run_ids[:5]:
        store.turn(run_id)
    now = store.database.read_clock()
    for run_id, age_s in zip(run_ids, (3600.0, 9.0, 6.0, 5.0, 1.0), strict=False):
        store.change(runs, run_id, claimed_at=now - age_s)
    model = backlog(store)["model"]
    assert model.step_s == pytest.approx((60.0 + 5 * 12.0) / 6, abs=2.0)
    assert model.capacity_needed == 5 + ceil(60 * model.step_s / CLEARED_IN_S) < 35


def test_a_clock_that_was_set_back_makes_no_age_negative(store: Store) -> None:
    store.submit()
    held = store.submit().run_id
    store.turn(held)
    store.change(runs, held, claimed_at=store.database.read_clock() + 500.0)
    model = backlog(store)["model"]
    assert model.oldest_age_s >= 0.0
    assert model.step_s == 30.0


# --- what it costs, and who may read it ------------------------------------------------------------------------------

_HISTORY = """
insert into sessions (tenant, pk, session_id, message_seq, system_prompt, tools_hash, workspace, created_at)
select 'default', n, 's' || n, 1, '', '', '{{}}', {now} from generate_series(1, 10000) n;
insert into runs (tenant, pk, run_id, session_pk, model, status, state_version, iteration, iterations_max, attempts_max,
                  message_seq, exit_reason, hinted_at, lease_token, lease_owner, claimed_at, created_at, updated_at)
select 'default', n, 'run_' || n, n, 'm', case when n <= 9900 then 'completed' else 'running' end, 1, 1, 90, 3, 1,
       case when n <= 9900 then 'answered' end, case when n > 9950 then {now} end,
       case when n between 9901 and 9950 then 't' || n end, case when n between 9901 and 9950 then 1 end, {now}, {now},
       {now}
from generate_series(1, 10000) n;
insert into tool_calls (run_pk, iteration, position, name, replay, segment, status, timeout_s, result_seq, hinted_at)
select n, 1, 0, 'terminal', 'once', 0, case when n > 9900 then 'pending' else 'succeeded' end, 120, 3,
       case when n > 9900 then {now} end
from generate_series(1, 10000) n;
insert into deliveries (tenant, delivery_id, run_pk, target, state, adjustments, created_at, updated_at, settled_at)
select 'default', 'dlv_' || n, n, 'local', 'delivered', '', {now}, {now}, {now} from generate_series(1, 10000) n;
insert into jobs (tenant, pk, job_id, name, definition, state, created_at, updated_at)
values ('default', 1, 'j', 'j', '{{}}', 'scheduled', {now}, {now});
insert into firings (job_pk, slot, outcome, reason, run_pk, settled_at, ended_at)
select 1, n, 'fired', '', n, {now}, {now} from generate_series(1, 10000) n;
insert into hook_calls (tenant, event_id, hook, event, run_pk, event_seq, state, created_at, settled_at)
select 'default', n || '.1.agent:end', 'audit', 'agent:end', n, 1, 'done', {now}, {now}
from generate_series(1, 10000) n;
insert into artifact_gatherings (run_pk, tenant, state, created_at, settled_at)
select n, 'default', 'done', {now}, {now} from generate_series(1, 10000) n;
insert into inbound_files (run_pk, tenant, account, reference, state, gathers_until, created_at, settled_at)
select n, 'default', 'telegram:default', '{{}}', 'refused', {now}, {now}, {now} from generate_series(1, 10000) n
"""


def test_it_reads_the_partial_indexes_and_not_the_history(own_postgres_store: Store) -> None:
    store = own_postgres_store
    with store.database.write() as connection:
        for statement in _HISTORY.format(now=store.database.read_clock()).split(";\n"):
            connection.exec_driver_sql(statement)
    with store.database.statement() as connection:
        connection.exec_driver_sql("vacuum analyze")
    with statements(store.database) as seen:
        found = backlog(store)

    assert (found["model"].due, found["model"].claimed, found["tools"].due) == (50, 50, 100)
    [(statement, parameters)] = seen
    nodes = plan_of(store.database, statement, parameters)
    used = {node["Index Name"] for node in nodes if "Index Name" in node}
    assert used == {"ix_runs_held"} | {f"ix_{table}_{kind}" for table in _COUNTED for kind in ("due", "claimed")}
    assert not [node for node in nodes if node["Node Type"] == "Seq Scan"]


_COUNTED = ("runs", "tool_calls", "firings", "deliveries", "hook_calls", "artifact_gatherings", "inbound_files")


def test_a_role_that_may_read_nothing_else_can_read_it(own_postgres_store: Store) -> None:
    """So a scaler needs no right on runs, which hold what people asked."""
    store = own_postgres_store
    store.submit()
    url = store.database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection, connection.transaction(force_rollback=True):
        connection.execute("create role hermes_scaler nologin")
        connection.execute("grant select on hermes_backlog to hermes_scaler")
        connection.execute("set local role hermes_scaler")
        found = connection.execute("select capacity_needed from hermes_backlog where queue = 'model'").fetchone()
        assert found == (1,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select * from runs")
