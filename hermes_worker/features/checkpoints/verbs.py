"""``hermes-worker runs checkpoints``, ``diff`` and ``restore``: list, compare and restore the files of a run's
workspace."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.layout import format_count, format_moment
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.screen import flatten_text, strip_controls
from hermes_worker.cli.short_ids import complete_id
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.ignored_folders import UNKEPT_REMARK
from hermes_worker.core.run import RunStatus

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

_STOP_PATIENCE_S = 30.0
_ID_CHARS = 12


@click.command(epilog="Example: hermes-worker runs checkpoints run_0123...")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def checkpoints(home: Path | None, run_id: str, as_json: bool) -> None:
    """What was kept of the files of a run's workspace, the newest first."""
    client = open_api_client(home)
    print_entries(
        client.checkpoints(complete_id(client, run_id, "run")).data,
        ("CHECKPOINT", "MADE", "RUN", "ITERATION", "BEFORE", "FILES"),
        lambda each: (
            each.id[:_ID_CHARS],
            format_moment(each.created_at),
            each.run_id,
            str(each.iteration) if each.iteration else "-",
            flatten_text(each.tool, 40),
            str(each.files),
        ),
        document=(lambda each: {"checkpoint_id": each.id, **each.model_dump(exclude={"object", "id"})})
        if as_json
        else None,
        empty="there is no checkpoint: no tool changed files, or checkpoints are off (checkpoints.enabled)",
        whole=(0, 2),
    )


@click.command(epilog="Without CHECKPOINT: since the run first changed files.")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.argument("checkpoint", type=TEXT, required=False)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def diff(home: Path | None, run_id: str, checkpoint: str | None, as_json: bool) -> None:
    """How the files of a run's workspace differ from what they were."""
    client = open_api_client(home)
    found = client.diff(complete_id(client, run_id, "run"), checkpoint)
    if as_json:
        click.echo(json.dumps(found.model_dump(exclude={"object"})))
        return
    if not found.files_total:
        click.echo(f"nothing differs from {found.checkpoint_id[:_ID_CHARS]}; {UNKEPT_REMARK}", err=True)
        return
    click.echo(strip_controls(found.text), nl=False)
    if found.is_cut:
        click.echo(f"not all of the {format_count(found.files_total, 'file')} that differ is shown", err=True)


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
    client = open_api_client(home)
    run_id = complete_id(client, run_id, "run")
    if stops:
        _stop(client, run_id)
    done = client.restore(run_id, checkpoint, files=paths)
    if as_json:
        click.echo(json.dumps(done.model_dump(exclude={"object"})))
    else:
        click.echo(f"{format_count(len(done.written), 'file')} written, {len(done.removed)} removed")
        click.echo(f"what was there is in checkpoint {done.before[:_ID_CHARS]}; {UNKEPT_REMARK}", err=True)
        for each in done.failed:
            click.echo(f"not put back: {flatten_text(each, 200)}", err=True)
    return EXIT_FAILED if done.failed else 0


def _stop(client: HermesClient, run_id: str) -> None:
    if _has_ended(client, run_id):
        return
    client.stop(run_id)
    deadline = time.monotonic() + _STOP_PATIENCE_S
    while not _has_ended(client, run_id):
        if time.monotonic() >= deadline:
            raise ConfigurationError(
                f"run {run_id!r} was told to stop and has not ended within {_STOP_PATIENCE_S:g} s; try again later"
            )
        time.sleep(0.1)


def _has_ended(client: HermesClient, run_id: str) -> bool:
    return RunStatus(client.run(run_id)["status"]).is_terminal
