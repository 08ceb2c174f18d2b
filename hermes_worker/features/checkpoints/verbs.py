"""``hermes-worker runs checkpoints``, ``diff`` and ``restore``: list, compare and restore the files of a run's
workspace."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import click

from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.layout import format_moment, render_table
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.run_backend import RunBackend, open_backend
from hermes_worker.cli.screen import flatten_text, strip_controls
from hermes_worker.core.errors import ConfigurationError

_STOP_PATIENCE_S = 30.0
_ID_CHARS = 12


@click.command(epilog="Example: hermes-worker runs checkpoints run_0123...")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def checkpoints(home: Path | None, run_id: str, as_json: bool) -> None:
    """What was kept of the files of a run's workspace, the newest first."""
    backend = open_backend(home)
    found = backend.checkpoints(backend.complete_run_id(run_id))
    if as_json:
        for each in found:
            click.echo(json.dumps(asdict(each)))
        return
    if not found:
        click.echo(
            "there is no checkpoint: no tool changed files, or checkpoints are off (checkpoints.enabled)", err=True
        )
        return
    rows = [
        (
            each.checkpoint_id[:_ID_CHARS],
            format_moment(each.created_at),
            each.run_id,
            str(each.iteration) if each.iteration else "-",
            flatten_text(each.tool, 40),
            str(each.files),
        )
        for each in found
    ]
    click.echo(render_table(rows, ("CHECKPOINT", "MADE", "RUN", "ITERATION", "BEFORE", "FILES"), whole=(0, 2)))


@click.command(epilog="Without CHECKPOINT: since the run first changed files.")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.argument("checkpoint", type=TEXT, required=False)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def diff(home: Path | None, run_id: str, checkpoint: str | None, as_json: bool) -> None:
    """How the files of a run's workspace differ from what they were."""
    backend = open_backend(home)
    found = backend.diff(backend.complete_run_id(run_id), checkpoint)
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    if not found.files_total:
        click.echo(f"nothing differs from {found.checkpoint_id[:_ID_CHARS]}", err=True)
        return
    click.echo(strip_controls(found.text), nl=False)
    if found.is_cut:
        click.echo(f"{found.files_total} files differ, and not all of that is shown", err=True)


@click.command(epilog="Example: hermes-worker runs restore run_0123... 4f1a2b --file src")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.argument("checkpoint", type=TEXT)
@click.option("--file", "paths", type=TEXT, multiple=True, help="Only this file or folder. May be repeated.")
@click.option("--stop", "stops", is_flag=True, help="First stop the run, if it is at work.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def restore(home: Path | None, run_id: str, checkpoint: str, paths: tuple[str, ...], stops: bool, as_json: bool) -> int:
    """Make the files of a run's workspace what they were. What is there is kept as a checkpoint first."""
    backend = open_backend(home)
    run_id = backend.complete_run_id(run_id)
    if stops:
        _stop(backend, run_id)
    done = backend.restore(run_id, checkpoint, paths)
    if as_json:
        click.echo(json.dumps(asdict(done)))
    else:
        click.echo(f"{len(done.written)} files written, {len(done.removed)} removed")
        click.echo(f"what was there is in checkpoint {done.before[:_ID_CHARS]}", err=True)
        for each in done.failed:
            click.echo(f"not put back: {flatten_text(each, 200)}", err=True)
    return EXIT_FAILED if done.failed else 0


def _stop(backend: RunBackend, run_id: str) -> None:
    if backend.status(run_id).is_terminal:
        return
    backend.stop(run_id)
    deadline = time.monotonic() + _STOP_PATIENCE_S
    while not backend.status(run_id).is_terminal:
        if time.monotonic() >= deadline:
            raise ConfigurationError(
                f"run {run_id!r} was told to stop and has not ended within {_STOP_PATIENCE_S:g} s; try again later"
            )
        time.sleep(0.1)
