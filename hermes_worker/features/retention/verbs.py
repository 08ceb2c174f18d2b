"""``hermes-worker data prune`` and ``retention``: delete what is old, set how long things are kept, and hold what must
stay."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.entry import EXIT_INTERRUPTED, was_interrupted
from hermes_worker.cli.layout import format_moment, render_table
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.progress import clear_progress, show_progress
from hermes_worker.cli.screen import flatten_text
from hermes_worker.cli.short_ids import complete_id
from hermes_worker.core.retention_rules import RetentionKind, parse_kind, parse_rule

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient
    from hermes_worker.features.retention.schema import HoldView, PrunedPlace


@click.command(
    epilog="Workers do the same by themselves, for five seconds a minute. Ctrl-C stops between two batches: what is "
    "deleted is deleted, and nothing is left half-way."
)
@reachable
@of_tenant
@click.option("--all-tenants", is_flag=True, help="Those of every tenant.")
@click.option("--dry-run", is_flag=True, help="Only count what would be deleted.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def prune(home: Path | None, all_tenants: bool, dry_run: bool, as_json: bool) -> int:
    """Delete what the rules of retention let go."""
    client = open_api_client(home)
    counts: Counter[str] = Counter({kind.value: 0 for kind in RetentionKind})
    status = 0
    try:
        for what, count in _prune_in_portions(client, is_dry=dry_run, all_tenants=all_tenants):
            counts[what] += count
            if count:
                _show_progress(counts)
    except BaseException as error:
        if not was_interrupted(error):
            raise
        status = EXIT_INTERRUPTED
    clear_progress()
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, "interrupted": bool(status), "deleted": dict(counts)}))
        return status
    rows = [(what, str(count)) for what, count in counts.items()]
    click.echo(render_table(rows, ("KIND", "WOULD BE DELETED" if dry_run else "DELETED"), whole=(0, 1)))
    return status


def _prune_in_portions(client: HermesClient, *, is_dry: bool, all_tenants: bool) -> Iterator[tuple[str, int]]:
    """Yield a kind and how many of it were deleted, or would be, for each request; one request takes some seconds."""
    after: PrunedPlace | None = None
    while True:
        portion = client.prune(dry_run=is_dry, all_tenants=all_tenants, after=after)
        yield from portion.counts.items()
        after = portion.next
        if portion.done:
            return
        if after is None:
            click.echo("there is more than the server counts in one request: at least so many", err=True)
            return


def _show_progress(counts: Counter[str]) -> None:
    show_progress(", ".join(f"{count:,} {what}" for what, count in counts.items() if count))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def retention() -> None:
    """Show and change how long things are kept, and hold what must stay."""


@retention.command()
@reachable
@of_tenant
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def show(home: Path | None, as_json: bool) -> None:
    """The rules that hold for a tenant."""
    rules = open_api_client(home).retention_rules()
    if as_json:
        click.echo(json.dumps(rules))
        return
    click.echo(render_table(list(rules.items()), ("KIND", "GOES AFTER"), whole=(0, 1)))


@retention.command("set", epilog="Example: hermes-worker data retention set runs 365d/100000 --tenant acme")
@reachable
@of_tenant
@click.argument("kind", type=TEXT)
@click.argument("rule", type=TEXT)
def set_rule(home: Path | None, kind: str, rule: str) -> None:
    """Give a tenant a rule of its own: never, 30d, 12h, /1000 or 30d/1000."""
    chosen = parse_kind(kind)
    text = str(parse_rule(chosen, rule))
    open_api_client(home).change_retention({chosen.value: text})
    click.echo(f"{kind} {text}")


@retention.command("unset")
@reachable
@of_tenant
@click.argument("kind", type=TEXT)
def unset_rule(home: Path | None, kind: str) -> None:
    """Let the installation's rule hold for a tenant again."""
    open_api_client(home).change_retention({parse_kind(kind).value: None})
    click.echo(f"{kind} as for everybody")


@retention.command(epilog="Without --run and --session everything of the tenant is held.")
@reachable
@of_tenant
@click.option("--run", "run_id", type=TEXT, help="Hold the chain of this run.")
@click.option("--session", "session_id", type=TEXT, help="Hold this session with all its runs.")
@click.option("--reason", type=TEXT, required=True, help="Why, for whoever wants to release it.")
def hold(home: Path | None, run_id: str | None, session_id: str | None, reason: str) -> None:
    """Keep something whatever the rules say, until it is released."""
    if run_id is not None and session_id is not None:
        raise click.UsageError("give --run or --session, not both")
    client = open_api_client(home)
    full_id = None if run_id is None else complete_id(client, run_id, "run")
    whole = None if session_id is None else complete_id(client, session_id, "session")
    placed = client.place_hold(reason, run_id=full_id, session_id=whole)
    click.echo(f"{placed.number} holds {_describe_held(placed)}")


@retention.command()
@reachable
@of_tenant
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def holds(home: Path | None, as_json: bool) -> None:
    """What is held of a tenant."""
    print_entries(
        open_api_client(home).holds(),
        ("HOLD", "OF", "SINCE", "BY", "REASON"),
        lambda v: (
            str(v.number),
            _describe_held(v),
            format_moment(v.placed_at),
            v.placed_by,
            flatten_text(v.reason, 60),
        ),
        document=(lambda view: view.model_dump()) if as_json else None,
        empty="no holds",
        whole=(0, 1),
    )


@retention.command()
@reachable
@of_tenant
@click.argument("number", type=click.IntRange(1))
def release(home: Path | None, number: int) -> None:
    """End a hold."""
    open_api_client(home).release_hold(number)
    click.echo(f"{number} released")


def _describe_held(view: HoldView) -> str:
    return view.run_id or view.session_id or f"everything of {view.tenant}"
