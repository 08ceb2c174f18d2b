"""The process that ``warm_commands`` asks for commands: it has imported everything, and forks.

It takes requests with their descriptors from a socket, or from one that ``warm_program`` connects to, answers each with
the number of the process, and writes how that ended into the last of the descriptors.

What it forks is the command but for two things. How modules are found is not shown. And ``up`` does not get rid of what
it needed to plan: its lasting process and the one that forks the roles (``cli.stack_process``, ``local.zygote``) go on
from there instead of from nothing. Tests of these start the installed command.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import itertools
import json
import logging
import os
import pickle
import resource
import select
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import setproctitle

from hermes_worker import installed
from hermes_worker.api.app import build_app
from hermes_worker.cli import stack_process, up
from hermes_worker.cli.entry import main
from hermes_worker.cli.stack import import_for_roles
from hermes_worker.local import children, forking, zygote
from hermes_worker.local.process import become_subreaper, die_with, name_process
from hermes_worker.observe import log
from hermes_worker.settings import secret_transfer as handover
from hermes_worker.settings.database import POSTGRESQL_DRIVER
from hermes_worker.settings.role_secrets import is_secret
from support.api_routes import share_routes
from support.warm_commands import REQUEST_BYTES_MAX

_LOG_AT_START = (log._level, log._emit)


def _serve(requests: socket.socket, programs: socket.socket) -> None:
    """Serve the tests over ``requests`` until they end, and whoever comes to ``programs``."""
    _import_everything()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    running: dict[int, int] = {}
    lines: dict[socket.socket, int] = {}
    while True:
        for ready in select.select([requests, programs, reader, *lines], [], [])[0]:
            if ready is programs:
                line = programs.accept()[0]
                lines[line] = _take_request(line, running)
            elif ready is requests:
                if not _take_request(requests, running):
                    return
            elif ready is reader:
                os.read(reader, 4096)
            else:
                _close_line(ready, lines.pop(ready), running)
        _report_ends(running)


def _import_everything() -> None:
    for command in installed.get_installed().commands.values():
        importlib.import_module(str(command.implementation).partition(":")[0])
    import_for_roles((*POSTGRESQL_DRIVER, "scheduler.beat", "hermes_worker.api.server"))
    _describe_api()
    setproctitle.getproctitle()  # finds where the title is, which a child with an environment of its own cannot
    up.become_stack = _stay_as_stack
    children.Zygote = ForkedZygote  # type: ignore[misc]


def _describe_api() -> None:
    """Work out once what the routes take and how they are described, which every ``start api`` would do anew."""
    share_routes()
    nothing = cast(Any, SimpleNamespace(followers=None, changes=None))
    cast(Any, build_app(nothing, nothing, installed.get_installed().routers.values())).openapi()


def _take_request(line: socket.socket, running: dict[int, int]) -> int:
    """Fork a command; return the number of the process, 0 when nobody asks any more."""
    message, descriptors, _, _ = socket.recv_fds(line, REQUEST_BYTES_MAX, 4)
    if not message:
        return 0
    *streams, status_writer = descriptors
    set_up, child_is_set_up = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_the_command(json.loads(message), streams, child_is_set_up)
    running[pid] = status_writer
    for descriptor in (*streams, child_is_set_up):
        os.close(descriptor)
    os.read(set_up, 1)  # its end: signals to its process group arrive from now on
    os.close(set_up)
    with suppress(OSError):  # who asked has been killed, which the line says as well
        line.send(str(pid).encode())
    return pid


def _close_line(line: socket.socket, pid: int, running: Mapping[int, int]) -> None:
    """A program has ended: as its command did, or it was killed, and its command with it."""
    line.close()
    if pid in running:
        os.kill(pid, signal.SIGKILL)


def _report_ends(running: dict[int, int]) -> None:
    """Told before it is reaped: a process that cannot be found any more is one whose end is known."""
    while running and (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with suppress(OSError):  # a program that has been killed does not read it
            os.write(running[ended.si_pid], str(status).encode())
        os.close(running.pop(ended.si_pid))
        os.waitpid(ended.si_pid, 0)


def _be_the_command(request: Mapping[str, Any], streams: Sequence[int], child_is_set_up: int) -> None:
    """The child's whole life. Never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.chdir(request["cwd"])
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.environ.clear()
        os.environ.update(request["environ"])
        sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        handover.keep_files_private()
        handover.hide_memory()
        os.closerange(3, child_is_set_up)
        os.closerange(child_is_set_up + 1, 4096)
        os.close(child_is_set_up)
        # Objects of their own: what can be done with a stream is decided when it is opened.
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
        _run(request["arguments"])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        os._exit(status)


def _stay_as_stack(plan: stack_process.PlannedStack) -> NoReturn:
    """Do in this process what ``become_stack`` does by starting it again: with the plan, and without other descriptors,
    handlers of signals and secrets in the environment."""
    lasting = {plan.home.descriptor, *(fd for spec in plan.specs for fd in spec.pass_fds)}
    lasting |= {plan.report.writer} if plan.report is not None else set()
    status = 1
    try:
        with handover.open_sealed(pickle.dumps(plan)) as descriptor:
            gc.collect()  # what closes a descriptor of its own must not find another's under its number later
            kept = sorted({2, descriptor, *lasting, resource.getrlimit(resource.RLIMIT_NOFILE)[0]})
            for before, after in itertools.pairwise(kept):
                os.closerange(before + 1, after)
            _forget_handlers()
            for name in [name for name, value in os.environ.items() if is_secret(name, value)]:
                del os.environ[name]
            status = stack_process.main([str(descriptor), ""])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _forget_handlers() -> None:
    signal.set_wakeup_fd(-1)
    for number in forking.RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


class ForkedZygote(forking.Zygote):
    """A zygote that is a fork of the process which asks for it, and so has imported everything already."""

    def start(self, env: Mapping[str, str]) -> socket.socket:
        if self._line is None:
            become_subreaper()
            self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                self._be_the_zygote(env, parent, theirs.fileno())
            theirs.close()
            self._process = forking.ForkedProcess(pid, io.BytesIO())  # type: ignore[assignment]
        return self._line

    def _be_the_zygote(self, env: Mapping[str, str], parent: int, line: int) -> NoReturn:
        try:
            die_with(parent)
            forking._take_descriptors(self._output, {line: line})
            _forget_handlers()
            logging.getLogger().handlers.clear()
            log._level, log._emit = _LOG_AT_START
            os.environ.clear()
            os.environ.update(env)
            words = [self._preload.place, *self._preload.arguments] if self._preload else []
            zygote.main([str(line), *words])
        finally:
            os._exit(0)


def _run(arguments: Sequence[str]) -> None:
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(arguments[1], {"__name__": "__main__"})  # noqa: S102 - the test's own
        return
    sys.argv = ["hermes-worker", *arguments]
    name_process("hermes-worker")
    main(arguments)


if __name__ == "__main__":
    _serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
