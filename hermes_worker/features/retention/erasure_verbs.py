"""``hermes-worker data export`` and ``erase``: export everything of a person, a session or a tenant, and erase it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hermes_worker.cli.layout import format_moment, render_table
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.progress import clear_progress, show_progress
from hermes_worker.features.retention.erasure_backend import open_erasures
from hermes_worker.features.retention.erasure_rules import OUTSIDE, STAYS, ErasureReceipt, Person, parse_receipts

if TYPE_CHECKING:
    from hermes_worker.features.retention.erasure_schema import ForetoldErasure

_Command = TypeVar("_Command", bound=Callable[..., Any])


def add_subject_options(command: _Command) -> _Command:
    """Add the options that name a subject: each may be given several times."""
    options = (
        click.option(
            "--session",
            "sessions",
            type=TEXT,
            multiple=True,
            metavar="ID",
            help="The session of this id or name, as lists show it.",
        ),
        click.option(
            "--named",
            type=(TEXT, TEXT),
            multiple=True,
            metavar="SOURCE NAME",
            help="The session that a caller named so: webhook:chat 4711.",
        ),
        click.option(
            "--principal",
            "principals",
            type=TEXT,
            multiple=True,
            metavar="WHO",
            help="What somebody asked for, as runs record it: cli:alice.",
        ),
        click.option(
            "--holder", "holders", type=TEXT, multiple=True, metavar="NAME", help="A holder of keys, with the keys."
        ),
        click.option(
            "--target",
            "targets",
            type=TEXT,
            multiple=True,
            metavar="ADDRESS",
            help="What is delivered to an address, and jobs that do: telegram:4711.",
        ),
        click.option("--everybody", is_flag=True, help="Everything of the tenant, which is disabled first."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(epilog="Files of workspaces are not in it; docs/erasure.md says where they are and what each line is.")
@reachable
@of_tenant
@add_subject_options
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="A new file, for you alone. Default: here."
)
def export(home: Path | None, out: Path | None, **whom: Any) -> None:
    """Write everything of a person, a session or a tenant as JSON lines."""
    rows = open_erasures(home, _show_progress).export(_build_person(**whom))
    if out is None:
        for _, line in rows:
            click.echo(line)
        return
    counted: Counter[str] = Counter()
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise click.UsageError(f"{str(out)!r} is there already; name a new file") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        for kind, line in rows:
            file.write(line + "\n")
            counted[kind] += 1
    click.echo(
        render_table(sorted((kind, str(count)) for kind, count in counted.items()), ("KIND", "WRITTEN"), whole=(0, 1))
    )


@click.command(
    epilog="Without --yes it only says what would be erased. It can be interrupted and goes on with --resume."
)
@reachable
@of_tenant
@add_subject_options
@click.option("--yes", is_flag=True, help="Really do it. What is erased cannot be brought back.")
@click.option("--stop", "stops", is_flag=True, help="Stop runs that have not ended, and wait for their end.")
@click.option("--wait-s", type=click.FloatRange(0), default=60.0, show_default=True, help="How long to wait for that.")
@click.option("--shared", is_flag=True, help="Also sessions in which others asked for something.")
@click.option("--resume", is_flag=True, help="Go on with every erasure of the tenant that was interrupted.")
@click.option("--replay", type=click.Path(path_type=Path, exists=True), help="Erase again what these receipts erased.")
@click.option("--receipt", "receipt_id", type=TEXT, metavar="ID", help="Show a receipt, and whether it was changed.")
@click.option("--receipts", is_flag=True, help="Show all receipts, one JSON object per line: keep them elsewhere.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object per line.")
def erase(
    home: Path | None,
    yes: bool,
    stops: bool,
    wait_s: float,
    shared: bool,
    resume: bool,
    replay: Path | None,
    receipt_id: str | None,
    receipts: bool,
    as_json: bool,
    **whom: Any,
) -> int:
    """Delete everything of a person, a session or a tenant, and leave a receipt."""
    every = open_erasures(home, _show_progress)
    stops_within_s = wait_s if stops else None
    if receipt_id is not None or receipts:
        for receipt in every.list_receipts(receipt_id):
            click.echo(json.dumps(receipt.model_dump()))
        return 0
    if resume:
        return _print_receipts(every.resume(stops_within_s=stops_within_s), as_json)
    if replay is not None:
        read = parse_receipts(replay.read_text(encoding="utf-8").splitlines())
        return _print_receipts(every.replay(read, stops_within_s=stops_within_s), as_json)
    person = _build_person(**whom)
    if not yes:
        return _print_forecast(every.foretell(person), as_json)
    return _print_receipts([every.erase(person, shared=shared, stops_within_s=stops_within_s)], as_json)


def _build_person(
    sessions: Sequence[str],
    named: Sequence[tuple[str, str]],
    principals: Sequence[str],
    holders: Sequence[str],
    targets: Sequence[str],
    everybody: bool,
) -> Person:
    person = Person(
        sessions=tuple(sessions),
        named=tuple(named),
        principals=tuple(principals),
        holders=tuple(holders),
        targets=tuple(targets),
        is_everybody=everybody,
    )
    person.require_named()
    return person


def _print_forecast(foretold: ForetoldErasure, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps(foretold.model_dump(exclude={"object"})))
        return 0
    rows = [(kind, str(count)) for kind, count in sorted(foretold.would_erase.items())]
    click.echo(render_table(rows, ("KIND", "WOULD BE ERASED"), whole=(0, 1)) if rows else "nothing is there of them")
    for sentence in foretold.unknown:
        click.echo(f"{sentence}: is it spelt as lists show it?", err=True)
    if foretold.open_runs:
        click.echo(f"{len(foretold.open_runs)} runs have not ended: --stop", err=True)
    if foretold.shared:
        click.echo(f"others asked for {foretold.shared} runs in the same sessions: --shared", err=True)
    if foretold.held_by:
        click.echo(f"held by {', '.join(map(str, foretold.held_by))}: 'hermes-worker data retention holds'", err=True)
    click.echo("Nothing was erased. Export it if somebody may want it, then add --yes.", err=True)
    return 0


def _print_receipts(receipts: Sequence[ErasureReceipt], as_json: bool) -> int:
    clear_progress()
    for receipt in receipts:
        if as_json:
            click.echo(json.dumps(receipt.build_document()))
            continue
        rows = [(kind, str(count)) for kind, count in sorted(receipt.erased.items())]
        click.echo(render_table(rows, ("KIND", "ERASED"), whole=(0, 1)))
        for name, why in STAYS.items():
            click.echo(f"stays: {name}, {why}")
        for place in (*OUTSIDE, *receipt.not_reached):
            click.echo(f"not reached: {place}")
        click.echo(
            f"{receipt.receipt_id} at {format_moment(receipt.ended_at)}; keep the receipt outside of the backups"
        )
    if not receipts and not as_json:
        click.echo("nothing to do", err=True)
    return 0


def _show_progress(told: Counter[str]) -> None:
    show_progress(", ".join(f"{count:,} {what}" for what, count in told.items()))
