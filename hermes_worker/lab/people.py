"""People and programs around the fleet who do everything twice at once: the lab's writers from outside.

Each round brings two callers to one row at the same moment: a request under one idempotency key, a message that two
gateways have read, a slot that two schedulers look at, and a gateway that lost its account and does not know. A run
that waits for its session is stopped, and the next one must go on waiting. What the calls answered is judged at once;
what they wrote is judged by the audit.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from sqlalchemy.engine import Connection

from hermes_worker.broker.queue import HintPublisher
from hermes_worker.core.errors import LeaseLost, UnavailableError
from hermes_worker.lab.script import build_answer_prompt, build_line_prompt
from hermes_worker.store.engine.database import Database
from hermes_worker.store.gateway import AccountLease, EventKnown, GatewayRows, InboundEvent
from hermes_worker.store.jobs.job_rows import DueJob, JobProgress, JobRow, JobTick, Slot
from hermes_worker.store.jobs.jobs import JobEdit, Jobs
from hermes_worker.store.runs.runs import Created, NewRun, Runs

ROUNDS = 4
CRON, CHAT = "cron", "chat:lab"
"""Sources of the runs that slots and messages begin."""
_MEET_S = 0.3
"""How long one caller waits for the other inside its transaction; with a guard that locks, the other never comes."""
_LINE_STEPS = 4
"""Steps of a run whose session others wait for: long enough that the next one would meet it."""
_LEASE_S = 600.0
"""So long that it lapses only where the lab lets it."""
_T = TypeVar("_T")


@dataclass(slots=True)
class People:
    """Starts ``count`` people, each with a chat, a job and requests of its own. ``join`` waits until all are done."""

    database: Database
    publisher: HintPublisher
    build_run: Callable[[str], NewRun]
    """Builds a run of the lab from its prompt."""
    count: int
    wrong: dict[str, list[str]] = field(default_factory=dict)
    """What was answered that should not have been, by invariant."""
    submitted: list[str] = field(default_factory=list)
    """Runs that were accepted."""
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Begin; nothing waits for it."""
        for number in range(self.count):
            self._threads.append(threading.Thread(target=self._act_as_person, args=(number,), daemon=True))
            self._threads[-1].start()

    @property
    def is_done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _act_as_person(self, number: int) -> None:
        _insist(partial(self._leave_line, number))
        for act in (self._submit_twice, self._fire_twice, self._hear_twice):
            for round_ in range(ROUNDS):
                _insist(partial(act, number, round_))

    # --- sessions ---

    def _leave_line(self, number: int) -> None:
        """Three runs of one session, of which the second is stopped when the first has its turn."""
        store, made = Runs(self.database), []
        for place in range(3):
            new = self.build_run(build_line_prompt(f"line {number}.{place}", _LINE_STEPS))
            key = f"line-{number}-{place}"
            made.append(store.create(replace(new, session_id=f"line {number}", idempotency_key=key, fingerprint="lab")))
        stopped = store.stop_tree(made[1].run_id)
        self.publisher.publish_stops(stopped.run_ids, stopped.hints)
        self._send(*made)  # not before: the first run is to be at work when the second one ends

    # --- requests ---

    def _submit_twice(self, number: int, round_: int) -> None:
        new = replace(
            self.build_run(build_answer_prompt(f"request {number}.{round_}")),
            idempotency_key=f"lab-{number}-{round_}",
            fingerprint="lab",
        )
        store = Runs(self.database)
        made = do_at_once(lambda: store.create(new))
        self._send(*made)
        if len({each.run_id for each in made}) > 1:
            self._add("requests taken twice", f"key {new.idempotency_key} made {len(made)} runs")

    # --- slots ---

    def _fire_twice(self, number: int, round_: int) -> None:
        jobs = Jobs(self.database)
        slot = 1_000_000.0 + number * 1_000 + round_

        def build_place(job_id: str, now: float) -> JobProgress:
            return JobProgress(state="scheduled", next_slot=slot, next_fire_at=now - 1)

        name = f"lab {number}.{round_}"
        job = jobs.create(name, json.dumps({"prompt": "lab", "deliver": ""}), build_place)
        barrier = threading.Barrier(2)

        def decide(due: DueJob) -> JobTick:
            with suppress(threading.BrokenBarrierError):
                barrier.wait(_MEET_S)
            new = self.build_run(build_answer_prompt(f"slot {number}.{round_}"))
            over = JobProgress(state="completed", next_slot=None, next_fire_at=None, completed=1)
            return JobTick(
                slots=[Slot(at=slot, outcome="fired", reason="due")],
                place=over,
                run=replace(new, spec=replace(new.spec, source=CRON)),
            )

        def fire() -> None:
            self.publisher.send(jobs.settle([job.pk], decide).hints)

        do_at_once(fire)

        def put_back(row: JobRow, now: float) -> JobEdit:
            return JobEdit(place=build_place(row.job_id, now))

        jobs.change(job.job_id, put_back)  # as after a clock that went back
        fire()

    # --- messages ---

    def _hear_twice(self, number: int, round_: int) -> None:
        gateways, account = GatewayRows(self.database), f"lab:{number}"
        old = self._listen(gateways, account, f"gateway {number}.{round_}.a")
        do_at_once(lambda: self._hear(gateways, old, f"{round_}.0", number))
        gateways.renew(old, 0.0)  # its lease lapses now
        new = self._listen(gateways, account, f"gateway {number}.{round_}.b")
        for hold in (new, old):  # the old one has read the same and the next message, and was frozen since
            with suppress(LeaseLost):
                self._hear(gateways, hold, f"{round_}.1", number)
        with suppress(LeaseLost):
            self._hear(gateways, old, f"{round_}.2", number)
            self._add("messages taken by a gateway that lost its account", f"{account}, message {round_}.2")
        gateways.release(new)

    def _listen(self, gateways: GatewayRows, account: str, holder: str) -> AccountLease:
        waiting = threading.Event()
        while True:  # a round that was begun anew finds the lease of the first try
            gateways.release_leases_of(holder)
            hold = gateways.acquire_lease(
                account, mode="poll", token_hash=f"lab-{account}", holder=holder, lease_s=_LEASE_S
            )
            if hold is not None:
                return hold
            waiting.wait(0.05)

    def _hear(self, gateways: GatewayRows, hold: AccountLease, key: str, number: int) -> None:
        """Make a message into a run, as a gateway does: the run and the event in one transaction."""
        event = InboundEvent(account=hold.account, key=key, hold=hold, cursor=key)
        new = self.build_run(build_answer_prompt(f"message {number}.{key}"))
        new = replace(new, spec=replace(new.spec, source=CHAT), session_id=f"chat {number}")

        def write(connection: Connection, created: Created) -> None:
            gateways.insert_event(connection, event, "run", created.run_id)

        with suppress(EventKnown):
            self._send(Runs(self.database).create(new, write))

    def _send(self, *made: Created) -> None:
        for each in made:
            self.publisher.send(each.hints)
        with self._lock:
            self.submitted += [each.run_id for each in made]

    def _add(self, invariant: str, case: str) -> None:
        with self._lock:
            self.wrong.setdefault(invariant, []).append(case)


def do_at_once(act: Callable[[], _T], refused: tuple[type[Exception], ...] = (LeaseLost,)) -> list[_T]:
    """Call ``act`` in two threads that begin together. Returns what it returned where it raised none of ``refused``."""
    barrier = threading.Barrier(2)

    def do() -> list[_T]:
        barrier.wait(10)
        try:
            return [act()]
        except refused:
            return []

    with ThreadPoolExecutor(2) as pool:
        return [each for future in [pool.submit(do), pool.submit(do)] for each in future.result()]


def _insist(act: Callable[[], None]) -> None:
    """Do a round again when the database was away: what it wrote is known by its keys."""
    waiting = threading.Event()
    while True:
        try:
            return act()
        except UnavailableError:
            waiting.wait(0.3)
