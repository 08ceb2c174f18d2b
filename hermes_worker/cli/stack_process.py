"""The lasting process of ``hermes-worker up``: what it takes to keep a stack running, and nothing that it took to plan.

Theory of operation. Whoever plans a stack reads every setting, looks for servers and migrates the database; the modules
for that take 60 MB, which would stay for as long as the stack. So ``up`` plans, and then starts itself again as this
program, in the same process (``exec``): with its number, its children's line to the kernel and the locks that it holds.
The plan, secrets among it, is handed over in a sealed file without a name that nobody else can open.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn

from hermes_worker.local.background_stack import StackLog
from hermes_worker.local.children import ChildSpec
from hermes_worker.local.forking import ChildEntry
from hermes_worker.local.paths import HeldHome, StackNote
from hermes_worker.local.process import title_process
from hermes_worker.local.supervisor import Supervisor
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.observe import configure_logging, import_structlog
from hermes_worker.settings import LogSettings, Secret
from hermes_worker.settings.role_secrets import is_secret
from hermes_worker.settings.secret_transfer import begin_program, open_sealed, read_sealed

EXIT_UNUSABLE = 2
_IS_UP = b"u"
_FAILED = b"f"
"""Stands before the sentence that says why a start failed."""
_WORDS_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStack:
    """A stack that only has to be started. Its functions are of modules that are small."""

    specs: Sequence[ChildSpec]
    preload: ChildEntry
    home: HeldHome
    note: StackNote
    valkey: EmbeddedValkey | None
    log: LogSettings
    secrets: Sequence[str] = field(repr=False)
    """What no log line may show."""
    logs: Sequence[StackLog]
    """Logs to keep small."""
    welcome: str
    """What to say once everything is up; ``{took_s}`` stands for the seconds since ``began``."""
    warning: str | None = None
    """What to say after that, to stderr."""
    began: float
    """By the monotonic clock."""
    report: StartReport | None = None
    """For a stack in the background: how to tell the process that started it."""


class StartReport:
    """The pipe over which a stack in the background says how its start went."""

    def __init__(self, writer: int, words: str = "") -> None:
        self.writer = writer
        self._words = words

    def with_words(self, words: str) -> StartReport:
        return StartReport(self.writer, words)

    def report_start(self) -> None:
        self._write(_IS_UP + self._words.encode())

    def report_failure(self, sentence: str) -> None:
        self._write(_FAILED + sentence.encode(errors="replace"))

    def _write(self, said: bytes) -> None:
        try:
            os.write(self.writer, said)
            os.close(self.writer)
        except OSError:
            return  # nobody waits for it any more


def read_report(reader: int) -> tuple[bool, str]:
    """Wait until a stack in the background is up or has failed; return which, and its words."""
    said = os.read(reader, _WORDS_BYTES)  # once: processes of the stack have the other end as well
    return said.startswith(_IS_UP), said[1:].decode(errors="replace")


def become_stack(plan: PlannedStack) -> NoReturn:
    """Become the process that keeps the stack running; the plan's descriptors go along."""
    lasting = [plan.home.descriptor, *(fd for spec in plan.specs for fd in spec.pass_fds)]
    lasting += [plan.report.writer] if plan.report is not None else []
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with open_sealed(pickle.dumps(plan)) as descriptor:
        for number in (descriptor, *lasting):
            os.set_inheritable(number, True)
        numbers = ",".join(map(str, lasting))
        environ = {name: value for name, value in os.environ.items() if not is_secret(name, value)}
        os.execve(sys.executable, [sys.executable, "-P", "-m", __name__, str(descriptor), numbers], environ)


def main(arguments: Sequence[str]) -> int:
    """Keep a stack running. ``arguments`` are the descriptor of its plan, and those that its processes shall not have
    by chance."""
    begin_program()
    title_process("up")
    for number in filter(None, arguments[1].split(",")):
        os.set_inheritable(int(number), False)
    # By our own process, in a file that no other could open or change.
    plan: PlannedStack = pickle.loads(read_sealed(int(arguments[0])))  # noqa: S301
    import_structlog()  # before the keeper is forked, which writes lines as well
    configure_logging(plan.log, "up", secrets=[Secret(text) for text in plan.secrets])
    supervisor = Supervisor(plan.specs, on_output=partial(_keep_small, plan.logs), preload=plan.preload)
    try:
        status = supervisor.run(on_ready=partial(_announce, plan))
        if supervisor.failure is None:
            return status
        plan.home.note_failure(supervisor.failure)
        print(f"hermes-worker: {supervisor.failure}", file=sys.stderr, flush=True)
        if plan.report is not None:
            plan.report.report_failure(supervisor.failure)
        return EXIT_UNUSABLE
    finally:
        plan.home.withdraw()
        if plan.valkey is not None:
            plan.valkey.release()


def _announce(plan: PlannedStack) -> None:
    plan.home.announce(replace(plan.note, started_at=time.time()))
    print(plan.welcome.replace("{took_s}", f"{time.monotonic() - plan.began:.1f}"), flush=True)
    if plan.warning is not None:
        print(f"warning: {plan.warning}", file=sys.stderr, flush=True)
    if plan.report is not None:
        plan.report.report_start()


def _keep_small(logs: Sequence[StackLog]) -> None:
    for each in logs:
        each.keep_small()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
