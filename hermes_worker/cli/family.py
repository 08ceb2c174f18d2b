"""The children of a run on the terminal: a table of them, and a line for each that begins or ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from hermes_worker.cli.layout import table
from hermes_worker.cli.screen import clean, coloured, one_line, refusal
from hermes_worker.core.run import RunStatus
from hermes_worker.safety.redaction import redact
from hermes_worker.services.sheets import RunNews
from hermes_worker.store.runs.families import ChildView, RefusalView

_GOAL_CHARS = 60


def family_lines(children: Sequence[ChildView], refusals: Sequence[RefusalView]) -> list[str]:
    """Render a table of the children, and what was refused below them; empty without children."""
    if not children:
        return []
    rows = [(clean(child.run_id), coloured(child.status), _cost(child), _goal(child)) for child in children]
    lines = table(rows, ("CHILD", "STATUS", "USD", "GOAL"), ids=(0,)).splitlines()
    return [*lines, *(_refused(each) for each in refusals)]


class FamilyWatch:
    """Finds what changed among the children of one run since the last call."""

    def __init__(self) -> None:
        self._known: dict[str, RunStatus] = {}
        self._told: set[tuple[str, int]] = set()

    def changed(self, news: RunNews) -> list[str]:
        """Render a line for each child that began or ended, and for each refusal below, since the last call."""
        children = [child for child in news.children if self._known.get(child.run_id) is not child.status]
        self._known.update({child.run_id: child.status for child in children})
        refusals = [each for each in news.refusals if (each.run_id, each.seq) not in self._told]
        self._told.update((each.run_id, each.seq) for each in refusals)
        return [*(_line(child) for child in children), *(_refused(each) for each in refusals)]


def _line(child: ChildView) -> str:
    cost = f", ${_cost(child)}" if child.status.is_terminal and child.cost_usd else ""
    return (
        f"child {child.index + 1} {child.status.value.replace('_', ' ')}{cost}: {_goal(child)} ({clean(child.run_id)})"
    )


def _goal(child: ChildView) -> str:
    return one_line(redact(child.goal), _GOAL_CHARS)


def _cost(child: ChildView) -> str:
    return "-" if child.cost_usd is None else f"{child.cost_usd:.4f}"


def _refused(each: RefusalView) -> str:
    return click.style(f"{clean(each.run_id)}: {clean(each.tool)} {refusal(asdict(each))}", fg="red")
