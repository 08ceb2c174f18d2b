"""``hermes-worker runs spend``: the cost of runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.layout import format_count
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.listing import AGO
from hermes_worker.cli.options import OneOf, of_tenant, reachable
from hermes_worker.cli.screen import flatten_text
from hermes_worker.core.pricing import NO_PRICE, format_usd
from hermes_worker.core.titles import TITLE_CHARS_MAX
from hermes_worker.features.spend.rows import GROUPS_MAX, SpendBy

if TYPE_CHECKING:
    from hermes_worker.features.spend.schema import SpendObject

_DAYS = 30


@click.command(
    epilog="Example: hermes-worker runs spend --by model --since 7d   A run counts on the day (UTC) that accepted it."
)
@reachable
@of_tenant
@click.option(
    "--by", type=OneOf([by.value for by in SpendBy]), default=SpendBy.DAY.value, show_default=True, help="Tell apart."
)
@click.option("--since", type=AGO, help=f"Of runs made since then: 3d ago, or 2027-01-01. Default: {_DAYS} days.")
@click.option("--until", type=AGO, help="Of runs made before then, likewise.")
@click.option("--all-tenants", is_flag=True, help="Of all tenants.")
@click.option("--limit", type=click.IntRange(1, GROUPS_MAX), default=100, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def spend(
    home: Path | None,
    by: str,
    since: float | None,
    until: float | None,
    all_tenants: bool,
    limit: int,
    as_json: bool,
) -> None:
    """What runs cost, by day, model, tenant, job or session.

    What a run delegated counts for the job and the session in which its tree began.
    """
    before = time.time() + 1 if until is None else until
    after = max(0.0, before - _DAYS * 86_400) if since is None else since
    asked: dict[str, Any] = {"by": by, "created_after": after, "created_before": before, "limit": limit}
    found = open_api_client(home).spend(**asked, all_tenants=all_tenants or None)
    has_ids = any(group.name is not None for group in found)
    header = (by.upper(), "RUNS", "COST", "TOKENS IN", "OUT", "CACHED", "NOT KNOWN", "ID")
    print_entries(
        found,
        header if has_ids else header[:-1],
        lambda group: _build_row(group) if has_ids else _build_row(group)[:-1],
        document=(lambda group: group.model_dump()) if as_json else None,
        empty="no run was accepted in this time",
        ids=(7,) if has_ids else (),
        whole=() if has_ids else (0,),
    )


def _build_row(group: SpendObject) -> tuple[str, ...]:
    ratio = group.cache_hit_ratio
    return (
        flatten_text(group.name or group.key or "-", TITLE_CHARS_MAX),
        f"{group.runs:,}",
        NO_PRICE if group.cost_usd is None else format_usd(group.cost_usd),
        f"{group.input_tokens + group.cache_read_tokens + group.cache_write_tokens:,}",
        f"{group.output_tokens:,}",
        "-" if ratio is None else f"{ratio:.0%}",
        _format_unknown(group),
        group.key or "-",
    )


def _format_unknown(group: SpendObject) -> str:
    """What the cost leaves out."""
    if not group.unknown_runs:
        return "-"
    runs = format_count(group.unknown_runs, "run")
    return f"{runs}, {format_usd(group.doubtful_cost_usd)}" if group.doubtful_cost_usd else runs
