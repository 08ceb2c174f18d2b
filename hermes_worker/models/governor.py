"""Permits to ask a model: how often, and how many at once, all workers together may use one credential.

Theory of operation. For each (provider, credential) Redis holds a small state, and one Lua script decides on it, by
Redis's own clock, so that any number of workers agree. Limits per minute, of requests and of tokens, are kept by the
*generic cell rate algorithm* (ITU-T I.371): the state is the time at which the next call would be exactly on schedule.
Calls may run ahead of it by a burst (``BURST_PART``). With 600 calls a minute, without the reserve of ``USED_PART``:

    now = 100.0 s, one interval = 0.1 s, the burst reaches 0.9 s ahead, no other call waits
    schedule at  90.0    idle for long: ask now, and the schedule moves to 100.1
    schedule at 100.9    0.9 s ahead, which the burst allows: ask now, and it moves to 101.0
    schedule at 101.0    1.0 s ahead: come again in 0.1 s

*Older work goes first.* A call that may not be made at once is entered among the waiting ones, in the order of the work
it belongs to: the chain of runs that began first is the first (``order``), wherever and since whenever it waits. A
call's place is as many intervals away as others wait before it; it is told when that is, and comes again then. An older
call that arrives meanwhile moves it back by one place. So the oldest run comes to its end before the next one advances,
and answers arrive one after the other. No call starves: only what began earlier goes first, that is a finite number of
chains, and each of them has finite limits.

*A call that comes a little late loses no time.* While calls wait the schedule does not move on by itself: for as long
as ``LATE_S`` unused intervals are kept for calls that were told to come, and a call that comes gets one as soon as
there are more of them than older calls that wait. A call that has not come by then waits no more, so a worker that died
or a run that was stopped holds up no other call for longer; ``withdraw`` takes a place back at once. A call that waits
for long is parked as a row (invariant I8); it finds its entry again by its ticket.

A *cool-down* holds every call back until a time: one worker's 429 is every worker's knowledge. When it is over the
calls that waited come in a stream, not in a storm, even where no limit is known.

Limits come from the settings, or from the headers of responses. Where none is known and nothing is cooling, a process
asks only now and then whether that is still so. All of this is a courtesy, never a matter of correctness: while Redis
is away, or does not let our user do what the scripts do, each process keeps the limits by itself
(``core/local_rate_limits.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import redis

from hermes_worker.broker.queue import KEY_PREFIX
from hermes_worker.core.local_rate_limits import Pace, Pacing
from hermes_worker.core.messages import Usage
from hermes_worker.core.rate_limits import RateLimits
from hermes_worker.models.fleet_state import READ_FIELDS, FleetState, Script
from hermes_worker.observe import count

MINUTE_S = 60.0
USED_PART = 0.98
"""The part of a limit that is used. The rest is for clocks that run apart and for the burst at the beginning."""
BURST_PART = 1 / 60
"""A credential that was not used for a while may be used by this part of a minute ahead of its schedule. More would be
taken for a burst by servers that look at seconds."""
PLACES_KEPT_S = 600.0
"""The longest wait for which a place is kept, in seconds; a call that would have to wait longer has to ask again by
then.
"""
LATE_S = 5.0
"""How many seconds later than it was told a call may come and still have its place; also for how long unused intervals
are kept for waiting calls.
"""
RAMP_PER_MIN = 600
"""Calls per minute in the first moments after a cool-down of a credential without a known limit."""
RAMP_S = 10.0
BUSY_WAIT_S = 0.5
"""After how many seconds a call with a few older ones before it looks again while too many are in flight. The oldest
looks five times as often, later ones at most four times as seldom.
"""
CALL_S_MAX = 900.0
"""After so many seconds a call in flight is no longer counted: its worker may have died with it."""
LOOK_AGAIN_S = 1.0
"""How many seconds a process believes that a credential is without limits."""
LEARNED_S = 86_400.0
"""How many seconds learned limits are believed, and the longest cool-down."""
DEBT_S_MAX = 3_600.0
"""How many seconds ahead of their limit tokens may have been used."""
_PLACES_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialRef:
    """The credential at a provider that limits belong to. All that Redis keeps about it stands under ``key``: whatever
    tells places apart is a field here and a part of the key, and nowhere else.
    """

    provider: str
    credential: str
    """A name for the key that reveals nothing of it."""

    @property
    def key(self) -> str:
        return f"{KEY_PREFIX}governor:{self.provider}:{self.credential}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPermit:
    """The answer to ``acquire``."""

    place: CredentialRef
    ticket: str
    tokens: int = 0
    """The estimated tokens that were charged."""
    wait_s: float = 0.0
    """0 when the call may be made now; else after how many seconds to come again with the same ticket."""
    ahead: int = 0
    """How many waiting calls go before this one."""
    is_cooling: bool = False
    """Whether the wait is for the end of a cool-down."""
    is_local: bool = False
    """Whether this process decided alone, while Redis is away."""
    is_governed: bool = False
    """Whether the end of the call has to be accounted for with ``settle``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredLimits:
    """Limits that the settings give each credential; ``None`` takes what the provider's responses say, if anything."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    in_flight_max: int | None = None


class CallGovernor(Protocol):
    """The governor, as the loop uses it."""

    def acquire(self, place: CredentialRef, *, ticket: str, tokens: int, order: int | None = None) -> CallPermit: ...

    def withdraw(self, permit: CallPermit) -> None: ...

    def settle(self, permit: CallPermit, *, usage: Usage | None = None, limits: RateLimits | None = None) -> None: ...

    def cool_down(self, place: CredentialRef, seconds: float) -> None: ...


class NoGovernor:
    """A governor that grants every permit at once."""

    def acquire(self, place: CredentialRef, *, ticket: str, tokens: int, order: int | None = None) -> CallPermit:
        return CallPermit(place=place, ticket=ticket)

    def withdraw(self, permit: CallPermit) -> None:
        return

    def settle(self, permit: CallPermit, *, usage: Usage | None = None, limits: RateLimits | None = None) -> None:
        return

    def cool_down(self, place: CredentialRef, seconds: float) -> None:
        return


class Governor:
    """The governor of a fleet. Thread-safe; never raises for a Redis that is away."""

    def __init__(
        self, client: redis.Redis, limits: ConfiguredLimits | None = None, *, minute_s: float = MINUTE_S
    ) -> None:
        """``minute_s`` is how many seconds a minute takes: tests have no time."""
        self._limits = limits or ConfiguredLimits()
        self._minute_s = minute_s
        self._state = FleetState(client, "governing")
        self._acquire = self._state.make_script(_ACQUIRE)
        self._withdraw = self._state.make_script(_WITHDRAW)
        self._settle = self._state.make_script(_SETTLE)
        self._cool_down = self._state.make_script(_COOL_DOWN)
        self._lock = threading.Lock()
        self._free_until: dict[str, float] = {}
        self._alone = _LocalGovernor(self._limits, minute_s)

    def acquire(self, place: CredentialRef, *, ticket: str, tokens: int, order: int | None = None) -> CallPermit:
        """Acquire a permit for one call of about ``tokens`` input tokens, or learn when to come again.

        Of the waiting calls the smallest ``order`` goes first: the number of the run that everything began with. A call
        without one comes after all that have one, in the order of their first asking. The same ``ticket`` is the same
        call. A call that was permitted is ended by ``settle``; one that waits and will not come again, by ``withdraw``.
        """
        free = CallPermit(place=place, ticket=ticket)
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
                "" if order is None else order,
            ],
        )
        if told is None:
            return self._alone.acquire(place, ticket, tokens)
        wait_ms, is_cooling, is_governed, ahead = (int(value) for value in told)
        if not is_governed:
            self._remember_unlimited(place)
            return free
        return CallPermit(
            place=place,
            ticket=ticket,
            tokens=tokens,
            wait_s=wait_ms / 1000,
            ahead=ahead,
            is_cooling=bool(is_cooling),
            is_governed=True,
        )

    def withdraw(self, permit: CallPermit) -> None:
        """Give up a call that will not be made, so that no other waits behind it. Idempotent."""
        if permit.wait_s > 0 and not permit.is_local:
            self._run(self._withdraw, permit.place, [permit.ticket])

    def settle(self, permit: CallPermit, *, usage: Usage | None = None, limits: RateLimits | None = None) -> None:
        """End a call: ``usage`` if it had a reply, ``limits`` if the response named any.

        Settling a second time corrects the count of tokens twice, and nothing else.
        """
        if not permit.is_governed and limits is None:
            return
        learned = limits or RateLimits()
        self._alone.settle(permit, learned)
        used = usage.input + usage.cache_write if usage is not None else permit.tokens
        self._run(
            self._settle,
            permit.place,
            [
                permit.ticket,
                used - permit.tokens if permit.is_governed and not permit.is_local else 0,
                learned.requests_per_min or 0,
                learned.tokens_per_min or 0,
                self._limits.tokens_per_min or 0,
                self._minute_s,
            ],
        )
        if limits is not None:
            self._free_until.pop(permit.place.key, None)

    def cool_down(self, place: CredentialRef, seconds: float) -> None:
        """Hold back every call for so many seconds. The longest of several cool-downs counts."""
        self._alone.cool_down(place, seconds)
        self._run(self._cool_down, place, [max(0.0, seconds)])
        self._free_until.pop(place.key, None)
        count("model.cooled_down")

    def _remember_unlimited(self, place: CredentialRef) -> None:
        with self._lock:
            if len(self._free_until) > _PLACES_REMEMBERED:
                self._free_until.clear()
            self._free_until[place.key] = time.monotonic() + LOOK_AGAIN_S

    def _run(self, script: Script, place: CredentialRef, arguments: Sequence[Any]) -> Any:
        """Run the script and return its answer; ``None`` while Redis is away."""
        keys = [f"{place.key}{part}" for part in ("", ":places", ":busy", ":due", ":tokens")]
        return self._state.run(script, keys, [*arguments, *_CONSTANTS])


class _LocalGovernor:
    """Keeps the limits in this process while Redis is away, by the settings and by what it has seen itself."""

    def __init__(self, limits: ConfiguredLimits, minute_s: float) -> None:
        self._limits = limits
        self._minute_s = minute_s
        self._lock = threading.Lock()
        self._places: dict[str, Pacing] = {}
        self._learned: dict[str, RateLimits] = {}

    def acquire(self, place: CredentialRef, ticket: str, tokens: int) -> CallPermit:
        with self._lock:
            pacing, now = self._find_pacing(place), time.monotonic()
            wait_s = pacing.request_leave_s(
                now,
                ticket=ticket,
                tokens=tokens,
                pace=self._pace(place),
                minute_s=self._minute_s,
                call_s_max=CALL_S_MAX,
            )
            is_cooling = pacing.cool_until > now
        return CallPermit(
            place=place, ticket=ticket, wait_s=wait_s, is_cooling=is_cooling, is_local=True, is_governed=wait_s == 0
        )

    def settle(self, permit: CallPermit, learned: RateLimits) -> None:
        with self._lock:
            if permit.is_local:
                self._find_pacing(permit.place).end_call(permit.ticket)
            if learned != RateLimits():
                if len(self._learned) >= _PLACES_REMEMBERED:
                    self._learned.clear()
                self._learned[permit.place.key] = learned

    def cool_down(self, place: CredentialRef, seconds: float) -> None:
        with self._lock:
            self._find_pacing(place).cool_down(time.monotonic() + min(seconds, LEARNED_S))

    def _find_pacing(self, place: CredentialRef) -> Pacing:
        if len(self._places) >= _PLACES_REMEMBERED and place.key not in self._places:
            self._places.clear()
        return self._places.setdefault(place.key, Pacing())

    def _pace(self, place: CredentialRef) -> Pace:
        learned = self._learned.get(place.key, RateLimits())
        requests = self._limits.requests_per_min or learned.requests_per_min
        tokens = self._limits.tokens_per_min or learned.tokens_per_min
        return Pace(
            requests_per_min=requests and requests * USED_PART,
            tokens_per_min=tokens and tokens * USED_PART,
            in_flight_max=self._limits.in_flight_max,
        )


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
    DEBT_S_MAX,
)
"""Arguments that follow each script's own, in this order."""
_FEW = 32
"""How many older calls a call looks at when it wants one of few places in flight."""

_NOW = (
    READ_FIELDS
    + """local function put(name, value) redis.call('HSET', KEYS[1], name, string.format('%.6f', value)) end
"""
)

_LEAVE = """
-- Who waits stands in KEYS[2] by its order, in KEYS[4] by when it was told to come, and in KEYS[5] with its tokens, of
-- which the empty name has the sum.
local function leave(ticket)
  redis.call('ZREM', KEYS[2], ticket)
  redis.call('ZREM', KEYS[4], ticket)
  local held = redis.call('HGET', KEYS[5], ticket)
  if held then
    redis.call('HDEL', KEYS[5], ticket)
    redis.call('HINCRBY', KEYS[5], '', -tonumber(held))
  end
end
"""

_ACQUIRE = (
    _NOW
    + _LEAVE
    + f"local few = {_FEW}"
    + """
local ticket, tokens = ARGV[1], tonumber(ARGV[2])
local per_min, tokens_per_min, in_flight_max = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local minute, order = tonumber(ARGV[6]), tonumber(ARGV[7]) or now
local burst, kept, late = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local ramp_per_min, ramp, busy_wait = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local call_max, learned, used_part = tonumber(ARGV[14]), tonumber(ARGV[15]), tonumber(ARGV[16])
local debt_max = tonumber(ARGV[17])

if per_min == 0 then per_min = field('requests_per_min') end
if tokens_per_min == 0 then tokens_per_min = field('tokens_per_min') end
local cool_until = field('cool_until')
if cool_until > now + learned then cool_until = 0 end
local is_recovering = cool_until > 0 and now < cool_until + ramp
if is_recovering and per_min == 0 then per_min = ramp_per_min end
if per_min == 0 and tokens_per_min == 0 and in_flight_max == 0 then return {0, 0, 0, 0} end
-- Not renewed by asking: limits that nobody learned again are forgotten.
local left = redis.call('TTL', KEYS[1])
if left < 0 or left > learned then redis.call('EXPIRE', KEYS[1], learned) end

-- Whoever waits is told a time, and is entered with both; no other entries are ours.
local latest = now + kept + late
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], latest, '+inf', 'LIMIT', 0, 100)) do leave(gone) end
redis.call('ZREMRANGEBYSCORE', KEYS[3], now + call_max + 1, '+inf')
if redis.call('ZCARD', KEYS[2]) ~= redis.call('ZCARD', KEYS[4]) then redis.call('DEL', KEYS[2], KEYS[4], KEYS[5]) end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now - late, 'LIMIT', 0, 100)) do leave(gone) end
local is_known = redis.call('ZSCORE', KEYS[2], ticket)
if not is_known then redis.call('ZADD', KEYS[2], string.format('%.6f', order), ticket) end
local ahead = redis.call('ZRANK', KEYS[2], ticket)
local others = redis.call('ZCARD', KEYS[2]) - 1

local function wait_until(at, is_cooling)
  redis.call('ZADD', KEYS[4], string.format('%.6f', at), ticket)
  if tokens_per_min > 0 and redis.call('HSETNX', KEYS[5], ticket, tokens) == 1 then
    redis.call('HINCRBY', KEYS[5], '', tokens)
  end
  for _, key in ipairs({KEYS[2], KEYS[4], KEYS[5]}) do redis.call('EXPIRE', key, math.ceil(kept + 60)) end
  return {math.max(1, math.ceil((at - now) * 1000)), is_cooling and 1 or 0, 1, ahead}
end

-- When this call is on schedule if all before it come as they were told, and the schedule after it.
local place = math.max(now, cool_until)
local next_request, next_token = 0, 0
if per_min > 0 then
  local interval = minute / (per_min * used_part)
  -- Intervals that were kept for those who wait are not lost because they come a little late.
  local owed = (is_known or others > 0) and (is_recovering and math.min(late, 1) or late) or 0
  local due = math.max(field('next_request'), cool_until)
  if due > math.max(now, cool_until) + 2 * interval + minute then due = now end
  local burst_ahead = is_recovering and 0 or math.max(0, minute * burst - interval)
  -- When nobody came for that long those before it were told to come later, or are gone: it need not wait for them.
  local before = due > now - late and ahead or 0
  place = math.max(place, math.max(due - burst_ahead, now - owed) + before * interval)
  next_request = math.max(due, now - owed) + interval
end
if tokens_per_min > 0 then
  local due = math.min(field('next_token'), now + debt_max)
  local held = tonumber(redis.call('HGET', KEYS[5], ticket) or '0')
  local waiting = tonumber(redis.call('HGET', KEYS[5], '') or '0') - held
  local before = others > 0 and math.max(0, waiting) * ahead / others or 0
  -- A whole minute's tokens may be asked for at once, as every provider allows, but no more than that.
  place = math.max(place, due + before * minute / tokens_per_min - minute)
  next_token = math.max(due, now) + tokens * minute / tokens_per_min
end
local is_cooling = cool_until > now
if place - now > kept then
  leave(ticket)
  if others == 0 then redis.call('DEL', KEYS[5]) end
  return {math.floor(kept / 2 * 1000), is_cooling and 1 or 0, 1, ahead}
end
if place > now then return wait_until(place, is_cooling) end

if in_flight_max > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
  if not redis.call('ZSCORE', KEYS[3], ticket) then
    local free = in_flight_max - redis.call('ZCARD', KEYS[3])
    -- Older calls that come this very moment go first; nobody waits for those that come later.
    if free > 0 and ahead > 0 then
      for _, older in ipairs(redis.call('ZRANGE', KEYS[2], 0, math.min(ahead, few) - 1)) do
        local comes = tonumber(redis.call('ZSCORE', KEYS[4], older) or '0')
        if comes > now - busy_wait / 5 and comes < now + busy_wait then free = free - 1 end
      end
    end
    if free <= 0 then return wait_until(now + busy_wait * math.min((ahead + 1) / 5, 4), false) end
  end
  redis.call('ZADD', KEYS[3], string.format('%.6f', now + call_max), ticket)
  redis.call('EXPIRE', KEYS[3], math.ceil(call_max))
end
if per_min > 0 then put('next_request', next_request) end
if tokens_per_min > 0 then put('next_token', next_token) end
leave(ticket)
return {0, 0, 1, ahead}
"""
)

_WITHDRAW = (
    _LEAVE
    + """
leave(ARGV[1])
return 0
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
-- Who waits is told anew, for a time after the end of it.
put('next_request', cool_until)
redis.call('DEL', KEYS[2], KEYS[4], KEYS[5])
redis.call('EXPIRE', KEYS[1], tonumber(ARGV[9]))
return 1
"""
)
