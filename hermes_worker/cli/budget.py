"""The budget of a run's tree, as text and as JSON."""

from __future__ import annotations

from typing import Any

from hermes_worker.cli.layout import format_duration, render_table
from hermes_worker.cli.screen import colour_status, strip_controls
from hermes_worker.core.budget import NANO, Dimension
from hermes_worker.core.pricing import CostStatus, format_cost, format_usd
from hermes_worker.core.run_views import Share, TreeBudget


def build_budget_document(tree: TreeBudget) -> dict[str, Any]:
    """Build the budget as JSON. Money is in US dollars, time in seconds."""
    return {
        "run_id": tree.owner_run_id,
        "dimensions": _dump_dimensions(tree),
        "has_unknown_cost": tree.budget.has_unknown_cost,
        "own": _dump_dimensions(tree.own),
        "children": [
            {
                "run_id": share.run_id,
                "index": share.index,
                "status": share.status.value,
                "dimensions": _dump_dimensions(share),
            }
            for share in tree.children
        ],
        "children_total": tree.children_total,
    }


def _dump_dimensions(of: TreeBudget | Share) -> dict[str, Any]:
    return {
        dimension.value: {"limit": limit, "reserved": reserved, "spent": spent}
        for dimension, limit, reserved, spent in of.iterate_dimensions()
    }


def render_budget(tree: TreeBudget) -> list[str]:
    """Render two tables: the dimensions, and the use of each child."""
    rows = [
        (
            dimension.value.replace("_", " "),
            _format_amount(dimension, limit),
            _format_amount(dimension, reserved),
            _format_amount(dimension, spent),
        )
        for dimension, limit, reserved, spent in tree.iterate_dimensions()
    ]
    lines = render_table(rows, ("BUDGET", "LIMIT", "RESERVED", "SPENT")).splitlines()
    if tree.budget.has_unknown_cost:
        lines.append("(the price of a model is not known, so it cost more than this)")
    if not tree.children:
        return lines
    shares = [_format_share("itself", tree.own), *(_format_share(_name(share), share) for share in tree.children)]
    head = ("USED BY", "STATUS", "MODEL CALLS", "RESERVED", "TOKENS", "TOOL CALLS", "COST")
    lines += ["", *render_table(shares, head).splitlines()]
    if tree.children_total > len(tree.children):
        lines.append(f"and {tree.children_total - len(tree.children)} more")
    return lines


def _name(share: Share) -> str:
    """Name a child by its task; a turn that background answers began has none."""
    return strip_controls(share.run_id) if share.index is not None else f"{strip_controls(share.run_id)} (a later turn)"


def _format_share(name: str, share: Share) -> tuple[str, ...]:
    spent = share.spent
    usd = format_cost(spent.nano_usd / NANO, CostStatus.UNKNOWN if share.has_unknown_cost else None)
    return (
        name,
        colour_status(share.status),
        str(spent.iterations),
        str(share.reserved.iterations),
        str(spent.tokens),
        str(spent.tool_calls),
        usd,
    )


def _format_amount(dimension: Dimension, amount: float | None) -> str:
    if amount is None:
        return "-"
    match dimension:
        case Dimension.COST:
            return format_usd(amount)
        case Dimension.WALL_CLOCK:
            return format_duration(amount)
        case _:
            return f"{amount:,.0f}"
