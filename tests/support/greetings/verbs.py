from __future__ import annotations

import click

from support.greetings.rules import render_greeting


@click.command()
@click.argument("name")
def greet(name: str) -> None:
    """Greet somebody."""
    click.echo(render_greeting(name))
