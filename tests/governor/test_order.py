"""Who goes first where fewer may ask than want to: what began earlier, and nobody waits for those who do not come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import redis

from hermes_worker.models.governor import CallPermit, ConfiguredLimits, CredentialRef, Governor

PLACE = CredentialRef(provider="openai", credential="abc")
MINUTE_S = 4.0
"""How long a minute takes where something has to happen."""


@pytest.fixture
def client(broker_url: str) -> redis.Redis:
    return redis.Redis.from_url(broker_url, decode_responses=True)


def governor(client: redis.Redis, minute_s: float = MINUTE_S, **limits: int) -> Governor:
    """One process of the fleet."""
    return Governor(client, ConfiguredLimits(**limits), minute_s=minute_s)


def asks(asked: Governor, ticket: str, order: int | None, tokens: int = 0) -> CallPermit:
    return asked.acquire(PLACE, ticket=ticket, tokens=tokens, order=order)


def test_an_older_call_goes_before_younger_ones_that_waited_longer(client: redis.Redis) -> None:
    first, second = (governor(client, minute_s=60, requests_per_min=6) for _ in range(2))
    asks(first, "any", 0)
    assert asks(first, "young", 9).wait_s == pytest.approx(10.2, abs=0.5)
    assert asks(second, "middle", 5).wait_s == pytest.approx(10.2, abs=0.5)
    old = asks(second, "old", 1)
    assert (old.wait_s, old.ahead) == (pytest.approx(10.2, abs=0.5), 0)
    assert asks(first, "middle", 5).wait_s == pytest.approx(20.4, abs=0.5)
    young = asks(first, "young", 9)
    assert (young.wait_s, young.ahead) == (pytest.approx(30.6, abs=0.5), 2)


def test_calls_without_an_order_come_last_and_in_the_order_of_their_asking(client: redis.Redis) -> None:
    asked = governor(client, minute_s=60, requests_per_min=6)
    asks(asked, "any", 0)
    asks(asked, "first", None), asks(asked, "second", None), asks(asked, "run", 1_000)
    assert [asks(asked, ticket, None).ahead for ticket in ("run", "first", "second")] == [0, 1, 2]


def test_an_older_call_that_waits_for_tokens_goes_first_and_no_token_is_given_twice(client: redis.Redis) -> None:
    asked = governor(client, minute_s=60, tokens_per_min=1_000)
    asks(asked, "any", 0, tokens=1_000), asks(asked, "more", 0, tokens=100)
    young = asks(asked, "young", 9, tokens=500)
    old = asks(asked, "old", 1, tokens=200)
    assert young.wait_s == pytest.approx(old.wait_s, abs=0.5)
    assert asks(asked, "young", 9, tokens=500).wait_s == pytest.approx(old.wait_s + 12, abs=0.5)


def test_who_withdraws_holds_up_nobody(client: redis.Redis, breaking: redis.Redis) -> None:
    asked = governor(client, minute_s=60, requests_per_min=6)
    asks(asked, "any", 0)
    old, young = asks(asked, "old", 1), asks(asked, "young", 9)
    assert young.wait_s == pytest.approx(20.4, abs=0.5)
    asked.withdraw(old)
    asked.withdraw(old)
    assert asks(asked, "young", 9).wait_s == pytest.approx(10.2, abs=0.5)
    asked.withdraw(young)
    assert breaking.keys(f"{PLACE.key}:*") == []


def test_a_younger_call_does_not_wait_for_older_ones_that_never_come(client: redis.Redis) -> None:
    """Their workers were killed. Each could hold up others by one place at most, and not for long."""
    asked = governor(client, requests_per_min=60)
    asks(asked, "any", 0)
    for number in range(20):
        asks(asked, f"dead{number}", number)
    young = asks(asked, "young", 99)
    assert young.ahead == 20
    time.sleep(young.wait_s)
    assert asks(asked, "young", 99).wait_s == 0


def test_who_did_not_come_in_time_is_forgotten_and_its_tokens_with_it(client: redis.Redis) -> None:
    asked = governor(client, minute_s=6, requests_per_min=60, tokens_per_min=100_000)
    asks(asked, "any", 0)
    for number in range(10):
        asks(asked, f"dead{number}", number, tokens=500)
    assert client.hget(f"{PLACE.key}:tokens", "") == "5000"
    client.zadd(f"{PLACE.key}:due", {f"dead{number}": 1.0 for number in range(10)})  # they were told long ago
    asks(asked, "young", 99)
    assert client.hget(f"{PLACE.key}:tokens", "") in (None, "0")
    assert client.zcard(f"{PLACE.key}:places") <= 1


def test_a_freed_place_in_flight_goes_to_the_older_call_that_is_about_to_look(client: redis.Redis) -> None:
    asked = governor(client, in_flight_max=1)
    busy = asks(asked, "busy", 0)
    young, old = asks(asked, "young", 9), asks(asked, "old", 1)
    assert old.wait_s <= young.wait_s <= 0.5
    asked.settle(busy)
    assert asks(asked, "young", 9).wait_s > 0
    assert asks(asked, "old", 1).wait_s == 0


def test_a_freed_place_in_flight_is_not_kept_for_a_call_that_does_not_look(client: redis.Redis) -> None:
    asked = governor(client, in_flight_max=1)
    busy = asks(asked, "busy", 0)
    asks(asked, "gone", 1)
    asked.settle(busy)
    time.sleep(0.3)
    assert asks(asked, "young", 9).wait_s == 0


# ------------------------------------------------------------------------------------------------------ forty-six runs

RUNS, STEPS, PER_MIN = 46, 5, 60


@dataclass(slots=True)
class Fleet:
    """Runs of several steps, each in a thread of its own, over the governors of five processes."""

    governors: list[Governor]
    began: float
    ended: dict[int, float]
    lock: threading.Lock

    def play(self, run: int, order: int | None, late_s: Callable[[int], float]) -> None:
        asked = self.governors[run % len(self.governors)]
        for step in range(STEPS):
            ticket = f"run{run}:{step}"
            permit = asks(asked, ticket, order)
            while permit.wait_s > 0:
                time.sleep(permit.wait_s + late_s(run))
                permit = asks(asked, ticket, order)
            time.sleep(0.01)  # the model answers, and a tool runs
            asked.settle(permit)
        with self.lock:
            self.ended[run] = time.monotonic() - self.began


def played(client: redis.Redis, *, has_order: bool, late_s: Callable[[int], float] = lambda run: 0.0) -> Fleet:
    """The youngest asks first."""
    fleet = Fleet(
        [governor(client, requests_per_min=PER_MIN) for _ in range(5)], time.monotonic(), {}, threading.Lock()
    )
    with ThreadPoolExecutor(RUNS) as pool:
        for run in reversed(range(RUNS)):
            pool.submit(fleet.play, run, run if has_order else None, late_s)
    return fleet


ALL_S = RUNS * STEPS * MINUTE_S / PER_MIN
"""What the calls of all runs take at the rate that is allowed."""


def test_forty_six_runs_at_sixty_a_minute_end_one_after_the_other_the_oldest_first(client: redis.Redis) -> None:
    fleet = played(client, has_order=True)
    ends = [fleet.ended[run] for run in range(RUNS)]
    print(f"\nended after {', '.join(f'{end:.1f}' for end in ends)} s; the rate allows {ALL_S:.1f} s")
    assert ends[0] < ALL_S / 4
    assert sum(end < ALL_S / 2 for end in ends) >= RUNS * 0.35
    by_end = sorted(range(RUNS), key=lambda run: ends[run])
    displaced = sum(abs(place - run) for place, run in enumerate(by_end)) / RUNS
    assert displaced < 4, by_end
    assert max(ends) < ALL_S * 1.15, "the order costs no time"


@pytest.mark.nightly
def test_the_order_costs_no_calls_where_half_of_them_come_late(client: redis.Redis) -> None:
    """As runs that are parked do, which a sweep wakes."""
    fleet = played(client, has_order=True, late_s=lambda run: 1.0 if run % 2 else 0.0)
    took = max(fleet.ended.values())
    print(f"\nall ended after {took:.1f} s; the rate allows {ALL_S:.1f} s")
    assert took < ALL_S * 1.3
