"""``hermes-worker runs``: list, show, watch, control and export runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli import trees
from hermes_worker.cli.budget import build_budget_document, render_budget
from hermes_worker.cli.children import render_family
from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.event_notices import Notice
from hermes_worker.cli.explaining import explain
from hermes_worker.cli.layout import format_clock, format_count, format_duration, format_moment, hide_secrets
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.listing import add_filter_options, build_filter, list_runs
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.run_backend import RunBackend, build_run_document, open_backend
from hermes_worker.cli.screen import (
    Screen,
    colour_status,
    flatten_text,
    format_summary,
    render_run_question,
    render_undelivered,
    strip_controls,
)
from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.pricing import format_cost
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_views import AnswerView, CallView, RunSheet, RunView
from hermes_worker.core.spec import RunNotes
from hermes_worker.core.status_reason import StatusReason
from hermes_worker.core.titles import TITLE_CHARS_MAX

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

_STOP_PATIENCE_S = 5.0
_DELIVERY_PATIENCE_S = 5.0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def runs() -> None:
    """List, show, watch, stop and export runs."""


runs.add_command(list_runs)
runs.add_command(explain)
runs.add_command(trees.tree)
runs.add_command(trees.calls)


@runs.command(epilog="Example: hermes-worker runs show run_0123...")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.option("--calls", "part", flag_value="calls", help="Instead: each call with the first lines of its result.")
@click.option("--events", "part", flag_value="events", help="Instead: its events; of a run at work until it ends.")
@click.option("--raw", "part", flag_value="raw", help="Instead: its conversation so far, one JSON object per message.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def show(home: Path | None, run_id: str, part: str | None, as_json: bool) -> None:
    """What one run was asked, what it did, what it answered and what it cost; what it asks now, and why it waits."""
    backend = open_backend(home)
    run_id = backend.complete_run_id(run_id)
    if part is not None:
        for line in _iterate_part(backend, run_id, part):
            click.echo(line)
        return
    sheet = backend.client.sheet(run_id)
    if as_json:
        answers = [asdict(answer) for answer in sheet.answers]
        document = {**build_run_document(sheet.view, sheet.calls_by_status), **asdict(sheet.notes), "answers": answers}
        click.echo(json.dumps({**document, "budget": build_budget_document(sheet.budget)}))
        return
    run_id = sheet.view.run_id
    click.echo("\n".join([*_render_story(backend, sheet), "", *_render_description(sheet, backend.source)]))
    for wait in sheet.waits:
        about = {"wait_id": wait.wait_id, "choices": wait.choices, "expires_at": wait.expires_at}
        question = {**wait.request, **about}
        click.echo("\n".join(["", *render_run_question(run_id, _redact_question(question))]))
    if family := render_family(sheet.children, sheet.refusals):
        click.echo("\n".join(["", *family]))
    if budget := render_budget(sheet.budget):
        click.echo("\n".join(["", *budget]))
    if sheet.standing is not None:
        click.echo(click.style(f"\n{_format_standing(sheet.standing, backend.find_idle_notice(run_id))}", fg="yellow"))


@runs.command(epilog="A hook that changes steps leaves no call here; its failures are events of the run (hook.failed).")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def hooks(home: Path | None, run_id: str, limit: int, as_json: bool) -> None:
    """What hooks were told of one run and what came of it, the newest first."""
    backend = open_backend(home)
    print_entries(
        backend.client.hook_calls(backend.complete_run_id(run_id), limit=limit),
        ("HOOK", "EVENT", "STATE", "ATTEMPTS", "REASON"),
        lambda one: (one.hook, one.event, one.state.value, str(one.attempts), flatten_text(one.reason or "", 80)),
        document=asdict if as_json else None,
        empty="no hook was told of this run",
        whole=(0, 1),
    )


@runs.command(epilog="Example: hermes-worker runs export --trajectories samples run_0123...")
@reachable
@of_tenant
@click.argument("run_ids", metavar="RUN_ID...", nargs=-1, required=True, type=TEXT)
@click.option(
    "--trajectories",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Append training samples (ShareGPT) to trajectory_samples.jsonl and failed_trajectories.jsonl here.",
)
def export(home: Path | None, run_ids: tuple[str, ...], directory: Path | None) -> None:
    """What runs left, one JSON object per line: result, messages, usage, cost."""
    backend = open_backend(home)
    run_ids = tuple(map(backend.complete_run_id, run_ids))
    if directory is None:
        for run_id in run_ids:
            click.echo(json.dumps(backend.client.result(run_id).model_dump(exclude_unset=True)))
        return
    samples = [backend.client.trajectory(run_id) for run_id in run_ids]
    directory.mkdir(parents=True, exist_ok=True)
    for sample in samples:
        name = "trajectory_samples.jsonl" if sample.completed else "failed_trajectories.jsonl"
        with (directory / name).open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{json.dumps(sample.model_dump(), ensure_ascii=False)}\n")
    click.echo(f"{len(samples)} written to {directory}")


@runs.command(epilog="The exit code is 0 when the run completes and 1 when it fails or is cancelled.")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per event.")
def watch(home: Path | None, run_id: str, as_json: bool) -> int:
    """Follow one run from its beginning to its end. Ctrl-C ends the watching, not the run."""
    backend = open_backend(home)
    return watch_run(backend, backend.complete_run_id(run_id), as_json=as_json)


@runs.command(
    epilog="Stopping a run that has ended stops what it caused and that goes on; otherwise it changes nothing."
)
@reachable
@of_tenant
@click.argument("run_id", type=TEXT, required=False)
@add_filter_options
@click.option("--dry-run", "is_dry", is_flag=True, help="With filters: only say which runs these are.")
def stop(home: Path | None, run_id: str | None, is_dry: bool, **said: Any) -> int:
    """Ask one run, and all that it caused, to stop: what it delegated, and the turns that background answers began.
    Without RUN_ID, all open runs that the filters name."""
    backend = open_backend(home)
    if run_id is None:
        return _stop_matching(backend, said, is_dry=is_dry)
    if is_dry or any(said.values()):
        raise ConfigurationError("name a run, or say by filters which runs are meant, and not both")
    run_id = backend.complete_run_id(run_id)
    stopped = backend.client.stop(run_id)
    status = backend.client.run(run_id).status
    deadline = time.monotonic() + _STOP_PATIENCE_S
    while not status.is_terminal and time.monotonic() < deadline:
        time.sleep(0.1)
        status = backend.client.run(run_id).status
    click.echo(f"{run_id} {colour_status(status)}")
    if stopped.caused:
        click.echo(f"stopped with it: {_format_names(stopped.caused)}", err=True)
    return 0


def _stop_matching(backend: RunBackend, said: dict[str, Any], *, is_dry: bool) -> int:
    """Stop the open runs that the options for filtering name, or print which these are."""
    if not any(said.values()):
        raise ConfigurationError("name a run, or say which runs are meant: --tag, --session, --status, --since, ...")
    asked = [RunStatus(status) for status in said["statuses"]] or list(RunStatus)
    said["statuses"] = [status.value for status in asked if not status.is_terminal]
    if not said["statuses"]:
        raise ConfigurationError("runs of these statuses have ended; there is nothing to stop")
    total = 0
    for view in backend.iterate_runs(build_filter(said, backend)):
        total += 1
        if not is_dry:
            backend.client.stop(view.run_id)
        click.echo(f"{view.run_id} {'would be stopped' if is_dry else 'asked to stop'}")
    click.echo(format_count(total, "run"), err=True)
    return 0


@runs.command(epilog="What is in flight ends as it would; 'runs resume' lets the run go on.")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
def pause(home: Path | None, run_id: str) -> None:
    """Begin nothing new in one run and in all that it caused."""
    backend = open_backend(home)
    run_id = backend.complete_run_id(run_id)
    click.echo(f"{run_id} {colour_status(RunStatus(backend.client.pause(run_id).status))}")


@runs.command(epilog="Resuming a run that is not paused changes nothing.")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
def resume(home: Path | None, run_id: str) -> None:
    """Let a paused run, and all that it caused, go on."""
    backend = open_backend(home)
    run_id = backend.complete_run_id(run_id)
    click.echo(f"{run_id} {colour_status(RunStatus(backend.client.resume(run_id).status))}")


@runs.command(epilog="Example: hermes-worker runs steer run_0123... 'leave the tests alone'")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.argument("text", type=TEXT)
def steer(home: Path | None, run_id: str, text: str) -> None:
    """Say something to a run at work; it reads it with its next tool result."""
    if not text.strip():
        raise ConfigurationError("there is nothing to say: the text is empty")
    backend = open_backend(home)
    run_id = backend.complete_run_id(run_id)
    backend.client.steer(run_id, text)
    click.echo(f"{run_id} will read it with its next tool result")


_NAMED_MAX = 5


def _format_names(run_ids: Sequence[str]) -> str:
    more = len(run_ids) - _NAMED_MAX
    return ", ".join([*run_ids[:_NAMED_MAX], *([f"{more} more"] if more > 0 else [])])


def watch_run(backend: RunBackend, run_id: str, *, as_json: bool) -> int:
    """Show a run until it ends. Returns the exit code for its end. Raises ``RunNotFound``."""
    screen = Screen(run_id)
    try:
        for event in backend.follow(run_id):
            if not as_json:
                screen.show(event)
            elif isinstance(event, Notice):
                click.echo(event.text, err=True)
            else:
                document = {"id": event.id, "event": event.name, "run_id": run_id, "timestamp": event.at}
                click.echo(json.dumps({**document, **event.fields}))
    except KeyboardInterrupt:
        click.echo(f"\nthe run goes on; 'hermes-worker runs watch {run_id}' shows it again", err=True)
        raise
    if not as_json:
        await_first_attempts(backend.client, run_id)
    sheet = backend.client.sheet(run_id)
    if not as_json:
        show_end(sheet)
    return choose_exit_code(sheet.view)


def show_end(sheet: RunSheet) -> None:
    """Print how a run ended: its error, its calls in doubt, and a line of figures."""
    click.echo()
    if sheet.view.error:
        click.echo(click.style(strip_controls(sheet.view.error), fg="red"))
    for call in sheet.doubtful:
        click.echo(click.style(_format_doubt(call), fg="red"))
    for line in render_undelivered(sheet.view):
        click.echo(line)
    click.echo(f"{sheet.view.run_id} {format_summary(sheet.view, sheet.calls)}")


def await_first_attempts(client: HermesClient, run_id: str) -> None:
    """Wait a few seconds until each delivery of a run that has ended was tried once."""
    deadline = time.monotonic() + _DELIVERY_PATIENCE_S
    while time.monotonic() < deadline:
        found = client.deliveries(run_id=run_id, limit=100)
        if all(each.error or each.state not in (DeliveryState.PENDING, DeliveryState.ATTEMPTING) for each in found):
            return
        time.sleep(0.2)


def choose_exit_code(view: RunView) -> int:
    return 0 if view.status is RunStatus.COMPLETED else EXIT_FAILED


def _format_standing(found: StatusReason, idle: str | None) -> str:
    """Write why a run is where it is."""
    lasts = f", for {format_duration(found.lasts_s)}" if found.lasts_s is not None else ""
    until = f", until {format_clock(found.until)}" if found.until is not None else ""
    return "\n".join(line for line in (f"now: {strip_controls(found.text)}{lasts}{until}", idle) if line)


def _iterate_part(backend: RunBackend, run_id: str, part: str) -> Iterator[str]:
    """Iterate over the lines of what is shown instead of the story."""
    from hermes_worker.cli import story

    client = backend.client
    if part == "calls":
        return story.iterate_call_lines(client, run_id, story.load_calls(client, run_id))
    if part == "events":
        return story.iterate_event_lines(client, run_id)
    return map(json.dumps, client.result(run_id).messages)


def _render_story(backend: RunBackend, sheet: RunSheet) -> list[str]:
    from hermes_worker.cli import story

    view, client = sheet.view, backend.client
    return [
        click.style(flatten_text(view.title or "-", TITLE_CHARS_MAX), bold=True),
        format_summary(view, sheet.calls),
        *story.render_asked(story.find_asked(client, view.run_id)),
        *story.render_done(story.load_calls(client, view.run_id) if sheet.calls else []),
        *([click.style(strip_controls(view.error), fg="red")] if view.error else []),
        *story.render_answered(sheet),
        *([""] if view.undelivered else []),
        *render_undelivered(view),
    ]


def _render_description(sheet: RunSheet, source: str) -> list[str]:
    view, notes = sheet.view, sheet.notes
    lines = [
        f"  run       {view.run_id}",
        f"  exit      {view.exit_text or '-'}",
        f"  session   {strip_controls(view.session.describe_for(source))}",
        *([f"  in        {flatten_text(title, TITLE_CHARS_MAX)}"] if (title := view.session_title) else []),
        f"  model     {strip_controls(view.model)}",
        f"  created   {format_moment(view.created_at)}",
        *([f"  begins    not before {format_moment(view.not_before)}"] if view.not_before is not None else []),
        *([f"  priority  {view.priority.word}"] if view.priority else []),
        *([f"  tags      {' '.join(notes.tags)}"] if notes.tags else []),
        *([f"  repeats   {notes.retry_of}"] if notes.retry_of else []),
        *([f"  fork of   {notes.forked_from}, behind step {notes.fork_step}"] if notes.forked_from else []),
        f"  versions  {_format_versions(notes)}",
        f"  iteration {view.iteration} of at most {view.iterations_max}",
        f"  cost      {format_cost(view.cost_usd, view.cost_status)}",
    ]
    lines += [f"  in doubt  {_format_doubt(call)}" for call in sheet.doubtful]
    return [*lines, *(f"  answered  {_format_answer(answer)}" for answer in sheet.answers)]


def _format_versions(notes: RunNotes) -> str:
    versions = notes.began_with
    program, configuration = strip_controls(versions.program or "?"), strip_controls(versions.configuration or "?")
    return f"program {program}, configuration {configuration}, prompt {versions.prompt[:16]}"


def _format_answer(answer: AnswerView) -> str:
    place = f"{strip_controls(answer.tool)} (iteration {answer.iteration}, call {answer.position + 1})"
    return f"{place}: {answer.outcome}, by {strip_controls(answer.by)}, {format_moment(answer.at)}"


def _redact_question(question: Mapping[str, Any]) -> dict[str, Any]:
    """Redact a question as its event does."""
    return {**question, "command": hide_secrets(str(question["command"]))} if "command" in question else dict(question)


def _format_doubt(call: CallView) -> str:
    place = f"{strip_controls(call.name)} (iteration {call.iteration}, call {call.position + 1})"
    return f"{place}: outcome unknown, it was not run again"
