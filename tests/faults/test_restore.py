"""A backup under load, a world that goes on, and a restore to the earlier moment: nothing is silently done twice.

The sink and the receiver are the world: they keep what happened, also what the restored database does not know.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.commandline import CommandLine
from support.documents import blocks_of
from support.migrated import bring_up
from support.postgres import PostgresFarm
from support.rig import Rig, rig_on, sink_call, until
from support.store import Store, check

from hermes_worker.channels.errors import DUPLICATE_REMARK
from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus, RunStatus
from hermes_worker.lab.plan import FleetRole
from hermes_worker.lab.sink import SinkEffect
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.settings import load_settings
from hermes_worker.store.engine.database import Database
from hermes_worker.store.outbox.deliveries import SETTLED, Deliveries
from hermes_worker.store.runs.runs import RunNotFound
from hermes_worker.store.tables import firings, jobs, runs, tool_calls
from hermes_worker.worker.celery import build_celery_app
from scheduler.beat import Scheduler

pytestmark = pytest.mark.faults

LOAD = 24
QUEUES = {FleetRole.MODEL: ("model", "delivery", "system"), FleetRole.TOOLS: ("tools",)}
LATE = "run_" + "1a7e" * 8
"""Its ``once`` call is claimed when the backup is made, and done after it."""
STUCK, STUCK_KEYED = "run_" + "57cc" * 8, "run_" + "57cc" * 7 + "beef"
"""Their calls are done when the backup is made, and have no result yet."""
AWAY_S = 5400.0
"""How much later the restored database is used."""


@dataclass
class Receiver:
    """A chat and a webhook: every message that arrived, whatever was answered."""

    url: str = ""
    taken: list[tuple[str, str]] = field(default_factory=list)
    """Texts, each with the key under which it came, if any."""
    answers: threading.Event = field(default_factory=threading.Event)
    """Messages that say ``held`` are not answered before."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"]
            receiver.taken.append((text, self.headers.get("Idempotency-Key", "")))
            if "held" in text:
                receiver.answers.wait(90.0)
            body = b'{"ok": true, "id": "m1", "result": {"message_id": 7}}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: object, client_address: object) -> None:
            """Workers are killed while they send."""

    server = Server(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield receiver
    receiver.answers.set()
    server.shutdown()
    server.server_close()


@dataclass(frozen=True)
class Way:
    """How a database is saved and brought back."""

    url: str
    save: Callable[[], None]
    bring_back: Callable[[], None]
    mark: Callable[[], None]
    refuses: Callable[[], None]
    """Shown before the leases of that time have lapsed."""


@dataclass
class Restored:
    """What the rows said when the database was back, before anybody went on."""

    calls: dict[str, tuple[Replay, CallStatus]] = field(default_factory=dict)
    """By key."""
    unsettled: dict[str, str] = field(default_factory=dict)
    """The answers of deliveries, by id."""
    settled: dict[str, str] = field(default_factory=dict)
    run_ids: list[str] = field(default_factory=list)

    def open(self, replay: Replay) -> set[str]:
        """The keys of calls without a result."""
        is_open = (CallStatus.PENDING, CallStatus.RUNNING)
        return {key for key, (kind, status) in self.calls.items() if kind is replay and status in is_open}


# --- what is at work -------------------------------------------------------------------------------------------------


def set_to_work(rig: Rig, receiver: Receiver) -> None:
    """Until every sort of step is under way, some of each done and some waiting."""
    targets = ("telegram:123", f"webhook:{receiver.url}/hook")
    for number in range(LOAD):
        calls = [sink_call(kind, f"{kind} {number}.{{i}}") for kind in ("once", "keyed", "pure")]
        final = f"answer {number:03} end"
        rig.submit([{"calls": calls, "repeat": 1 + number % 6}], final=final, deliver=[targets[number % 2]])
    rig.submit([], final="held answer", deliver=["telegram:123"])
    rig.submit([{"calls": [sink_call("once", "stuck o")]}], run_id=STUCK)
    rig.submit([{"calls": [sink_call("keyed", "stuck k")]}], run_id=STUCK_KEYED)
    rig.await_effect("stuck o")
    rig.await_effect("stuck k")
    outbox = Deliveries(rig.client.database)
    until(lambda: outbox.list(state=DeliveryState.DELIVERED) or None, "a delivery")
    # Its worker stops with all that it holds, so not before the others have come so far.
    rig.submit([{"calls": [sink_call("once", "late")]}], run_id=LATE)
    until(lambda: any("held" in text for text, _ in receiver.taken) or None, "a message to be held")
    until(lambda: stopped_pid(rig.directory), "the late call to be claimed")


def stopped_pid(directory: Path) -> int | None:
    latch = directory / "latch"
    return int(latch.read_text() or 0) or None if latch.exists() else None


def go_on(rig: Rig, receiver: Receiver) -> str:
    """After the backup: what was under way happens, and more. The run that only this world knows."""
    assert "late" not in {effect.mark for effect in rig.effects()}
    assert not rig.all_ended()
    known = len(rig.effects())
    [stopped] = [worker for worker in rig.fleet.workers if worker.pid == stopped_pid(rig.directory)]
    rig.fleet.thaw(stopped)
    receiver.answers.set()
    newer = rig.submit([], final="newer answer", deliver=["telegram:123"])
    rig.await_effect("late")
    rig.ended(newer, LATE)
    until(lambda: any("newer" in text for text, _ in receiver.taken) or None, "the newer answer")
    assert len(rig.effects()) > known + 1
    return newer


# --- what the rows say -----------------------------------------------------------------------------------------------


def restored(database: Database) -> Restored:
    found = Restored()
    with database.read() as connection:
        calls = sa.select(
            runs.c.run_id, tool_calls.c.iteration, tool_calls.c.position, tool_calls.c.replay, tool_calls.c.status
        ).join(runs, runs.c.pk == tool_calls.c.run_pk)
        for run_id, iteration, position, replay, status in connection.execute(calls):
            found.calls[f"{run_id}.{iteration}.{position}"] = (Replay(replay), CallStatus(status))
        found.run_ids = list(connection.execute(sa.select(runs.c.run_id)).scalars())
    views = Store.over(database).views
    for view in Deliveries(database).list(limit=1000):
        assert view.run_id is not None
        output = views.load_run(view.run_id).output
        assert output is not None
        (found.settled if view.state in SETTLED else found.unsettled)[view.delivery_id] = output
    return found


# --- what became of it -----------------------------------------------------------------------------------------------


def judge_calls(rig: Rig, was: Restored, before: list[SinkEffect]) -> None:
    after = rig.effects()[len(before) :]
    happened, again = (Counter(effect.key for effect in effects) for effects in (before, after))
    now = restored(rig.client.database).calls
    doubted, keyed = was.open(Replay.ONCE), was.open(Replay.KEYED)
    assert {f"{LATE}.1.0", f"{STUCK}.1.0"} <= doubted and f"{STUCK_KEYED}.1.0" in keyed
    assert happened[f"{LATE}.1.0"] == happened[f"{STUCK}.1.0"] == happened[f"{STUCK_KEYED}.1.0"] == 1
    for key in doubted:
        assert (now[key][1], again[key]) == (CallStatus.UNKNOWN, 0), key
    for key in keyed:
        assert (now[key][1], again[key] >= 1) == (CallStatus.SUCCEEDED, True), key
    for key in was.calls.keys() - doubted - keyed - was.open(Replay.PURE):
        assert again[key] == 0, f"{key} had its result"
    marks = defaultdict(set)
    for effect in (*before, *after):
        marks[effect.key].add(effect.mark)
    assert not {key: found for key, found in marks.items() if len(found) > 1}, "a key stands for one thing"
    assert {effect.attempt for effect in after if effect.key == f"{STUCK_KEYED}.1.0"} == {2}


def judge_deliveries(was: Restored, before: list[tuple[str, str]], after: list[tuple[str, str]]) -> None:
    assert "held answer" in was.unsettled.values() and was.settled
    assert [text for text, _ in before if "held" in text] == ["held answer"]
    for output in was.settled.values():
        assert not [text for text, _ in after if output in text], f"{output!r} had arrived"
    for delivery_id, output in was.unsettled.items():
        came = [(text, key) for text, key in after if output in text]
        assert came, f"{output!r} is lost"
        for text, key in came:
            assert key == f"{delivery_id}:0" or text.startswith(DUPLICATE_REMARK), (text, key)
        keys = {key for text, key in before if output in text}
        assert keys <= {"", f"{delivery_id}:0"}


def judge_slots(database: Database) -> None:
    with database.read() as connection:
        rows = connection.execute(
            sa.select(jobs.c.name, firings.c.outcome, firings.c.run_pk).join(jobs, jobs.c.pk == firings.c.job_pk)
        ).all()
    outcomes = {(name, outcome, run_pk is not None) for name, outcome, run_pk in rows}
    assert outcomes == {("catches up", "caught_up", True), ("waits", "missed", False)}


def through_a_restore(tmp_path: Path, way: Way, hermes: CommandLine, broker_url: str) -> None:
    faults = f"call_tool.after_claim=stop?{LATE}!{tmp_path / 'latch'};call_tool.after_run=stall:600?{STUCK[:20]}"
    with receiving() as receiver:
        environ = {
            "HERMES_DELIVERY_ALLOW_PRIVATE_URLS": "true",
            "TELEGRAM_BOT_TOKEN": "1:abc",
            "TELEGRAM_BASE_URL": receiver.url,
            "HERMES_APPROVALS_TIMEOUT_S": "2",  # nobody is there: each run waits once for its first call in doubt
        }
        at_first = {**environ, "HERMES_FAULTS": faults, "HERMES_LEASE_TTL_S": "300"}  # nobody takes the late call away
        fleet = {"database_url": way.url, "broker_url": broker_url, "work_s": 0.1, "queues": QUEUES}
        with rig_on(tmp_path, **fleet, more_environ=at_first) as rig:  # type: ignore[arg-type]
            for name, policy in (("catches up", "one"), ("waits", "none")):
                made = hermes.inline(
                    *("cron", "create", "every 1h", "scripted: {}", "--name", name, "--model", "scripted"),
                    *("--catch-up", policy, "--misfire-grace-s", "60", "--force"),
                )
                assert made.code == 0, made.err
            set_to_work(rig, receiver)
            way.save()
            newer = go_on(rig, receiver)
        way.bring_back()
        way.refuses()
        database = Database(way.url)
        Store.over(database).let_pass(AWAY_S)
        way.mark()
        confirmed = hermes.inline("data", "restore", "--original-gone")
        assert (confirmed.code, "no copy any more" in confirmed.out) == (0, True), confirmed.said
        was = restored(database)
        told = list(receiver.taken)
        assert newer not in was.run_ids and {LATE, STUCK, STUCK_KEYED} <= set(was.run_ids)
        with rig_on(tmp_path, **fleet, more_environ=environ, is_migrated=True) as rig:  # type: ignore[arg-type]
            before = rig.effects()
            tick(rig, broker_url)
            ended = rig.ended(*was.run_ids)
            assert {run.status for run in ended} == {RunStatus.COMPLETED}
            outbox = Deliveries(database)
            until(lambda: all(view.state in SETTLED for view in outbox.list(limit=1000)) or None, "all deliveries")
            assert {view.state for view in outbox.list(limit=1000)} == {DeliveryState.DELIVERED}
            judge_calls(rig, was, before)
            judge_deliveries(was, told, receiver.taken[len(told) :])
            judge_slots(database)
            with pytest.raises(RunNotFound):
                rig.view(newer)
        check(Store.over(database))
        database.close()


def tick(rig: Rig, broker_url: str) -> None:
    """One look of a beat that starts after the restore."""
    beat = Scheduler(app=build_celery_app(broker_url), settings=load_settings(rig.fleet._environ))
    try:
        beat.tick()
    finally:
        beat.close()


# --- the ways --------------------------------------------------------------------------------------------------------


def test_a_home_is_restored_to_a_moment_under_load(tmp_path: Path, own_valkey: EmbeddedValkey) -> None:
    """As docs/backup.md says, "A home"."""
    home = tmp_path / "home"
    home.mkdir()
    hermes = CommandLine(home, {"HERMES_BROKER_URL": own_valkey.url})
    hermes("--version")  # whatever commands are forked from is there when the backup is to be made
    [save, bring_back] = blocks_of("docs/backup.md")[0].splitlines()

    def play(line: str) -> None:
        _, *words = line.replace("/backups", str(tmp_path)).replace("/var/lib/hermes-new", str(home)).split()
        done = hermes(*words, *(["--force"] if "restore" in words else []))
        assert done.code == 0, done.err

    url = f"sqlite:///{home / 'hermes-worker.db'}"
    way = Way(url, lambda: play(save), lambda: play(bring_back), mark=lambda: None, refuses=lambda: None)
    through_a_restore(tmp_path, way, hermes, own_valkey.url)


@pytest.mark.nightly
def test_a_dump_is_restored_that_was_made_under_load(
    tmp_path: Path, shared_postgres_farm: PostgresFarm, own_valkey: EmbeddedValkey
) -> None:
    """As docs/backup.md says, "Servers"."""
    _, _, save, bring_back, *_ = blocks_of("docs/backup.md")
    [*commands, mark] = bring_back.splitlines()
    with shared_postgres_farm.documented_server(archives=False) as shell:
        bring_up(url := shell.server.create_database("hermes"))
        hermes = of_server(tmp_path, url, own_valkey.url)
        way = Way(
            url=url,
            save=lambda: shell.play(save),
            bring_back=lambda: shell.play("\n".join(commands)),
            mark=lambda: marked(hermes, mark),
            refuses=lambda: refused(hermes, mark),
        )
        through_a_restore(tmp_path, way, hermes, own_valkey.url)


@pytest.mark.nightly
def test_a_server_is_set_back_to_a_moment_under_load(
    tmp_path: Path, shared_postgres_farm: PostgresFarm, own_valkey: EmbeddedValkey
) -> None:
    """As docs/backup.md says of PITR, with a base backup that is older than the moment."""
    *_, base, set_back, mark = blocks_of("docs/backup.md")
    moments: list[str] = []
    with shared_postgres_farm.documented_server(archives=True) as shell:

        def bring_back() -> None:
            shell.archive_all()
            shell.server.stop()
            shell.play(set_back, MOMENT=moments[0])
            shell.server.start()
            until(lambda: shell.ask("select pg_is_in_recovery()") == "False" or None, "the server to take writes")

        bring_up(url := shell.server.create_database("hermes"))
        hermes = of_server(tmp_path, url, own_valkey.url)
        shell.play(base)
        way = Way(
            url=url,
            save=lambda: moments.append(shell.ask("select clock_timestamp()")),
            bring_back=bring_back,
            mark=lambda: marked(hermes, mark),
            refuses=lambda: refused(hermes, mark),
        )
        through_a_restore(tmp_path, way, hermes, own_valkey.url)


def of_server(tmp_path: Path, url: str, broker_url: str) -> CommandLine:
    (tmp_path / "home").mkdir()
    return CommandLine(tmp_path / "home", {"HERMES_BROKER_URL": broker_url, "HERMES_DATABASE_URL": url})


def marked(hermes: CommandLine, line: str) -> None:
    done = hermes.inline(*line.split()[1:])
    assert (done.code, "in doubt" in done.out) == (0, True), done.err


def refused(hermes: CommandLine, line: str) -> None:
    """The terms of workers that were alive at the moment have not passed."""
    done = hermes.inline(*line.split()[1:])
    assert (done.code, "stop all workers" in done.err) == (2, True)
