"""``hermes-worker alerts``: what operators were told is wrong, and whether they are reached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.layout import moment, table
from hermes_worker.cli.options import TEXT, client_settings, of_tenant, reachable
from hermes_worker.cli.records import open_records
from hermes_worker.cli.screen import one_line
from hermes_worker.cli.server import chosen_server, server_client
from hermes_worker.cli.tenant_backend import open_tenant
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.store.outbox.alerts import AlertView, list_alerts, try_alerts
from hermes_worker.wiring import alert_policy

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

_TEXT_CHARS = 100


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def alerts() -> None:
    """List what operators were told is wrong, and try whether they are reached."""


@alerts.command("list")
@reachable
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def show(home: Path | None, limit: int, as_json: bool) -> None:
    """The newest alerts, with when they were over."""
    client = server_client()
    found = list_alerts(open_records(home).database, limit=limit) if client is None else _told(client, limit)
    if as_json:
        for alert in found:
            click.echo(json.dumps(dict(zip(AlertView._fields, alert, strict=True))))
        return
    rows = [(a.kind, moment(a.raised_at), moment(a.recovered_at), one_line(a.text, _TEXT_CHARS)) for a in found]
    click.echo(table(rows, ("KIND", "RAISED", "OVER", "TEXT"), whole=(0,)))


def _told(client: HermesClient, limit: int) -> list[AlertView]:
    """By a server."""
    return [AlertView(**{name: told[name] for name in AlertView._fields}) for told in client.alerts(limit=limit)]


@alerts.command("test", epilog="What became of it says 'hermes-worker deliveries list'.")
@reachable
def try_targets(home: Path | None) -> None:
    """Send a text to every target of alerts.targets, as a delivery."""
    client = server_client()
    owed = _try(home) if client is None else client.try_alerts()
    click.echo(f"{owed} deliveries are owed; workers send them within seconds")


@alerts.command(
    "targets", epilog="Example: hermes-worker alerts targets --tenant acme --set webhook:https://acme.test/ops"
)
@reachable
@of_tenant
@click.option("--set", "targets", type=TEXT, multiple=True, help="A target, as of a delivery. May be repeated.")
@click.option("--none", "has_none", is_flag=True, help="The tenant is told nothing.")
def own_targets(home: Path | None, targets: tuple[str, ...], has_none: bool) -> None:
    """Show or replace where a tenant is told of alerts about its limits of spending and the budgets of its runs."""
    if targets and has_none:
        raise click.UsageError("--set names targets and --none takes all away; give one of them")
    backend = open_tenant(home)
    if backend.tenant == DEFAULT_TENANT and chosen_server() is None:
        raise click.UsageError("the installation's are alerts.targets (HERMES_ALERT_TARGETS); give --tenant NAME")
    for target in backend.set_alert_targets(targets) if targets or has_none else backend.alert_targets():
        click.echo(target)


def _try(home: Path | None) -> int:
    """How many deliveries are owed. Raises ``ConfigurationError``."""
    policy = alert_policy(client_settings(home))
    if not policy.targets:
        raise ConfigurationError(
            "alerts.targets (HERMES_ALERT_TARGETS) is not set, so nobody is told; set it to targets"
        )
    return len(try_alerts(open_records(home).database, policy))
