"""The process that watches one background process of a local workspace, for as long as that lives.

It is started by a worker and has no parent afterwards, so the worker's death costs nothing. It runs the command as a
worker runs its own, with the same walls, limits and proxy; it knows no secret. Its own death ends the command
(``guardian``), and so does the removal of its directory.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from hermes_worker.workspaces.base import EXCESS_SENTENCES, CommandResult, Ending, WorkspaceError
from hermes_worker.workspaces.command_mark import build_worker_title
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.process_daemon import client
from hermes_worker.workspaces.processes import ProcessOrder, ProcessState
from hermes_worker.workspaces.shell import TerminalPair

_LOOK_S: Final = 0.05
_LOG_S: Final = 0.2
"""The log is written at most once in so many seconds."""
_SETTLED_S: Final = 0.15
"""A process that fails to start says so within this many seconds."""
_PENDING_BYTES_MAX: Final = 262_144
_END_OF_INPUT: Final = b"\x04"
"""The character that a terminal takes for the end of its input."""
_STATES: Final = {
    Ending.EXITED: ProcessState.EXITED,
    Ending.TIMED_OUT: ProcessState.TIMED_OUT,
    Ending.CANCELLED: ProcessState.KILLED,
}


class ProcessDaemon:
    """Runs one process. The thread that runs the command adds its output; another attends to the files."""

    def __init__(self, directory: Path, order: ProcessOrder) -> None:
        self._directory = directory
        self._order = order
        self._lock = threading.Lock()
        self._tail = bytearray()
        self._total = 0
        self._logged = -1
        self._pending = bytearray()
        self._is_input_over = False
        self._to_end = threading.Event()
        self._over = threading.Event()
        self._input: int | None = None

    def run(self, workspace: LocalWorkspace) -> None:
        """Run the command to its end and write down how it ended."""
        order = self._order
        with ExitStack() as stack:
            terminal, stdin = None, None
            if order.terminal is not None:
                terminal = TerminalPair.open(order.terminal)
                self._input = os.dup(terminal.ours)
                stack.callback(terminal.close)
            else:
                stdin, self._input = os.pipe()
                stack.callback(os.close, stdin)
            os.set_blocking(self._input, False)
            attendant = threading.Thread(target=self._attend_files, name="hermes_attendant", daemon=True)
            attendant.start()
            try:
                result = workspace.execute(
                    order.command,
                    cwd=order.cwd,
                    env=order.env,
                    timeout_s=order.lifetime_s,
                    output_bytes_max=1024,
                    should_stop=self._to_end.is_set,
                    origin=order.origin,
                    on_output=self._add_output,
                    stdin=stdin,
                    terminal=terminal,
                )
            except WorkspaceError as error:
                ended = {"state": ProcessState.FAILED.value, "note": str(error)}
            else:
                ended = _build_final_state(result)
            self._over.set()
            attendant.join()
            self._write_log()
            self._write_state(ended)

    def end(self, *_: object) -> None:
        """End the command. A handler of signals."""
        self._to_end.set()

    def _add_output(self, data: bytes) -> None:
        with self._lock:
            self._total += len(data)
            self._tail += data
            del self._tail[: -self._order.log_bytes_max]

    def _attend_files(self) -> None:
        logged_at, said_at = time.monotonic(), float("-inf")
        self._over.wait(_SETTLED_S)
        while not self._over.is_set():
            try:
                if time.monotonic() >= logged_at + _LOG_S:
                    self._write_log()
                    logged_at = time.monotonic()
                if time.monotonic() >= said_at + client.BEAT_S:
                    self._write_state({"state": ProcessState.RUNNING.value})
                    said_at = time.monotonic()
                self._take_input()
            except OSError:
                if not self._directory.exists():
                    self._to_end.set()  # it was forgotten
            self._over.wait(_LOOK_S)

    def _write_state(self, what: dict[str, Any]) -> None:
        said = {**client.describe_self(self._directory), "beat": time.time(), **what}
        with suppress(FileNotFoundError):
            client.replace_file(self._directory / "state", json.dumps(said).encode())

    def _write_log(self) -> None:
        with self._lock:
            if self._total == self._logged:
                return
            text, self._logged = b"%d\n%s" % (self._total, self._tail), self._total
        with suppress(FileNotFoundError):
            client.replace_file(self._directory / "log", text)

    def _take_input(self) -> None:
        for file in sorted((self._directory / "in").iterdir()):
            if file.name.startswith("."):
                continue
            kind = file.name.rpartition(".")[2]
            if kind == client.KILL:
                self._to_end.set()
            elif len(self._pending) < _PENDING_BYTES_MAX and not self._is_input_over:
                # Removed before it is written: what may have been read is not written again.
                data = file.read_bytes()
                file.unlink()
                self._pending += data
                if kind == client.LAST:
                    self._is_input_over = True
                    if self._order.terminal is not None:
                        self._pending += _END_OF_INPUT
        self._write_input()

    def _write_input(self) -> None:
        if self._input is None:
            return
        try:
            while self._pending:
                del self._pending[: os.write(self._input, self._pending)]
        except BlockingIOError:
            return
        except OSError:
            self._pending.clear()  # it closed its end
        if self._is_input_over and self._order.terminal is None:
            os.close(self._input)
            self._input = None


def _build_final_state(result: CommandResult) -> dict[str, Any]:
    notes = [EXCESS_SENTENCES[result.excess]] if result.excess is not None else []
    notes += [f"the network proxy refused {'; '.join(result.refused)}"] if result.refused else []
    return {
        "state": _STATES[result.ending].value,
        "exit_code": result.exit_code,
        "note": "; ".join(notes) or None,
        "sandbox": result.sandbox,
        "network": result.network,
    }


def main() -> None:
    """Read the order, detach from the worker that started us, and mind the process."""
    text = sys.stdin.buffer.read()
    if not text or os.fork():
        os._exit(0)
    # From a worker of ours over a pipe of ours.
    order: client.DaemonOrder = pickle.loads(text)  # noqa: S301
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    daemon = ProcessDaemon(order.directory, order.process)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, daemon.end)
    workspace: LocalWorkspace = order.workspace
    with suppress(ImportError):
        import setproctitle

        setproctitle.setproctitle(
            build_worker_title("hermes-worker: worker process daemon", may_call_us=workspace.may_call_us)
        )
    daemon.run(workspace)


if __name__ == "__main__":
    main()
