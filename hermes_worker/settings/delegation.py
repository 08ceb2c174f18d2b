"""The settings of child runs."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.core.budget import BudgetMode
from hermes_worker.core.delegation import TURNS_MAX
from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import integer, one_of, optional_number, text_matching


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationSettings:
    """Child runs (`delegate_task`)."""

    children_max: int = declare_setting(
        "delegation.max_concurrent_children",
        "HERMES_MAX_CONCURRENT_CHILDREN DELEGATION_MAX_CONCURRENT_CHILDREN",
        integer(1, 10_000),
        3,
        audience="operator",
        reason="the machine or the provider's limit is small or large; three children run without it.",
    )
    """Children of one run that work at the same time; more of them wait."""
    depth_max: int = declare_setting(
        "delegation.max_spawn_depth",
        "HERMES_MAX_SPAWN_DEPTH",
        integer(1, 100),
        1,
        audience="operator",
        reason="children should delegate, too; only the first level can without it.",
    )
    """Levels of children. 1: children do not delegate."""
    iterations_max: int = declare_setting(
        "delegation.max_iterations",
        "HERMES_CHILD_MAX_ITERATIONS",
        integer(1, 100_000),
        50,
        audience="operator",
        reason="children have their own budget and long tasks; they end after fifty calls without it.",
    )
    """Model calls of a child, unless `delegation.budget` is `shared`."""
    budget: str = declare_setting(
        "delegation.budget",
        "HERMES_BUDGET_MODE",
        one_of(*(mode.value for mode in BudgetMode)),
        BudgetMode.SHARED.value,
        audience="operator",
        reason="children should not use up their parent's calls; all draw from one budget without it.",
    )
    """`shared`: a run and all it delegates draw from its own model calls. `independent`: every child has its own.
    `mixed`: both caps hold."""
    turns_max: int = declare_setting(
        "delegation.max_chained_turns",
        "HERMES_MAX_CHAINED_TURNS",
        integer(0, 10_000),
        TURNS_MAX,
        audience="operator",
        reason="background answers begin more turns than twenty; the chain stops there without it.",
    )
    """Runs that background answers may begin before a person speaks again; 0 allows no work in the background."""
    timeout_s: float | None = declare_setting(
        "delegation.child_timeout_seconds",
        "HERMES_CHILD_TIMEOUT_S",
        optional_number(1, 31 * 86_400, "seconds"),
        None,
        audience="operator",
        reason="a child that hangs should not hold its parent; it may take as long as a run without it.",
    )
    """Seconds a child may take before it expires and its parent gets what it has; at least 30, 0 for no limit."""
    model: str | None = declare_setting(
        "delegation.model",
        "HERMES_DELEGATION_MODEL",
        text_matching(r"[\w.:/@+-]{1,200}", "a name without spaces"),
        audience="operator",
        reason="children should cost less; they use their parent's model without it.",
    )
    """Model of the children. Not set: the parent's."""
