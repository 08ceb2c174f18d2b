"""``hermes-worker runs explain``: explain why a run is where it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.layout import format_moment, hide_secrets
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.run_backend import open_backend
from hermes_worker.cli.screen import strip_controls

if TYPE_CHECKING:
    from hermes_worker.core.explanations import Fact

_TIMES = ("deadline_at", "held_since", "lease_until", "looks_at", "not_before", "resume_at", "retry_at")


@click.command(epilog="Example: hermes-worker runs explain run_0123...")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def explain(home: Path | None, run_id: str, as_json: bool) -> None:
    """Why one run is where it is: a sentence, and the facts behind it."""
    backend = open_backend(home)
    run_id = backend.complete_run_id(run_id)
    found = backend.client.explain(run_id)
    if as_json:
        facts = {name: _redact(value) for name, value in found.facts.items() if value is not None}
        document = {"run_id": run_id, "because": found.because.value, "text": hide_secrets(found.text), "facts": facts}
        click.echo(json.dumps({**document, "since": found.since, "until": found.until}))
        return
    click.echo(f"{run_id}: {strip_controls(hide_secrets(found.text))}")
    click.echo(f"  because          {found.because.value}")
    for name, at in (("since", found.since), ("until", found.until)):
        if at is not None:
            click.echo(f"  {name:<16} {format_moment(at)}")
    for name, value in found.facts.items():
        if value is None:
            continue
        shown = (
            format_moment(float(value)) if name in _TIMES and value is not None else strip_controls(str(_redact(value)))
        )
        click.echo(f"  {name:<16} {shown}")


def _redact(value: Fact) -> Fact:
    return hide_secrets(value) if isinstance(value, str) else value
