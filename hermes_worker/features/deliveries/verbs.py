"""``hermes-worker deliveries``: list deliveries, and send one again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from hermes_worker.channels.targets import shown
from hermes_worker.cli.layout import in_words, moment, table
from hermes_worker.cli.options import TEXT, OneOf, of_tenant, reachable
from hermes_worker.cli.screen import clean, one_line
from hermes_worker.features.deliveries.backend import open_outbox
from hermes_worker.safety.redaction import redact
from hermes_worker.store.outbox.deliveries import DeliveryState, DeliveryView


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def deliveries() -> None:
    """List and show what was sent where, and send it again."""


@deliveries.command("list", epilog="Example: hermes-worker deliveries list --state failed")
@reachable
@of_tenant
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--state", type=OneOf([state.value for state in DeliveryState]), help="Only of this state.")
@click.option("--run", "run_id", type=TEXT, help="Only those of this run.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_deliveries(home: Path | None, limit: int, state: str | None, run_id: str | None, as_json: bool) -> None:
    """The newest deliveries first."""
    found = open_outbox(home).list(limit, DeliveryState(state) if state else None, run_id)
    if as_json:
        for view in found:
            click.echo(json.dumps(_document(view)))
    elif found:
        rows = [
            (v.delivery_id, v.state.value, moment(v.created_at), one_line(shown(v.target), 40), _said(v)) for v in found
        ]
        click.echo(table(rows, ("DELIVERY", "STATE", "CREATED", "TARGET", "RECEIPT OR ERROR"), ids=(0,), whole=(2,)))
    else:
        click.echo("no deliveries", err=True)


@deliveries.command(epilog="Example: hermes-worker deliveries show dlv_0123...")
@reachable
@of_tenant
@click.argument("delivery_id", type=TEXT)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def show(home: Path | None, delivery_id: str, as_json: bool) -> None:
    """Everything that is known about one delivery."""
    document = _document(open_outbox(home).get(delivery_id))
    if as_json:
        click.echo(json.dumps(document))
        return
    for name, value in document.items():
        click.echo(f"{name:16} {clean(in_words(name, value))}")


@deliveries.command(epilog="One that may have arrived already is sent with a remark that it may be a duplicate.")
@reachable
@of_tenant
@click.argument("delivery_id", type=TEXT)
def retry(home: Path | None, delivery_id: str) -> None:
    """Send a settled delivery once more."""
    click.echo(f"{open_outbox(home).retry(delivery_id)} pending")


@deliveries.command("dead", epilog="A delivery that 'deliveries retry' brings there makes a target good again.")
@reachable
@of_tenant
def list_dead(home: Path | None) -> None:
    """Targets that refused us or are gone: nothing is sent there any more."""
    found = open_outbox(home).dead_targets()
    if found:
        rows = [(one_line(dead.key, 60), moment(dead.marked_at), one_line(redact(dead.reason), 60)) for dead in found]
        click.echo(table(rows, ("TARGET", "SINCE", "REASON"), whole=(1,)))
    else:
        click.echo("no dead targets", err=True)


def _document(view: DeliveryView) -> dict[str, object]:
    return {**asdict(view), "state": view.state.value, "target": shown(view.target)}


def _said(view: DeliveryView) -> str:
    return one_line(redact(view.error or view.receipt or ""), 60)
