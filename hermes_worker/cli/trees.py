"""``hermes-worker runs tree`` and ``runs calls``: what a run delegated, and its tool calls one by one."""

from __future__ import annotations

import json
import re
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli.layout import find_ancestors, format_duration, iterate_tree, render_table
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.listing import STATUSES
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.run_backend import open_backend
from hermes_worker.cli.screen import colour_status, flatten_text, strip_controls
from hermes_worker.cli.story import CALL_LINES, render_call
from hermes_worker.core.pricing import format_cost
from hermes_worker.core.titles import TITLE_CHARS_MAX

if TYPE_CHECKING:
    from hermes_worker.schemas.runs import LedgerEntryObject, TreeRunObject

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
    found = backend.client.tree(backend.complete_run_id(run_id))
    fitting = [
        node
        for node in found.data
        if (not statuses or node.run.status in statuses)
        and (depth is None or node.depth <= depth)
        and (model is None or node.run.model == model)
    ]
    if as_json:
        for node in fitting:
            click.echo(json.dumps(_build_tree_document(node)))
    elif not fitting:
        click.echo("no run of the tree fits", err=True)
    else:
        header = ("TITLE", "STATUS", "CALL", "TOOK", "COST", "ANSWER OR ERROR", "RUN")
        by_id = {node.run.run_id: node for node in found.data}
        parents = {node.run.run_id: node.parent_run_id for node in found.data}
        kept = find_ancestors(parents, [node.run.run_id for node in fitting])
        placed = [place for place in iterate_tree(parents) if place[0] in kept]
        rows = [_format_tree_row(by_id[run_id], level) for run_id, level in placed]
        click.echo(render_table(rows, header, ids=(6,), whole=(1,)))
    if found.total > len(found.data):
        click.echo(f"note: these are the first {len(found.data):,} of {found.total:,} runs", err=True)


def _build_tree_document(node: TreeRunObject) -> dict[str, Any]:
    place, run = node.model_dump(exclude={"run"}), node.run
    return {
        "run_id": run.run_id,
        **place,
        "status": run.status,
        "model": run.model,
        "created_at": run.created_at,
        "finished_at": run.finished_at,
        "cost_usd": run.estimated_cost_usd,
        "output": run.output,
        "error": run.error,
    }


def _format_tree_row(node: TreeRunObject, level: int) -> tuple[str, ...]:
    run = node.run
    took = (run.finished_at or time.time()) - run.created_at
    said = run.output if run.output is not None else run.error or ""
    call = node.parent_call or "-"
    return (
        f"{'  ' * level}{flatten_text(run.title or '-', TITLE_CHARS_MAX)}",
        colour_status(run.status),
        f"{call} (background)" if node.background else call,
        format_duration(max(0.0, took)),
        format_cost(run.estimated_cost_usd, run.cost_status),
        flatten_text(said, _ANSWER_CHARS) or "-",
        strip_controls(run.run_id),
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
@click.option("--all", "has_all", is_flag=True, help="With CALL: all of its arguments and its output.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def calls(home: Path | None, run_id: str, place: str | None, limit: int, has_all: bool, as_json: bool) -> None:
    """The tool calls of a run; of one of them, what it was asked, what became of it and what it put out. EFFECT says
    whether a call may run again when its worker is lost: pure at will, keyed with the same key, once never."""
    backend = open_backend(home)
    run_id = backend.complete_run_id(run_id)
    if place is not None:
        place = _check_place(place)
        if as_json:
            click.echo(json.dumps(_build_call_document(backend.client.call(run_id, place))))
        else:
            lines_max = sys.maxsize if has_all else CALL_LINES
            click.echo("\n".join(render_call(backend.client, run_id, place, lines_max=lines_max)))
        return
    print_entries(
        list(islice(backend.client.calls(run_id), limit)),
        ("CALL", "TOOL", "ABOUT", "STATUS", "TOOK", "EFFECT", "ATTEMPTS", "WORKER"),
        _format_call,
        document=_build_call_document if as_json else None,
        empty="the run called no tool",
        whole=(0, 3, 4),
    )


def _check_place(place: str) -> str:
    """Check the place of a call: its iteration and position, such as ``3.0``. Raises ``click.UsageError``."""
    named = _PLACE.fullmatch(place)
    if named is None:
        raise click.UsageError(f"{place!r} is no call; write the iteration and the position, as the column CALL does")
    return f"{int(named[1])}.{int(named[2])}"


def _build_call_document(line: LedgerEntryObject) -> dict[str, Any]:
    return line.model_dump(exclude={"object", "iteration", "position"})


def _format_call(line: LedgerEntryObject) -> tuple[str, ...]:
    return (
        line.call,
        flatten_text(line.tool, 40),
        flatten_text(line.about or "-", 100),
        f"{line.word} ({line.waits_for})" if line.waits_for else line.word,
        _format_duration(line),
        line.effect,
        str(line.attempts),
        flatten_text(line.worker or "-", 40),
    )


def _format_duration(line: LedgerEntryObject) -> str:
    if line.claimed_at is None:
        return "-"
    return format_duration(max(0.0, (line.settled_at or time.time()) - line.claimed_at))
