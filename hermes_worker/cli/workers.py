"""``hermes-worker fleet workers``: list live worker processes, and drain one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.layout import format_duration
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.options import TEXT, reachable
from hermes_worker.cli.screen import flatten_text, strip_controls
from hermes_worker.core.errors import ConfigurationError

if TYPE_CHECKING:
    from hermes_worker.schemas.fleet import WorkerObject

_ID_CHARS = 12


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def workers() -> None:
    """List worker processes and what they hold, and have one leave in order."""


@workers.command("list")
@reachable
@click.option("-o", "output", type=click.Choice(["wide"]), help="wide: also the oldest step of each.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_workers(home: Path | None, output: str | None, as_json: bool) -> None:
    """The workers that are alive, in the order in which they came. HOLDS counts the steps that each is at work on."""
    is_wide = output == "wide"
    header = ("WORKER", "NAME", "STATE", "QUEUES", "UP", "HOLDS", "SANDBOX", "VERSION")
    print_entries(
        open_api_client(home).workers(),
        (*header, "OLDEST STEP") if is_wide else header,
        partial(_build_row, is_wide=is_wide),
        document=(lambda view: view.model_dump(exclude={"object"})) if as_json else None,
        empty="no worker is alive",
        whole=(0, 2),
    )


@workers.command(epilog="Example: hermes-worker fleet workers drain 3f0c1a   Whatever keeps it running starts another.")
@reachable
@click.argument("worker", type=TEXT)
def drain(home: Path | None, worker: str) -> None:
    """Ask a worker to leave in order: it takes nothing new, finishes what it can, hands the rest over and ends. WORKER
    is its id, the beginning of its id, or its name."""
    client = open_api_client(home)
    chosen = _find_worker(client.workers(), worker)
    client.drain_worker(chosen.worker_id)
    click.echo(f"{chosen.worker_id} will hear of it with its next heartbeat, and leave")


def _find_worker(found: Sequence[WorkerObject], written: str) -> WorkerObject:
    """Find the worker that an id, the beginning of one, or a name means. Raises ``ConfigurationError``."""
    exact = [view for view in found if written in (view.worker_id, view.name)]
    meant = exact or [view for view in found if view.worker_id.startswith(written)]
    if len(meant) != 1:
        what = "several workers are" if meant else "no worker that is alive is"
        raise ConfigurationError(f"{what} called {written[:80]!r}; 'hermes-worker fleet workers list' shows their ids")
    return meant[0]


def _build_row(view: WorkerObject, *, is_wide: bool) -> tuple[str, ...]:
    held = ", ".join(f"{count} {kind}" for kind, count in sorted(view.held.items()))
    shown = (
        view.worker_id[:_ID_CHARS],
        flatten_text(view.name, 40),
        "alive" if view.draining_at is None else "draining",
        ",".join(view.queues),
        format_duration(max(0.0, time.time() - view.started_at)),
        held or "-",
        view.sandbox or "-",
        view.version or "-",
    )
    return (*shown, _format_oldest(view)) if is_wide else shown


def _format_oldest(view: WorkerObject) -> str:
    if not view.steps:
        return "-"
    step = view.steps[0]
    took = format_duration(max(0.0, time.time() - step.claimed_at))
    return f"{strip_controls(step.tool or step.kind)} of {strip_controls(step.run_id)} for {took}"
