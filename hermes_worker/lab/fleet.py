"""The workers of the crash lab: start, kill, freeze and replace them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TextIO

from hermes_worker.core.errors import HermesError
from hermes_worker.lab.plan import FleetRole

ARM_SIGNAL = signal.SIGRTMIN + 2
QUEUES: Mapping[FleetRole, Sequence[str]] = {FleetRole.MODEL: ("model", "system"), FleetRole.TOOLS: ("tools",)}


@dataclass(slots=True)
class LabWorker:
    """One place in the fleet, and the process that fills it now."""

    role: FleetRole
    index: int
    pid: int
    name: str
    generation: int = 0
    is_frozen: bool = False
    has_left: bool = field(default=False)


def get_plan_path(directory: Path, pid: int) -> Path:
    """The file in which a worker finds its fault plan when it gets ``ARM_SIGNAL``."""
    return directory / f"faults-{pid}.txt"


class LabZygote:
    """The process that workers are forked from (``lab.zygote``). Use as a context manager; its children end with it.

    Warming it up costs over a second of CPU, so fleets may share one.
    """

    _process: subprocess.Popen[bytes]
    _channel: TextIO

    def __init__(self, directory: Path, environ: Mapping[str, str], *, more_imports: Sequence[str] = ()) -> None:
        """Start no process yet. The zygote's complaints go to ``zygote.log`` in ``directory``. ``more_imports`` are
        modules that workers need beside those that all of them need.
        """
        self._more_imports = tuple(more_imports)
        self._log = directory / "zygote.log"
        self._environ = dict(environ)

    def __enter__(self) -> LabZygote:
        ours, theirs = socket.socketpair()
        with ours, theirs, self._log.open("a") as log:
            self._process = self._start_program(theirs.fileno(), log)
            self._channel = ours.makefile("rw")
        self._read()
        return self

    def _start_program(self, channel: int, log: IO[str]) -> subprocess.Popen[bytes]:
        """Start the program. ``channel`` is a descriptor of its own, from which it reads requests and to which it
        writes answers."""
        return subprocess.Popen(
            [sys.executable, "-m", "hermes_worker.lab.zygote", *self._more_imports],
            stdin=channel,
            stdout=channel,
            stderr=log,
            env=self._environ,
        )

    def __exit__(self, *_: object) -> None:
        self._channel.close()  # its end takes along all that it forked
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill_leftovers(self, workers: Sequence[int]) -> None:
        """Kill everything that workers with these process numbers have started and left behind."""
        self._ask({"bury": list(workers)})

    def spawn(self, request: Mapping[str, Any]) -> int:
        """Fork a worker (``lab.zygote.main`` has the fields); its process number. Raises ``HermesError``."""
        return int(self._ask(request)["pid"])

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._channel.write(f"{json.dumps(request)}\n")
        self._channel.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._channel.readline()
        if not line:
            raise HermesError(f"the crash lab's worker factory ended; see {self._log}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class LabFleet:
    """Two kinds of workers, forked from one warm process. Use as a context manager: nothing survives the block."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        directory: Path,
        workers_per_role: int,
        concurrency: int,
        work_s: float,
        queues: Mapping[FleetRole, Sequence[str]] = QUEUES,
        zygote: LabZygote | None = None,
    ) -> None:
        """``zygote`` is one that outlives this fleet; without it the fleet brings its own."""
        self._environ = dict(environ)
        self._directory = directory
        self._per_role = workers_per_role
        self._concurrency = concurrency
        self._work_s = work_s
        self._queues = queues
        self.sink = directory / "sink.jsonl"
        self.workers: list[LabWorker] = []
        self.started = 0
        self._relieved: list[LabWorker] = []
        self._pids: list[int] = []
        self._zygote = zygote or LabZygote(directory, environ)
        self._owns_zygote = zygote is None

    def __enter__(self) -> LabFleet:
        if self._owns_zygote:
            self._zygote.__enter__()
        for role in FleetRole:
            for index in range(self._per_role):
                self.workers.append(self._start(role, index, generation=0))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in [*self.workers, *self._relieved]:
            self._signal(worker, signal.SIGCONT)
            self._signal(worker, signal.SIGKILL)
        self._zygote.kill_leftovers(self._pids)
        if self._owns_zygote:
            self._zygote.__exit__()
        for worker in [*self.workers, *self._relieved]:
            self._await_end(worker)

    def find_worker(self, role: FleetRole, index: int) -> LabWorker:
        return next(worker for worker in self.workers if worker.role is role and worker.index == index)

    def kill(self, worker: LabWorker) -> None:
        """Kill the worker with SIGKILL, as a power cut would."""
        self._signal(worker, signal.SIGKILL)
        self._await_end(worker)

    def terminate(self, worker: LabWorker) -> None:
        """Ask the worker with SIGTERM to drain, as a deploy does. Returns at once; see ``is_alive``."""
        self._signal(worker, signal.SIGTERM)

    def freeze(self, worker: LabWorker) -> None:
        worker.is_frozen = True
        self._signal(worker, signal.SIGSTOP)

    def relieve(self, worker: LabWorker) -> None:
        """Give the place of a worker that froze itself to a new process. The old one lives on beside it."""
        worker.is_frozen = True
        self._relieved.append(worker)
        self.replace(worker)

    def wake(self, pid: int) -> None:
        """Let a process go on that froze itself."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def arm(self, worker: LabWorker, plan: str) -> None:
        """Arm fault points in a process that runs already."""
        get_plan_path(self._directory, worker.pid).write_text(plan, encoding="utf-8")
        self._signal(worker, ARM_SIGNAL)

    def thaw(self, worker: LabWorker) -> None:
        worker.is_frozen = False
        self._signal(worker, signal.SIGCONT)

    def replace(self, worker: LabWorker, *, faults: str = "", clock_offset_s: float = 0.0) -> LabWorker:
        """Put a new process into a place whose process has gone."""
        fresh = self._start(
            worker.role,
            worker.index,
            generation=worker.generation + 1,
            faults=faults,
            clock_offset_s=clock_offset_s,
        )
        self.workers[self.workers.index(worker)] = fresh
        return fresh

    def is_alive(self, worker: LabWorker) -> bool:
        try:
            stat = Path(f"/proc/{worker.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"

    def _start(
        self, role: FleetRole, index: int, *, generation: int, faults: str = "", clock_offset_s: float = 0.0
    ) -> LabWorker:
        name = f"chaos-{role.value}-{index}-{generation}"
        environ = {**self._environ, "HERMES_FAULTS": faults} if faults else self._environ
        pid = self._zygote.spawn(
            {
                "name": name,
                "queues": self._queues[role],
                "concurrency": self._concurrency,
                "environ": environ,
                "log": str(self._directory / f"{role.value}-{index}.log"),
                "sink": str(self.sink),
                "work_s": self._work_s,
                "clock_offset_s": clock_offset_s,
            }
        )
        self.started += 1
        self._pids.append(pid)
        return LabWorker(role=role, index=index, pid=pid, name=name, generation=generation)

    def _signal(self, worker: LabWorker, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(worker.pid, number)

    def _await_end(self, worker: LabWorker) -> None:
        deadline = time.monotonic() + 5
        while self.is_alive(worker) and time.monotonic() < deadline:
            time.sleep(0.005)
