"""``hermes-worker gateway send``: a message to somebody outside, from a script."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.options import TEXT, of_tenant, reachable, read_prompt_text
from hermes_worker.cli.screen import flatten_text
from hermes_worker.core.delivery_states import DeliveryState

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient
    from hermes_worker.features.deliveries.schema import DeliveryObject

_LOOK_EVERY_S = 0.5
_OPEN = (DeliveryState.PENDING, DeliveryState.ATTEMPTING)


@click.command(epilog="Example: df -h / | hermes-worker gateway send telegram:-100123 -")
@reachable
@of_tenant
@click.argument("target", type=TEXT)
@click.argument("text", type=TEXT)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 3600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for what becomes of it; 0 does not wait.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each target.")
def send(home: Path | None, target: str, text: str, wait_s: float, as_json: bool) -> int:
    """Send a message to a chat or an address, from a script.

    No agent reads TEXT; with - it comes from standard input. TARGET is written as for jobs: telegram:-100123, slack,
    email:me@example.org, webhook:URL. The exit code is 1 when it could not be delivered, and 0 when it was or is still
    on its way.
    """
    client = open_api_client(home)
    found = _wait_until_settled(client, client.send_message(target, read_prompt_text(text)), wait_s)
    for one in found:
        click.echo(json.dumps(one.model_dump()) if as_json else _format_outcome(one))
    return EXIT_FAILED if any(one.state in (DeliveryState.FAILED, DeliveryState.ABANDONED) for one in found) else 0


def _wait_until_settled(
    client: HermesClient, sent: Sequence[DeliveryObject], wait_s: float
) -> Sequence[DeliveryObject]:
    deadline = time.monotonic() + wait_s
    while any(one.state in _OPEN for one in sent) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
        sent = [client.delivery(one.delivery_id) for one in sent]
    return sent


def _format_outcome(one: DeliveryObject) -> str:
    what = flatten_text(f"{one.delivery_id} {one.state.value} {one.target}", 300)
    if one.error:
        return f"{what}: {flatten_text(one.error, 300)}"
    on_its_way = f"; 'hermes-worker gateway deliveries show {one.delivery_id}' says what becomes of it"
    return f"{what}{on_its_way if one.state in _OPEN else ''}"
