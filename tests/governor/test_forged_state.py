"""What the governor makes of a state that no worker wrote: it holds nobody back for ever, and nothing fails."""

from __future__ import annotations

import time

import pytest
import redis

from hermes_worker.models.governor import DEBT_S_MAX, LATE_S, PLACES_KEPT_S, ConfiguredLimits, CredentialRef, Governor

PLACE = CredentialRef(provider="p", credential="c")
NAMES = ("cool_until", "next_request", "next_token", "requests_per_min", "tokens_per_min")
VALUES = ("-1", "-1e300", "1e300", "inf", "-inf", "nan", "words", "", "9" * 400)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_cannot_be_is_as_good_as_none(
    breaking: redis.Redis, broker_url: str, name: str, value: str
) -> None:
    breaking.hset(PLACE.key, name, value)
    with redis.Redis.from_url(broker_url, decode_responses=True) as client:
        governor = Governor(client, ConfiguredLimits(requests_per_min=6_000, tokens_per_min=1_000_000, in_flight_max=5))
        permit = governor.acquire(PLACE, ticket="t", tokens=100)
        assert permit.wait_s == 0
        governor.settle(permit)


def test_a_schedule_far_in_the_future_ends(breaking: redis.Redis, broker_url: str) -> None:
    far = time.time() + 10**9
    for name in ("cool_until", "next_request"):
        breaking.delete(PLACE.key)
        breaking.hset(PLACE.key, name, str(far))
        with redis.Redis.from_url(broker_url, decode_responses=True) as client:
            permit = Governor(client, ConfiguredLimits(requests_per_min=6_000)).acquire(PLACE, ticket=name, tokens=1)
        assert permit.wait_s <= 1, name
    breaking.hset(PLACE.key, "next_token", str(far))
    with redis.Redis.from_url(broker_url, decode_responses=True) as client:
        permit = Governor(client, ConfiguredLimits(tokens_per_min=1_000)).acquire(PLACE, ticket="t", tokens=1)
    assert permit.wait_s <= max(DEBT_S_MAX, PLACES_KEPT_S)


def test_who_never_came_holds_up_nobody(breaking: redis.Redis, broker_url: str) -> None:
    breaking.zadd(f"{PLACE.key}:places", {f"forged{n}": -n for n in range(500)})
    breaking.zadd(f"{PLACE.key}:busy", {f"forged{n}": float("inf") for n in range(500)})
    with redis.Redis.from_url(broker_url, decode_responses=True) as client:
        governor = Governor(client, ConfiguredLimits(requests_per_min=60, in_flight_max=1))
        assert governor.acquire(PLACE, ticket="t", tokens=1).wait_s == 0
    breaking.zadd(f"{PLACE.key}:places", {"forged": 0})
    breaking.zadd(f"{PLACE.key}:due", {"forged": time.time() + PLACES_KEPT_S + LATE_S + 60})
    with redis.Redis.from_url(broker_url, decode_responses=True) as client:
        governor = Governor(client, ConfiguredLimits(requests_per_min=6_000))
        assert governor.acquire(PLACE, ticket="u", tokens=1).wait_s < 1


@pytest.mark.parametrize("part", ["", ":places", ":busy", ":due", ":tokens"])
def test_a_state_of_another_kind_is_thrown_away(breaking: redis.Redis, broker_url: str, part: str) -> None:
    breaking.set(f"{PLACE.key}{part}", "words")
    with redis.Redis.from_url(broker_url, decode_responses=True) as client:
        governor = Governor(client, ConfiguredLimits(requests_per_min=60, tokens_per_min=1_000, in_flight_max=1))
        first = governor.acquire(PLACE, ticket="first", tokens=10)
        assert (first.is_governed, first.is_local, first.wait_s) == (True, False, 0)
        assert governor.acquire(PLACE, ticket="second", tokens=10).wait_s > 0
