"""The whole product under load: broker, database, model server and real worker processes on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil
import sqlalchemy as sa

from benchmarks.floors import history
from hermes_worker import settings as settings_module
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.core.spec import RunSpec
from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate
from hermes_worker.store.runs.runs import NewRun
from hermes_worker.wiring import Client, open_client
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

HERE = Path(__file__).resolve().parent
WARM_UP_STEPS = 10


@contextmanager
def model_server(*, latency_s: float) -> Iterator[tuple[str, int]]:
    """The benchmark's model server; its base URL and its process number."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "model_server.py"), "--latency-s", str(latency_s)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield re.search(r"http://\S+", process.stdout.readline()).group(0), process.pid  # type: ignore[union-attr]
    finally:
        process.kill()
        process.wait()


_THREADS_MAX = 1_000
"""Of one worker process: what ``--concurrency`` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One row of the table."""

    database: str
    runs: int
    """In flight at once."""
    steps: int
    latency_s: float = 0.0
    history: int = 0
    """Messages the session already holds."""
    pairs: int = 1
    """Of workers: one for models and one for tools, each a process of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    load: Load
    steps: int
    elapsed_s: float
    cpu_s: float
    """Of the worker processes: everything the product itself does."""
    cpu_all_s: float
    """With the database, the broker and the model server."""
    gaps_s: Sequence[float]
    """Between a reply and the next one of the same run, less the model's own latency."""
    rss_mb: float
    """Of all worker processes together, at their peak."""

    def __add__(self, other: Measured) -> Measured:
        """Of the same load, measured again."""
        return Measured(
            load=self.load,
            steps=self.steps + other.steps,
            elapsed_s=self.elapsed_s + other.elapsed_s,
            cpu_s=self.cpu_s + other.cpu_s,
            cpu_all_s=self.cpu_all_s + other.cpu_all_s,
            gaps_s=[*self.gaps_s, *other.gaps_s],
            rss_mb=max(self.rss_mb, other.rss_mb),
        )

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.elapsed_s

    @property
    def cpu_ms_per_step(self) -> float:
        return self.cpu_s / self.steps * 1e3

    @property
    def cpu_ms_per_step_all(self) -> float:
        return self.cpu_all_s / self.steps * 1e3

    @property
    def cores_busy(self) -> float:
        """Of the machine, by everything that takes part, the model server and the database included."""
        return self.cpu_all_s / self.elapsed_s

    @property
    def gap_p50_s(self) -> float:
        return _quantile(self.gaps_s, 0.5)

    @property
    def gap_p99_s(self) -> float:
        return _quantile(self.gaps_s, 0.99)


class BenchStack:
    """Servers and workers for one ``Load``. Use as a context manager."""

    def __init__(self, directory: Path, load: Load, *, threads: int) -> None:
        self._directory = directory
        self._load = load
        self._threads = threads
        self._exit = ExitStack()
        self._workers: list[psutil.Process] = []
        self._servers: list[int] = []
        self.model_url = ""
        """Of the model server, once the stack is up."""

    def __enter__(self) -> BenchStack:
        valkey = self._exit.enter_context(EmbeddedValkey(self._directory / "valkey"))
        if self._load.database == "postgresql":
            postgres = self._exit.enter_context(EmbeddedPostgres(self._directory / "postgres"))
            database_url = postgres.create_database("bench")
            self._servers.append(postgres.pid or 0)
        else:
            database_url = f"sqlite:///{self._directory / 'bench.db'}"
        base_url, model_pid = self._exit.enter_context(model_server(latency_s=self._load.latency_s))
        self._servers += [valkey.pid or 0, model_pid]
        self.model_url = base_url
        environ = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            "HERMES_HOME": str(self._directory / "home"),
            "HERMES_DATABASE_URL": database_url,
            "HERMES_BROKER_URL": valkey.url,
            "HERMES_BASE_URL": base_url,
            "HERMES_PROVIDER": "custom",
            "HERMES_MODEL": "bench",
            "HERMES_LOG_LEVEL": "WARNING",
        }
        database = Database(database_url)
        migrate(database)
        database.close()
        self._start_workers(environ)
        self.client: Client = open_client(settings_module.load_settings(environ))
        self._exit.callback(self.client.close)
        self._await_workers()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.terminate()
        for survivor in psutil.wait_procs(self._workers, timeout=10)[1]:
            survivor.kill()
        self._exit.close()

    def warm_up(self) -> None:
        """Until the workers have imported what they need, and every connection the plans of its statements."""
        self._play(WARM_UP_STEPS)

    def measure(self) -> Measured:
        runs_before = self._last_run()
        cpu, cpu_all = self._cpu_s()
        began = time.monotonic()
        peak = self._play(self._load.steps)
        elapsed = time.monotonic() - began
        cpu_after, cpu_all_after = self._cpu_s()
        return Measured(
            load=self._load,
            steps=self._load.runs * self._load.steps,
            elapsed_s=elapsed,
            cpu_s=cpu_after - cpu,
            cpu_all_s=cpu_all_after - cpu_all,
            gaps_s=self._gaps(runs_before),
            rss_mb=peak,
        )

    def _play(self, steps: int) -> float:
        """All runs of the load, with so many steps each, from the first submission to the last end. Returns the memory
        that the workers took at their peak, in MB."""
        load, peak, began = self._load, 0.0, time.monotonic()
        for number in range(load.runs):
            # Evenly over the first latency: a thousand at once would come back at once, and again and again.
            time.sleep(max(0.0, began + load.latency_s * number / load.runs - time.monotonic()))
            self.submit(steps)
        while self._open_runs():
            peak = max(peak, sum(worker.memory_info().rss for worker in self._workers) / 2**20)
            time.sleep(0.1 if load.latency_s < 1 else 0.5)
        return peak

    def submit(self, steps: int) -> None:
        """One run of so many steps."""
        created = self.client.runs.create(self._new_run(steps))
        self.client.publisher.send(created.hints)

    def pss_mb(self) -> float:
        """What the workers take of the machine's memory, in MB; a page that several share counts once."""
        every = (one for worker in self._workers for one in (worker, *worker.children(recursive=True)))
        return sum(one.memory_full_info().pss for one in every) / 2**20

    def _new_run(self, steps: int) -> NewRun:
        catalog = build_default_catalog()
        # Schemas as big as the floor's: every tool there is, so the request has the same weight.
        tools = f"[{','.join(catalog.render_definitions(catalog.names))}]"
        workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(self._directory / "workspace"))
        spec = RunSpec(
            input=f"bench:steps={steps} tool=todo",
            model="bench",
            history=history(self._load.history) if self._load.history else (),
            iterations_max=100_000,
        )
        return NewRun(spec=spec, system_prompt="You are a benchmark.", tools=tools, workspace=workspace.to_json())

    def _start_workers(self, environ: dict[str, str]) -> None:
        # In flight means in a thread: model workers get enough of them, in several processes when there are very many.
        pairs = self._load.pairs
        model_processes = max(pairs, 2 if self._threads > 200 else 1, -(-self._threads // _THREADS_MAX))
        for queues, processes, threads in (
            ("model", model_processes, self._threads // model_processes),
            ("tools,system", pairs, min(16, self._threads // pairs)),
        ):
            for _ in range(processes):
                argv = [sys.executable, "-m", "hermes_worker.cli", "start", "worker", "--queues", queues]
                argv += ["--pool", "threads", "--concurrency", str(threads)]
                log = (self._directory / "workers.log").open("a")
                self._workers.append(psutil.Process(subprocess.Popen(argv, env=environ, stderr=log).pid))

    def _await_workers(self) -> None:
        deadline = time.monotonic() + 300
        while len(self.client.workers.list_alive()) < len(self._workers):
            if time.monotonic() > deadline:
                raise SystemExit((self._directory / "workers.log").read_text()[-2_000:])
            time.sleep(0.1)
        time.sleep(0.5)

    def _open_runs(self) -> int:
        counts = self.client.views.count_all()
        ended = ("completed", "failed", "cancelled", "expired")
        if counts.get("failed"):
            failed = self.client.views.list_runs(limit=1)[0]
            raise SystemExit(f"a benchmark run failed: {failed.exit_reason}: {failed.error}")
        return sum(count for status, count in counts.items() if status not in ended)

    def _cpu_s(self) -> tuple[float, float]:
        workers = sum(sum(worker.cpu_times()[:2]) for worker in self._workers)
        servers = 0.0
        for pid in self._servers:
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                times = one.cpu_times()
                servers += times.user + times.system
        return workers, workers + servers

    def _last_run(self) -> int:
        with self.client.database.read() as connection:
            return int(connection.execute(sa.text("select coalesce(max(pk), 0) from runs")).scalar_one())

    def _gaps(self, runs_before: int) -> list[float]:
        replies = "select run_pk, at from events where event = 'message.completed' and run_pk > :before"
        with self.client.database.read() as connection:
            rows = connection.execute(sa.text(f"{replies} order by run_pk, seq"), {"before": runs_before}).all()
        return [
            late.at - early.at - self._load.latency_s for early, late in pairwise(rows) if early.run_pk == late.run_pk
        ]


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
