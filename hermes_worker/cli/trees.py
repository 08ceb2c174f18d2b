"""``hermes-worker runs tree`` and ``runs calls``: what a run delegated, and its tool calls one by one."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli.layout import in_tree_order, in_words, table
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.records import open_records
from hermes_worker.cli.run_backend import open_backend
from hermes_worker.cli.screen import clean, coloured, duration, one_line
from hermes_worker.cli.server import read, server_client
from hermes_worker.core.run import RunStatus
from hermes_worker.services.shown import CallLine, CallTexts, call_line, call_texts
from hermes_worker.store.runs.ledger import Ledger
from hermes_worker.store.runs.tree_shapes import TreeNode, TreeShape, read_tree

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

_PLACE = re.compile(r"(\d{1,6})\.(\d{1,4})")
_ANSWER_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLine:
    """A run of a tree. Times are epoch seconds."""

    run_id: str
    parent_run_id: str | None
    depth: int
    child_index: int | None
    parent_call: str | None
    background: bool
    status: RunStatus
    model: str
    created_at: float
    finished_at: float | None
    cost_usd: float | None
    output: str | None
    error: str | None


# --- trees -----------------------------------------------------------------------------------------------------------


@click.command(epilog="Example: hermes-worker runs tree run_0123...")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def tree(home: Path | None, run_id: str, as_json: bool) -> None:
    """The tree that a run is in: what was delegated, and the turns that background answers began. A run that stands
    further right was begun by the one above it."""
    run_id = open_backend(home).run_id(run_id)
    client = server_client()
    if client is None:
        lines, total = _kept_tree(read_tree(open_records(home).database, run_id))
    else:
        lines, total = _told_tree(client.tree(run_id))
    if as_json:
        for line in lines:
            click.echo(json.dumps({**asdict(line), "status": line.status.value}))
    else:
        header = ("RUN", "STATUS", "CALL", "TOOK", "USD", "ANSWER OR ERROR")
        by_id = {line.run_id: line for line in lines}
        placed = in_tree_order({line.run_id: line.parent_run_id for line in lines})
        rows = [_tree_row(by_id[run_id], level) for run_id, level in placed]
        click.echo(table(rows, header, ids=(0,), whole=(0, 1)))
    if total > len(lines):
        click.echo(f"note: these are the first {len(lines):,} of {total:,} runs", err=True)


def _kept_tree(shape: TreeShape) -> tuple[list[TreeLine], int]:
    return [_kept_line(node) for node in shape.nodes], shape.total


def _kept_line(node: TreeNode) -> TreeLine:
    run = node.run
    return TreeLine(
        run_id=run.run_id,
        parent_run_id=node.parent_run_id,
        depth=node.depth,
        child_index=node.child_index,
        parent_call=None if node.call is None else f"{node.call[0]}.{node.call[1]}",
        background=node.is_background,
        status=run.status,
        model=run.model,
        created_at=run.created_at,
        finished_at=run.finished_at,
        cost_usd=None if run.cost_usd is None else float(run.cost_usd),
        output=run.output,
        error=run.error,
    )


def _told_tree(told: Mapping[str, Any]) -> tuple[list[TreeLine], int]:
    """By a server."""
    lines = [
        {
            **{name: node[name] for name in ("parent_run_id", "depth", "child_index", "parent_call", "background")},
            **{name: node["run"].get(name) for name in _OF_RUN},
            "cost_usd": node["run"].get("estimated_cost_usd"),
        }
        for node in told["data"]
    ]
    found: list[TreeLine] = read(list[TreeLine], lines)
    return found, int(told["total"])


_OF_RUN = ("run_id", "status", "model", "created_at", "finished_at", "output", "error")


def _tree_row(line: TreeLine, level: int) -> tuple[str, ...]:
    took = (line.finished_at or time.time()) - line.created_at
    said = line.output if line.output is not None else line.error or ""
    call = line.parent_call or "-"
    return (
        f"{'  ' * level}{clean(line.run_id)}",
        coloured(line.status),
        f"{call} (background)" if line.background else call,
        duration(max(0.0, took)),
        "-" if line.cost_usd is None else f"{line.cost_usd:.4f}",
        one_line(said, _ANSWER_CHARS),
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
    run_id = open_backend(home).run_id(run_id)
    if place is not None:
        line, texts = _one_call(home, run_id, place)
        if as_json:
            click.echo(json.dumps({**_call_document(line), **asdict(texts)}))
        else:
            click.echo(_described(line, texts))
        return
    client = server_client()
    ledger = _kept_calls(home, run_id, limit) if client is None else _told_calls(client, run_id, limit)
    if as_json:
        for line in ledger:
            click.echo(json.dumps(_call_document(line)))
    elif ledger:
        header = ("CALL", "TOOL", "EFFECT", "STATUS", "ATTEMPTS", "TOOK", "WORKER")
        click.echo(table([_call_row(line) for line in ledger], header, whole=(0, 2, 3)))
    else:
        click.echo("the run called no tool", err=True)


def _one_call(home: Path | None, run_id: str, place: str) -> tuple[CallLine, CallTexts]:
    named = _PLACE.fullmatch(place)
    if named is None:
        raise click.UsageError(f"{place!r} is no call; write the iteration and the position, as the column CALL does")
    client = server_client()
    if client is None:
        found = Ledger(open_records(home).database).call(run_id, int(named[1]), int(named[2]))
        return call_line(found.entry), call_texts(found)
    told = client.call(run_id, place)
    return read(CallLine, told), read(CallTexts, told)


def _kept_calls(home: Path | None, run_id: str, limit: int) -> list[CallLine]:
    return [call_line(entry) for entry in Ledger(open_records(home).database).page(run_id, limit=limit)]


def _told_calls(client: HermesClient, run_id: str, limit: int) -> list[CallLine]:
    """By a server."""
    found: list[CallLine] = read(list[CallLine], list(islice(client.calls(run_id), limit)))
    return found


def _call_document(line: CallLine) -> dict[str, Any]:
    return {**asdict(line), "status": line.status.value}


def _call_row(line: CallLine) -> tuple[str, ...]:
    return (
        line.call,
        one_line(line.tool, 40),
        line.effect,
        f"{line.status.value} ({line.waits_for})" if line.waits_for else line.status.value,
        str(line.attempts),
        _took(line),
        one_line(line.worker or "-", 40),
    )


def _took(line: CallLine) -> str:
    if line.claimed_at is None:
        return "-"
    return duration(max(0.0, (line.settled_at or time.time()) - line.claimed_at))


def _described(line: CallLine, texts: CallTexts) -> str:
    facts = {name: value for name, value in _call_document(line).items() if name != "call"}
    lines = [
        f"{line.call} {clean(texts.tool_call_id)}",
        *(f"  {name:<11} {one_line(in_words(name, value), 80)}" for name, value in facts.items()),
        "",
        "arguments:",
        clean(texts.arguments),
    ]
    if texts.changed_arguments is not None:
        lines += ["", "it ran with:", clean(texts.changed_arguments)]
    if texts.result is not None:
        lines += ["", "result:", clean(texts.result)]
    return "\n".join(lines)
