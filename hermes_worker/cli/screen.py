"""A run on the terminal: its text as it comes, its tools as lines, its end as a summary.

Text of a model or a tool is hostile; ``wording`` cleans it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from hermes_worker.cli.event_notices import Notice
from hermes_worker.cli.layout import (
    format_age,
    format_clock,
    format_count,
    format_duration,
    format_tokens,
    hide_secrets,
)
from hermes_worker.cli.wording import flatten_text as flatten_text
from hermes_worker.cli.wording import (
    format_about,
    format_budget,
    format_call_name,
    format_retry,
    format_unknown_outcome,
    format_waiting,
    render_question,
)
from hermes_worker.cli.wording import format_refusal as format_refusal
from hermes_worker.cli.wording import strip_controls as strip_controls
from hermes_worker.core.pricing import CostStatus, format_cost, format_usd
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_events import RunEventName
from hermes_worker.core.run_views import RunView, UndeliveredView
from hermes_worker.stream.wire_events import (
    MESSAGE_DELTA,
    REASONING_AVAILABLE,
    TOOL_GENERATING,
    TOOL_PROGRESS,
    WireEvent,
)

_COLOURS = {
    RunStatus.COMPLETED: "green",
    RunStatus.FAILED: "red",
    RunStatus.CANCELLED: "yellow",
    RunStatus.EXPIRED: "red",
    RunStatus.RUNNING: "cyan",
}


_WHY_CHARS_MAX = 10_000
"""Longer than all danger patterns of a command together."""


class Screen:
    """Shows the events of one run on stdout."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._shown = ""
        """The text shown so far of the reply that is being written."""
        self._is_mid_line = False

    def show(self, event: WireEvent | Notice) -> None:
        if isinstance(event, Notice):
            self.write_line(click.style(f"  {strip_controls(click.unstyle(event.text))}", fg="yellow"))
            return
        fields = event.fields
        match event.name:
            case name if name == MESSAGE_DELTA:
                self._write(strip_controls(str(fields["delta"])))
            case RunEventName.MESSAGE_COMPLETED:
                self._complete(strip_controls(str(fields["text"])))
            case RunEventName.TOOL_STARTED:
                self.write_line(_format_tool_start(fields))
            case RunEventName.TOOL_COMPLETED:
                self.write_line(_format_tool_end(fields))
            case RunEventName.STEERED:
                self.write_line(click.style(f"  you said: {flatten_text(str(fields.get('text', '')), 500)}", fg="cyan"))
            case RunEventName.APPROVAL_ANSWERED if fields.get("choice") not in (None, "deny"):
                who = f" by {strip_controls(str(fields['by']))}" if fields.get("by") else ""
                self.write_line(click.style(f"  allowed{who} ({strip_controls(str(fields['choice']))})", fg="green"))
                if instead := fields.get("changed_arguments"):
                    for line in render_question("it runs with other arguments:", str(instead)):
                        self.write_line(click.style(f"  {line}", fg="yellow"))
            case RunEventName.WAITING:
                self.write_line(click.style(f"  {format_waiting(fields)}", fg="yellow"))
            case RunEventName.APPROVAL_REQUESTED | RunEventName.INPUT_REQUESTED:
                for line in render_run_question(self._run_id, fields):
                    self.write_line(click.style(f"  {line}", fg="yellow"))
            case RunEventName.STEP_RETRIED:
                self.write_line(click.style(f"  {format_retry(fields)}", fg="yellow"))
            case RunEventName.BUDGET_EXHAUSTED:
                self.write_line(click.style(f"  {format_budget(fields)}", fg="yellow"))
            case RunEventName.STOP_REQUESTED:
                self.write_line(click.style("  stopping", fg="yellow"))
            case name if name == TOOL_PROGRESS:
                said = flatten_text(str(fields.get("text", "")), 200)
                self.write_line(click.style(f"  {flatten_text(str(fields.get('tool', '')), 64)}: {said}", dim=True))
            case name if name in (REASONING_AVAILABLE, TOOL_GENERATING):
                pass  # not shown, and they come in the middle of a text
            case _:
                self.write_line("", blank=False)

    def write_line(self, text: str, *, blank: bool = True) -> None:
        """Write a whole line. With ``blank`` false an empty one is left out."""
        if self._is_mid_line:
            click.echo()
            self._is_mid_line = False
        if text or blank:
            click.echo(text)

    def _write(self, text: str) -> None:
        self._shown += text
        click.echo(text, nl=False)
        if text:
            self._is_mid_line = not text.endswith("\n")

    def _complete(self, text: str) -> None:
        """Complete a reply that was stored. What was shown is all of it, unless another attempt wrote that."""
        if text.strip() != self._shown.strip():  # white space at either end is shown as it comes and stored without
            if self._shown:
                self.write_line(click.style("  the reply was begun again:", fg="yellow"))
            self._write(text)
        self._shown = ""
        self.write_line("", blank=False)


def colour_status(status: RunStatus) -> str:
    return click.style(status.value, fg=_COLOURS.get(status))


def format_run_status(view: RunView) -> str:
    """Write the status of a run, with a mark where its answer has not arrived."""
    status = colour_status(view.status)
    if not view.undelivered:
        return status
    mark = "not delivered" if any(each.is_lost for each in view.undelivered) else "delivering"
    return f"{status}, {click.style(mark, fg='red')}"


def render_undelivered(view: RunView) -> list[str]:
    """Render what a run said and did not arrive, a line each, with the command that tells more or sends it again."""
    return [click.style(_format_undelivered(each), fg="red" if each.is_lost else "yellow") for each in view.undelivered]


def _format_undelivered(each: UndeliveredView) -> str:
    target, why = flatten_text(each.target, 100), flatten_text(hide_secrets(each.error or "no answer"), 300).rstrip(".")
    command = f"'hermes-worker gateway deliveries {{}} {each.delivery_id}'"
    if each.is_lost:
        return f"not delivered to {target}: {why}; {command.format('retry')} sends it again"
    again = "soon" if each.not_before is None else format_age(each.not_before)
    tried = format_count(each.attempts, "attempt")
    return (
        f"not yet delivered to {target} after {tried}, tried again {again}: {why}; {command.format('show')} tells more"
    )


def format_summary(view: RunView, calls: int) -> str:
    """Write how a run ended, in one line."""
    if view.finished_at is None:
        took = f" for {format_duration(max(0.0, time.time() - view.created_at))}"
    else:
        took = f" in {format_duration(view.finished_at - view.created_at)}"
    usage = view.usage
    parts = [
        f"{colour_status(view.status)}{took}",
        format_count(view.iteration, "model call"),
        format_count(calls, "tool call"),
        format_tokens(usage.input, usage.cache_read + usage.cache_write, usage.output)
        + (" (partly estimated)" if usage.estimated else ""),
    ]
    if usage.refused_attempts:
        parts.append(f"{format_count(usage.refused_attempts, 'attempt')} that failed")
    if usage.unknown_attempts:
        tokens = usage.unknown_input + usage.unknown_output
        parts.append(
            f"{format_count(usage.unknown_attempts, 'attempt')} of unknown outcome (perhaps {tokens:,} tokens)"
        )
    if view.cost_usd or view.doubtful_cost_usd or view.cost_status is CostStatus.UNKNOWN:
        parts.append(_format_cost(view))
    return ", ".join(parts)


def _format_cost(view: RunView) -> str:
    if view.doubtful_cost_usd:
        return f"{format_usd(view.cost_usd or 0)} and perhaps {format_usd(view.doubtful_cost_usd)} more"
    return format_cost(view.cost_usd, view.cost_status)


def _format_tool_start(fields: Mapping[str, Any]) -> str:
    name = click.style(format_call_name(fields), bold=True)
    return f"  {click.style('→', fg='cyan')} {name}  {format_about(fields)}".rstrip()


def _format_tool_end(fields: Mapping[str, Any]) -> str:
    name, duration = format_call_name(fields), f"{float(fields['duration']):.2f} s"
    if fields.get("refused_by"):
        return click.style(f"  ✗ {name}  {format_refusal(fields)}", fg="red")
    if outcome := fields.get("outcome"):
        said = format_unknown_outcome(fields) if outcome == "unknown" else strip_controls(str(outcome))
        return click.style(f"  ! {name}  {said}", fg="red")
    if fields["error"]:
        return click.style(f"  ✗ {name}  answered with an error, {duration}", fg="red")
    return f"  {click.style('✓', fg='green')} {name}  {duration}"


def render_run_question(run_id: str, question: Mapping[str, Any]) -> list[str]:
    """Render what a run asks, and how to answer it. ``question`` has the fields of its event."""
    command = question.get("command")
    until = question.get("expires_at")
    in_time = f", until {format_clock(until)}" if isinstance(until, int | float) else ""
    named = f" --wait-id {wait_id}" if isinstance(wait_id := question.get("wait_id"), int) else ""
    if command is not None:
        why = f" ({flatten_text(str(question['description']), _WHY_CHARS_MAX)})" if question.get("description") else ""
        return [
            *render_question(f"? wants to run{why}:", str(command)),
            f"  hermes-worker runs approve {run_id}{named}, or 'deny' instead of 'approve'{in_time}",
        ]
    choices = [
        f"{n} {flatten_text(str(choice), 200)}" for n, choice in enumerate(question.get("choices") or (), start=1)
    ]
    offered = f" ({', '.join(choices)})" if choices else ""
    *above, last = render_question("?", str(question.get("question") or ""))
    return [
        *above,
        f"{last}{offered}",
        f"  hermes-worker runs answer {run_id}{named} {'NUMBER-OR-TEXT' if choices else 'TEXT'}{in_time}",
    ]
