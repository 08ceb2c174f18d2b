"""``hermes-worker status|logs|down``: show and stop the stack that ``up`` started on a home of this machine."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.copies import find_copy_note
from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.layout import format_duration, format_moment
from hermes_worker.cli.options import common, format_home_option, load_client_settings
from hermes_worker.cli.stack_words import describe_roles, describe_silent_workers, describe_work
from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.run import OPEN_STATUSES, RunKind
from hermes_worker.local.background_stack import NoStack, RunningStack, follow_lines, get_log_path, read_log_end
from hermes_worker.local.paths import StackNote, find_left_note, find_running_stack, is_held, read_failed_start
from hermes_worker.local.readiness import read_causes
from hermes_worker.settings import Settings

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

_LOOK_EVERY_S = 0.2
_TELL_EVERY_S = 5.0
_PATIENCE_S = 5.0
"""Seconds that an API of this machine may take."""
_COUNTED_MAX = 100
"""Most runs and questions that are counted: a page of the API."""


@click.command(epilog="The exit code is 0 while it runs and does well, and 1 otherwise.")
@common
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def status(home: Path | None, as_json: bool) -> int:
    """Whether the stack of this home runs, since when, and how it does."""
    settings = load_client_settings(home, needs_servers=False)
    place = settings.home
    note = find_running_stack(place)
    copied = find_copy_note(settings)
    work: list[str] = []
    parts = _list_parts(place) if note is not None else []
    if note is None:
        wrong = _find_problem(place)
    else:
        problem, work = _ask_api(note, settings, parts)
        wrong = _find_waiting_parts(place) or problem
    if as_json:
        told = {
            "home": str(place),
            "running": note is not None,
            "pid": note.pid if note else None,
            "started_at": note.started_at if note else None,
            "api_url": note.api_url if note else None,
            "parts": parts,
            "work": work,
            "problem": wrong,
            "is_copy": copied is not None,
        }
        click.echo(json.dumps(told))
    elif note is not None:
        since = (
            f"since {format_moment(note.started_at)}, for {format_duration(max(0.0, time.time() - note.started_at))}"
        )
        lines = [
            f"'hermes-worker {note.command}' runs on {place} (pid {note.pid}), {since}",
            f"  API    {note.api_url or 'none'}",
            f"  model  {note.model}",
            f"  roles  {describe_roles(parts)}",
            *(f"  work   {line}" for line in work),
            *([f"  wrong  {wrong}"] if wrong else []),
            *([f"  copy   {copied}"] if copied else []),
        ]
        click.echo("\n".join(lines))
    else:
        click.echo(f"no hermes-worker runs on {place}: {wrong}" if wrong else f"no hermes-worker runs on {place}")
    return 0 if note is not None and wrong is None else EXIT_FAILED


def _list_parts(home: Path) -> list[str]:
    try:
        with RunningStack(home) as stack:
            return stack.list_parts()
    except NoStack:
        return []


def _find_problem(home: Path) -> str | None:
    """Say why there is no stack that could be asked, as a sentence; ``None`` where none was started."""
    if is_held(home):
        return "it is starting or stopping"
    if (left := find_left_note(home)) is not None:
        began = format_moment(left.started_at)
        return f"that of pid {left.pid}, up since {began}, ended without a word: it was killed, or the machine was"
    if (failed := read_failed_start(home)) is not None:
        return f"the last start failed, {format_moment(failed.at)}: {failed.sentence}"
    return None


def _find_waiting_parts(home: Path) -> str | None:
    """List what workers of the stack wait for, in their words."""
    return "; ".join(f"{name} waits: {cause}" for name, cause in read_causes(home / "run").items()) or None


def _ask_api(note: StackNote, settings: Settings, parts: Sequence[str]) -> tuple[str | None, list[str]]:
    """Ask the stack's API what is wrong with it, and what is at work and asked, in words; nothing where it only talks
    to holders of certificates."""
    from hermes_worker.client import HermesClient
    from hermes_worker.settings.tls import build_own_context

    server = settings.server
    if note.api_url is None or server.tls_client_ca is not None:
        return None, []
    tls = build_own_context(server)
    try:
        with HermesClient(note.api_url, home=settings.home, tls=tls, patience_s=_PATIENCE_S) as client:
            client.health()
            with suppress(HermesError):  # what it does is a courtesy, and no sign of trouble
                silent = describe_silent_workers(parts, (each.queues for each in client.workers()))
                return silent, _describe_work(client)
            return None, []
    except HermesError as error:
        return f"its API does not do well: {error}", []


def _describe_work(client: HermesClient) -> list[str]:
    kinds = [kind.value for kind in RunKind if not kind.is_beside_work]
    found = list(islice(client.runs(status=OPEN_STATUSES, kind=kinds, limit=_COUNTED_MAX), _COUNTED_MAX))
    lines = [describe_work([each.status for each in found], is_cut=len(found) == _COUNTED_MAX)]
    if asked := len(client.approvals(limit=_COUNTED_MAX)):
        lines.append(f"{asked} {'question waits' if asked == 1 else 'questions wait'}: 'hermes-worker approvals list'")
    if jobs := sum(each.enabled for each in client.jobs()):
        lines.append(f"{jobs} scheduled {'job' if jobs == 1 else 'jobs'}: 'hermes-worker cron list'")
    return lines


@click.command(epilog="Example: hermes-worker logs -f   Ctrl-C ends the reading, not what is read.")
@common
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, until the stack has ended.")
@click.option("-n", "--lines", type=click.IntRange(0, 100_000), default=100, show_default=True, help="So many first.")
@click.option("--path", "only_path", is_flag=True, help="Say where the log is, and nothing else.")
def logs(home: Path | None, follow: bool, lines: int, only_path: bool) -> None:
    """What a stack in the background wrote, and with -f what it writes."""
    place = load_client_settings(home, needs_servers=False).home
    path = get_log_path(place)
    if only_path:
        click.echo(path)
        return
    if not path.exists():
        raise ConfigurationError(
            f"there is no log on {str(place)!r}: 'hermes-worker up --detach{format_home_option(place)}' writes one, "
            f"and "
            "without --detach lines are shown in the terminal of 'up'"
        )
    found, end = read_log_end(path, lines)
    for line in found:
        _show(line)
    if follow:
        for line in follow_lines(path, end, lambda: not is_held(place)):
            _show(line)


def _show(line: bytes) -> None:
    """Write a role's output as it is to a file, and harmless to a terminal."""
    from hermes_worker.cli.wording import strip_controls

    text = line.decode("utf-8", "replace")
    click.echo(strip_controls(text) if sys.stdout.isatty() else text)


@click.command(
    epilog="What is at work when the time of its drain is over is handed back, and goes on after the next 'up'."
)
@common
@click.option("--now", is_flag=True, help="Do not drain: end all of it at once. Runs go on after the next 'up'.")
def down(home: Path | None, now: bool) -> int:
    """Drain the stack of this home and stop it. Ctrl-C leaves it draining."""
    place = load_client_settings(home, needs_servers=False).home
    try:
        stack = RunningStack(place)
    except NoStack as error:
        wrong = _find_problem(place)
        click.echo(f"{error}{f': {wrong}' if wrong else ''}", err=True)
        return 0 if wrong is None or not is_held(place) else EXIT_FAILED
    with stack:
        stack.signal(signal.SIGTERM)
        if now:
            stack.signal(signal.SIGINT)
        try:
            _wait(stack)
        except KeyboardInterrupt:
            click.echo(
                f"\nit goes on draining; 'hermes-worker down --now{format_home_option(place)}' ends it at once",
                err=True,
            )
            raise
    click.echo(f"hermes-worker on {place} has stopped")
    return 0


def _wait(stack: RunningStack) -> None:
    """Wait until it has stopped, and say every few seconds what still runs."""
    began = told_at = time.monotonic()
    while stack.is_running:
        if time.monotonic() - told_at >= _TELL_EVERY_S:
            told_at = time.monotonic()
            parts = ", ".join(stack.list_parts()) or "nothing below it"
            click.echo(f"draining for {format_duration(told_at - began)}; still there: {parts}", err=True)
        time.sleep(_LOOK_EVERY_S)
