"""``hermes-worker data rehearse``: try this version on a copy of the database before it is upgraded."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.options import common, load_client_settings
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.features.forks.rehearsal_rules import FactKind, parse_facts, render_verdict
from hermes_worker.features.forks.rehearsal_service import Rehearsal, record_facts, rehearse


@click.command(
    "rehearse",
    epilog="With the version of now: hermes-worker data rehearse --record before.json   then with the new one: "
    "hermes-worker data rehearse --before before.json",
)
@common
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Rehearse no upgrade: write what this version does with the rows, for the next version to compare with.",
)
@click.option(
    "--before",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="What the version before wrote with --record. Without it, only what stands in the rows is compared.",
)
@click.option("--runs", "runs_max", type=click.IntRange(0, 10_000), default=200, show_default=True, help="To replay.")
@click.option("--copy-to", metavar="URL", help="An empty PostgreSQL database for the copy. Default: one of its own.")
@click.option(
    "--accept",
    "accepted",
    multiple=True,
    type=click.Choice([kind.value for kind in FactKind]),
    help="A kind of differences that are meant. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
def rehearse_upgrade(
    home: Path | None,
    record: Path | None,
    before: Path | None,
    runs_max: int,
    copy_to: str | None,
    accepted: tuple[str, ...],
    as_json: bool,
) -> int:
    """Try this version on a copy of the database, before it is upgraded.

    It migrates the copy, replays recorded runs, takes over the runs at work, and compares prompts, tools, prices and
    ends. It says yes or no with the reasons, and how to go back. The database itself is only read, and nothing outside
    hears of it. Exit code 0: yes; 1: no."""
    if record is not None and before is not None:
        raise click.UsageError("--record and --before belong to two versions; give one of them")
    settings = load_client_settings(home)
    asked = Rehearsal(
        runs_max=runs_max,
        copy_to=copy_to,
        before=None if before is None else _read_facts(before),
        accepted=[FactKind(each) for each in accepted],
    )
    if record is not None:
        record.write_text(json.dumps(record_facts(settings, asked)), encoding="utf-8")
        click.echo(f"{record}: give it to the next version with 'hermes-worker data rehearse --before {record}'")
        return 0
    report = rehearse(settings, asked)
    click.echo(json.dumps(report) if as_json else render_verdict(report))
    return 0 if report["is_safe"] else EXIT_FAILED


def _read_facts(path: Path) -> dict[str, dict[str, str]]:
    try:
        return {kind: dict(values) for kind, values in parse_facts(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--before: {str(path)!r} cannot be used: {error}") from None
