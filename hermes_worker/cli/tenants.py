"""``hermes-worker tenants`` and ``hermes-worker keys``: whose work it is, and who may ask for it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from hermes_worker.cli.layout import moment, table
from hermes_worker.cli.options import TEXT, OneOf, common, of_tenant, this_user
from hermes_worker.cli.records import open_records
from hermes_worker.cli.screen import one_line
from hermes_worker.core.principals import KeyScope
from hermes_worker.store.access.principals import KeyView, NewKey, Tenants

_DAY_S = 86_400.0
_HOUR_S = 3_600.0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def tenants() -> None:
    """List, create, disable and enable tenants: each has runs, jobs, routes and keys of its own."""


@tenants.command("list")
@common
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_tenants(home: Path | None, as_json: bool) -> None:
    """All tenants, with the number of their runs and of their keys that can be used."""
    found = Tenants(open_records(home).database).tenants()
    if as_json:
        for view in found:
            click.echo(json.dumps(asdict(view)))
        return
    rows = [(v.name, str(v.keys), str(v.runs), moment(v.created_at), moment(v.disabled_at)) for v in found]
    click.echo(table(rows, ("TENANT", "KEYS", "RUNS", "CREATED", "DISABLED"), whole=(0,)))


@tenants.command(epilog="Example: hermes-worker tenants create acme && hermes-worker keys create ci --tenant acme")
@common
@click.argument("name", type=TEXT)
def create(home: Path | None, name: str) -> None:
    """Make a tenant. Its commands must be confined from then on, and those of all others as well."""
    Tenants(open_records(home).database).create_tenant(name)
    click.echo(f"{name} created; give somebody a key with 'hermes-worker keys create HOLDER --tenant {name}'")


@tenants.command(epilog="Example: hermes-worker tenants disable acme --stop")
@common
@click.argument("name", type=TEXT)
@click.option("--stop", "stops", is_flag=True, help="Stop its runs that have not ended as well.")
def disable(home: Path | None, name: str, stops: bool) -> None:
    """Let nothing new begin for a tenant: its keys and routes are refused, and its schedule holds. What was accepted
    before goes on to its end, unless it is stopped."""
    records = open_records(home)
    Tenants(records.database).disable_tenant(name)
    stopped: set[str] = set()
    for run_id in records.views.open_run_ids(name) if stops else ():
        if run_id not in stopped:  # with one that caused it
            told = records.runs.stop_tree(run_id, by=this_user())
            records.tell_stopped(told.run_ids, told.hints)
            stopped.update(told.run_ids)
    click.echo(f"{name} disabled{f'; {len(stopped)} runs stopped' if stops else ''}")


@tenants.command()
@common
@click.argument("name", type=TEXT)
def enable(home: Path | None, name: str) -> None:
    """Let a disabled tenant work again. Jobs that became due meanwhile are treated as after an outage."""
    Tenants(open_records(home).database).enable_tenant(name)
    click.echo(f"{name} enabled")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def keys() -> None:
    """Create, list, rotate and revoke keys of the HTTP API."""


@keys.command("create", epilog="Example: hermes-worker keys create ci --scope runs:write --scope runs:read --days 90")
@common
@of_tenant
@click.argument("holder", type=TEXT)
@click.option(
    "--scope",
    "scopes",
    type=OneOf([scope.value for scope in KeyScope]),
    multiple=True,
    help="What its holder may do. May be repeated. Default: runs:read and runs:write.",
)
@click.option("--days", type=click.FloatRange(0, min_open=True), help="It ends after so many days. Default: never.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def create_key(home: Path | None, holder: str, scopes: tuple[str, ...], days: float | None, as_json: bool) -> None:
    """Make a key for HOLDER and show it, once: only a hash of it is kept."""
    records = open_records(home)
    chosen = [KeyScope(word) for word in scopes] or [KeyScope.RUNS_READ, KeyScope.RUNS_WRITE]
    expires_in_s = None if days is None else days * _DAY_S
    _show_new(Tenants(records.database).create_key(records.tenant, holder, chosen, expires_in_s=expires_in_s), as_json)


@keys.command("list")
@common
@of_tenant
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_keys(home: Path | None, as_json: bool) -> None:
    """The keys of a tenant, without what makes them keys."""
    records = open_records(home)
    found = Tenants(records.database).keys(records.tenant)
    if as_json:
        for view in found:
            click.echo(json.dumps(asdict(view)))
    elif found:
        header = ("KEY", "HOLDER", "SCOPES", "CREATED", "LAST USED", "ENDS")
        click.echo(table([_row(view) for view in found], header, ids=(0,), whole=(0,)))
    else:
        click.echo("no keys but that of the installation", err=True)


@keys.command(epilog="Example: hermes-worker keys rotate key_0123456789ab --overlap-hours 1")
@common
@of_tenant
@click.argument("key_id", type=TEXT)
@click.option(
    "--overlap-hours",
    type=click.FloatRange(0),
    default=24.0,
    show_default=True,
    help="How long the old key can still be used.",
)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def rotate(home: Path | None, key_id: str, overlap_hours: float, as_json: bool) -> None:
    """Make a key with the same holder and scopes in the place of another."""
    records = open_records(home)
    _show_new(Tenants(records.database).rotate_key(records.tenant, key_id, overlap_s=overlap_hours * _HOUR_S), as_json)


@keys.command(epilog="Servers that have just seen the key take it for five more seconds.")
@common
@of_tenant
@click.argument("key_id", type=TEXT)
def revoke(home: Path | None, key_id: str) -> None:
    """End a key now."""
    records = open_records(home)
    Tenants(records.database).revoke_key(records.tenant, key_id)
    click.echo(f"{key_id} revoked")


def _show_new(made: NewKey, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({**asdict(made.view), "key": made.token}))
        return
    click.echo(f"{made.view.key_id}  {made.token}")
    click.echo("keep it now: it is not shown again", err=True)


def _row(view: KeyView) -> tuple[str, ...]:
    return (
        view.key_id,
        one_line(view.holder, 30),
        ",".join(view.scopes),
        moment(view.created_at),
        moment(view.last_used_at),
        "revoked" if view.revoked_at is not None else moment(view.expires_at),
    )
