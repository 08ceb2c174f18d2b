"""``hermes-worker prune`` and ``retention``: delete what is old, say how long it is kept, and hold what must stay."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click

from hermes_worker.cli.entry import EXIT_INTERRUPTED, was_interrupted
from hermes_worker.cli.layout import moment, table
from hermes_worker.cli.options import TEXT, chosen_tenant, common, of_tenant, this_user
from hermes_worker.cli.records import Records, open_records
from hermes_worker.cli.screen import one_line
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.retention import RetentionKind, kind_of, rule_of
from hermes_worker.store.retention.holds import HoldView, Retention
from hermes_worker.wiring import pruner_of, retention_rules_of


@click.command(
    epilog="Workers do the same by themselves, for five seconds a minute. Ctrl-C stops between two batches: what is "
    "deleted is deleted, and nothing is left half-way."
)
@common
@of_tenant
@click.option("--all-tenants", is_flag=True, help="Those of every tenant.")
@click.option("--dry-run", is_flag=True, help="Only count what would be deleted.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def prune(home: Path | None, all_tenants: bool, dry_run: bool, as_json: bool) -> int:
    """Delete what the rules of retention let go."""
    records = open_records(home)
    counts: Counter[str] = Counter({kind.value: 0 for kind in RetentionKind})
    status = 0
    try:
        _prune(records, None if all_tenants else records.tenant, dry_run, counts)
    except BaseException as error:
        if not was_interrupted(error):
            raise
        status = EXIT_INTERRUPTED
    _clear_progress()
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, "interrupted": bool(status), "deleted": dict(counts)}))
        return status
    rows = [(what, str(count)) for what, count in counts.items()]
    click.echo(table(rows, ("KIND", "WOULD BE DELETED" if dry_run else "DELETED"), whole=(0, 1)))
    return status


def _prune(records: Records, tenant: str | None, is_dry: bool, counts: Counter[str]) -> None:
    from hermes_worker.tasks.upkeep import prune_files

    pruner = pruner_of(records.database, records.settings)
    for batch in pruner.steps(tenant=tenant, acts=not is_dry):
        counts[batch.what] += batch.count
        if batch.count:
            _show_progress(counts)
    if not is_dry and tenant in (None, DEFAULT_TENANT):
        kept = records.settings.cron.outputs_kept
        for kind, count in prune_files(records.settings.home, pruner, outputs_kept=kept).items():
            counts[kind.value] += count


def _show_progress(counts: Counter[str]) -> None:
    if sys.stderr.isatty():
        told = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        click.echo(f"\r\x1b[K{one_line(told, 110)}", err=True, nl=False)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def retention() -> None:
    """Show and change how long things are kept, and hold what must stay."""


@retention.command()
@common
@of_tenant
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def show(home: Path | None, as_json: bool) -> None:
    """The rules that hold for a tenant."""
    records = open_records(home)
    rules = _retention(records).rules(records.tenant)
    if as_json:
        click.echo(json.dumps({kind.value: str(rule) for kind, rule in rules.items()}))
        return
    click.echo(table([(kind.value, str(rule)) for kind, rule in rules.items()], ("KIND", "GOES AFTER"), whole=(0, 1)))


@retention.command("set", epilog="Example: hermes-worker retention set runs 365d/100000 --tenant acme")
@common
@of_tenant
@click.argument("kind", type=TEXT)
@click.argument("rule", type=TEXT)
def set_rule(home: Path | None, kind: str, rule: str) -> None:
    """Give a tenant a rule of its own: never, 30d, 12h, /1000 or 30d/1000."""
    chosen = kind_of(kind)
    records = open_records(home)
    _retention(records).set_rule(records.tenant, chosen, rule_of(chosen, rule))
    click.echo(f"{kind} {rule_of(chosen, rule)}")


@retention.command("unset")
@common
@of_tenant
@click.argument("kind", type=TEXT)
def unset_rule(home: Path | None, kind: str) -> None:
    """Let the installation's rule hold for a tenant again."""
    records = open_records(home)
    _retention(records).unset_rule(records.tenant, kind_of(kind))
    click.echo(f"{kind} as for everybody")


@retention.command(epilog="Without --run and --session everything of the tenant is held.")
@common
@of_tenant
@click.option("--run", "run_id", type=TEXT, help="Hold the chain of this run.")
@click.option("--session", "session_id", type=TEXT, help="Hold this session with all its runs.")
@click.option("--reason", type=TEXT, required=True, help="Why, for whoever wants to release it.")
def hold(home: Path | None, run_id: str | None, session_id: str | None, reason: str) -> None:
    """Keep something whatever the rules say, until it is released."""
    if run_id is not None and session_id is not None:
        raise click.UsageError("give --run or --session, not both")
    records = open_records(home)
    full_id = None if run_id is None else records.run_id(run_id)
    placed = _retention(records).hold(
        records.tenant, reason=reason, by=this_user(), run_id=full_id, session_id=session_id
    )
    click.echo(f"{placed.number} holds {_held(placed)}")


@retention.command()
@common
@of_tenant
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def holds(home: Path | None, as_json: bool) -> None:
    """What is held of a tenant."""
    records = open_records(home)
    found = _retention(records).holds(records.tenant)
    if as_json:
        for view in found:
            click.echo(json.dumps(asdict(view)))
    elif found:
        rows = [(str(v.number), _held(v), moment(v.placed_at), v.placed_by, one_line(v.reason, 60)) for v in found]
        click.echo(table(rows, ("HOLD", "OF", "SINCE", "BY", "REASON"), whole=(0, 1)))
    else:
        click.echo("no holds", err=True)


@retention.command()
@common
@of_tenant
@click.argument("number", type=click.IntRange(1))
def release(home: Path | None, number: int) -> None:
    """End a hold."""
    records = open_records(home)
    _retention(records).release(records.tenant, number)
    click.echo(f"{number} released")


def _retention(records: Records) -> Retention:
    return Retention(records.database, retention_rules_of(records.settings))


def _held(view: HoldView) -> str:
    return view.run_id or view.session_id or f"everything of {chosen_tenant()}"
