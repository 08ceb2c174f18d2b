"""Several keys of one provider, over a real broker: every test plays several workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from hermes_worker.core.credentials import DEAD_REST_S, REFUSED_REST_S, SPENT_REST_S, Strategy, compute_rest_s
from hermes_worker.core.errors import FailureKind
from hermes_worker.core.recovery.classify import Classification
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.models.credentials import CredentialPool

KEYS = ("a", "b", "c")


@pytest.fixture
def client(broker_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(broker_url, decode_responses=True) as connected:
        yield connected


@pytest.fixture
def pool(client: redis.Redis) -> CredentialPool:
    return CredentialPool(client)


def taken(pool: CredentialPool, turns: int, *, is_child: bool = False) -> list[str]:
    return [pool.choose_key(KEYS, ticket=f"turn{number}", is_child=is_child).name for number in range(turns)]


def test_the_first_key_is_used_until_it_is_spent(pool: CredentialPool) -> None:
    assert taken(pool, 3) == ["a", "a", "a"]
    pool.rest_key("a", 60)
    assert taken(pool, 3) == ["b", "b", "b"]


def test_what_one_worker_learns_of_a_key_every_worker_knows(pool: CredentialPool, client: redis.Redis) -> None:
    pool.rest_key("a", 60)
    pool.rest_key("b", 60)

    chosen = CredentialPool(client).choose_key(KEYS, ticket="t")

    assert (chosen.name, chosen.has_others) == ("c", False)


def test_a_turn_keeps_its_key_whichever_worker_makes_its_calls(client: redis.Redis) -> None:
    workers = [CredentialPool(client, Strategy.ROUND_ROBIN) for _ in range(3)]
    assert len({worker.choose_key(KEYS, ticket="t").name for worker in workers * 3}) == 1


def test_keys_are_taken_in_turn(client: redis.Redis) -> None:
    assert taken(CredentialPool(client, Strategy.ROUND_ROBIN), 6) == ["a", "b", "c", "a", "b", "c"]


def test_the_key_that_was_used_least_is_taken(client: redis.Redis) -> None:
    taken(CredentialPool(client), 2)
    assert CredentialPool(client, Strategy.LEAST_USED).choose_key(KEYS, ticket="new").name == "b"


def test_any_key_may_be_taken(client: redis.Redis) -> None:
    assert set(taken(CredentialPool(client, Strategy.RANDOM), 60)) == set(KEYS)


def test_children_spread_over_the_keys_and_give_them_back(pool: CredentialPool) -> None:
    assert Counter(taken(pool, 6, is_child=True)) == {"a": 2, "b": 2, "c": 2}
    pool.release_key("turn1")
    pool.release_key("turn1")
    assert pool.choose_key(KEYS, ticket="another", is_child=True).name == "b"


def test_a_lease_that_nobody_gave_back_ends(pool: CredentialPool, client: redis.Redis) -> None:
    taken(pool, 1, is_child=True)
    client.zadd("hermes:credentials:leases", {"turn0": 1.0})
    assert pool.choose_key(KEYS, ticket="another", is_child=True).name == "a"


def test_a_rest_ends_and_a_shorter_one_does_not_shorten_it(pool: CredentialPool) -> None:
    pool.rest_key("a", 60)
    pool.rest_key("a", 0)
    for _ in range(20):
        pool.rest_key("b", 0)
        assert pool.choose_key(KEYS, ticket="t").name == "b", "a rest of no time is over at once"


def test_without_a_usable_key_the_one_that_comes_back_first_is_tried(pool: CredentialPool) -> None:
    for name, seconds in zip(KEYS, (90, 30, 60), strict=True):
        pool.rest_key(name, seconds)
    chosen = pool.choose_key(KEYS, ticket="t")
    assert (chosen.name, chosen.has_others) == ("b", False)


def test_without_redis_a_process_goes_by_what_it_has_seen(own_valkey: EmbeddedValkey) -> None:
    pool = CredentialPool(redis.Redis.from_url(own_valkey.url, decode_responses=True, socket_connect_timeout=0.2))
    own_valkey.kill()
    pool.rest_key("a", 60)
    pool.rest_key("a", 0)
    assert pool.choose_key(KEYS, ticket="t").name == "b"


@pytest.mark.parametrize(
    ("kind", "message", "retry_after_s", "expected"),
    [
        (FailureKind.AUTH, "Incorrect API key", None, REFUSED_REST_S),
        (FailureKind.AUTH, "error: token_revoked", None, DEAD_REST_S),
        (FailureKind.AUTH, "invalid_grant: the token has expired", None, DEAD_REST_S),
        (FailureKind.RATE_LIMIT, "slow down", None, SPENT_REST_S),
        (FailureKind.RATE_LIMIT, "slow down", 20.0, 20.0),
        (FailureKind.RATE_LIMIT, "usage limit reached, resets in 2h 5m", 20.0, 7_500.0),
        (FailureKind.RATE_LIMIT, "Please try again in 59s.", None, 59.0),
        (FailureKind.RATE_LIMIT, "resets in 99999 days", None, 7 * 86_400.0),
        (FailureKind.BILLING, "insufficient credits", 5.0, SPENT_REST_S),
    ],
)
def test_how_long_a_key_rests_depends_on_how_it_was_refused(
    kind: FailureKind, message: str, retry_after_s: float | None, expected: float
) -> None:
    assert compute_rest_s(Classification(kind=kind, message=message, retry_after_s=retry_after_s)) == expected
