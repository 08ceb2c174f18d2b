"""What the pool of keys makes of a state that no worker wrote."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from hermes_worker.core.credentials import Strategy
from hermes_worker.models.credentials import CredentialPool

KEYS = ("a", "b")
STATE = "hermes:credentials"
VALUES = ("-1", "-1e300", "1e300", "inf", "-inf", "nan", "words", "", "9" * 400)


@pytest.fixture
def client(broker_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(broker_url, decode_responses=True) as connected:
        yield connected


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("value", VALUES)
def test_values_that_cannot_be_leave_all_keys_to_be_used(
    client: redis.Redis, breaking: redis.Redis, strategy: Strategy, value: str
) -> None:
    for name in ("until:a", "until:b", "leased:a", "leased:b", "used:a", "used:b", "turn:a"):
        breaking.hset(STATE, name, value)
    pool = CredentialPool(client, strategy)
    chosen = pool.choose_key(KEYS, ticket="t")
    assert (chosen.name in KEYS, chosen.has_others) == (True, True)
    pool.release_key("t")
    pool.rest_key(chosen.name, 60)
    other = CredentialPool(client, strategy).choose_key(KEYS, ticket="u")
    assert (other.name != chosen.name, other.has_others) == (True, False)


@pytest.mark.parametrize("part", ["", ":held", ":leases"])
def test_a_state_of_another_kind_is_thrown_away(client: redis.Redis, breaking: redis.Redis, part: str) -> None:
    breaking.set(f"{STATE}{part}", "words")
    pool = CredentialPool(client)
    assert pool.choose_key(KEYS, ticket="t").name == "a"
    pool.rest_key("a", 60)
    assert CredentialPool(client).choose_key(KEYS, ticket="t").name == "b"


def test_leases_that_nobody_took_end(client: redis.Redis, breaking: redis.Redis) -> None:
    breaking.zadd(f"{STATE}:leases", {f"forged{n}": float("inf") for n in range(50)})
    CredentialPool(client).choose_key(KEYS, ticket="t")
    assert breaking.zrange(f"{STATE}:leases", 0, -1) == ["t"]
