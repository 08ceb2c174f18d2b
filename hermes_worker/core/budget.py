"""Budgets of a chain of runs (design D4): what counts against what, and when a run is warned.

Theory of operation. A chain has one budget as soon as it has children, or limits of its own. Runs that background
answers begin belong to the chain (design D16): everything that a person's message causes draws from one budget. A model
call is reserved in it by the claim and settled by the commit; both are part of the transaction that claims or gives up
the call (invariant I6). This module decides; ``store.runs.budgets`` writes.

    limit 10,000 tokens, spent 5,000                                        reserved      free
    root A claims (its calls took 1,000 on average)                            1,000     4,000
    child B claims (3,000 on average)                                          4,000     1,000
    child C expects 600: refused, because 5 % of the limit (500) is left to the level above
    A commits with 1,200 really used: spent 6,200                              3,000       800
    B's worker dies: its claim is taken away, and its attempt is booked as an estimate

``decide_reservation`` takes the average of the run's own calls, or, before its first one, of the chain's calls. A call
may use more than was reserved: then the budget is overdrawn by that call, and the next one is refused. Each level of
delegation leaves one model call and 5 % of tokens and money (50 % at most) to the levels above it, so that every parent
can still answer. Unknown costs are never zero (design D17): a bound of them is spent where one is known, and where none
is, a budget with a limit of money refuses further calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum


class BudgetMode(StrEnum):
    SHARED = "shared"
    """The whole tree draws from the root's model calls; a child has no other cap."""
    INDEPENDENT = "independent"
    """Every run has caps of its own and the chain has none, as in the original."""
    MIXED = "mixed"
    """A child has its own cap of model calls and draws from the root's budget as well."""

    @property
    def is_shared(self) -> bool:
        return self is not BudgetMode.INDEPENDENT


class Dimension(StrEnum):
    """The dimensions that a budget can limit."""

    ITERATIONS = "iterations"
    TOKENS = "tokens"
    TOOL_CALLS = "tool_calls"
    COST = "cost"
    WALL_CLOCK = "wall_clock"
    """Seconds since the run was accepted. A child's time ends with its root's at the latest."""


NANO = 1_000_000_000
"""Nano-dollars per US dollar. Money is counted in whole nano-dollars, so that a sum of many small amounts is exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """An amount of each dimension; the wall clock is measured and not counted."""

    iterations: int = 0
    tokens: int = 0
    tool_calls: int = 0
    nano_usd: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLimits:
    """The limit of each dimension; ``None`` for no limit."""

    iterations: int
    tokens: int | None = None
    tool_calls: int | None = None
    nano_usd: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    limits: BudgetLimits
    reserved: Amounts = field(default_factory=Amounts)
    spent: Amounts = field(default_factory=Amounts)
    has_unknown_cost: bool = False
    """A call was made whose price is unknown, so that more was spent than ``spent`` says."""


_KEPT_PERCENT = 5
_KEPT_PERCENT_MAX = 50


def decide_reservation(budget: Budget, own: Amounts, *, depth: int) -> Amounts | Dimension:
    """Decide what the next model call of a run at ``depth`` reserves, or which dimension refuses it. ``own`` is what
    the run has used itself.

    Tokens and money are reserved by the average of its calls, or of the chain's calls where it has made none; the real
    use is settled after the call. Every level leaves one model call, and one twentieth of tokens and money, to each
    level above it, so that every parent can still answer.
    """
    expected = _compute_average(own) or _compute_average(budget.spent) or Amounts()
    limits, spent, reserved = budget.limits, budget.spent, budget.reserved
    refused_by = _find_shortage(budget, expected, depth=depth)
    if refused_by is Dimension.TOKENS:
        return refused_by
    if not _fits(limits.tool_calls, spent.tool_calls, 0, 0):
        return Dimension.TOOL_CALLS
    if refused_by is not None:
        return refused_by
    if spent.iterations + reserved.iterations + depth >= limits.iterations:
        return Dimension.ITERATIONS
    return Amounts(iterations=1, tokens=expected.tokens, nano_usd=expected.nano_usd)


def decide_auxiliary_refusal(budget: Budget, own: Amounts, *, depth: int) -> Dimension | None:
    """Decide which dimension refuses a run at ``depth`` an auxiliary call, because less is left than its calls take on
    average; ``None`` when the call is allowed. Iterations do not matter, since an auxiliary call is none."""
    return _find_shortage(budget, _compute_average(own) or _compute_average(budget.spent) or Amounts(), depth=depth)


def _find_shortage(budget: Budget, expected: Amounts, *, depth: int) -> Dimension | None:
    kept = min(_KEPT_PERCENT * depth, _KEPT_PERCENT_MAX)
    limits, spent, reserved = budget.limits, budget.spent, budget.reserved
    if not _fits(limits.tokens, spent.tokens + reserved.tokens, expected.tokens, kept):
        return Dimension.TOKENS
    is_blind = limits.nano_usd is not None and budget.has_unknown_cost
    if is_blind or not _fits(limits.nano_usd, spent.nano_usd + reserved.nano_usd, expected.nano_usd, kept):
        return Dimension.COST
    return None


def find_lacking_dimension(budget: Budget, *, calls: int) -> Dimension | None:
    """Find the dimension that has no room for ``calls`` more model calls of average size; ``None`` when there is
    room."""
    each = _compute_average(budget.spent) or Amounts()
    limits, spent, reserved = budget.limits, budget.spent, budget.reserved
    if not _fits(limits.tokens, spent.tokens + reserved.tokens, each.tokens * calls, 0):
        return Dimension.TOKENS
    if not _fits(limits.tool_calls, spent.tool_calls, 0, 0):
        return Dimension.TOOL_CALLS
    is_blind = limits.nano_usd is not None and budget.has_unknown_cost
    if is_blind or not _fits(limits.nano_usd, spent.nano_usd + reserved.nano_usd, each.nano_usd * calls, 0):
        return Dimension.COST
    return Dimension.ITERATIONS if spent.iterations + reserved.iterations + calls > limits.iterations else None


def _compute_average(used: Amounts) -> Amounts | None:
    if not used.iterations:
        return None
    return Amounts(tokens=used.tokens // used.iterations, nano_usd=used.nano_usd // used.iterations)


def _fits(limit: int | None, taken: int, more: int, kept_percent: int) -> bool:
    return limit is None or taken + max(1, more) <= limit - limit * kept_percent // 100


_LAST_WORDS_S_MAX = 60.0
_LAST_WORDS_PART = 0.05


def compute_last_words_s(wall_s: float) -> float:
    """Seconds at the end of a run's time that are kept for writing a summary."""
    return min(_LAST_WORDS_S_MAX, wall_s * _LAST_WORDS_PART)


def is_wall_spent(left_s: float, wall_s: float) -> bool:
    """Whether so little is left of a run's time that it should write a summary."""
    return left_s <= compute_last_words_s(wall_s)


REFUNDED_TOOLS = frozenset({"execute_code"})


def is_refunded(names: Collection[str]) -> bool:
    """Whether an iteration whose reply calls these tools is refunded: scripts are there to save model calls."""
    return bool(names) and REFUNDED_TOOLS.issuperset(names)


# ------------------------------------------------------------------------------------------------------------- warning

_WARN_PERCENT = 70
_URGE_PERCENT = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """The use of one limit, in its unit: a count, nano-dollars, or seconds."""

    dimension: Dimension
    used: int
    limit: int

    @property
    def percent(self) -> int:
        return 100 if self.limit <= 0 else min(100, self.used * 100 // self.limit)


def list_uses(budget: Budget) -> Iterator[LimitUse]:
    """Yield the use of each limited dimension; reserved amounts count as used."""
    limits, spent, reserved = budget.limits, budget.spent, budget.reserved
    yield LimitUse(
        dimension=Dimension.ITERATIONS, used=spent.iterations + reserved.iterations, limit=max(1, limits.iterations)
    )
    if limits.tokens is not None:
        yield LimitUse(dimension=Dimension.TOKENS, used=spent.tokens + reserved.tokens, limit=limits.tokens)
    if limits.tool_calls is not None:
        yield LimitUse(dimension=Dimension.TOOL_CALLS, used=spent.tool_calls, limit=limits.tool_calls)
    if limits.nano_usd is not None:
        yield LimitUse(dimension=Dimension.COST, used=spent.nano_usd + reserved.nano_usd, limit=limits.nano_usd)


def format_warning(found: Collection[LimitUse]) -> str | None:
    """The warning that is appended to a run's last tool result, from 70 % of any limit on, about the limit that is
    nearest; ``None`` below that. The text is stored with the result, so the prompt keeps its bytes; equal use gives
    equal text."""
    nearest = max(found, key=lambda use: use.percent, default=None)
    if nearest is None or nearest.percent < _WARN_PERCENT:
        return None
    facts = (
        f"{_format_amount(nearest, nearest.used)} of {_format_amount(nearest, nearest.limit)} "
        f"{_UNITS[nearest.dimension]} are used"
    )
    if nearest.percent < _URGE_PERCENT:
        return f"[BUDGET: {facts}. Begin to bring this task to its end.]"
    return f"[BUDGET WARNING: {facts}. Write your final answer now; call tools only for what it cannot do without.]"


def get_unit(dimension: Dimension) -> str:
    return _UNITS[dimension]


_UNITS = {
    Dimension.ITERATIONS: "model calls",
    Dimension.TOKENS: "tokens",
    Dimension.TOOL_CALLS: "tool calls",
    Dimension.COST: "US dollars",
    Dimension.WALL_CLOCK: "seconds",
}


def _format_amount(use: LimitUse, amount: int) -> str:
    return f"{to_usd(amount):.4f}" if use.dimension is Dimension.COST else str(amount)


def to_usd(nano_usd: int) -> Decimal:
    return Decimal(nano_usd).scaleb(-9)
