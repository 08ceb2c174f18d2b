"""``hermes-worker run``: a task, an agent, this directory; from nothing to an answer with one command.

The run goes through the real queue: it is submitted, claimed by a worker and stored step by step. So an interruption
loses nothing, and a stack that runs on the same home already serves as well as one of our own; when that one stops in
the middle, we start our own and continue.
"""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli.entry import EXIT_INTERRUPTED, was_interrupted
from hermes_worker.cli.models import describe_model, find_model_name, make_model_key
from hermes_worker.cli.options import (
    TEXT,
    act_as_this_user,
    common,
    find_this_user,
    format_home_option,
    load_settings,
    parse_toolset_names,
    read_prompt_text,
    toolsets_option,
)
from hermes_worker.cli.prompt_words import PromptCommand
from hermes_worker.cli.stack import Stack, StackPlan
from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.principals import Principal
from hermes_worker.local.children import ChildSpec
from hermes_worker.local.paths import (
    HeldHome,
    HomeBusy,
    StackNote,
    find_running_stack,
    get_logs_dir,
    hold_home,
    holds_state,
    is_held,
)
from hermes_worker.local.process import title_process
from hermes_worker.local.supervisor import StartFailed, Supervisor
from hermes_worker.settings import Settings

if TYPE_CHECKING:
    from hermes_worker.cli.records import Records

REPORT = "hermes-report.md"
DEFAULT_PROMPT = f"""\
Survey the project in this directory. Find out what it is, which files it consists of, what is marked TODO or FIXME, \
and what its recent history says. Write what you found to {REPORT} and finish with a short summary."""
_DRAIN_S = 0.5
"""Seconds to drain: a person who presses Ctrl-C wants the terminal back; what was in flight is handed over and done
later."""
_JOIN_PATIENCE_S = 60.0
_LOG_LINES_SHOWN = 15


class _StackGone(HermesError):
    """The stack that worked on our run has ended."""


@click.command(
    cls=PromptCommand,
    epilog="Example: hermes-worker run 'Find out why the tests in this directory fail' --workspace ~/project",
)
@common
@click.argument("prompt", type=TEXT, required=False)
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    default=".",
    help="Directory the agent works in: it reads, writes and runs commands there. Default: this one.",
)
@click.option("--model", type=TEXT, help="Model to ask. Default: HERMES_MODEL, or the provider's usual one.")
@click.option("--base-url", type=TEXT, help="Address of an OpenAI-compatible model server.")
@toolsets_option
@click.option("--keep", is_flag=True, help="Keep everything running after the answer, until Ctrl-C.")
def run(
    home: Path | None,
    prompt: str | None,
    workspace: Path,
    model: str | None,
    base_url: str | None,
    toolsets: str | None,
    keep: bool,
) -> int:
    """Give an agent a task in a directory and watch it work.

    Starts what is needed (broker, database, workers and, without a key, a scripted stand-in for the model), or uses a
    'hermes-worker up' that runs on the same home. Without PROMPT the agent surveys the directory and writes
    hermes-report.md into it.
    """
    title_process("run")
    settings = load_settings(home, {"model.default": model, "model.base_url": base_url}, is_of_fleet=True)
    text = read_prompt_text(prompt) if prompt is not None else DEFAULT_PROMPT
    _require_workspace(workspace, settings.home)
    _show_warnings_only(settings)
    asked = _RunRequest(
        text=text, workspace=workspace.resolve(), model=model, base_url=base_url, toolsets=parse_toolset_names(toolsets)
    )
    task = _Task(settings, asked)
    with _interrupt_on_signals():
        try:
            return task.perform(keep=keep)
        except (KeyboardInterrupt, Exception) as error:
            if not was_interrupted(error):
                raise
            click.echo(f"\n{task.describe_interruption()}", err=True)
            return EXIT_INTERRUPTED


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunRequest:
    """The task and the options of the command line."""

    text: str
    workspace: Path
    model: str | None
    base_url: str | None
    toolsets: Sequence[str] | None

    @property
    def flags(self) -> str:
        """The options about the model: the same must be given again to continue."""
        given = (("--model", self.model), ("--base-url", self.base_url))
        return "".join(f" {flag} {shlex.quote(value)}" for flag, value in given if value is not None)


class _Task:
    """One run, from its submission to its end, on as many stacks as it takes."""

    def __init__(self, settings: Settings, asked: _RunRequest) -> None:
        self._settings = settings
        self._asked = asked
        self._began_at = time.time()
        self._run_id: str | None = None
        self._last_event = ""
        """The last event that the screen shows, to continue after a change of stacks."""

    def perform(self, *, keep: bool) -> int:
        """Run the task to its end. Returns the exit code."""
        if self._settings.broker.url is not None:
            return self._follow(self._settings, self._asked.model)
        home = self._settings.home
        while True:
            try:
                with hold_home(home) as held:
                    return self._on_own_stack(held, keep=keep)
            except HomeBusy:
                note = _await_other_stack(home)
            if note is None:
                continue  # it went away while we looked, so now we may
            self._require_same_model(note)
            click.echo(f"using the 'hermes-worker {note.command}' that runs on {home}: {note.model}", err=True)
            try:
                return self._follow(self._settings, self._asked.model or note.model_name, note.model_key)
            except _StackGone:
                click.echo("\nthe hermes-worker that did the work has ended; carrying on with one of our own", err=True)

    def describe_interruption(self) -> str:
        """Write what an interrupted user should know."""
        if self._run_id is None:
            return "interrupted; nothing was submitted"
        home = format_home_option(self._settings.home)
        lines = [f"interrupted; {self._run_id} is kept"]
        if self._settings.broker.url is None and find_running_stack(self._settings.home) is None:
            lines.append(f"  to carry on:  hermes-worker up{home}{self._asked.flags}")
        lines.append(f"  to follow it: hermes-worker runs watch{home} {self._run_id}")
        return "\n".join(lines)

    def _on_own_stack(self, held: HeldHome, *, keep: bool) -> int:
        lease = replace(self._settings.lease, drain_s=_DRAIN_S, drain_once_s=_DRAIN_S)
        settings = replace(self._settings, lease=lease)
        stack = Stack(settings, StackPlan(has_beat=False, has_api=False))
        log_path = get_logs_dir(settings.home) / "run.log"
        try:
            specs = stack.prepare(_say)
            click.echo(f"model: {describe_model(settings)}", err=True)
            _say(f"starting {', '.join(spec.name for spec in specs)} on {settings.home}")
            with log_path.open("wb") as log, _supervise(specs, stack, log.fileno(), log_path):
                held.announce(_build_note(stack, settings))
                status = self._follow(stack.settings, self._asked.model, make_model_key(stack.settings))
                if keep:
                    click.echo("everything keeps running until Ctrl-C", err=True)
                    signal.pause()
                return status
        except StartFailed as error:
            held.note_failure(str(error).partition("\n")[0])
            raise
        finally:
            held.withdraw()
            stack.release()

    def _require_same_model(self, note: StackNote) -> None:
        settings = self._settings
        if settings.model.is_scripted or make_model_key(settings) == note.model_key:
            return
        raise ConfigurationError(
            f"the hermes-worker that runs on {str(settings.home)!r} (pid {note.pid}) uses {note.model}, "
            f"and this command is to use {describe_model(settings)}; stop that one, or choose another "
            "directory with --home"
        )

    def _follow(self, settings: Settings, model: str | None, endpoint: str | None = None) -> int:
        """Submit the task unless that was done, and show the run until it ends."""
        from hermes_worker.cli.children import FamilyWatch
        from hermes_worker.cli.event_notices import Notice
        from hermes_worker.cli.follow import follow
        from hermes_worker.cli.records import open_records_of
        from hermes_worker.cli.runs import choose_exit_code, show_end
        from hermes_worker.cli.screen import Screen
        from hermes_worker.services.sheets import load_news, load_sheet
        from hermes_worker.stream.sse import Cursor

        if self._run_id is None:
            self._run_id = self._submit(settings, model, endpoint)
        records = open_records_of(settings)
        screen = Screen(self._run_id)
        told = Cursor.parse(self._last_event) if self._last_event else Cursor()
        is_elsewhere = self._settings.broker.url is not None
        on_idle = (
            partial(records.find_notice, self._run_id) if is_elsewhere else partial(_find_notice, records, self._run_id)
        )
        # Closed before a stack of our own is forked: the children would take our locks on SQLite's files for theirs.
        with closing(records.database):
            watch, run_id = FamilyWatch(), self._run_id
            news = lambda: watch.render_changes(load_news(records.database, run_id))  # noqa: E731
            for event in follow(records.sources, run_id, told=told, on_idle=on_idle, news=news):
                screen.show(event)
                if not isinstance(event, Notice):
                    self._last_event = event.id
            sheet = load_sheet(records.database, self._run_id)
            show_end(sheet)
            self._show_report()
        return choose_exit_code(sheet.view)

    def _submit(self, settings: Settings, model: str | None, endpoint: str | None) -> str:
        from hermes_worker.services.submission import Submission, submit
        from hermes_worker.wiring import open_client

        if self._asked.text == DEFAULT_PROMPT:
            _announce_report(self._asked.workspace)
        client = open_client(settings)
        submission = Submission(
            input=self._asked.text,
            model=model,
            endpoint=endpoint,
            toolsets=self._asked.toolsets,
            directory=str(self._asked.workspace),
            principal=Principal(name=find_this_user()),
            source="cli",
        )
        act_as_this_user()
        with closing(client):
            run_id = submit(client, submission).run_id
        click.echo(f"{run_id} in {self._asked.workspace}\n")
        return run_id

    def _show_report(self) -> None:
        path = self._asked.workspace / REPORT
        if path.is_file() and path.stat().st_mtime >= self._began_at - 1:
            click.echo(f"report: {path}")


def _announce_report(workspace: Path) -> None:
    """Announce the report's file in a git tree: it is a change of the tree, which should not surprise the user."""
    if any((directory / ".git").exists() for directory in (workspace, *workspace.parents)):
        click.echo(f"note: the survey will be written to {workspace / REPORT}, in this git tree", err=True)


def _require_workspace(workspace: Path, home: Path) -> None:
    """Raise ``ConfigurationError`` for a directory that a submission would refuse, before anything is started."""
    if not workspace.is_dir():
        raise ConfigurationError(f"--workspace {str(workspace)!r} is not a directory")
    if holds_state(home, workspace.resolve()):
        raise ConfigurationError(f"--workspace {str(workspace)!r} holds the state of hermes-worker; choose another")


def _say(doing: str) -> None:
    click.echo(f"{doing} ...", err=True)


def _show_warnings_only(settings: Settings) -> None:
    """Show only warnings of our own log; what the workers log goes to a file."""
    from hermes_worker.observe import configure_logging

    configure_logging(replace(settings.log, level="WARNING"), "run", secrets=settings.secrets)


def _build_note(stack: Stack, settings: Settings) -> StackNote:
    return StackNote(
        pid=os.getpid(),
        command="run",
        started_at=time.time(),
        broker_url=stack.settings.broker.url or "",
        model=describe_model(settings),
        model_key=make_model_key(settings),
        model_name=find_model_name(stack.settings),
    )


@contextmanager
def _supervise(specs: Sequence[ChildSpec], stack: Stack, output: int, log_path: Path) -> Iterator[None]:
    supervisor = Supervisor(specs, preload=stack.preload, output=output)
    try:
        with supervisor.run_in_background(meanwhile=_import_the_rest):
            yield
    except StartFailed as error:
        words = log_path.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        raise StartFailed("\n".join([f"{error}; the end of {log_path}:", *words])) from error


_THE_REST = (
    "hermes_worker.services.submission",
    "hermes_worker.wiring",
    "hermes_worker.cli.records",
    "hermes_worker.cli.runs",
    "hermes_worker.cli.screen",
)


def _import_the_rest() -> None:
    """Import half a second's worth of modules while the children import theirs, instead of afterwards."""
    for name in _THE_REST:
        importlib.import_module(name)


def _await_other_stack(home: Path) -> StackNote | None:
    """Wait for the stack that holds the home to be up; ``None`` when it stopped instead. Raises ``HomeBusy``."""
    deadline = time.monotonic() + _JOIN_PATIENCE_S
    while (note := find_running_stack(home)) is None:
        if not is_held(home):
            return None
        if time.monotonic() > deadline:
            raise HomeBusy(f"another hermes-worker has been starting or stopping on {str(home)!r} for a minute")
        time.sleep(0.1)
    return note


def _find_notice(records: Records, run_id: str) -> str | None:
    """Write why the run does not move; ``None`` while it does. Raises ``_StackGone`` when nothing runs on the home."""
    home = records.settings.home
    if find_running_stack(home) is None:
        raise _StackGone(f"nothing runs on {str(home)!r}")
    return records.find_notice(run_id)


@contextmanager
def _interrupt_on_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end us as Ctrl-C does: in order."""

    def interrupt(_number: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
