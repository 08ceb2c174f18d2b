"""The children of a run on the terminal: a table of them, and a line for each that begins or ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from hermes_worker.cli.layout import hide_secrets, render_table
from hermes_worker.cli.screen import colour_status, flatten_text, format_refusal, strip_controls
from hermes_worker.core.pricing import format_cost
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_views import ChildView, RefusalView, RunNews

_GOAL_CHARS = 60


def render_family(children: Sequence[ChildView], refusals: Sequence[RefusalView]) -> list[str]:
    """Render a table of the children, and what was refused below them; empty without children."""
    if not children:
        return []
    rows = [
        (
            strip_controls(child.run_id),
            colour_status(child.status),
            format_cost(child.cost_usd, child.cost_status),
            _format_goal(child),
        )
        for child in children
    ]
    lines = render_table(rows, ("CHILD", "STATUS", "COST", "GOAL"), ids=(0,)).splitlines()
    return [*lines, *(_render_refusal(each) for each in refusals)]


class FamilyWatch:
    """Finds what changed among the children of one run since the last call."""

    def __init__(self) -> None:
        self._known: dict[str, RunStatus] = {}
        self._told: set[tuple[str, int]] = set()

    def render_changes(self, news: RunNews) -> list[str]:
        """Render a line for each child that began or ended, and for each refusal below, since the last call."""
        children = [child for child in news.children if self._known.get(child.run_id) is not child.status]
        self._known.update({child.run_id: child.status for child in children})
        refusals = [each for each in news.refusals if (each.run_id, each.seq) not in self._told]
        self._told.update((each.run_id, each.seq) for each in refusals)
        return [*(_render_child(child) for child in children), *(_render_refusal(each) for each in refusals)]


def _render_child(child: ChildView) -> str:
    cost = (
        f", {format_cost(child.cost_usd, child.cost_status)}" if child.status.is_terminal and child.cost_status else ""
    )
    return (
        f"child {child.index + 1} {child.status.value.replace('_', ' ')}{cost}: "
        f"{_format_goal(child)} ({strip_controls(child.run_id)})"
    )


def _format_goal(child: ChildView) -> str:
    return flatten_text(hide_secrets(child.goal), _GOAL_CHARS)


def _render_refusal(each: RefusalView) -> str:
    return click.style(
        f"{strip_controls(each.run_id)}: {strip_controls(each.tool)} {format_refusal(asdict(each))}", fg="red"
    )
