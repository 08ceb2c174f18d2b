r"""Runs a set of processes in the foreground and leaves none behind, whatever is killed.

Theory of operation. There are two processes of ours. The *keeper* starts the children and keeps them running
(``children.ChildLoop``). The *warden* is the process that the user started; it forks the keeper, passes signals on, and
waits.

    terminal --Ctrl-C--> warden  (subreaper, in the foreground group)
                           |  \___ pipe: its end says that the warden is dead ____
                           |                                                      \
                           +-- keeper  (subreaper, a group of its own) <-----------+
                                 +-- beat
                                 +-- worker -- its command -- ...   (each child in a session of its own)

Each of the two guarantees the other's children:

* The warden is killed: the end of a pipe tells the keeper, which stops everything quickly.
* The keeper is killed: the kernel kills its children (``process.die_with_parent_hook``) and gives everything below them
  to the warden, which is their nearest *subreaper*; the warden kills what it is given.
* A child is killed: what it leaves in its process group is killed by the keeper, and what left that group belongs to
  the keeper from then on and is killed at the end at the latest.

A Ctrl-C reaches only the warden, since the keeper has a group of its own, and is passed on once: so children are
stopped in order, and not all at the same time by the terminal. Stop signals are blocked from the fork until the keeper
can handle them, because an early one would get lost between the two.

The kernel's parts of this are Linux's. Elsewhere the pipe still works, and killing the keeper leaves its children.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

from hermes_worker.core.errors import HermesError
from hermes_worker.local.children import (
    EXIT_INTERRUPTED,
    EXIT_START_FAILED,
    STOP_SIGNALS,
    ChildLoop,
    ChildSpec,
    kill_descendants,
)
from hermes_worker.local.forking import ChildEntry
from hermes_worker.local.process import become_subreaper, list_child_processes
from hermes_worker.observe import log

__all__ = ["ChildSpec", "StartFailed", "Supervisor"]

_READY = b"r"
_FAILED = b"f"
"""The bytes in front of the sentence that says why the start failed."""
_EXIT_BROKEN = 70
"""EX_SOFTWARE of sysexits.h: a defect of ours."""
_ORDERLY = (0, EXIT_START_FAILED, EXIT_INTERRUPTED)


class StartFailed(HermesError):
    """A child ended, or took too long, before it was ready; the message has its last words."""


class Supervisor:
    """Starts children in order, keeps them running, and stops them in reverse order.

    A child that crashes is started again after 0.5 s, doubling up to 30 s; a minute without a crash starts the count
    anew. A child that fails before it was ever ready ends the whole. SIGTERM and Ctrl-C stop everything in order; a
    second Ctrl-C kills. ``has_prefixes`` puts the child's name in front of its lines.

    Forks, so use it before the process has threads. For one use.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        on_output: Callable[[], None] | None = None,
        has_prefixes: bool = True,
        output: int = 2,
        preload: ChildEntry | None = None,
    ) -> None:
        """``output`` is the descriptor that the children's lines go to; ``on_output`` is called in the keeper's process
        behind some of them, must be quick and never raise. ``preload`` imports what the children that are forked have
        in common; see ``forked``."""
        self._preload = preload
        self._on_output = on_output
        self._specs = specs
        self._output = output
        self._has_prefixes = has_prefixes
        self._keeper: int | None = None
        self._spared: frozenset[int] = frozenset()
        self._ready_pipe = -1
        self._lifeline = -1
        self.failure: str | None = None
        """Why the start failed, as a sentence with the child's last words; ``None`` when it did not."""

    def run(self, on_ready: Callable[[], None] = lambda: None) -> int:
        """Run until a signal says stop; return the exit status: 0 in order, 1 when the start failed, 130 after a second
        Ctrl-C. ``failure`` says why a start failed. ``on_ready`` is called in this process once every child is ready.
        """
        # Held back from here until the keeper can handle them: an early Ctrl-C must not get lost between the two.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        with self._passing_signals_on():
            self._fork()
            if self._wait_for_readiness():
                on_ready()
            return self._await_end()

    @contextlib.contextmanager
    def run_in_background(self, meanwhile: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Run in the background while the block runs, which begins when every child is ready. ``meanwhile`` is called
        in this process while they get ready.

        Raises ``StartFailed``.
        """
        self._fork()
        try:
            meanwhile()
            if not self._wait_for_readiness():
                raise StartFailed(self.failure or "not everything that is needed could be started")
            yield
        finally:
            self.stop()

    def stop(self) -> int:
        """Stop everything in order and return the exit status. A Ctrl-C while it stops kills what is left. Idempotent
        after ``run_in_background`` has begun."""
        with self._passing_signals_on():
            with contextlib.suppress(ProcessLookupError):
                if self._keeper is not None:
                    os.kill(self._keeper, signal.SIGTERM)
            return self._await_end()

    def _fork(self) -> None:
        become_subreaper()
        self._spared = frozenset(child.pid for child in list_child_processes())
        lifeline_reader, self._lifeline = os.pipe()
        self._ready_pipe, ready_writer = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        keeper = os.fork()
        if keeper == 0:
            os.close(self._lifeline)
            os.close(self._ready_pipe)
            self._run_keeper(lifeline_reader, ready_writer)
        self._keeper = keeper
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        os.close(lifeline_reader)
        os.close(ready_writer)

    def _run_keeper(self, lifeline: int, ready_writer: int) -> None:
        """Do the keeper's whole work. Never returns: what the caller of ``run`` does afterwards is the warden's."""
        status = _EXIT_BROKEN
        try:
            # Out of the terminal's foreground group: its Ctrl-C comes through the warden, once.
            os.setpgid(0, 0)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            become_subreaper()
            loop = ChildLoop(
                self._specs,
                lifeline=lifeline,
                output=self._output,
                has_prefixes=self._has_prefixes,
                on_output=self._on_output,
                preload=self._preload,
            )
            status = loop.run(on_ready=lambda: _write_to_pipe(ready_writer, _READY))
            if loop.failure is not None:
                _write_to_pipe(ready_writer, _FAILED + loop.failure.encode(errors="replace"))
        except BaseException:
            log.exception("supervisor.failed")
        finally:
            os._exit(status)

    def _wait_for_readiness(self) -> bool:
        news = os.read(self._ready_pipe, 1)
        if news == _FAILED:
            with os.fdopen(os.dup(self._ready_pipe), "rb") as pipe:
                self.failure = pipe.read().decode(errors="replace")
        return news == _READY

    def _await_end(self) -> int:
        """Wait for the keeper and make sure that nothing of it is left."""
        if self._keeper is None:
            return 0
        _, status = os.waitpid(self._keeper, 0)
        self._keeper = None
        code = os.waitstatus_to_exitcode(status)
        if code not in _ORDERLY:
            # It had no chance to clear up; what it left is ours now.
            kill_descendants(spare=self._spared)
        os.close(self._lifeline)
        os.close(self._ready_pipe)
        return code if code >= 0 else 128 - code

    @contextlib.contextmanager
    def _passing_signals_on(self) -> Iterator[None]:
        def pass_on(number: int, frame: object) -> None:
            if self._keeper is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._keeper, number)

        before = {number: signal.signal(number, pass_on) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _write_to_pipe(pipe: int, what: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, what)
