"""What a fleet may ask of one credential, decided in a real Valkey by its own clock."""

from __future__ import annotations

import heapq
import time
from itertools import pairwise

import pytest
import redis
from support.fault_server import FaultServer, Received, Reply, say_hello
from support.limited_endpoint import LimitedEndpoint
from support.valkey import administrator

import hermes_worker.models.governor
from hermes_worker.broker.rights import USER
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import FailureKind, ModelCallError
from hermes_worker.core.messages import ModelRequest, Usage, build_user_body
from hermes_worker.core.rate_limits import RateLimits
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.governor import CallPermit, ConfiguredLimits, CredentialRef, Governor
from hermes_worker.models.wires.openai_chat import OpenAIChat
from hermes_worker.observe import broker_outage

PLACE = CredentialRef(provider="openai", credential="abc")
MINUTE_S = 4.0
"""How long a minute takes here."""
CALL_S = 0.05
"""How long a call takes where time passes only when a test says so."""
CLOCK_KEY = "hermes:test:clock"
SCRIPTS_WITH_TIME = ("_ACQUIRE", "_SETTLE", "_COOL_DOWN")


@pytest.fixture
def client(broker_url: str) -> redis.Redis:
    return redis.Redis.from_url(broker_url, decode_responses=True)


def governor(client: redis.Redis, minute_s: float = MINUTE_S, **limits: int) -> Governor:
    """One process of the fleet."""
    return Governor(client, ConfiguredLimits(**limits), minute_s=minute_s)


def asks(asked: Governor, ticket: str, tokens: int = 0) -> CallPermit:
    return asked.acquire(PLACE, ticket=ticket, tokens=tokens)


# ------------------------------------------------------------------------------------------------------------ requests


def test_without_limits_everybody_may_ask(client: redis.Redis, breaking: redis.Redis) -> None:
    asked = governor(client)

    assert all(asks(asked, f"r{n}").wait_s == 0 for n in range(50))
    assert breaking.keys("hermes:governor:*") == []


def test_calls_get_places_one_after_the_other_whichever_process_asks(client: redis.Redis) -> None:
    first, second = (governor(client, minute_s=60, requests_per_min=60) for _ in range(2))

    waits = [asks(asked, f"r{n}").wait_s for n, asked in enumerate([first, second, first, second])]

    assert waits == pytest.approx([0, 1.02, 2.04, 3.06], abs=0.3)


def test_a_place_is_kept_for_whoever_has_its_ticket(client: redis.Redis) -> None:
    asked = governor(client, minute_s=60, requests_per_min=6)
    asks(asked, "first")

    assert asks(asked, "second").wait_s == pytest.approx(10.2, abs=0.5)
    assert asks(asked, "third").wait_s == pytest.approx(20.4, abs=0.5)
    assert asks(asked, "second").wait_s == pytest.approx(10.2, abs=0.5)


def test_a_ticket_whose_time_has_come_gets_leave_once(client: redis.Redis) -> None:
    asked = governor(client, minute_s=30, requests_per_min=60)
    asks(asked, "first")
    time.sleep(asks(asked, "second").wait_s)

    assert asks(asked, "second").wait_s == 0
    assert asks(asked, "second").wait_s > 0, "the place is used up"


def test_a_credential_that_rested_may_be_used_a_little_ahead(client: redis.Redis) -> None:
    asked = governor(client, minute_s=60, requests_per_min=600)

    waits = [asks(asked, f"r{n}").wait_s for n in range(30)]

    assert waits[:9] == [0] * 9
    assert waits[-1] > 0


def test_other_credentials_are_not_held_back(client: redis.Redis) -> None:
    asked = governor(client, minute_s=60, requests_per_min=1)
    asks(asked, "r1")

    assert asks(asked, "r2").wait_s > 0
    assert asked.acquire(CredentialRef(provider="openai", credential="other"), ticket="r2", tokens=0).wait_s == 0


def test_a_very_long_wait_keeps_no_place(client: redis.Redis) -> None:
    asked = governor(client, minute_s=60, requests_per_min=1)
    waits = [asks(asked, f"r{n}").wait_s for n in range(20)]

    assert max(waits) <= 600
    assert waits[-1] == pytest.approx(300)
    assert client.zcard(f"{PLACE.key}:places") < 12


# -------------------------------------------------------------------------------------------------- tokens, concurrency


def test_tokens_are_counted_by_the_minute_and_corrected_by_what_was_used(client: redis.Redis) -> None:
    asked = governor(client, minute_s=60, tokens_per_min=1_000)
    first = asks(asked, "r1", tokens=900)
    second = asks(asked, "r2", tokens=500)

    assert (first.wait_s, second.wait_s) == (0, 0), "a minute's tokens may be used at once"
    assert asks(asked, "r3", tokens=100).wait_s == pytest.approx(24, abs=1)

    asked.settle(first, usage=Usage(input=100, cache_read=5_000))
    assert asks(asked, "r4", tokens=100).wait_s == 0


def test_no_more_calls_are_in_flight_than_allowed(client: redis.Redis) -> None:
    asked = governor(client, in_flight_max=2)
    first, second = asks(asked, "r1"), asks(asked, "r2")

    assert (first.wait_s, second.wait_s) == (0, 0)
    assert asks(asked, "r3").wait_s > 0
    asked.settle(first)
    assert asks(asked, "r3").wait_s == 0


def test_a_worker_that_takes_a_call_over_takes_its_place_too(client: redis.Redis) -> None:
    """The one that died never settled; the ticket is the same."""
    asks(governor(client, in_flight_max=1), "run:1")

    assert asks(governor(client, in_flight_max=1), "run:1").wait_s == 0


# ------------------------------------------------------------------------------------------------------------ cool-down


def test_one_workers_cool_down_is_everybodys(client: redis.Redis) -> None:
    one, other = governor(client), governor(client)

    one.cool_down(PLACE, 30)

    permit = asks(other, "r1")
    assert permit.wait_s == pytest.approx(30, abs=1)
    assert permit.is_cooling


def test_the_longest_cool_down_counts(client: redis.Redis) -> None:
    asked = governor(client)
    asked.cool_down(PLACE, 30)
    asked.cool_down(PLACE, 1)

    assert asks(asked, "r1").wait_s > 25


def test_after_a_cool_down_calls_come_in_a_stream(client: redis.Redis) -> None:
    """No limit is known, and still nobody storms."""
    asked = governor(client, minute_s=60)
    asked.cool_down(PLACE, 30)
    began = time.monotonic()

    waits = sorted(asks(asked, f"r{n}").wait_s + time.monotonic() - began for n in range(20))

    assert waits[0] >= 29
    assert waits[-1] - waits[0] == pytest.approx(19 * 60 / 588, abs=0.3)
    assert min(later - earlier for earlier, later in pairwise(waits)) > 0.02


def test_places_before_the_end_of_a_cool_down_are_void(client: redis.Redis) -> None:
    asked = governor(client, minute_s=60, requests_per_min=60)
    asks(asked, "r1"), asks(asked, "r2")
    asked.cool_down(PLACE, 10)

    assert asks(asked, "r2").wait_s == pytest.approx(10, abs=0.5)
    assert asks(asked, "r3").wait_s == pytest.approx(11.02, abs=0.5)


def test_a_cool_down_ends(client: redis.Redis) -> None:
    asked = governor(client)
    asked.cool_down(PLACE, 0.2)
    time.sleep(asks(asked, "r1").wait_s)

    assert asks(asked, "r1").wait_s == 0


# ------------------------------------------------------------------------------------------------------------- learning


def test_limits_are_learned_from_responses_and_known_to_all(client: redis.Redis) -> None:
    one, other = governor(client, minute_s=60), governor(client, minute_s=60)
    one.settle(asks(one, "r1"), limits=RateLimits(requests_per_min=6))

    assert asks(other, "r2").wait_s == 0
    assert asks(other, "r3").wait_s == pytest.approx(10.2, abs=0.5)


def test_configured_limits_win_over_learned_ones(client: redis.Redis) -> None:
    asked = governor(client, minute_s=60, requests_per_min=6)
    asked.settle(asks(asked, "r1"), limits=RateLimits(requests_per_min=6_000))

    assert asks(asked, "r2").wait_s > 5


# ------------------------------------------------------------------------------------------------------- without Redis


def test_without_redis_a_process_keeps_the_limits_by_itself_and_waits_for_nobody(own_valkey: EmbeddedValkey) -> None:
    client = redis.Redis.from_url(own_valkey.url, decode_responses=True, socket_timeout=1)
    asked = governor(client, minute_s=60, requests_per_min=60)
    own_valkey.kill()

    waits = [asks(asked, f"r{n}").wait_s for n in range(100)]
    assert waits[0] == 0
    assert all(0 < wait_s <= 1.03 for wait_s in waits[1:])
    asked.cool_down(PLACE, 5)
    asked.settle(CallPermit(place=PLACE, ticket="r1", is_governed=True))
    cooling = asks(asked, "r2")
    assert (round(cooling.wait_s), cooling.is_cooling) == (5, True)


@pytest.mark.parametrize("missing", ["hget", "zadd", "evalsha", "time"])
def test_a_server_that_refuses_the_scripts_counts_as_away_and_lifts_no_limit(
    own_valkey: EmbeddedValkey, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with administrator(own_valkey) as admin:
        admin.execute_command("ACL", "SETUSER", USER, f"-{missing}")
    broker_outage.reset()
    with redis.Redis.from_url(own_valkey.url, decode_responses=True) as connected:
        asked = governor(connected, minute_s=60, requests_per_min=60, in_flight_max=2)
        permits = [asks(asked, f"r{n}") for n in range(10)]
        asked.settle(permits[0])
    assert [permit.wait_s > 0 for permit in permits] == [False] + [True] * 9
    said = capsys.readouterr().err
    assert said.count("broker.unreachable") == 1
    assert "correct the password in HERMES_BROKER_URL, or the user's rights" in said


def test_a_script_that_redis_forgot_is_sent_again(client: redis.Redis, breaking: redis.Redis) -> None:
    asked = governor(client, minute_s=60, requests_per_min=6)
    asks(asked, "r1")
    breaking.script_flush()

    assert asks(asked, "r2").wait_s > 0


# ------------------------------------------------------------------------------------------------- against an endpoint


def say_hello_and_the_limit(_: Received, reply: Reply) -> None:
    said = {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}
    reply.document(200, said, "x-ratelimit-limit-requests: 60", "x-ratelimit-reset-requests: 1s")


REQUEST = ModelRequest(model="m", messages=(build_user_body("hello"),))


def ask_once(chat: OpenAIChat, asked: Governor, permit: CallPermit) -> None:
    """As the loop does it."""
    try:
        reply = chat.ask(REQUEST, on_delta=lambda _: None, abort=AbortSignal())
    except ModelCallError as error:
        assert error.kind is FailureKind.RATE_LIMIT
        asked.settle(permit, limits=error.limits)
        asked.cool_down(PLACE, error.retry_after_s or 0.3)
    else:
        asked.settle(permit, usage=reply.usage, limits=reply.limits)


class Clock:
    """The time of Redis and of every process, which passes only when the test says so."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.set(1_000_000.0)

    def set(self, now: float) -> None:
        self.now = now
        self._client.hset(CLOCK_KEY, mapping={"s": int(now), "us": round(now % 1 * 1_000_000)})

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Clock:
    given = f"{{redis.call('HGET', '{CLOCK_KEY}', 's'), redis.call('HGET', '{CLOCK_KEY}', 'us')}}"
    for name in SCRIPTS_WITH_TIME:
        script = getattr(hermes_worker.models.governor, name)
        assert "redis.call('TIME')" in script
        monkeypatch.setattr(hermes_worker.models.governor, name, script.replace("redis.call('TIME')", given))
    found = Clock(client)
    monkeypatch.setattr(hermes_worker.models.governor, "time", found)
    return found


@pytest.mark.parametrize("is_learned", [False, True])
def test_fifty_callers_get_nearly_all_that_an_endpoint_allows_and_hardly_a_refusal(
    client: redis.Redis, clock: Clock, is_learned: bool
) -> None:
    """60 requests a minute for three minutes; the callers are spread over five processes' governors. Each comes when it
    was told to, whatever this machine is busy with."""
    answer = say_hello_and_the_limit if is_learned else say_hello
    endpoint = LimitedEndpoint(60, answer, minute_s=60, clock=clock.monotonic)
    limits = {} if is_learned else {"requests_per_min": 60}
    fleet = [governor(client, minute_s=60, **limits) for _ in range(5)]
    with FaultServer(endpoint.answer) as server:
        chat = OpenAIChat(Endpoint(base_url=server.base_url))
        if is_learned:  # somebody has to be the first to hear of the limit
            ask_once(chat, fleet[0], asks(fleet[0], "first"))
        ends_at = clock.now + 3 * 60
        # When a caller comes, who it is, and which of its calls it is about.
        coming = [(clock.now, number, 1) for number in range(50)]
        while coming:
            at, number, rounds = heapq.heappop(coming)
            clock.set(max(at, clock.now))
            permit = asks(fleet[number % 5], f"run{number}:{rounds}", tokens=10)
            if permit.wait_s == 0:
                ask_once(chat, fleet[number % 5], permit)
                rounds += 1
            again = clock.now + (permit.wait_s or CALL_S)
            if again < ends_at:
                heapq.heappush(coming, (again, number, rounds))

    allowed = 3 * 60
    assert len(endpoint.refused) <= 0.03 * allowed
    assert len(endpoint.accepted) >= 0.95 * allowed
