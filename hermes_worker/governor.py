"""Leave to ask a model: how often, and how many at once, all workers together may use one credential.

Theory of operation. For each (provider, credential) Redis holds one small hash, and one Lua script decides on it, by
Redis's own clock, so that any number of workers agree. Limits per minute, of requests and of tokens, are kept by the
*generic cell rate algorithm* (ITU-T I.371): the state is the time at which the next call would be exactly on schedule.
Who may not ask at once is told when, and *that place is kept for him*: waiting calls therefore come one after the other
instead of all together, in the order in which they asked, wherever they wait. A call that waits for long is parked as a
row (invariant I8); it finds its place again by its ticket.

A *cool-down* holds everybody back until a time: one worker's 429 is every worker's knowledge. When it is over the calls
that waited come in a stream, not in a storm, even where no limit is known.

Limits come from the settings, or from the headers of responses. Where none is known and nothing is cooling, a process
asks only now and then whether that is still so. All of this is a courtesy, never a matter of correctness: when Redis is
away everybody may ask.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import redis

from hermes_worker.core.messages import Usage
from hermes_worker.core.rate_limits import RateLimits
from hermes_worker.observe import broker_outage, count
from hermes_worker.queue import KEY_PREFIX

MINUTE_S = 60.0
USED_PART = 0.98
"""Of a limit. The rest is for clocks that run apart and for the burst at the beginning."""
BURST_PART = 1 / 60
"""A credential that was not used for a while may be used by this part of a minute ahead of its schedule. More would be
taken for a burst by servers that look at seconds."""
PLACES_KEPT_S = 600.0
"""The longest wait for which a place is kept; who would have to wait longer shall ask again by then."""
LATE_S = 5.0
"""How much later than its place a call may come and still have it."""
RAMP_PER_MIN = 600
"""Calls per minute in the first moments after a cool-down of a credential without a known limit."""
RAMP_S = 10.0
BUSY_WAIT_S = 0.5
"""When to look again while too many calls are in flight."""
CALL_S_MAX = 900.0
"""After this a call in flight is no longer counted: its worker may have died with it."""
LOOK_AGAIN_S = 1.0
"""How long a process believes that a credential is without limits."""
AWAY_S = 5.0
"""How long a process does without Redis after it did not answer."""
LEARNED_S = 86_400.0
_PLACES_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What limits belong to."""

    provider: str
    credential: str
    """A name for the key that says nothing about it."""

    @property
    def key(self) -> str:
        return f"{KEY_PREFIX}governor:{self.provider}:{self.credential}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """The answer to ``acquire``."""

    place: Place
    ticket: str
    tokens: int = 0
    """Estimate that was charged."""
    wait_s: float = 0.0
    """0 for leave to ask now; else when to come again with the same ticket."""
    is_cooling: bool = False
    """The wait is for the end of a cool-down."""
    is_governed: bool = False
    """There is something to account for when the call has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredLimits:
    """Limits of the settings, for each credential; ``None`` takes what the provider's responses say, if anything."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    in_flight_max: int | None = None


class Governing(Protocol):
    """What the loop needs of a governor."""

    def acquire(self, place: Place, *, ticket: str, tokens: int) -> Permit: ...

    def settle(self, permit: Permit, *, usage: Usage | None = None, limits: RateLimits | None = None) -> None: ...

    def cool_down(self, place: Place, seconds: float) -> None: ...


class Ungoverned:
    """Everybody may ask at any time."""

    def acquire(self, place: Place, *, ticket: str, tokens: int) -> Permit:
        return Permit(place=place, ticket=ticket)

    def settle(self, permit: Permit, *, usage: Usage | None = None, limits: RateLimits | None = None) -> None:
        return

    def cool_down(self, place: Place, seconds: float) -> None:
        return


class Governor:
    """The governor of a fleet. Thread-safe; never raises for a Redis that is away."""

    def __init__(
        self, client: redis.Redis, limits: ConfiguredLimits | None = None, *, minute_s: float = MINUTE_S
    ) -> None:
        """``minute_s`` is how long a minute takes: tests have no time."""
        self._limits = limits or ConfiguredLimits()
        self._minute_s = minute_s
        self._acquire = client.register_script(_ACQUIRE)
        self._settle = client.register_script(_SETTLE)
        self._cool_down = client.register_script(_COOL_DOWN)
        self._lock = threading.Lock()
        self._free_until: dict[str, float] = {}
        self._away_until = 0.0

    def acquire(self, place: Place, *, ticket: str, tokens: int) -> Permit:
        """Leave to make one call of about ``tokens`` input tokens, or when to come again.

        The same ``ticket`` finds the place that was kept for it. A call that got leave is ended by ``settle``.
        """
        free = Permit(place=place, ticket=ticket)
        if time.monotonic() < self._free_until.get(place.key, 0.0):
            return free
        limits = self._limits
        told = self._run(
            self._acquire,
            place,
            [
                ticket,
                tokens,
                limits.requests_per_min or 0,
                limits.tokens_per_min or 0,
                limits.in_flight_max or 0,
                self._minute_s,
            ],
        )
        if told is None:
            return free
        wait_ms, is_cooling, is_governed = (int(value) for value in told)
        if not is_governed:
            self._believe_free(place)
            return free
        return Permit(
            place=place,
            ticket=ticket,
            tokens=tokens,
            wait_s=wait_ms / 1000,
            is_cooling=bool(is_cooling),
            is_governed=True,
        )

    def settle(self, permit: Permit, *, usage: Usage | None = None, limits: RateLimits | None = None) -> None:
        """The call has ended: ``usage`` if it had a reply, ``limits`` if the response named any.

        A second time corrects the count of tokens twice, and nothing else.
        """
        if not permit.is_governed and limits is None:
            return
        learned = limits or RateLimits()
        used = usage.input + usage.cache_write if usage is not None else permit.tokens
        self._run(
            self._settle,
            permit.place,
            [
                permit.ticket,
                used - permit.tokens if permit.is_governed else 0,
                learned.requests_per_min or 0,
                learned.tokens_per_min or 0,
                self._limits.tokens_per_min or 0,
                self._minute_s,
            ],
        )
        if limits is not None:
            self._free_until.pop(permit.place.key, None)

    def cool_down(self, place: Place, seconds: float) -> None:
        """Let nobody ask for so long. The longest of several cool-downs counts."""
        self._run(self._cool_down, place, [max(0.0, seconds)])
        self._free_until.pop(place.key, None)
        count("model.cooled_down")

    def _believe_free(self, place: Place) -> None:
        with self._lock:
            if len(self._free_until) > _PLACES_REMEMBERED:
                self._free_until.clear()
            self._free_until[place.key] = time.monotonic() + LOOK_AGAIN_S

    def _run(self, script: Any, place: Place, arguments: Sequence[Any]) -> Any:
        """What the script answers; ``None`` while Redis is away, and then nobody is held back."""
        if time.monotonic() < self._away_until:
            return None
        keys = [place.key, f"{place.key}:places", f"{place.key}:busy"]
        try:
            answer = script(keys=keys, args=[*arguments, *_CONSTANTS])
        except (redis.RedisError, OSError) as error:
            self._away_until = time.monotonic() + AWAY_S
            broker_outage.failed(doing="governing", error=type(error).__name__)
            return None
        broker_outage.worked()
        return answer


_CONSTANTS = (
    BURST_PART,
    PLACES_KEPT_S,
    LATE_S,
    RAMP_PER_MIN,
    RAMP_S,
    BUSY_WAIT_S,
    CALL_S_MAX,
    LEARNED_S,
    USED_PART,
)
"""Behind each script's own arguments, in this order."""

_NOW = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local function field(name) return tonumber(redis.call('HGET', KEYS[1], name) or '0') end
local function put(name, value) redis.call('HSET', KEYS[1], name, string.format('%.6f', value)) end
"""

_ACQUIRE = (
    _NOW
    + """
local ticket, tokens = ARGV[1], tonumber(ARGV[2])
local per_min, tokens_per_min, in_flight_max = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local minute, burst, kept, late = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local ramp_per_min, ramp, busy_wait = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local call_max, learned, used_part = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])

if per_min == 0 then per_min = field('requests_per_min') end
if tokens_per_min == 0 then tokens_per_min = field('tokens_per_min') end
local cool_until = field('cool_until')
local is_recovering = cool_until > 0 and now < cool_until + ramp
if is_recovering and per_min == 0 then per_min = ramp_per_min end
if per_min == 0 and tokens_per_min == 0 and in_flight_max == 0 then return {0, 0, 0} end
redis.call('EXPIRE', KEYS[1], learned)

local place = tonumber(redis.call('ZSCORE', KEYS[2], ticket) or '0')
if place > 0 and (place < now - late or place < cool_until) then
  redis.call('ZREM', KEYS[2], ticket)
  place = 0
end
if place == 0 then
  -- When this call is on schedule, and the schedule after it.
  place = math.max(now, cool_until)
  local next_request, next_token = 0, 0
  if per_min > 0 then
    local interval = minute / (per_min * used_part)
    local due = math.max(field('next_request'), cool_until)
    local ahead = is_recovering and 0 or math.max(0, minute * burst - interval)
    place = math.max(place, due - ahead)
    next_request = math.max(due, now) + interval
  end
  if tokens_per_min > 0 then
    local due = field('next_token')
    -- A whole minute's tokens may be asked for at once, as every provider allows, but no more than that.
    place = math.max(place, due - minute)
    next_token = math.max(due, now) + tokens * minute / tokens_per_min
  end
  if place - now > kept then
    return {math.floor(kept / 2 * 1000), cool_until > now and 1 or 0, 1}
  end
  if per_min > 0 then put('next_request', next_request) end
  if tokens_per_min > 0 then put('next_token', next_token) end
  if place > now then
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - 60)
    redis.call('ZADD', KEYS[2], string.format('%.6f', place), ticket)
    redis.call('EXPIRE', KEYS[2], math.ceil(kept + 60))
  end
end
if place > now then
  return {math.ceil((place - now) * 1000), cool_until > now and 1 or 0, 1}
end

if in_flight_max > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
  if redis.call('ZCARD', KEYS[3]) >= in_flight_max and not redis.call('ZSCORE', KEYS[3], ticket) then
    -- Its turn has come, but nobody is done yet. It keeps its turn.
    redis.call('ZADD', KEYS[2], string.format('%.6f', now), ticket)
    redis.call('EXPIRE', KEYS[2], math.ceil(kept + 60))
    return {math.ceil(busy_wait * 1000), 0, 1}
  end
  redis.call('ZADD', KEYS[3], string.format('%.6f', now + call_max), ticket)
  redis.call('EXPIRE', KEYS[3], math.ceil(call_max))
end
redis.call('ZREM', KEYS[2], ticket)
return {0, 0, 1}
"""
)

_SETTLE = (
    _NOW
    + """
local ticket, more_tokens = ARGV[1], tonumber(ARGV[2])
local per_min, tokens_per_min = tonumber(ARGV[3]), tonumber(ARGV[4])
local limit, minute = tonumber(ARGV[5]), tonumber(ARGV[6])
redis.call('ZREM', KEYS[3], ticket)
if per_min > 0 then put('requests_per_min', per_min) end
if tokens_per_min > 0 then put('tokens_per_min', tokens_per_min) end
if per_min > 0 or tokens_per_min > 0 then redis.call('EXPIRE', KEYS[1], tonumber(ARGV[14])) end
if limit == 0 then limit = field('tokens_per_min') end
if limit > 0 and more_tokens ~= 0 then put('next_token', field('next_token') + more_tokens * minute / limit) end
return 0
"""
)

_COOL_DOWN = (
    _NOW
    + """
local cool_until = now + tonumber(ARGV[1])
if cool_until <= field('cool_until') then return 0 end
put('cool_until', cool_until)
-- Places before the end of it are void; whoever comes for his gets the next one after it.
put('next_request', cool_until)
redis.call('DEL', KEYS[2])
redis.call('EXPIRE', KEYS[1], tonumber(ARGV[9]))
return 1
"""
)
