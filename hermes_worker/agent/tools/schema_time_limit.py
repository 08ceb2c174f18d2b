"""Limits for the time that a schema and a value may keep a worker busy.

Apart from ``json_schema`` because its library takes longer to import than everything else that a worker for tools
needs: it is imported when the first call is judged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from hermes_worker.core.errors import HermesError

TIME_MAX_S = 1.0
"""Seconds of processor time for one judgement."""

SCHEMA_DEEP_MAX = 64
"""Levels of objects and lists in a schema."""
KEYWORDS_DEEP_MAX = 100
"""Keywords that are judged inside of each other; each takes about four frames of Python's thousand."""
TOO_DEEP = "refers to itself without end, or is nested too deeply"
TOO_LONG = "takes too long to check"

Schema = Mapping[str, Any]


class UnusableSchema(HermesError):
    """A schema, or a value against it, cannot be judged; the message says why, as the end of a sentence."""


class JudgingBudget:
    """The processor time and depth that the present judgement may still take."""

    __slots__ = ("depth", "ends", "is_over_after")

    def __init__(self, time_max_s: float) -> None:
        self.ends = time.thread_time() + time_max_s
        self.is_over_after = time.monotonic() + time_max_s
        """A thread takes no more processor time than passes, and this clock is read without asking the kernel."""
        self.depth = 0

    def spend(self) -> None:
        """Raise ``UnusableSchema`` when the time is used up."""
        if time.monotonic() >= self.is_over_after and time.thread_time() >= self.ends:
            raise UnusableSchema(TOO_LONG)

    def leave(self) -> None:
        """End the piece of work that ``enter_nested`` began, whether it was done or given up."""
        self.depth -= 1


_budget: ContextVar[JudgingBudget | None] = ContextVar("_budget", default=None)


@contextmanager
def limit_judging(time_max_s: float = TIME_MAX_S) -> Iterator[None]:
    """Give all judgements inside the block one budget. Raises ``UnusableSchema`` when it is used up, or when the schema
    or the value is nested too deeply. Inside another ``limit_judging`` that one's budget counts.
    """
    if _budget.get() is not None:
        yield
        return
    token = _budget.set(JudgingBudget(time_max_s))
    try:
        yield
    except RecursionError:
        raise UnusableSchema(TOO_DEEP) from None
    finally:
        _budget.reset(token)


def compute_time_left_s() -> float:
    """Seconds of processor time that are left. Raises ``UnusableSchema`` when there are none, ``LookupError`` outside
    of ``limit_judging``.
    """
    left = _require_current_budget().ends - time.thread_time()
    if left <= 0:
        raise UnusableSchema(TOO_LONG)
    return left


def spend_step() -> None:
    """Count one piece of work that is done. Raises ``UnusableSchema`` when the time is used up, ``LookupError`` outside
    of ``limit_judging``."""
    _require_current_budget().spend()


def enter_nested() -> JudgingBudget:
    """Begin one piece of work inside of another; ``leave`` of the returned budget ends it. Raises
    ``UnusableSchema`` when no time is left or the work is nested too deeply, ``LookupError`` outside of
    ``limit_judging``.

    The limit is well below Python's own: what is written in Rust below ``jsonschema`` panics when it meets that one.
    """
    budget = _require_current_budget()
    budget.spend()
    if budget.depth >= KEYWORDS_DEEP_MAX:
        raise UnusableSchema(TOO_DEEP)
    budget.depth += 1
    return budget


def _require_current_budget() -> JudgingBudget:
    budget = _budget.get()
    if budget is None:
        raise LookupError("nothing is judged without a budget")
    return budget
