"""``hermes-worker runs show`` as a story: what was asked, what the run did, what it answered, and what it cost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli.chat.call_output import LineMark, OutputLine, fold_arguments, fold_output
from hermes_worker.cli.layout import format_clock, format_count, format_duration, format_moment, render_table
from hermes_worker.cli.screen import flatten_text, strip_controls
from hermes_worker.core.messages import Role
from hermes_worker.core.run import CallStatus
from hermes_worker.stream.wire_events import MESSAGE_DELTA, REASONING_AVAILABLE, TOOL_GENERATING, TOOL_PROGRESS

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient
    from hermes_worker.core.run_views import RunSheet
    from hermes_worker.schemas.runs import LedgerEntryObject

_ASKED_LINES = 12
_CALLS_MAX = 1_000
_CALLS_SHOWN = 15
CALL_LINES = 40
"""Lines of its arguments and of its output that are shown where one call is looked at."""
_OPENED_CALLS = 100
"""Calls whose results ``--calls`` loads; each is a request."""
_PASSING = (MESSAGE_DELTA, REASONING_AVAILABLE, TOOL_GENERATING, TOOL_PROGRESS)
_MARK_COLOURS = {LineMark.ADDED: "green", LineMark.REMOVED: "red", LineMark.PLACE: "cyan", LineMark.BAD: "red"}
_SIGNS = {
    CallStatus.SUCCEEDED: click.style("✓", fg="green"),
    CallStatus.FAILED: click.style("✗", fg="red"),
    CallStatus.CANCELLED: click.style("✗", fg="yellow"),
    CallStatus.UNKNOWN: click.style("!", fg="red"),
}
_DENIED_SIGN = click.style("✗", fg="yellow")


def load_calls(client: HermesClient, run_id: str) -> Sequence[LedgerEntryObject]:
    """Load the calls of a run, the first thousand."""
    return list(islice(client.calls(run_id), _CALLS_MAX))


def find_asked(client: HermesClient, run_id: str) -> str:
    """Find what a run was asked: the last text of a person in its messages; empty where there is none."""
    said = [each.get("content") for each in client.result(run_id).messages if each.get("role") == Role.USER]
    content = said[-1] if said else ""
    if isinstance(content, list):
        parts = (part.get("text") or f"[{part.get('type')}]" for part in content if isinstance(part, dict))
        content = "\n".join(map(str, parts))
    return str(content or "")


def render_asked(text: str) -> list[str]:
    """Render what was asked, folded where it is long."""
    lines = strip_controls(text).strip().splitlines()
    more = len(lines) - _ASKED_LINES
    shown = lines if more <= 1 else [*lines[:_ASKED_LINES], f"… {more} more lines, --raw shows them"]
    return _render_part("asked", shown)


def render_done(calls: Sequence[LedgerEntryObject]) -> list[str]:
    """Render what a run did: its calls in words, the last ones where there are many."""
    left_out = max(0, len(calls) - _CALLS_SHOWN)
    rows = [_format_call(each) for each in calls[left_out:]]
    table = render_table(rows, ("", "", "", "", ""), whole=(0, 1, 4)).splitlines()[1:] if rows else []
    more = [f"… {left_out:,} before these, 'hermes-worker runs calls' lists them"] if left_out else []
    return _render_part("did", [*more, *table])


def render_answered(sheet: RunSheet) -> list[str]:
    """Render the answer, or why there is none."""
    return _render_part("answered", strip_controls(sheet.view.output or "").strip().splitlines())


def _render_part(name: str, lines: Sequence[str]) -> list[str]:
    return ["", click.style(f"{name}:", bold=True), *(f"  {line}".rstrip() for line in lines)] if lines else []


def _format_call(each: LedgerEntryObject) -> tuple[str, ...]:
    ended = each.settled_at or time.time()
    return (
        each.call,
        f"{_DENIED_SIGN if each.denied else _SIGNS.get(each.status, '·')} {flatten_text(each.tool, 40)}",
        flatten_text(each.about, 100),
        "" if each.status is CallStatus.SUCCEEDED else each.word,
        "" if each.claimed_at is None else format_duration(max(0.0, ended - each.claimed_at)),
    )


def iterate_call_lines(client: HermesClient, run_id: str, calls: Sequence[LedgerEntryObject]) -> Iterator[str]:
    """Iterate over the lines that show each call with the first lines of what it did, its exit code and its diff."""
    for each in calls[:_OPENED_CALLS]:
        yield "  ".join(part for part in _format_call(each) if part)
        yield from _paint(fold_output(client.call(run_id, each.call), name_call(run_id, each.call)).lines)
    if len(calls) > _OPENED_CALLS:
        yield f"… and {len(calls) - _OPENED_CALLS:,} more; 'hermes-worker runs calls {run_id} CALL' shows one"


def render_call(client: HermesClient, run_id: str, place: str, *, lines_max: int = CALL_LINES) -> list[str]:
    """Render one call: what it was asked, in words and by its arguments, its verdict, its time, and its output, folded
    to ``lines_max`` lines."""
    call = client.call(run_id, place)
    changed = [] if call.changed_arguments is None else ["it ran with arguments that were changed:"]
    opens = name_call(run_id, place, " --all")
    output = fold_output(call, opens, lines_max=lines_max).lines
    facts = [
        f"status {call.word}" + (f" ({call.waits_for})" if call.waits_for else ""),
        *([f"begun {format_moment(call.claimed_at)}"] if call.claimed_at is not None else []),
        f"effect {call.effect}",
        *([format_count(call.attempts, "attempt")] if call.attempts > 1 else []),
        *([f"{call.takeovers} taken over, {format_count(call.deaths, 'worker')} died"] if call.takeovers else []),
        *([f"on {flatten_text(call.worker, 60)}"] if call.worker else []),
    ]
    return [
        click.style("  ".join(part for part in _format_call(call) if part), bold=True),
        f"  {', '.join(facts)}",
        *_render_part("asked", [*changed, *_paint(fold_arguments(call, opens, lines_max=lines_max), indent="")]),
        *_render_part("did", list(_paint(output, indent=""))),
    ]


def name_call(run_id: str, place: str, option: str = "") -> str:
    """Name the command that shows a call."""
    return f"'hermes-worker runs calls {run_id} {place}{option}'"


def _paint(lines: Sequence[OutputLine], *, indent: str = "    ") -> Iterator[str]:
    for line in lines:
        yield click.style(f"{indent}{line.text}", fg=_MARK_COLOURS.get(line.mark))


def iterate_event_lines(client: HermesClient, run_id: str) -> Iterator[str]:
    """Iterate over the events of a run, a line each; of a run at work until it has ended."""
    for told in client.told_events(run_id):
        fields = {name: value for name, value in told.document.items() if name not in ("run_id", "usage")}
        name, at = str(fields.pop("event", "")), fields.pop("timestamp", None)
        if name in _PASSING:
            continue
        clock = format_clock(at) if isinstance(at, int | float) else "-"
        words = "  ".join(f"{key}={_write(value)}" for key, value in fields.items() if value not in (None, ""))
        yield f"{clock}  {flatten_text(name, 60)}  {flatten_text(words, 400)}".rstrip()


def _write(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
