"""Whose run begins next, by what tenants have used: fairness by cost, weights, and no saved-up claims."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random

import pytest
from support.fairness import compute_fairness

from hermes_worker.core.fair_share import Account, UsedByRun, admit_runs

NANO = 1e9


@dataclass
class Job:
    cost: float
    seconds: float
    at: float = 0.0


@dataclass
class Fleet:
    """Runs that take their time, and places that are given away as the store does it."""

    places: int
    weights: Mapping[str, float]
    accounts: dict[str, Account] = field(default_factory=dict)
    clock: float = 0.0
    held: dict[str, list[Job]] = field(default_factory=dict)
    at_work: dict[str, dict[int, float]] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    waits: dict[str, list[float]] = field(default_factory=dict)
    now: float = 0.0
    another: Callable[[str], Job] | None = None
    """Makes a run for each that begins, so that a backlog never ends."""

    def play(self, arrivals: Mapping[str, Sequence[Job]], until: float = 1e12) -> None:
        numbers = count()
        due: list[tuple[float, int, str, int | None, Job]] = [
            (job.at, next(numbers), tenant, None, job) for tenant, jobs in arrivals.items() for job in jobs
        ]
        heapq.heapify(due)
        for tenant in arrivals:
            self.accounts[tenant] = Account(tenant=tenant, weight=self.weights.get(tenant, 1.0))
            self.held[tenant], self.at_work[tenant], self.waits[tenant] = [], {}, []
            self.spent[tenant] = 0.0
        while due and due[0][0] <= until:
            self.now = due[0][0]
            while due and due[0][0] == self.now:
                _, _, tenant, number, job = heapq.heappop(due)
                if number is None:
                    self.held[tenant].append(job)
                else:
                    self._end(tenant, number)
            for tenant, job in self._begun():
                number = next(numbers)
                self.at_work[tenant][number] = job.cost
                heapq.heappush(due, (self.now + job.seconds, number, tenant, number, job))

    def _end(self, tenant: str, number: int) -> None:
        cost = self.at_work[tenant].pop(number)
        self.spent[tenant] += cost
        self.accounts[tenant] = self.accounts[tenant].charge([cost])

    def _begun(self) -> list[tuple[str, Job]]:
        seen = [
            replace(each, held=len(self.held[tenant]), costs_so_far=(0.0,) * len(self.at_work[tenant]))
            for tenant, each in self.accounts.items()
        ]
        decided = admit_runs(seen, places=self.places, clock=self.clock, most=1_000)
        self.clock = decided.clock
        self.accounts = dict(decided.accounts)
        begun = []
        for tenant in decided.tenants:
            job = self.held[tenant].pop(0)
            if self.another is not None:
                self.held[tenant].append(replace(self.another(tenant), at=self.now))
            self.waits[tenant].append(self.now - job.at)
            begun.append((tenant, job))
        return begun


def p95(values: Sequence[float]) -> float:
    return sorted(values)[-(-len(values) * 95 // 100) - 1]


@pytest.mark.parametrize("places", [2, 8, 64])
@pytest.mark.parametrize("cost_of_b", [0.05, 1.0])
def test_ten_runs_beside_a_thousand_heavy_ones_wait_at_most_two_run_slots(places: int, cost_of_b: float) -> None:
    fleet = Fleet(places=places, weights={})
    heavy_s = 100.0
    few = [Job(cost=cost_of_b * NANO, seconds=cost_of_b * heavy_s, at=450.0) for _ in range(10)]

    fleet.play({"a": [Job(cost=NANO, seconds=heavy_s)] * 1_000, "b": few})

    waited = p95(fleet.waits["b"]) / heavy_s
    # Of ten runs as long as the others', in a fleet with two places, five follow one another whatever is decided.
    assert waited <= (2.0 if places > 2 or cost_of_b < 1 else 10.0)


def test_ten_unequal_tenants_get_the_same_by_cost() -> None:
    random = Random(7)
    usual = {
        f"t{n}": (10 ** random.uniform(7, 9.5), random.uniform(0.3, 1.2), random.uniform(1, 20)) for n in range(10)
    }

    def another(tenant: str) -> Job:
        cost, spread, seconds = usual[tenant]
        return Job(cost=cost * random.lognormvariate(0, spread), seconds=seconds * random.uniform(0.5, 2))

    fleet = Fleet(places=32, weights={}, another=another)

    fleet.play({tenant: [another(tenant) for _ in range(50)] for tenant in usual}, until=4_000.0)

    assert compute_fairness(list(fleet.spent.values())) >= 0.95


def test_weights_divide_the_fleet() -> None:
    fleet = Fleet(places=12, weights={"a": 3.0, "b": 1.0})
    jobs = [Job(cost=NANO, seconds=10.0)] * 5_000

    fleet.play({"a": jobs, "b": jobs}, until=5_000.0)

    assert fleet.spent["a"] / fleet.spent["b"] == pytest.approx(3.0, rel=0.05)


def test_who_comes_back_from_being_idle_has_saved_nothing_up() -> None:
    fleet = Fleet(places=8, weights={})
    away = [Job(cost=NANO, seconds=10.0)] * 2_000
    back = [Job(cost=NANO, seconds=10.0, at=1_000.0)] * 2_000

    fleet.play({"a": away, "b": back}, until=1_500.0)

    of_a_since = fleet.spent["a"] - 8 * 100 * NANO
    assert fleet.spent["b"] == pytest.approx(of_a_since, rel=0.15)


def test_a_tenant_alone_gets_every_place() -> None:
    decided = admit_runs([Account(tenant="a", held=100)], places=16, clock=0.0)

    assert decided.tenants == ("a",) * 16


def test_a_tenants_own_limit_leaves_the_other_places_to_others() -> None:
    accounts = [Account(tenant="a", held=10, runs_max=2), Account(tenant="b", held=10)]

    decided = admit_runs(accounts, places=8, clock=0.0)

    assert (decided.tenants.count("a"), decided.tenants.count("b")) == (2, 6)


def test_runs_that_wait_for_a_broken_provider_take_no_place_and_bring_no_more_of_their_kind() -> None:
    broken = Account(tenant="a", held=100, parked=8, was_busy=True)

    decided = admit_runs([broken, Account(tenant="b", held=100)], places=8, clock=0.0)

    assert decided.tenants == ("b",) * 8


def test_nobody_who_used_more_than_the_others_goes_beyond_the_places_of_the_fleet() -> None:
    greedy = Account(tenant="a", held=10, virtual=50 * NANO, was_busy=True)
    full = Account(tenant="b", held=10, costs_so_far=(0.0,) * 8, was_busy=True)

    assert admit_runs([greedy, full], places=8, clock=0.0).tenants == ()


def test_what_used_to_cost_nothing_counts_by_its_tokens_and_calls() -> None:
    free = UsedByRun(tokens=1_000_000, nano_usd=0, calls=2, unpriced_calls=0)
    dear = UsedByRun(tokens=1_000_000, nano_usd=5 * 10**9, calls=2, unpriced_calls=0)

    assert free.cost == pytest.approx(1e9 + 2e5)
    assert dear.cost == pytest.approx(5e9 + 2e5)


def test_every_tenant_with_a_held_run_gets_its_turn() -> None:
    """Whatever they cost: as long as runs end, nobody waits for ever."""
    random = Random(1)
    fleet = Fleet(places=4, weights={})
    arrivals = {
        f"t{n}": [Job(cost=10 ** random.uniform(6, 11), seconds=random.uniform(1, 50)) for _ in range(25)]
        for n in range(40)
    }

    fleet.play(arrivals)

    assert {tenant: len(waits) for tenant, waits in fleet.waits.items()} == dict.fromkeys(arrivals, 25)
