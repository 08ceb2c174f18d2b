"""``hermes-worker gateway deliveries``: list deliveries, and send one again."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.layout import format_count, format_field, format_moment
from hermes_worker.cli.list_output import ListLayout, add_list_options, print_entries, print_list
from hermes_worker.cli.options import TEXT, OneOf, of_tenant, reachable
from hermes_worker.cli.screen import flatten_text, strip_controls
from hermes_worker.cli.short_ids import complete_id
from hermes_worker.core.delivery_states import DeliveryState

if TYPE_CHECKING:
    from hermes_worker.features.deliveries.schema import DeliveryObject, DeliveryRetryObject


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def deliveries() -> None:
    """List and show what was sent where, and send it again."""


@deliveries.command("list", epilog="Example: hermes-worker gateway deliveries list --state failed")
@reachable
@of_tenant
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--state", type=OneOf([state.value for state in DeliveryState]), help="Only of this state.")
@click.option("--run", "run_id", type=TEXT, help="Only those of this run.")
@add_list_options
def list_deliveries(home: Path | None, limit: int, state: str | None, run_id: str | None, output: str | None) -> None:
    """The newest deliveries first."""
    client = open_api_client(home)
    full_id = None if run_id is None else complete_id(client, run_id, "run")
    found = list(islice(client.deliveries(state=state, run_id=full_id, limit=min(limit, 100)), limit))
    print_list(found, output, _LAYOUT)


@deliveries.command(epilog="Example: hermes-worker gateway deliveries show dlv_0123...")
@reachable
@of_tenant
@click.argument("delivery_id", type=TEXT)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def show(home: Path | None, delivery_id: str, as_json: bool) -> None:
    """Everything that is known about one delivery."""
    client = open_api_client(home)
    found = client.delivery(complete_id(client, delivery_id, "delivery"))
    document = _build_document(found)
    if as_json:
        click.echo(json.dumps(document))
        return
    for name, value in document.items():
        if name == "retries":
            value = [_format_retry(each) for each in found.retries or ()]
        click.echo(f"{name:16} {strip_controls(format_field(name, value))}")


@deliveries.command(epilog="One that may have arrived already is sent with a remark that it may be a duplicate.")
@reachable
@of_tenant
@click.argument("delivery_id", type=TEXT)
def retry(home: Path | None, delivery_id: str) -> None:
    """Send a settled delivery once more."""
    client = open_api_client(home)
    retried = client.retry_delivery(complete_id(client, delivery_id, "delivery"))
    click.echo(f"{retried.delivery_id} pending")


@deliveries.command("dead", epilog="A delivery that 'gateway deliveries retry' brings there makes a target good again.")
@reachable
@of_tenant
def list_dead(home: Path | None) -> None:
    """Targets that refused us or are gone: nothing is sent there any more."""
    print_entries(
        open_api_client(home).dead_targets(),
        ("TARGET", "SINCE", "REASON"),
        lambda dead: (flatten_text(dead.key, 60), format_moment(dead.marked_at), flatten_text(dead.reason, 60)),
        document=None,
        empty="no dead targets",
        whole=(1,),
    )


def _build_document(view: DeliveryObject) -> dict[str, object]:
    """Return a delivery under the names of ``--json``, which are those of the rows."""
    document = view.model_dump(mode="json", exclude={"object"})
    return {"is_in_doubt" if name == "may_be_duplicate" else name: value for name, value in document.items()}


def _format_retry(each: DeliveryRetryObject) -> str:
    until_then = f"{each.state.value} after {format_count(each.attempts, 'attempt')}"
    return f"{format_moment(each.at)} by {each.by}, when it was {until_then}"


def _format_outcome(view: DeliveryObject) -> str:
    return flatten_text(view.error or view.receipt or "", 60)


_LAYOUT: ListLayout[DeliveryObject] = ListLayout(
    header=("DELIVERY", "STATE", "CREATED", "TARGET", "RECEIPT OR ERROR"),
    row=lambda one, format_time: (
        one.delivery_id,
        one.state,
        format_time(one.created_at),
        flatten_text(one.target, 40),
        _format_outcome(one),
    ),
    document=_build_document,
    name=lambda one: one.delivery_id,
    empty="no deliveries",
    ids=(0,),
    whole=(2,),
)
