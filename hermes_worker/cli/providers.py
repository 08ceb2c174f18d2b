"""``hermes-worker providers``: which keys of providers may be used, and how to say that one may again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from hermes_worker.cli.layout import moment, table
from hermes_worker.cli.options import TEXT, reachable
from hermes_worker.cli.records import open_records
from hermes_worker.cli.screen import one_line
from hermes_worker.cli.server import read, server_client
from hermes_worker.store.key_states import KeyRow, KeyStates

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

_REASON_CHARS = 60


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def providers() -> None:
    """Show which keys of providers are closed, and open them again."""


@providers.command(epilog="A key that never failed is not shown. While one is closed, one call at a time tries it.")
@reachable
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def status(home: Path | None, as_json: bool) -> None:
    """Keys of which something is known: closed ones first, by names that say nothing about them."""
    client = server_client()
    if client is None:
        found = KeyStates(open_records(home).database).all()
    else:
        found = [_row_of(told) for told in client.provider_states()]
    if as_json:
        for row in found:
            click.echo(json.dumps(_facts(row)))
        return
    header = ("KEY", "PROVIDER", "CONDITION", "SINCE", "NEXT TRY", "PARKED", "REASON")
    click.echo(table([_line(row) for row in found], header, whole=(0,)))


@providers.command("open", epilog="Example: hermes-worker providers open 3f9c2a7d51e0b846")
@reachable
@click.argument("key", type=TEXT)
def open_key(home: Path | None, key: str) -> None:
    """Let runs use a key again at once, as after a top-up. If it does not work it is closed again."""
    client = server_client()
    opened = KeyStates(open_records(home).database).open if client is None else partial(_opened, client)
    row = opened(key)
    click.echo(f"{key} of {row.provider} may be used; the runs that wait for it go on within seconds")


def _opened(client: HermesClient, key: str) -> KeyRow:
    """By a server."""
    return _row_of(client.open_provider_key(key))


def _row_of(told: Mapping[str, Any]) -> KeyRow:
    """What a server says, as a database does."""
    document = dict(told)
    state = {name: document.pop(name) for name in ("condition", "since", "epoch", "probes", "probe_at")}
    document.pop("object", None)
    return cast("KeyRow", read(KeyRow, {**document, "state": state}))


def _facts(row: KeyRow) -> dict[str, object]:
    return {
        "credential": row.credential,
        "provider": row.provider,
        "condition": row.state.condition.value,
        "since": row.state.since,
        "epoch": row.state.epoch,
        "probes": row.state.probes,
        "probe_at": row.state.probe_at,
        "is_probed": row.is_probed,
        "parked": row.parked,
        "reason": row.reason,
    }


def _line(row: KeyRow) -> tuple[str, ...]:
    tried = "now" if row.is_probed else moment(row.state.probe_at)
    return (
        row.credential,
        row.provider,
        row.state.condition.value,
        moment(row.state.since),
        tried,
        str(row.parked),
        one_line(row.reason or "-", _REASON_CHARS),
    )
