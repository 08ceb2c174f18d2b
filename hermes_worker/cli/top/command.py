"""``hermes-worker top``: what a fleet does now, and keys to act on it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hermes_worker.cli.layout import is_dumb
from hermes_worker.cli.options import reachable

_PATIENCE_S = 2.0
"""The next look comes soon enough."""


@click.command(epilog="Example: hermes-worker top --server https://hermes.example.org --key-file ~/.hermes-key")
@reachable
@click.option("--every", "every_s", type=click.FloatRange(0.5, 3600), default=2.0, show_default=True, metavar="SECONDS")
@click.option("--once", is_flag=True, help="Print one look and end, as in a pipe.")
@click.option("--all", "has_all", is_flag=True, help="Also reviews and evaluations.")
def top(home: Path | None, every_s: float, once: bool, has_all: bool) -> int:
    """Show what runs, waits and asks, with keys to open, stop, pause and approve.

    Over the HTTP API of 'hermes-worker up', or of --server: what the key may not see is said. Where standard output is
    no terminal, or one with TERM=dumb, one look is printed as plain text.
    """
    from hermes_worker.cli.api_connection import find_api
    from hermes_worker.cli.top.view import TopState, render_rows
    from hermes_worker.cli.top.watching import FleetWatch

    with find_api(home).open(_PATIENCE_S) as client:
        client.health()  # a wrong address is an error, and no empty screen
        watch = FleetWatch(client, has_all=has_all)
        if once or is_dumb() or not (sys.stdout.isatty() and sys.stdin.isatty()):
            for line in render_rows(TopState(fleet=watch.poll_once())):
                click.echo(line.text)
            return 0
        from hermes_worker.cli.top.full_screen import FullScreen

        FullScreen(watch, every_s).run()
    return 0
