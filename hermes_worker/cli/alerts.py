"""``hermes-worker alerts``: what operators were told is wrong, and whether they are reached."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hermes_worker.cli.layout import moment, table
from hermes_worker.cli.options import client_settings, common
from hermes_worker.cli.records import open_records
from hermes_worker.cli.screen import one_line
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.store.outbox.alerts import AlertView, list_alerts, try_alerts
from hermes_worker.wiring import alert_policy

_TEXT_CHARS = 100


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def alerts() -> None:
    """List what operators were told is wrong, and try whether they are reached."""


@alerts.command("list")
@common
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def show(home: Path | None, limit: int, as_json: bool) -> None:
    """The newest alerts, with when they were over."""
    found = list_alerts(open_records(home).database, limit=limit)
    if as_json:
        for alert in found:
            click.echo(json.dumps(dict(zip(AlertView._fields, alert, strict=True))))
        return
    rows = [(a.kind, moment(a.raised_at), moment(a.recovered_at), one_line(a.text, _TEXT_CHARS)) for a in found]
    click.echo(table(rows, ("KIND", "RAISED", "OVER", "TEXT"), whole=(0,)))


@alerts.command("test", epilog="What became of it says 'hermes-worker deliveries list'.")
@common
def try_targets(home: Path | None) -> None:
    """Send a text to every target of alerts.targets, as a delivery."""
    policy = alert_policy(client_settings(home))
    if not policy.targets:
        raise ConfigurationError(
            "alerts.targets (HERMES_ALERT_TARGETS) is not set, so nobody is told; set it to targets"
        )
    owed = try_alerts(open_records(home).database, policy)
    click.echo(f"{len(owed)} deliveries are owed; workers send them within seconds")
