"""Show six properties of a resuming system on this one, with real workers that are killed (docs/crash-lab.md).

The properties are those of "Resume Means Resume" (arXiv:2608.03836). A batch is one fleet over one database. Each
experiment is a run with a number, from which its kill point follows: the first worker that passes the point with this
run kills itself with SIGKILL. What happened is judged from outside: by the bytes that the model's server got, by the
lines that tools wrote to a file, and by the answers of two API servers.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from hermes_worker import settings
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.broker.queue import HintPublisher, build_redis_client
from hermes_worker.core.errors import ConfigurationError, UnavailableError
from hermes_worker.core.spec import RunSpec
from hermes_worker.lab.fleet import LabFleet
from hermes_worker.lab.script import build_gated_prompt, build_prompt
from hermes_worker.lab.sink import TOOLSET, SinkEffect, make_sink_tools, read_sink
from hermes_worker.lab.stack import LabStack
from hermes_worker.store.engine.database import Database
from hermes_worker.store.runs.runs import NewRun, Runs
from hermes_worker.store.runs.views import Views
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.tables import runs, tool_calls
from hermes_worker.system.faults import FaultPoint
from hermes_worker.wiring import open_database
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

STEPS = 3
RACERS = 8
"""Answers that are given to one question at once."""
_KEY = "prove-0123456789-0123456789"
_LOOK_S = 0.1
_READY_S = 300.0
_TTL_S = 3.0
_SOON_S = 0.2
_MODEL_POINTS = (FaultPoint.ITERATE_AFTER_CLAIM, FaultPoint.ITERATE_AFTER_REPLY, FaultPoint.ITERATE_AFTER_COMMIT)
_TOOL_POINTS = (
    FaultPoint.CALL_TOOL_AFTER_CLAIM,
    FaultPoint.CALL_TOOL_BEFORE_BEGIN,
    FaultPoint.CALL_TOOL_AFTER_BEGIN,
    FaultPoint.CALL_TOOL_AFTER_RUN,
    FaultPoint.CALL_TOOL_AFTER_SETTLE,
)
POINTS: Mapping[str, Sequence[FaultPoint]] = {
    "prefix continuation": (*_MODEL_POINTS, *_TOOL_POINTS),
    "effect exactly-once": _TOOL_POINTS,
    "fork determinism": (*_MODEL_POINTS, *_TOOL_POINTS),
    "checkpoint validity": (*_MODEL_POINTS, *_TOOL_POINTS),
    "consume-once": _MODEL_POINTS,
    "recovery determinism": (FaultPoint.ITERATE_AFTER_REPLY,),
}
"""The properties, and where the workers of their experiments are killed."""


class PropertyBroken(Exception):
    """The property does not hold here; the message says what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveOptions:
    experiments: int = 12
    """Over all properties, by turns; each has one kill."""
    seed: int = 1
    batch: int = 48
    """Experiments of one fleet and one database."""
    own_postgres: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One experiment; ``number`` counts within its property."""

    name: str
    seed: int
    number: int

    @property
    def run_id(self) -> str:
        return f"run_{list(POINTS).index(self.name):02x}{self.seed % 0xFFFF:04x}{self.number:026x}"

    @property
    def point(self) -> FaultPoint:
        return random.Random(f"{self.seed}.{self.name}.{self.number}").choice(POINTS[self.name])

    @property
    def prompt_number(self) -> int:
        """A number that no other experiment of the seed has."""
        return self.number * len(POINTS) + list(POINTS).index(self.name)


Row = dict[str, Any]
"""An experiment's result, as it stands in the file of results."""


def list_open_experiments(options: ProveOptions, known: Sequence[Row], database: str) -> list[Experiment]:
    """List the experiments that have no result yet."""
    done = {(row["property"], row["seed"], row["number"]) for row in known if row["database"] == database}
    wanted = [
        Experiment(name=list(POINTS)[n % len(POINTS)], seed=options.seed, number=n // len(POINTS))
        for n in range(options.experiments)
    ]
    return [each for each in wanted if (each.name, each.seed, each.number) not in done]


def prove(
    options: ProveOptions, directory: Path, known: Sequence[Row], explain: Callable[[Exception], str | None]
) -> Iterator[Row]:
    """Do the experiments that ``known`` lacks, batch by batch, and yield the result of each. ``explain`` says what a
    user is told about an error; ``None`` for one that has no sentence. Raises ``ConfigurationError``."""
    database = "postgresql" if options.own_postgres else "sqlite"
    waiting = list_open_experiments(options, known, database)
    for start in range(0, len(waiting), options.batch):
        place = directory / f"batch-{start}"
        place.mkdir()
        place.chmod(0o711)  # PostgreSQL may run under another account
        batch = _ProofBatch(options, place, waiting[start : start + options.batch], explain)
        for row in batch.play():
            yield {"database": database, **row}
        shutil.rmtree(place, ignore_errors=True)


class _ProofBatch:
    """One fleet, and the experiments that it does at once."""

    def __init__(
        self,
        options: ProveOptions,
        directory: Path,
        experiments: Sequence[Experiment],
        explain: Callable[[Exception], str | None],
    ) -> None:
        self._directory = directory
        self._experiments = experiments
        self._explain = explain
        self._stack = LabStack(
            directory, database_url=None, own_postgres=options.own_postgres, ttl_s=_TTL_S, keeps_bodies=True
        )
        self._addresses: list[str] = []
        self._races: dict[int, tuple[str, Counter[int]]] = {}
        """By question: the run that asks, and the statuses of the answers."""
        self._threads: list[threading.Thread] = []

    def play(self) -> list[Row]:
        """Do the experiments and judge them."""
        with ExitStack() as exit_:
            exit_.enter_context(self._stack)
            self._database = self._stack.open_database()
            exit_.callback(self._database.close)
            environ = self._stack.build_environ(settings.load_settings().environ)
            self._addresses = [exit_.enter_context(_serve(environ, self._directory, n)) for n in range(2)]
            self._fleet = LabFleet(
                environ={**environ, "HERMES_FAULTS": self._write_plan()},
                directory=self._directory,
                workers_per_role=2,
                concurrency=8,
                work_s=0.0,
            )
            with self._fleet:
                self._submit()
                self._await_all([each.run_id for each in self._experiments])
                forks = self._fork_twice()
                self._await_all([fork for pair in forks.values() for fork in pair])
            for thread in self._threads:
                thread.join()
            effects = read_sink(self._fleet.sink)
            return [self._judge(each, effects) for each in self._experiments]

    def _locate_latch(self, experiment: Experiment) -> Path:
        return self._directory / f"{experiment.run_id}.killed"

    def _write_plan(self) -> str:
        return ";".join(
            f"{each.point.value}=kill?{each.run_id}!{self._locate_latch(each)}" for each in self._experiments
        )

    def _submit(self) -> None:
        publisher, store = HintPublisher(build_redis_client(self._stack.broker_url)), Runs(self._database)
        catalog = build_default_catalog(*make_sink_tools(self._fleet.sink, work_s=0.0))
        tools = f"[{','.join(catalog.render_definitions(catalog.resolve([TOOLSET, 'terminal'])))}]"
        workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(self._directory / "workspace")).to_json()
        for each in self._experiments:
            prompt = build_prompt(each.prompt_number, STEPS)
            if each.name == "consume-once":
                prompt = build_gated_prompt(f"{each.prompt_number}", self._gated_file.name)
            spec = RunSpec(input=prompt, model="scripted", toolsets=(TOOLSET,))
            new = NewRun(spec=spec, system_prompt="You are in a proof.", tools=tools, workspace=workspace)
            publisher.send(store.create(replace(new, run_id=each.run_id)).hints)

    @property
    def _gated_file(self) -> Path:
        return self._directory / "workspace" / "gated.txt"

    def _await_all(self, run_ids: Sequence[str]) -> None:
        """Wait until the runs have ended; replace who is killed, and race for every question meanwhile."""
        views, waits = Views(self._database), Waits(self._database)
        left = set(run_ids)
        while left:
            for worker in list(self._fleet.workers):
                if not self._fleet.is_alive(worker):
                    self._fleet.replace(worker)
            try:
                left = {run_id for run_id in left if not views.load_run(run_id).status.is_terminal}
                for question in waits.list_open():
                    if question.wait_id not in self._races:
                        asked = (question.run_id, question.wait_id)
                        self._races[question.wait_id] = question.run_id, Counter()
                        self._threads.append(threading.Thread(target=self._race, args=asked))
                        self._threads[-1].start()
            except UnavailableError:
                pass  # SQLite was locked by a worker that is just being killed
            time.sleep(_LOOK_S)

    def _race(self, run_id: str, wait_id: int) -> None:
        """Give one answer many times at once, over both API servers."""
        at = time.time() + _SOON_S

        def answer(number: int) -> int:
            time.sleep(max(0.0, at - time.time()))
            url = f"{self._addresses[number % 2]}/v1/runs/{run_id}/approval"
            return _post(url, {"choice": "once", "wait_id": wait_id})[0]

        with ThreadPoolExecutor(RACERS) as pool:
            self._races[wait_id][1].update(pool.map(answer, range(RACERS)))

    def _fork_twice(self) -> dict[str, list[str]]:
        """Fork each run of an experiment on forks twice, behind its first step."""
        self._before_forks = {text: len(bodies) for text, bodies in self._stack.model_bodies.items()}
        forks: dict[str, list[str]] = {}
        for each in self._experiments:
            for _ in range(2 if each.name == "fork determinism" else 0):
                url = f"{self._addresses[0]}/v1/runs/{each.run_id}/fork"
                status, said = _post(url, {"at": 1, "tools": "live"})
                if status >= 300:
                    raise ConfigurationError(f"the run {each.run_id} could not be forked: {said}")
                forks.setdefault(each.run_id, []).append(str(said["run_id"]))
        return forks

    # --- judging -----------------------------------------------------------------------------------------------------

    def _judge(self, experiment: Experiment, effects: Sequence[SinkEffect]) -> Row:
        row: Row = {"property": experiment.name, "seed": experiment.seed, "number": experiment.number}
        row |= {"kills": int(self._locate_latch(experiment).exists()), "point": experiment.point.value}
        judges: dict[str, Callable[[], None]] = {
            "prefix continuation": lambda: self._require_prefixes(experiment),
            "effect exactly-once": lambda: self._require_effects_once(experiment, effects),
            "fork determinism": lambda: self._require_equal_forks(experiment),
            "checkpoint validity": lambda: self._require_refusal(experiment),
            "consume-once": lambda: self._require_consumed_once(experiment),
            "recovery determinism": lambda: self._require_equal_repeats(experiment),
        }
        try:
            view = Views(self._database).load_run(experiment.run_id)
            if view.status.value != "completed":
                raise PropertyBroken(f"the run is {view.status.value}: {view.exit_reason}")
            judges[experiment.name]()
        except PropertyBroken as error:
            return {**row, "outcome": "broken", "seen": str(error)}
        return {**row, "outcome": "held"}

    def _list_bodies(self, experiment: Experiment, *, of_forks: bool = False) -> list[bytes]:
        """The requests of an experiment's run, in their order, or those that came after its forks were made."""
        mark, before = f'"{experiment.prompt_number}.', self._before_forks if of_forks else {}
        found = [bodies[before.get(text, 0) :] for text, bodies in self._stack.model_bodies.items() if mark in text]
        return [body for bodies in found for body in bodies]

    def _require_prefixes(self, experiment: Experiment) -> None:
        """Each request begins with the messages of the one before it, or repeats them, byte for byte."""
        seen: list[str] = []
        for body in self._list_bodies(experiment):
            texts = [json.dumps(message) for message in json.loads(body)["messages"]]
            if texts[: len(seen)] != seen:
                raise PropertyBroken(
                    f"a request of {len(texts)} messages does not begin with the {len(seen)} before it"
                )
            seen = texts

    def _require_effects_once(self, experiment: Experiment, effects: Sequence[SinkEffect]) -> None:
        """A ``keyed`` effect has one key, a ``once`` effect happened once; one that did not is told as unknown."""
        mine = [each for each in effects if each.mark.startswith(f"{experiment.prompt_number}.")]
        keys = {(each.mark, each.key) for each in mine if each.replay.value == "keyed"}
        once = Counter(each.mark for each in mine if each.replay.value == "once")
        lost = self._count_unknown(experiment)
        if len(keys) != STEPS or any(count > 1 for count in once.values()) or len(once) + lost < STEPS:
            raise PropertyBroken(f"{len(keys)} keyed effects, once effects {dict(once)}, {lost} told as unknown")

    def _count_unknown(self, experiment: Experiment) -> int:
        """Count the calls of which the model was told that nobody knows their outcome."""
        calls = sa.select(sa.func.count()).select_from(tool_calls.join(runs, runs.c.pk == tool_calls.c.run_pk))
        mine = calls.where(runs.c.run_id == experiment.run_id, tool_calls.c.status == "unknown")
        return int(self._database.select(mine).scalar_one())

    def _require_equal_forks(self, experiment: Experiment) -> None:
        """Two forks of one point send byte-equal first requests."""
        first = [body for body in self._list_bodies(experiment, of_forks=True) if _count_replies(body) == 1]
        if len(first) < 2 or len(set(first)) != 1:
            raise PropertyBroken(f"{len(first)} first requests of two forks, {len(set(first))} of them different")

    def _require_refusal(self, experiment: Experiment) -> None:
        """State that was cut, overwritten or written by another version is refused with a sentence."""
        draw = random.Random(f"{experiment.seed}.{experiment.number}")
        is_sqlite = self._stack.database_url.startswith("sqlite")
        damage = draw.choice(("cut", "overwritten", "foreign") if is_sqlite else ("foreign",))
        copy = self._directory / f"copy-{experiment.number}.db"
        url = f"sqlite:///{copy}" if is_sqlite else self._stack.database_url
        if is_sqlite:
            _copy_sqlite(self._directory / "chaos.db", copy)
        with _damage(url, copy, damage, draw.randint(1, 9)):
            error = self._try_to_resume(url, experiment.run_id)
        copy.unlink(missing_ok=True)
        if error is None:
            raise PropertyBroken(f"a {damage} state was opened as if it were whole")
        if not self._explain(error):
            raise PropertyBroken(f"a {damage} state is refused with no sentence: {error!r}")

    def _try_to_resume(self, url: str, run_id: str) -> Exception | None:
        """Open the state as every process of the product does; what it was refused with."""
        environ = {"HERMES_HOME": str(self._directory / "home"), "HERMES_DATABASE_URL": url}
        try:
            with closing(open_database(settings.load_settings({**environ, "HERMES_PROVIDER": "scripted"}))) as opened:
                Views(opened).load_run(run_id)
        except Exception as error:
            return error
        return None

    def _require_consumed_once(self, experiment: Experiment) -> None:
        """Require that one of many simultaneous answers was taken, and that what it allowed happened once. A worker
        that was killed for another experiment may leave the outcome unknown; the effect is not repeated then."""
        fired = Counter(self._gated_file.read_text(encoding="utf-8").split() if self._gated_file.exists() else ())
        races = [statuses for run_id, statuses in self._races.values() if run_id == experiment.run_id]
        is_answered = all(set(each) <= {200, 409} and each[200] and each.total() == RACERS for each in races)
        count, unknown = fired[str(experiment.prompt_number)], self._count_unknown(experiment)
        if count > 1 or count + unknown < 1 or not is_answered:
            raise PropertyBroken(f"fired {count} times, {unknown} told as unknown; answers {[*map(dict, races)]}")

    def _require_equal_repeats(self, experiment: Experiment) -> None:
        """A recovered step asks the model with the bytes of the step that was lost."""
        places: dict[int, list[bytes]] = {}
        for body in self._list_bodies(experiment):
            places.setdefault(_count_replies(body), []).append(body)
        if any(len(set(bodies)) > 1 for bodies in places.values()):
            raise PropertyBroken("a repeated request differs from the one that was lost")
        if self._locate_latch(experiment).exists() and all(len(bodies) == 1 for bodies in places.values()):
            raise PropertyBroken("the worker was killed with a reply, and nothing was asked again")


def _count_replies(body: bytes) -> int:
    return sum(message["role"] == "assistant" for message in json.loads(body)["messages"])


def _copy_sqlite(source: Path, target: Path) -> None:
    """Copy a database as it stands, with what its log holds, into one file."""
    with closing(sqlite3.connect(source)) as whole, closing(sqlite3.connect(target)) as copy:
        whole.backup(copy)
        copy.execute("pragma journal_mode=delete")


@contextmanager
def _damage(url: str, file: Path, damage: str, tenths: int) -> Iterator[None]:
    """Damage a state. A mark of another version is taken away again: the database may be the proof's own."""
    if damage == "cut":
        os.truncate(file, file.stat().st_size * tenths // 10)
        yield
    elif damage == "overwritten":
        with file.open("r+b") as opened:
            opened.write(b"another format of another version")
        yield
    else:
        with closing(Database(url)) as database:
            with database.read() as connection:
                ours = connection.exec_driver_sql("select version_num from alembic_version").scalar_one()
            _mark_version(database, "9999_another")
            yield
            _mark_version(database, str(ours))


def _mark_version(database: Database, version: str) -> None:
    database.execute(sa.text("update alembic_version set version_num = :version"), {"version": version})


@contextmanager
def _serve(environ: Mapping[str, str], directory: Path, number: int) -> Iterator[str]:
    """A server of the API in a process of its own; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = {"HERMES_SERVER_HOST": "127.0.0.1", "HERMES_SERVER_PORT": str(port), "HERMES_SERVER_KEY": _KEY}
    with (directory / f"api-{number}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "hermes_worker", "start", "api"],
            env={**environ, **told},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _await_ready(address, process, directory / f"api-{number}.log")
        yield address
    finally:
        process.kill()
        process.wait()


def _await_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=10):
                return
        except OSError:
            time.sleep(_LOOK_S)
    raise ConfigurationError(f"the API server of the proof did not start: {log.read_text()[-500:]}")


def _post(url: str, document: Mapping[str, object]) -> tuple[int, dict[str, Any]]:
    """Send a request to the API; its status, 0 where the connection broke, and its answer."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {_KEY}"}
    request = urllib.request.Request(url, json.dumps(document).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, {"error": error.read().decode(errors="replace")[:300]}
    except OSError as error:
        return 0, {"error": str(error)}


def build_scorecard(rows: Sequence[Row], *, version: str, at: str) -> dict[str, Any]:
    """Build the scorecard of many results: for each database and property, how many held, how many kills there were,
    and the first failure, which its seed and number repeat."""
    cards: dict[str, dict[str, Any]] = {}
    for database in dict.fromkeys(row["database"] for row in rows):
        for name in POINTS:
            its = [row for row in rows if (row["database"], row["property"]) == (database, name)]
            broken = [row for row in its if row["outcome"] == "broken"]
            card: dict[str, Any] = {
                "experiments": len(its),
                "kills": sum(row["kills"] for row in its),
                "held": len(its) - len(broken),
                "broken": len(broken),
            }
            if broken:
                card["first_failure"] = {key: broken[0][key] for key in ("seed", "number", "point", "seen")}
            cards.setdefault(database, {})[name] = card
    return {"version": version, "at": at, "databases": cards}
