"""``hermes-worker backlog``: how much work waits, by queue."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.layout import render_table
from hermes_worker.cli.options import reachable
from hermes_worker.store.backlog import CLEARED_IN_S, QueueBacklog


@click.command(epilog=f"PLACES: so many steps at work at the same time take all that is due within {CLEARED_IN_S} s.")
@reachable
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def backlog(home: Path | None, as_json: bool) -> None:
    """Show how much work waits, by queue, and how many places it needs."""
    found = [QueueBacklog(queue=name, **told) for name, told in open_api_client(home).backlog()["queues"].items()]
    if as_json:
        for each in found:
            click.echo(json.dumps(dict(zip(QueueBacklog.__annotations__, each, strict=True))))
        return
    header = ("QUEUE", "DUE", "AT WORK", "OLDEST", "STEP", "PLACES")
    click.echo(render_table([_row(each) for each in found], header, whole=(0,)))


def _row(each: QueueBacklog) -> tuple[str, ...]:
    oldest = f"{each.oldest_age_s:.0f} s" if each.due else "-"
    step = f"{each.step_s:.0f} s" if each.due or each.claimed else "-"
    return each.queue, str(each.due), str(each.claimed), oldest, step, str(each.capacity_needed)
