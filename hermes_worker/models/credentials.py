"""Choose which of several keys of one provider a turn uses, for all workers alike.

Theory of operation. A provider may be given several keys. A turn *leases* one at its first call and keeps it, whichever
worker makes its calls, because prompt caches belong to a key. A key that was refused *rests* until a time, for every
worker: one worker's refusal is every worker's knowledge. All of this is one hash in Redis and one Lua script by Redis's
clock. It holds names of keys that say nothing about them, never a key.

A provider with a single key never comes here. While Redis is away each process goes by what it has seen itself.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import redis

from hermes_worker.broker.queue import KEY_PREFIX
from hermes_worker.core.credentials import Strategy
from hermes_worker.models.fleet_state import READ_FIELDS, FleetState, Script
from hermes_worker.observe import count, log

LEASE_S = 900.0
"""How many seconds a key counts as in use by a turn that made no further call with it."""
_KEPT_S = 14 * 86_400
_RESTS_REMEMBERED = 1_000
_STATE_KEY = f"{KEY_PREFIX}credentials"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenKey:
    """The key to use now."""

    name: str
    has_others: bool
    """Whether another key could be used now in its place."""


class KeyPool(Protocol):
    """The pool of keys, as the loop uses it."""

    def choose_key(self, names: Sequence[str], *, ticket: str, is_child: bool = False) -> ChosenKey: ...

    def rest_key(self, name: str, seconds: float) -> None: ...

    def release_key(self, ticket: str) -> None: ...


class FirstKey:
    """Always chooses the first key."""

    def choose_key(self, names: Sequence[str], *, ticket: str, is_child: bool = False) -> ChosenKey:
        return ChosenKey(name=names[0], has_others=False)

    def rest_key(self, name: str, seconds: float) -> None:
        return

    def release_key(self, ticket: str) -> None:
        return


class CredentialPool:
    """The pool of a fleet. Thread-safe; never raises for a Redis that is away."""

    def __init__(self, client: redis.Redis, strategy: Strategy = Strategy.FILL_FIRST) -> None:
        self._strategy = strategy
        self._state = FleetState(client, "choosing a key")
        self._choose = self._state.make_script(_CHOOSE)
        self._rest = self._state.make_script(_REST)
        self._release = self._state.make_script(_RELEASE)
        self._lock = threading.Lock()
        self._resting: dict[str, float] = {}

    def choose_key(self, names: Sequence[str], *, ticket: str, is_child: bool = False) -> ChosenKey:
        """Choose the key for a call of the turn ``ticket``: its own for as long as that can be used, else another, else
        the one that can be used the soonest. A child gets one that few others use, so that siblings spread.
        """
        strategy = "least_leased" if is_child else self._strategy.value
        told = self._run(self._choose, [ticket, strategy, random.random(), LEASE_S, _KEPT_S, *names])
        if told is None:
            return self._choose_locally(names)
        return ChosenKey(name=str(told[0]), has_others=int(told[1]) > 0)

    def rest_key(self, name: str, seconds: float) -> None:
        """Let no worker use the key for so many seconds. The longest of several rests counts."""
        with self._lock:
            if len(self._resting) > _RESTS_REMEMBERED:
                self._resting.clear()
            self._resting[name] = max(self._resting.get(name, 0.0), time.monotonic() + seconds)
        self._run(self._rest, [name, max(0.0, seconds), _KEPT_S])
        count("model.key_rested")
        log.info("model.key_rested", credential=name, seconds=round(seconds))

    def release_key(self, ticket: str) -> None:
        """Give back the key of a turn that is over. Idempotent."""
        self._run(self._release, [ticket])

    def _choose_locally(self, names: Sequence[str]) -> ChosenKey:
        now = time.monotonic()
        usable = [name for name in names if self._resting.get(name, 0.0) <= now]
        soonest = min(names, key=lambda name: self._resting.get(name, 0.0))
        return ChosenKey(name=usable[0] if usable else soonest, has_others=len(usable) > 1)

    def _run(self, script: Script, arguments: Sequence[Any]) -> Any:
        """Run the script and return its answer; ``None`` while Redis is away."""
        return self._state.run(script, [_STATE_KEY, f"{_STATE_KEY}:held", f"{_STATE_KEY}:leases"], arguments)


_PRELUDE = (
    f"local REST_MAX = {_KEPT_S}"
    + READ_FIELDS
    + """local function rest_until(name)
  local value = field('until:' .. name)
  return value > now + REST_MAX and 0 or value
end
local function give_back(ticket)
  local name = redis.call('HGET', KEYS[2], ticket)
  if name then
    redis.call('HDEL', KEYS[2], ticket)
    redis.call('ZREM', KEYS[3], ticket)
    redis.call('HINCRBY', KEYS[1], 'leased:' .. name, -1)
  end
end
"""
)

_CHOOSE = (
    _PRELUDE
    + """
local ticket, strategy, chance = ARGV[1], ARGV[2], tonumber(ARGV[3])
local lease, kept = tonumber(ARGV[4]), tonumber(ARGV[5])
for _, late in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 100)) do give_back(late) end
for _, not_ours in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], now + lease + 1, '+inf', 'LIMIT', 0, 100)) do
  give_back(not_ours)
  redis.call('ZREM', KEYS[3], not_ours)
end

local usable, soonest = {}, nil
for index = 6, #ARGV do
  local until_time = rest_until(ARGV[index])
  if until_time <= now then usable[#usable + 1] = ARGV[index] end
  if not soonest or until_time < soonest[2] then soonest = {ARGV[index], until_time} end
end
if #usable == 0 then return {soonest[1], 0} end

local held = redis.call('HGET', KEYS[2], ticket)
local chosen = nil
for _, name in ipairs(usable) do if name == held then chosen = name end end
if not chosen then
  local function least(counter)
    local best = usable[1]
    for _, name in ipairs(usable) do if field(counter .. name) < field(counter .. best) then best = name end end
    return best
  end
  if strategy == 'round_robin' then
    chosen = usable[(redis.call('HINCRBY', KEYS[1], 'turn:' .. ARGV[6], 1) - 1) % #usable + 1]
  elseif strategy == 'random' then chosen = usable[math.floor(chance * #usable) + 1]
  elseif strategy == 'least_used' then chosen = least('used:')
  elseif strategy == 'least_leased' then chosen = least('leased:')
  else chosen = usable[1] end
  give_back(ticket)
  redis.call('HSET', KEYS[2], ticket, chosen)
  redis.call('HINCRBY', KEYS[1], 'leased:' .. chosen, 1)
  redis.call('HINCRBY', KEYS[1], 'used:' .. chosen, 1)
end
redis.call('ZADD', KEYS[3], string.format('%.3f', now + lease), ticket)
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, kept) end
return {chosen, #usable - 1}
"""
)

_REST = (
    _PRELUDE
    + """
local until_time = now + tonumber(ARGV[2])
if until_time > rest_until(ARGV[1]) then
  -- As fine as the clock: rounded to milliseconds, a rest of no time would last for half of one.
  redis.call('HSET', KEYS[1], 'until:' .. ARGV[1], string.format('%.6f', until_time))
end
redis.call('EXPIRE', KEYS[1], tonumber(ARGV[3]))
return 1
"""
)

_RELEASE = (
    _PRELUDE
    + """
give_back(ARGV[1])
return 1
"""
)
