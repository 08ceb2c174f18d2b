"""A process that has imported everything a worker needs and forks one on request.

Starting a worker from nothing costs over a second of CPU, nearly all of it imports; two hundred kills would spend more
time on that than on recovery. The zygote opens no connection and starts no thread, so that its children begin clean.
Its arguments are modules to import as well. It reads one JSON request a line and answers each with one JSON line; it
ends, and its children with it, when its standard input does.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hermes_worker.local.process import become_subreaper, list_child_processes
from hermes_worker.settings.secret_transfer import begin_program

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve requests ``{"name", "queues", "concurrency", "environ", "log", "sink", "work_s", "clock_offset_s"}``, and
    ``{"bury"}``, which kills all that the workers with these process numbers have started.
    """
    become_subreaper()
    _warm_up()
    signal.signal(signal.SIGCHLD, _reap)
    _write_answer({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        _write_answer({"buried": _kill_leftovers(request["bury"])} if "bury" in request else {"pid": _spawn(request)})


def _warm_up() -> None:
    from hermes_worker.settings.database import POSTGRESQL_DRIVER
    from hermes_worker.worker.warm import warm_up

    for name in (*POSTGRESQL_DRIVER, *sys.argv[1:]):
        importlib.import_module(name)
    warm_up()


def _write_answer(document: Mapping[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(document)}\n")
    sys.stdout.flush()


def _reap(signum: int, frame: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _kill_leftovers(workers: list[int]) -> int:
    """Kill what killed workers left: a worker that is killed leaves its lanes to themselves; a fleet that ends does
    not.
    """
    doomed = []
    for process in list_child_processes(recursive=True):
        with suppress(ProcessLookupError):
            if os.getpgid(process.pid) in workers:
                doomed.append(process.pid)
                os.kill(process.pid, signal.SIGKILL)
    return len(doomed)


def _spawn(request: Mapping[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        status = _run_worker(request)
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 1
    os._exit(status)


def _run_worker(request: Mapping[str, Any]) -> int:
    parent = os.getppid()
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # On a disk that is full the interpreter would leave the beginning of a module's compiled form behind.
    sys.dont_write_bytecode = True
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1  # the zygote died before the kernel was told
    _redirect(Path(request["log"]))
    _jump_clock(float(request["clock_offset_s"]))
    _listen_for_faults(Path(request["sink"]).parent)
    from hermes_worker import settings
    from hermes_worker.lab.sink import make_sink_tools
    from hermes_worker.tasks.build import WorkerOptions
    from hermes_worker.worker.main import WorkerPool, run_worker

    options = WorkerOptions(
        name=request["name"],
        queues=tuple(request["queues"]),
        more_tools=make_sink_tools(Path(request["sink"]), work_s=float(request["work_s"])),
    )
    return run_worker(
        settings.load_settings(request["environ"]),
        options,
        pool=WorkerPool.THREADS,
        concurrency=int(request["concurrency"]),
    )


def _listen_for_faults(directory: Path) -> None:
    """Arm what stands in our plan file whenever the signal says that there is one."""
    from hermes_worker.lab.fleet import ARM_SIGNAL, get_plan_path
    from hermes_worker.system import faults

    def arm(signum: int, frame: object) -> None:
        faults.arm_faults(get_plan_path(directory, os.getpid()).read_text(encoding="utf-8"))

    signal.signal(ARM_SIGNAL, arm)


def _redirect(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _jump_clock(offset_s: float) -> None:
    """Make this process believe in another time of day. Nothing of ours may depend on it: leases, deadlines and
    schedules go by the database's clock."""
    if offset_s:
        real = time.time
        time.time = lambda: real() + offset_s


if __name__ == "__main__":
    begin_program()
    main()
