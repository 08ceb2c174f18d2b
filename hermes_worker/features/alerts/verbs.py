"""``hermes-worker fleet alerts``: the newest alerts, and a test of their targets."""

from __future__ import annotations

from pathlib import Path

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.layout import format_moment
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.options import TEXT, find_named_tenant, of_tenant, reachable
from hermes_worker.cli.screen import flatten_text
from hermes_worker.cli.server import find_chosen_server

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
    print_entries(
        open_api_client(home).alerts(limit=limit),
        ("KIND", "RAISED", "OVER", "TEXT"),
        lambda a: (
            a.kind,
            format_moment(a.raised_at),
            format_moment(a.recovered_at),
            flatten_text(a.text, _TEXT_CHARS),
        ),
        document=(lambda alert: alert.model_dump()) if as_json else None,
        whole=(0,),
    )


@alerts.command("test", epilog="What became of it says 'hermes-worker gateway deliveries list'.")
@reachable
def try_targets(home: Path | None) -> None:
    """Send a text to every target of alerts.targets, as a delivery."""
    click.echo(f"{open_api_client(home).try_alerts()} deliveries are owed; workers send them within seconds")


@alerts.command(
    "targets", epilog="Example: hermes-worker fleet alerts targets --tenant acme --set webhook:https://acme.test/ops"
)
@reachable
@of_tenant
@click.option("--set", "targets", type=TEXT, multiple=True, help="A target, as of a delivery. May be repeated.")
@click.option("--none", "has_none", is_flag=True, help="The tenant is told nothing.")
def own_targets(home: Path | None, targets: tuple[str, ...], has_none: bool) -> None:
    """Show or replace where a tenant is told of alerts about its limits of spending and the budgets of its runs."""
    if targets and has_none:
        raise click.UsageError("--set names targets and --none takes all away; give one of them")
    client, tenant = open_api_client(home, names_tenant=True), find_named_tenant()
    if tenant is None and find_chosen_server() is None:
        raise click.UsageError("the installation's are alerts.targets (HERMES_ALERT_TARGETS); give --tenant NAME")
    changes = bool(targets) or has_none
    for target in client.set_alert_targets(targets, tenant=tenant) if changes else client.alert_targets(tenant=tenant):
        click.echo(target)
