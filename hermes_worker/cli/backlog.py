"""``hermes-worker fleet backlog``: how much work waits, by queue."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.options import reachable
from hermes_worker.store.backlog import CLEARED_IN_S

if TYPE_CHECKING:
    from hermes_worker.schemas.fleet import QueueBacklogObject


@click.command(epilog=f"PLACES: so many steps at work at the same time take all that is due within {CLEARED_IN_S} s.")
@reachable
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def backlog(home: Path | None, as_json: bool) -> None:
    """Show how much work waits, by queue, and how many places it needs."""
    print_entries(
        open_api_client(home).backlog().queues.items(),
        ("QUEUE", "DUE", "AT WORK", "OLDEST", "STEP", "PLACES"),
        lambda named: _build_row(*named),
        document=(lambda named: {"queue": named[0], **named[1].model_dump()}) if as_json else None,
        whole=(0,),
    )


def _build_row(name: str, queue: QueueBacklogObject) -> tuple[str, ...]:
    oldest = f"{queue.oldest_age_s:.0f} s" if queue.due else "-"
    step = f"{queue.step_s:.0f} s" if queue.due or queue.claimed else "-"
    return name, str(queue.due), str(queue.claimed), oldest, step, str(queue.capacity_needed)
