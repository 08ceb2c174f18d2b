"""``hermes-worker backlog``: how much work waits, by queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.layout import table
from hermes_worker.cli.options import reachable
from hermes_worker.cli.records import open_records
from hermes_worker.cli.server import server_client
from hermes_worker.store.backlog import CLEARED_IN_S, QueueBacklog, read_backlog

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient


@click.command(epilog=f"PLACES: so many steps at work at the same time take all that is due within {CLEARED_IN_S} s.")
@reachable
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def backlog(home: Path | None, as_json: bool) -> None:
    """Show how much work waits, by queue, and how many places it needs."""
    client = server_client()
    found = read_backlog(open_records(home).database) if client is None else _told(client)
    if as_json:
        for each in found:
            click.echo(json.dumps(dict(zip(QueueBacklog.__annotations__, each, strict=True))))
        return
    header = ("QUEUE", "DUE", "AT WORK", "OLDEST", "STEP", "PLACES")
    click.echo(table([_row(each) for each in found], header, whole=(0,)))


def _told(client: HermesClient) -> list[QueueBacklog]:
    """By a server."""
    return [QueueBacklog(queue=name, **told) for name, told in client.backlog()["queues"].items()]


def _row(each: QueueBacklog) -> tuple[str, ...]:
    oldest = f"{each.oldest_age_s:.0f} s" if each.due else "-"
    step = f"{each.step_s:.0f} s" if each.due or each.claimed else "-"
    return each.queue, str(each.due), str(each.claimed), oldest, step, str(each.capacity_needed)
