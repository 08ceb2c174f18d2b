"""``hermes-worker tenants`` and ``hermes-worker tenants keys``: manage tenants and their keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.layout import format_moment, render_table
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.options import TEXT, OneOf, find_named_tenant, of_tenant, reachable
from hermes_worker.cli.screen import flatten_text
from hermes_worker.core.budget import NANO
from hermes_worker.core.limits import LimitName
from hermes_worker.core.principals import KeyScope
from hermes_worker.store.runs.limits import LimitView

if TYPE_CHECKING:
    from hermes_worker.features.tenants.key_schema import KeyView, NewKeyObject
    from hermes_worker.features.tenants.schema import LimitSet, TenantLimitsObject

_DAY_S = 86_400.0
_HOUR_S = 3_600.0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def tenants() -> None:
    """List, create, disable and enable tenants: each has runs, jobs, routes and keys of its own."""


@tenants.command("list")
@reachable
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_tenants(home: Path | None, as_json: bool) -> None:
    """All tenants, with the number of their runs and of their keys that can be used."""
    print_entries(
        open_api_client(home, names_tenant=True).tenants(),
        ("TENANT", "KEYS", "RUNS", "CREATED", "DISABLED"),
        lambda v: (v.name, str(v.keys), str(v.runs), format_moment(v.created_at), format_moment(v.disabled_at)),
        document=(lambda view: view.model_dump()) if as_json else None,
        whole=(0,),
    )


@tenants.command(
    epilog="Example: hermes-worker tenants create acme && hermes-worker tenants keys create ci --tenant acme"
)
@reachable
@click.argument("name", type=TEXT)
def create(home: Path | None, name: str) -> None:
    """Make a tenant. Its commands must be confined from then on, and those of all others as well."""
    open_api_client(home, names_tenant=True).create_tenant(name)
    click.echo(f"{name} created; give somebody a key with 'hermes-worker tenants keys create HOLDER --tenant {name}'")


@tenants.command(epilog="Example: hermes-worker tenants disable acme --stop")
@reachable
@click.argument("name", type=TEXT)
@click.option("--stop", "stops", is_flag=True, help="Stop its runs that have not ended as well.")
def disable(home: Path | None, name: str, stops: bool) -> None:
    """Let nothing new begin for a tenant: its keys and routes are refused, and its schedule holds. What was accepted
    before goes on to its end, unless it is stopped."""
    client = open_api_client(home, names_tenant=True)
    disabled = client.disable_tenant(name, stop=stops)
    stopped = disabled.stopped
    while disabled.open_runs and disabled.stopped:
        disabled = client.disable_tenant(name, stop=True)
        stopped += disabled.stopped
    click.echo(f"{name} disabled{f'; {stopped} runs stopped' if stops else ''}")


@tenants.command()
@reachable
@click.argument("name", type=TEXT)
def enable(home: Path | None, name: str) -> None:
    """Let a disabled tenant work again. Jobs that became due meanwhile are treated as after an outage."""
    open_api_client(home, names_tenant=True).enable_tenant(name)
    click.echo(f"{name} enabled")


class LimitWord(click.ParamType[tuple[LimitName, int | None]]):
    """An option's value ``NAME=NUMBER``, or ``NAME=none`` to remove a limit."""

    name = "limit"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[LimitName, int | None]:
        word, _, number = str(value).partition("=")
        try:
            limit = LimitName(word)
            if number == "none":
                return limit, None
            amount = Decimal(number) * (NANO if limit.is_money else 1)
            if not amount.is_finite() or not 0 <= amount <= 10**18 or amount != int(amount):
                raise ValueError
        except (ValueError, InvalidOperation):
            names = ", ".join(LimitName)
            self.fail(f"{value!r} is no limit: write NAME=NUMBER or NAME=none, with a name of {names}", param, ctx)
        return limit, int(amount)


@tenants.command("limits", epilog="Example: hermes-worker tenants limits acme --set runs=8 --set usd_per_day=50")
@reachable
@click.argument("name", type=TEXT)
@click.option("--set", "changes", type=LimitWord(), multiple=True, help="NAME=NUMBER, or NAME=none. May be repeated.")
@click.option("--waits", is_flag=True, help="What is beyond the limits of this command waits, and is not refused.")
@click.option("--key", "key_id", type=TEXT, default="", help="For one key of the tenant, beside the tenant's own.")
@click.option("--weight", type=click.FloatRange(0.001, 1000), help="Its part of the fleet beside those of others: 1.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def set_limits(
    home: Path | None,
    name: str,
    changes: tuple[tuple[LimitName, int | None], ...],
    waits: bool,
    key_id: str,
    weight: float | None,
    as_json: bool,
) -> None:
    """Show what a tenant may use, or change it; every process knows within a second.

    runs: runs at work at once. queued: runs that wait for a place. model_calls: those in flight. submits_per_min.
    tokens_per_day, tokens_per_month, usd_per_day, usd_per_month: what its runs may spend, by days and months of UTC.
    """
    client = open_api_client(home, names_tenant=True)
    if changes or weight is not None:
        wanted = {limit.value: _build_limit(limit, value, waits) for limit, value in changes}
        found = client.change_tenant_limits(name, wanted, weight=weight, key_id=key_id or None)
    else:
        found = client.tenant_limits(name)
    _print_limits(found, as_json)


@tenants.command(epilog="Example: hermes-worker tenants places 64")
@reachable
@click.argument("number", type=TEXT)
def places(home: Path | None, number: str) -> None:
    """How many runs may be at work at once in the whole fleet, where tenants share it: a NUMBER, or 'auto' for two for
    each model call that its workers can make at once."""
    if number != "auto" and not (number.isascii() and number.isdigit() and 1 <= int(number[:8]) <= 1_000_000):
        raise click.UsageError("the number of places is a number from 1 to 1,000,000, or 'auto'")
    open_api_client(home, names_tenant=True).set_places(None if number == "auto" else int(number))
    click.echo(f"places: {number}")


def _build_limit(name: LimitName, value: int | None, waits: bool) -> dict[str, Any] | None:
    if value is None:
        return None
    return {"at_most": value / NANO if name.is_money else value, "waits": waits}


def _print_limits(found: TenantLimitsObject, as_json: bool) -> None:
    views = list(_read_limits(found.limits, ""))
    for of_key in found.keys:
        views += _read_limits(of_key.limits, str(of_key.key_id))
    views.sort()
    weight = found.weight or 1.0
    if as_json:
        click.echo(json.dumps({"weight": weight, "limits": [view._asdict() for view in views]}))
        return
    click.echo(f"weight {weight:g}")
    rows = [(v.name, _format_amount(v), "waits" if v.waits else "refused", v.key_id or "-") for v in views]
    click.echo(render_table(rows, ("LIMIT", "AT MOST", "BEYOND IT", "KEY"), whole=(0,)) if rows else "no limits")


def _read_limits(limits: LimitSet, key_id: str) -> Iterator[LimitView]:
    for name in LimitName:
        limit = limits[name.value]
        if limit is not None:
            value = round(limit.at_most * NANO) if name.is_money else limit.at_most
            yield LimitView(key_id=key_id, name=name.value, value=value, waits=int(limit.waits))


def _format_amount(view: LimitView) -> str:
    return f"{view.value / NANO:g} USD" if view.name.startswith("usd_") else f"{view.value}"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def keys() -> None:
    """Create, list, rotate and revoke keys of the HTTP API."""


@keys.command(
    "create", epilog="Example: hermes-worker tenants keys create ci --scope runs:write --scope runs:read --days 90"
)
@reachable
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
    chosen = scopes or (KeyScope.RUNS_READ.value, KeyScope.RUNS_WRITE.value)
    expires_in_s = None if days is None else days * _DAY_S
    client = open_api_client(home, names_tenant=True)
    _show_new(client.create_key(holder, scopes=chosen, expires_in_s=expires_in_s, tenant=find_named_tenant()), as_json)


@keys.command("list")
@reachable
@of_tenant
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_keys(home: Path | None, as_json: bool) -> None:
    """The keys of a tenant, without what makes them keys."""
    print_entries(
        open_api_client(home, names_tenant=True).keys(tenant=find_named_tenant()),
        ("KEY", "HOLDER", "SCOPES", "CREATED", "LAST USED", "ENDS"),
        _build_row,
        document=(lambda view: view.model_dump()) if as_json else None,
        empty="no keys but that of the installation",
        ids=(0,),
        whole=(0,),
    )


@keys.command(epilog="Example: hermes-worker tenants keys rotate key_0123456789ab --overlap-hours 1")
@reachable
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
    client = open_api_client(home, names_tenant=True)
    _show_new(client.rotate_key(key_id, overlap_s=overlap_hours * _HOUR_S, tenant=find_named_tenant()), as_json)


@keys.command(epilog="Servers that have just seen the key take it for five more seconds.")
@reachable
@of_tenant
@click.argument("key_id", type=TEXT)
def revoke(home: Path | None, key_id: str) -> None:
    """End a key now."""
    open_api_client(home, names_tenant=True).revoke_key(key_id, tenant=find_named_tenant())
    click.echo(f"{key_id} revoked")


def _show_new(made: NewKeyObject, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(made.model_dump()))
        return
    click.echo(f"{made.key_id}  {made.key}")
    click.echo("keep it now: it is not shown again", err=True)


def _build_row(view: KeyView) -> tuple[str, ...]:
    return (
        view.key_id,
        flatten_text(view.holder, 30),
        ",".join(view.scopes),
        format_moment(view.created_at),
        format_moment(view.last_used_at),
        "revoked" if view.revoked_at is not None else format_moment(view.expires_at),
    )
