"""``hermes-worker data audit``: list and export the audit log."""

from __future__ import annotations

import json
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.layout import format_moment
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.options import TEXT, OneOf, of_tenant, reachable
from hermes_worker.cli.screen import flatten_text
from hermes_worker.store.access.audit import Act

if TYPE_CHECKING:
    from hermes_worker.features.audit.schema import DeedObject

_PAGE = 1_000
_DAY_S = 86_400.0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def audit() -> None:
    """List and export who did what."""


@audit.command("list", epilog="Example: hermes-worker data audit list --act key.create --days 30")
@reachable
@of_tenant
@click.option("--act", type=OneOf([act.value for act in Act]), help="Only this kind of deed.")
@click.option("--subject", type=TEXT, help="Only what was done to this run, job, key or name.")
@click.option("--actor", type=TEXT, help="Only what this one did, as the column ACTOR shows it.")
@click.option("--days", type=click.FloatRange(0, 36_500, min_open=True), default=7.0, show_default=True)
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_deeds(
    home: Path | None,
    act: str | None,
    subject: str | None,
    actor: str | None,
    days: float,
    limit: int,
    as_json: bool,
) -> None:
    """What was done for a tenant in the last days, newest first."""
    asked: dict[str, Any] = {"act": act, "subject": subject, "actor": actor}
    deeds = open_api_client(home).audit(
        limit=min(limit, _PAGE), since=time.time() - days * _DAY_S, newest_first=True, **asked
    )
    found = list(islice(deeds, limit))
    print_entries(
        found,
        ("TIME", "ACTOR", "FROM", "DEED", "SUBJECT", "AFTER"),
        _format_row,
        document=_build_document if as_json else None,
        empty=f"nothing was recorded in the last {days:g} days",
        whole=(0, 3, 4),
    )


@audit.command(epilog="Example: hermes-worker data audit export --all-tenants --after 4711 >> audit.jsonl")
@reachable
@of_tenant
@click.option("--all-tenants", is_flag=True, help="Of all tenants.")
@click.option("--after", type=click.IntRange(0), default=0, help="Begin behind this number: the last one you have.")
def export(home: Path | None, all_tenants: bool, after: int) -> None:
    """Write the log as JSON Lines, oldest first, up to five seconds ago. To go on later, give the last number with
    --after."""
    for deed in open_api_client(home).audit(limit=_PAGE, after=after, settled=True, all_tenants=all_tenants):
        click.echo(json.dumps(_build_document(deed)))


def _build_document(deed: DeedObject) -> dict[str, Any]:
    return deed.model_dump(exclude={"object"})


def _format_row(deed: DeedObject) -> tuple[str, ...]:
    after = " ".join(f"{name}={value}" for name, value in deed.after.items())
    return (
        format_moment(deed.at),
        flatten_text(deed.actor, 40),
        deed.address or "-",
        deed.act,
        deed.subject,
        flatten_text(after, 60),
    )
