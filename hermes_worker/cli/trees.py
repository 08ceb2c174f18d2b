"""``hermes-worker runs tree`` and ``runs calls``: what a run delegated, and its tool calls one by one."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hermes_worker.cli.layout import find_ancestors, format_field, iterate_tree, render_table
from hermes_worker.cli.listing import STATUSES
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.run_backend import TreeLine, open_backend
from hermes_worker.cli.screen import colour_status, flatten_text, format_duration, strip_controls
from hermes_worker.services.presenters import CallLine, CallTexts

_PLACE = re.compile(r"(\d{1,6})\.(\d{1,4})")
_ANSWER_CHARS = 60


# --- trees -----------------------------------------------------------------------------------------------------------


@click.command(epilog="Example: hermes-worker runs tree run_0123... --status failed --depth 2")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.option("--status", "statuses", multiple=True, type=STATUSES, help="Runs of this status; may be repeated.")
@click.option("--depth", type=click.IntRange(min=0), metavar="N", help="Runs that were delegated at most N times over.")
@click.option("--model", type=TEXT, help="Runs that ask this model.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, for the runs that fit and no others.")
def tree(
    home: Path | None, run_id: str, statuses: tuple[str, ...], depth: int | None, model: str | None, as_json: bool
) -> None:
    """The tree that a run is in: what was delegated, and the turns that background answers began. A run that stands
    further right was begun by the one above it. With filters, runs that fit are shown below those that led to them."""
    backend = open_backend(home)
    lines, total = backend.tree(backend.complete_run_id(run_id))
    fitting = [
        line
        for line in lines
        if (not statuses or line.status.value in statuses)
        and (depth is None or line.depth <= depth)
        and (model is None or line.model == model)
    ]
    if as_json:
        for line in fitting:
            click.echo(json.dumps({**asdict(line), "status": line.status.value}))
    elif not fitting:
        click.echo("no run of the tree fits", err=True)
    else:
        header = ("RUN", "STATUS", "CALL", "TOOK", "USD", "ANSWER OR ERROR")
        by_id = {line.run_id: line for line in lines}
        parents = {line.run_id: line.parent_run_id for line in lines}
        kept = find_ancestors(parents, [line.run_id for line in fitting])
        placed = [place for place in iterate_tree(parents) if place[0] in kept]
        rows = [_format_tree_row(by_id[run_id], level) for run_id, level in placed]
        click.echo(render_table(rows, header, ids=(0,), whole=(0, 1)))
    if total > len(lines):
        click.echo(f"note: these are the first {len(lines):,} of {total:,} runs", err=True)


def _format_tree_row(line: TreeLine, level: int) -> tuple[str, ...]:
    took = (line.finished_at or time.time()) - line.created_at
    said = line.output if line.output is not None else line.error or ""
    call = line.parent_call or "-"
    return (
        f"{'  ' * level}{strip_controls(line.run_id)}",
        colour_status(line.status),
        f"{call} (background)" if line.background else call,
        format_duration(max(0.0, took)),
        "-" if line.cost_usd is None else f"{line.cost_usd:.4f}",
        flatten_text(said, _ANSWER_CHARS),
    )


# --- calls -----------------------------------------------------------------------------------------------------------


@click.command(
    epilog="Example: hermes-worker runs calls run_0123...   and one of them: hermes-worker runs calls run_0123... 3.0"
)
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.argument("place", metavar="[CALL]", required=False, type=TEXT)
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def calls(home: Path | None, run_id: str, place: str | None, limit: int, as_json: bool) -> None:
    """The tool calls of a run; of one of them, its arguments and its result. EFFECT says whether a call may run again
    when its worker is lost: pure at will, keyed with the same key, once never."""
    backend = open_backend(home)
    run_id = backend.complete_run_id(run_id)
    if place is not None:
        line, texts = backend.call(run_id, *_parse_place(place))
        if as_json:
            click.echo(json.dumps({**_build_call_document(line), **asdict(texts)}))
        else:
            click.echo(_render_call(line, texts))
        return
    ledger = backend.calls(run_id, limit=limit)
    if as_json:
        for line in ledger:
            click.echo(json.dumps(_build_call_document(line)))
    elif ledger:
        header = ("CALL", "TOOL", "EFFECT", "STATUS", "ATTEMPTS", "TOOK", "WORKER")
        click.echo(render_table([_format_call(line) for line in ledger], header, whole=(0, 2, 3)))
    else:
        click.echo("the run called no tool", err=True)


def _parse_place(place: str) -> tuple[int, int]:
    """Parse the iteration and the position of a call. Raises ``click.UsageError``."""
    named = _PLACE.fullmatch(place)
    if named is None:
        raise click.UsageError(f"{place!r} is no call; write the iteration and the position, as the column CALL does")
    return int(named[1]), int(named[2])


def _build_call_document(line: CallLine) -> dict[str, Any]:
    return {**asdict(line), "status": line.status.value}


def _format_call(line: CallLine) -> tuple[str, ...]:
    return (
        line.call,
        flatten_text(line.tool, 40),
        line.effect,
        f"{line.status.value} ({line.waits_for})" if line.waits_for else line.status.value,
        str(line.attempts),
        _format_duration(line),
        flatten_text(line.worker or "-", 40),
    )


def _format_duration(line: CallLine) -> str:
    if line.claimed_at is None:
        return "-"
    return format_duration(max(0.0, (line.settled_at or time.time()) - line.claimed_at))


def _render_call(line: CallLine, texts: CallTexts) -> str:
    facts = {name: value for name, value in _build_call_document(line).items() if name != "call"}
    lines = [
        f"{line.call} {strip_controls(texts.tool_call_id)}",
        *(f"  {name:<11} {flatten_text(format_field(name, value), 80)}" for name, value in facts.items()),
        "",
        "arguments:",
        strip_controls(texts.arguments),
    ]
    if texts.changed_arguments is not None:
        lines += ["", "it ran with:", strip_controls(texts.changed_arguments)]
    if texts.result is not None:
        lines += ["", "result:", strip_controls(texts.result)]
    return "\n".join(lines)
