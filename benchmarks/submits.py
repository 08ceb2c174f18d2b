"""What a submission takes while others read: ``python -m benchmarks.submits``.

A real API process on a database and a broker of its own is sent submissions on a timetable, by programs of their own:
alone, beside idle readers of event streams, and beside readers that do not read and sockets that are half closed as
well. A submission counts from the moment at which it was due, so one that waits behind another is not left out. One
commit is measured on the same database, between the rows. docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import redis
import sqlalchemy as sa

from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate
from hermes_worker.stream.live import Live, LiveEntry
from hermes_worker.system.open_files import raise_open_file_limit

KEY = "benchmark-key-0123456789"
READERS_PER_RUN = 100
_BESIDE_S = 0.5
"""Between two runs that are stopped before the eyes of a reader."""
_PATIENCE_S = 60.0
_SAID_EVERY_S = 0.2
_SAID = "x" * 16_000
"""What the model of a run says at a time whose readers do not read: so much that no buffer takes it all."""
_API = """
from hermes_worker.api.server import serve
from hermes_worker.observe import configure_logging
from hermes_worker.settings import load_settings
settings = load_settings()
configure_logging(settings.log, "api", secrets=settings.secrets)
serve(settings, on_ready=lambda url: print(url, flush=True))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked."""

    rate: float
    """Submissions per second."""
    seconds: float
    readers: int
    slow: int
    half_closed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Who else is connected."""

    readers: int = 0
    slow: int = 0
    half_closed: int = 0

    def __str__(self) -> str:
        if not self.readers + self.slow + self.half_closed:
            return "nobody"
        return f"{self.readers} idle, {self.slow} slow, {self.half_closed} half closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was seen beside one crowd."""

    crowd: Crowd
    latencies_s: Sequence[float]
    failed: int
    seen_after_s: Sequence[float]
    """From the request to stop a run to the event at its reader."""
    cpu: float
    """Cores that the API kept busy."""
    memory_bytes: int
    commit_s: float

    @property
    def p50_s(self) -> float:
        return quantile(self.latencies_s, 0.5)

    @property
    def p99_s(self) -> float:
        return quantile(self.latencies_s, 0.99)

    @property
    def allowed_s(self) -> float:
        """What the 99th percentile should not exceed."""
        return 1.5 * self.p50_s + self.commit_s


def quantile(values: Sequence[float], part: float) -> float:
    """``nan`` of nothing."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] if values else float("nan")


# --- what is measured ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A running API."""

    url: str
    process: psutil.Process
    database: Database
    broker: redis.Redis

    @property
    def address(self) -> tuple[str, int]:
        split = urlsplit(self.url)
        return str(split.hostname), int(split.port or 0)

    @property
    def memory_bytes(self) -> int:
        """Its own and its part of what is shared."""
        return int(self.process.memory_full_info().pss)

    @property
    def own_bytes(self) -> int:
        """Pages that no other process has, in memory or swapped out: they move with nothing but this process."""
        found = self.process.memory_full_info()
        return int(found.uss + found.swap)

    @property
    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def commit_s(self, times: int = 100) -> float:
        """One transaction that writes one row, in the median."""
        took = []
        for _ in range(times):
            began = time.perf_counter()
            with self.database.write() as connection:
                connection.exec_driver_sql("insert into bench_commits (n) values (1)")
            took.append(time.perf_counter() - began)
        return statistics.median(took)


@contextmanager
def place(kind: str) -> Iterator[Place]:
    """An API process on a database of this kind. Everything ends with the block."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-bench-"))
    directory.chmod(0o755)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        valkey = stack.enter_context(EmbeddedValkey(directory / "valkey"))
        database_url = f"sqlite:///{directory / 'bench.db'}"
        if kind == "postgresql":
            database_url = stack.enter_context(EmbeddedPostgres(directory / "postgres")).create_database("bench")
        database = Database(database_url)
        stack.callback(database.close)
        migrate(database)
        with database.write() as connection:
            connection.execute(
                sa.schema.CreateTable(sa.Table("bench_commits", sa.MetaData(), sa.Column("n", sa.Integer)))
            )
        environ = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            "HERMES_HOME": str(directory / "home"),
            "HERMES_DATABASE_URL": database_url,
            "HERMES_BROKER_URL": valkey.url,
            "HERMES_PROVIDER": "scripted",
            "HERMES_SERVER_KEY": KEY,
            "HERMES_SERVER_PORT": "0",
            "HERMES_LOG_LEVEL": "ERROR",
        }
        url, process = stack.enter_context(_api(environ))
        broker = redis.Redis.from_url(valkey.url)
        stack.callback(broker.close)
        yield Place(url=url, process=process, database=database, broker=broker)


@contextmanager
def _api(environ: dict[str, str]) -> Iterator[tuple[str, psutil.Process]]:
    with subprocess.Popen([sys.executable, "-c", _API], env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                raise SystemExit("the API did not start; its error stands above")
            yield url, psutil.Process(process.pid)
        finally:
            process.kill()


# --- one request -----------------------------------------------------------------------------------------------------


@dataclass
class Connections:
    """Connections that are kept open; there are as many as requests at once."""

    address: tuple[str, int]
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        pair = self.idle.pop() if self.idle else await asyncio.open_connection(*self.address)
        try:
            yield pair
        except BaseException:
            pair[1].close()
            raise
        self.idle.append(pair)

    async def post(self, path: str, document: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        async with self.one() as (reader, writer):
            writer.write(asked("POST", path, json.dumps(document).encode()))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            return int(head.split(b" ", 2)[1]), json.loads(await reader.readexactly(length))

    def close(self) -> None:
        for _, writer in self.idle:
            writer.close()


def asked(method: str, path: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: bench", f"Authorization: Bearer {KEY}"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([*lines, "", ""]).encode() + body


# --- who submits -----------------------------------------------------------------------------------------------------


async def _submit(connections: Connections, rate: float, seconds: float) -> tuple[list[float], int]:
    """Latencies from when each submission was due, and how many failed."""
    took: list[float] = []
    failed = 0

    async def one(due: float) -> None:
        nonlocal failed
        try:
            status, _ = await connections.post("/v1/runs", {"input": "hello"})
        except (OSError, EOFError, ValueError):
            status = 0
        failed += status != 202
        took.append(time.perf_counter() - due)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(rate * seconds)):
            due = began + number / rate
            if (left := due - time.perf_counter()) > 0:
                await asyncio.sleep(left)
            group.create_task(one(due))
    return took, failed


async def _watch_ends(connections: Connections, seconds: float) -> list[float]:
    """Stop runs before the eyes of a reader: how long it takes until each sees it."""
    took = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        _, made = await connections.post("/v1/runs", {"input": "hello"})
        path = f"/v1/runs/{made['run_id']}"
        reader, writer = await asyncio.open_connection(*connections.address)
        writer.write(asked("GET", f"{path}/events"))
        await reader.readuntil(b"\r\n\r\n")
        began = time.perf_counter()
        stopping = asyncio.create_task(connections.post(f"{path}/stop", {}))
        async with asyncio.timeout(_PATIENCE_S):
            await reader.readuntil(b"run.cancelled")
        took.append(time.perf_counter() - began)
        await stopping
        writer.close()
        await asyncio.sleep(_BESIDE_S)
    return took


async def _load(address: tuple[str, int], rate: float, seconds: float) -> tuple[list[float], int, list[float]]:
    connections = Connections(address)
    try:
        async with asyncio.TaskGroup() as group:
            submitting = group.create_task(_submit(connections, rate, seconds))
            watching = group.create_task(_watch_ends(connections, seconds))
        return *submitting.result(), watching.result()
    finally:
        connections.close()


# --- who is there besides --------------------------------------------------------------------------------------------


def _hold(address: tuple[str, int], crowd: Crowd, run_ids: Sequence[str], told: Connection) -> None:
    """A process of its own that holds the connections of a crowd, until its pipe is closed."""
    raise_open_file_limit()
    with suppress(KeyboardInterrupt, EOFError):
        asyncio.run(_held(address, crowd, run_ids, told))


async def _held(address: tuple[str, int], crowd: Crowd, run_ids: Sequence[str], told: Connection) -> None:
    reading = []
    for number in range(crowd.readers):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(asked("GET", f"/v1/runs/{run_ids[1 + number // READERS_PER_RUN]}/events"))
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head:
            raise SystemExit(f"a reader was refused: {head!r}")
        reading.append(asyncio.create_task(_read_all(reader)))
    stuck = [_stuck(address, run_ids[0], is_half_closed=False) for _ in range(crowd.slow)]
    stuck += [_stuck(address, run_ids[0], is_half_closed=True) for _ in range(crowd.half_closed)]
    told.send(len(reading) + len(stuck))
    await asyncio.to_thread(told.recv)  # ends when the other end is closed


async def _read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


def _stuck(address: tuple[str, int], run_id: str, *, is_half_closed: bool) -> socket.socket:
    """Asks for a stream and reads nothing of it."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    raw.connect(address)
    raw.sendall(asked("GET", f"/v1/runs/{run_id}/events"))
    if is_half_closed:
        raw.shutdown(socket.SHUT_WR)
    return raw


@contextmanager
def crowded(there: Place, crowd: Crowd) -> Iterator[None]:
    """Everybody of the crowd is connected while the block runs."""
    if not crowd.readers + crowd.slow + crowd.half_closed:
        yield
        return
    # The first is the one whose readers are slow.
    run_ids = asyncio.run(_new_runs(there.address, 2 + crowd.readers // READERS_PER_RUN))
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=_hold, args=(there.address, crowd, run_ids, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_PATIENCE_S * 2):
            raise SystemExit("the readers could not connect in time")
        ours.recv()
        with talking(there.broker, run_ids[0]) if crowd.slow + crowd.half_closed else nullcontext():
            yield
    finally:
        ours.close()
        process.join(timeout=10)
        process.kill()


@contextmanager
def talking(broker: redis.Redis, run_id: str) -> Iterator[None]:
    """The model of a run says a lot while the block runs."""
    over = threading.Event()

    def talk() -> None:
        live, said = Live(broker), 0
        while not over.wait(_SAID_EVERY_S):
            live.append(run_id, LiveEntry(kind="text", text=_SAID, iteration=1, attempt=1, offset=said))
            said += len(_SAID)

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def _new_runs(address: tuple[str, int], number: int) -> list[str]:
    connections = Connections(address)
    made = [await connections.post("/v1/runs", {"input": "hello"}) for _ in range(number)]
    connections.close()
    return [str(document["run_id"]) for _, document in made]


# --- the table -------------------------------------------------------------------------------------------------------


def measure(there: Place, plan: Plan, crowd: Crowd) -> Row:
    with crowded(there, crowd):
        memory_bytes, cpu_s, began = there.memory_bytes, there.cpu_s, time.monotonic()
        latencies_s, failed, seen_after_s = asyncio.run(_load(there.address, plan.rate, plan.seconds))
        cpu = (there.cpu_s - cpu_s) / (time.monotonic() - began)
        return Row(
            crowd=crowd,
            latencies_s=latencies_s,
            failed=failed,
            seen_after_s=seen_after_s,
            cpu=cpu,
            memory_bytes=memory_bytes,
            commit_s=there.commit_s(),
        )


def rows(kind: str, plan: Plan) -> list[Row]:
    idle = Crowd(readers=plan.readers)
    everybody = Crowd(readers=plan.readers, slow=plan.slow, half_closed=plan.half_closed)
    found = []
    with place(kind) as there:
        say(f"{kind}: warming up")
        asyncio.run(_load(there.address, plan.rate, min(plan.seconds, 5.0)))
        for crowd in (Crowd(), idle, everybody, Crowd()):
            say(f"{kind}: {plan.rate:g}/s for {plan.seconds:g} s beside {crowd}")
            found.append(measure(there, plan, crowd))
    return found


def memory(kind: str, sizes: Sequence[int]) -> str:
    """What idle readers take in one API process, as more and more of them connect. The first find room in what the
    process freed after its start, so what one more costs is the difference of two rows."""
    lines = ["", f"{kind}; own pages (USS and swap) of the API", "", _line(("readers", "own pages", "for one more"))]
    lines.append(_line(["---"] * 3))
    with place(kind) as there, ExitStack() as stack:
        with crowded(there, Crowd(readers=20)):
            pass  # what the first readers make the process import
        connected, own = 0, there.own_bytes
        lines.append(_line(["0", f"{own / 1e6:.1f} MB", "-"]))
        for readers in sizes:
            say(f"{kind}: {readers} readers")
            stack.enter_context(crowded(there, Crowd(readers=readers - connected)))
            before, own = own, there.own_bytes
            each = f"{(own - before) / (readers - connected) / 1024:.1f} KiB"
            lines.append(_line([str(readers), f"{own / 1e6:.1f} MB", each]))
            connected = readers
    return "\n".join(lines)


def report(kind: str, found: Sequence[Row]) -> str:
    titles = (
        "beside",
        "submissions",
        "failed",
        "p50",
        "p99",
        "allowed",
        "one commit",
        "event seen, p50",
        "p99",
        "cores",
    )
    lines = ["", f"{kind}; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}", "", _line(titles)]
    lines.append(_line(["---"] * len(titles)))
    for row in found:
        seen = [_ms(quantile(row.seen_after_s, part)) for part in (0.5, 0.99)]
        took = [_ms(row.p50_s), _ms(row.p99_s), _ms(row.allowed_s), _ms(row.commit_s)]
        cells = [str(row.crowd), str(len(row.latencies_s)), str(row.failed), *took, *seen, f"{row.cpu:.2f}"]
        lines.append(_line(cells))
    alone, idle = found[0], found[1]
    if idle.crowd.readers:
        each = (idle.memory_bytes - alone.memory_bytes) / idle.crowd.readers / 1024
        lines += [
            "",
            f"memory of the API per idle reader: {each:.1f} KiB (PSS {idle.memory_bytes / 1e6:.0f} MB in all)",
        ]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=("postgresql", "sqlite"), help="only this one")
    parser.add_argument("--rate", type=float, default=200.0, help="submissions per second (200)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row (20)")
    parser.add_argument("--readers", type=int, default=2_000, help="idle readers of streams (2,000)")
    parser.add_argument("--slow", type=int, default=50, help="readers that read nothing (50)")
    parser.add_argument("--half-closed", type=int, default=50, help="sockets that are half closed (50)")
    parser.add_argument("--memory", action="store_true", help="only what readers take, quarter by quarter")
    options = parser.parse_args()
    raise_open_file_limit()
    plan = Plan(
        rate=options.rate,
        seconds=options.seconds,
        readers=options.readers,
        slow=options.slow,
        half_closed=options.half_closed,
    )
    for kind in (options.database,) if options.database else ("postgresql", "sqlite"):
        if options.memory:
            print(memory(kind, [options.readers * part // 4 for part in (1, 2, 3, 4)]), flush=True)
            continue
        print(report(kind, rows(kind, plan)), flush=True)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
