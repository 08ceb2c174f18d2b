"""``hermes-worker fleet providers``: show and open keys of providers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.layout import format_moment
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.options import TEXT, reachable
from hermes_worker.cli.screen import flatten_text

if TYPE_CHECKING:
    from hermes_worker.schemas.fleet import KeyStateObject

_REASON_CHARS = 60


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def providers() -> None:
    """Show which keys of providers are closed, open them again, and give tenants keys of their own."""


@providers.command(epilog="A key that never failed is not shown. While one is closed, one call at a time tries it.")
@reachable
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def status(home: Path | None, as_json: bool) -> None:
    """Keys of which something is known: closed ones first, by names that say nothing about them."""
    print_entries(
        open_api_client(home).provider_states(),
        ("KEY", "PROVIDER", "CONDITION", "SINCE", "NEXT TRY", "PARKED", "REASON"),
        _format_row,
        document=(lambda state: state.model_dump()) if as_json else None,
        whole=(0,),
    )


@providers.command("open", epilog="Example: hermes-worker fleet providers open 3f9c2a7d51e0b846")
@reachable
@click.argument("key", type=TEXT)
def open_key(home: Path | None, key: str) -> None:
    """Let runs use a key again at once, as after a top-up. If it does not work it is closed again."""
    state = open_api_client(home).open_provider_key(key)
    click.echo(f"{key} of {state.provider} may be used; the runs that wait for it go on within seconds")


def _format_row(state: KeyStateObject) -> tuple[str, ...]:
    tried = "now" if state.is_probed else format_moment(state.probe_at)
    return (
        state.credential,
        state.provider,
        state.condition,
        format_moment(state.since),
        tried,
        str(state.parked),
        flatten_text(state.reason or "-", _REASON_CHARS),
    )
