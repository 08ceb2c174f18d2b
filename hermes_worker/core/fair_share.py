"""Decide which tenant's run begins next, when several tenants share a fleet. Pure.

Theory of operation. A run needs a *place* to begin, and a fleet has a limited number. The tenant that has used least
for its weight gets the next one (start-time fair queueing): its *virtual time* is what its runs have cost, divided by
its weight. A run that is at work counts as much as it has cost so far, and at least as much as its tenant's runs cost
on average. A tenant that was idle begins at the virtual time of the busy ones, so idling saves up no credit.

Runs take long, and a running one is never stopped for another. So a tenant may exceed the fleet's places while it has
fewer than its part of them and has not used more than the others: it does not wait for the end of other tenants' long
runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum

NANO_USD_OF_TOKEN = 1_000
"""The nominal cost of a token without a known price: one dollar for a million."""
NANO_USD_OF_CALL = 100_000
"""The nominal cost of a model call beside its tokens, so that failing calls are not free."""
USUAL_NANO_USD = 10_000_000.0
"""The expected cost of a run before any has ended."""
PLACES_PER_SLOT = 2
"""Runs at work for each model call that the fleet can make at once: the others run tools or wait in a queue."""
_LATEST_PART = 0.2
"""The weight of the last run in the average."""


class FleetPlace(IntEnum):
    """The state of a run in a fleet that tenants share; the numbers are in ``runs.place``. A run without one shares
    nothing."""

    HELD = 0
    """It could begin, and waits for a place."""
    WAITS = 1
    """It waits for its session or for a time, and then for a place."""
    TAKEN = 2
    PART = 3
    """A child: it works in the place of the run that it belongs to."""
    LEFT = 4
    """It has ended, and what it cost is not yet in its tenant's account."""


class ShareSize(StrEnum):
    """The size of a tenant's share, for metrics, which name no tenant."""

    LESS = "less"
    """A weight below 1."""
    USUAL = "usual"
    MORE = "more"

    @classmethod
    def from_weight(cls, weight: float) -> ShareSize:
        if weight == 1.0:
            return cls.USUAL
        return cls.LESS if weight < 1.0 else cls.MORE


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedByRun:
    """The use of one run."""

    tokens: int
    nano_usd: int
    """Including doubtful costs."""
    calls: int
    unpriced_calls: int

    @property
    def cost(self) -> float:
        """Nano-USD, real or nominal: the measure of fairness, and of nothing else."""
        is_priced = self.nano_usd > 0 and not self.unpriced_calls
        nominal = 0 if is_priced else self.tokens * NANO_USD_OF_TOKEN
        return float(max(self.nano_usd, nominal) + self.calls * NANO_USD_OF_CALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A tenant's account: what decides whose turn it is."""

    tenant: str
    weight: float = 1.0
    virtual: float = 0.0
    """Nano-USD that its ended runs cost per unit of weight, plus what it was lifted by after being idle."""
    mean: float | None = None
    """Nano-USD of a run, on average of the last ones."""
    was_busy: bool = False
    """It had runs at work, or held, at the last look."""
    held: int = 0
    """Runs that wait for a place, as far as they were counted."""
    costs_so_far: tuple[float, ...] = ()
    """The cost so far of each of its runs at work."""
    parked: int = 0
    """Runs that wait for their provider. They use no place, but count against the tenant's own limit."""
    runs_max: int | None = None
    """Runs that it may have at work."""

    @property
    def at_work(self) -> int:
        return len(self.costs_so_far)

    @property
    def is_busy(self) -> bool:
        return bool(self.held or self.costs_so_far)

    def choose_expected_cost(self, usual: float) -> float:
        return usual if self.mean is None else self.mean

    def compute_tag(self, usual: float) -> float:
        """The virtual time of the tenant, including its runs at work."""
        least = self.choose_expected_cost(usual)
        return self.virtual + sum(max(least, cost) for cost in self.costs_so_far) / self.weight

    def charge(self, costs: Sequence[float]) -> Account:
        """The account after runs with these costs have ended."""
        mean = self.mean
        for cost in costs:
            mean = cost if mean is None else mean + (cost - mean) * _LATEST_PART
        return replace(self, virtual=self.virtual + sum(costs) / self.weight, mean=mean)

    def may_have_another(self, places: int) -> bool:
        """Whether its own limit allows another run. Runs that wait for their provider come back, so a tenant never has
        more of them than the fleet has places."""
        if self.runs_max is not None and self.at_work + self.parked >= self.runs_max:
            return False
        return self.parked < places


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The tenants whose runs begin now, in this order, and the accounts after that."""

    tenants: tuple[str, ...]
    accounts: Mapping[str, Account] = field(default_factory=dict)
    clock: float = 0.0
    """The virtual time of the fleet, at which a tenant begins that was idle."""


def admit_runs(
    accounts: Iterable[Account], *, places: int, clock: float, usual: float = USUAL_NANO_USD, most: int = 50
) -> Admitted:
    """Decide which tenants' runs get a place. ``places`` is the number in the fleet, including taken ones; ``usual`` is
    the expected cost of a new tenant's run. At most ``most`` runs are admitted."""
    now = _lift_idle(accounts, clock, usual)
    busy = [each for each in now.values() if each.is_busy]
    clock = max(clock, min(each.compute_tag(usual) for each in busy) if busy else _find_furthest(now))
    weights = sum(each.weight for each in busy)
    total = sum(each.at_work for each in busy)
    order: list[str] = []
    while len(order) < most:
        part = {tenant: max(1, int(places * now[tenant].weight / weights)) for tenant in now} if weights else {}
        may = [
            each
            for each in now.values()
            if each.held
            and each.may_have_another(places)
            and (total < places or (each.at_work < part[each.tenant] and each.virtual <= clock))
        ]
        if not may:
            break
        best = min(may, key=lambda each: (each.compute_tag(usual), each.tenant))
        now[best.tenant] = replace(best, held=best.held - 1, costs_so_far=(*best.costs_so_far, 0.0))
        order.append(best.tenant)
        total += 1
    after = {tenant: replace(each, was_busy=each.is_busy) for tenant, each in now.items()}
    return Admitted(tenants=tuple(order), accounts=after, clock=clock)


def _lift_idle(accounts: Iterable[Account], clock: float, usual: float) -> dict[str, Account]:
    """Lift tenants that were idle to the virtual time of those that were not."""
    known = {each.tenant: each for each in accounts}
    busy = [each.compute_tag(usual) for each in known.values() if each.was_busy and each.is_busy]
    floor = max(clock, min(busy)) if busy else clock
    return {
        tenant: each if each.was_busy or not each.is_busy else replace(each, virtual=max(each.virtual, floor))
        for tenant, each in known.items()
    }


def _find_furthest(accounts: Mapping[str, Account]) -> float:
    """The clock when no tenant is busy any more: what was used while others were idle is forgiven."""
    return max((each.virtual for each in accounts.values()), default=0.0)
