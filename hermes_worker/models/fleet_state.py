"""State that all processes share in Redis, and that scripts decide on.

Anybody who reaches the broker can write anything there. A state that a script cannot work with is thrown away, once,
and the script asked again. A Redis that does not answer, or that refuses us or our scripts, counts as away: that is
logged, and for ``AWAY_S`` no thread of this process asks it. What is done without it is up to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import redis

from hermes_worker.broker.queue import is_refusal, log_broker_failure
from hermes_worker.observe import broker_outage, log

AWAY_S = 5.0
"""How many seconds a process does without Redis after it did not answer."""

Script = Callable[..., Any]
READ_FIELDS = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
-- Whoever reaches the broker can write anything here. What cannot be is as good as nothing.
local function field(name)
  local value = tonumber(redis.call('HGET', KEYS[1], name) or '0')
  if not value or value ~= value or value < 0 or value > 1e12 then return 0 end
  return value
end
"""
"""Lua of scripts: ``now`` in seconds, and ``field``, a number of the hash ``KEYS[1]``."""


class FleetState:
    """The state of keys and permits in Redis. Thread-safe; never raises for a Redis that is away."""

    def __init__(self, client: redis.Redis, doing: str) -> None:
        """``doing`` is the phrase by which the log says what could not be done."""
        self._client = client
        self._doing = doing
        self._away_until = 0.0

    def make_script(self, text: str) -> Script:
        """A script for ``run``."""
        return self._client.register_script(text)

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run the script and return its answer; ``None`` while Redis is away."""
        if time.monotonic() < self._away_until:
            return None
        try:
            answer = self._run_or_reset(script, keys, arguments)
        except (redis.RedisError, OSError) as error:
            self._away_until = time.monotonic() + AWAY_S
            log_broker_failure(self._doing, error)
            return None
        broker_outage.note_success()
        return answer

    def _run_or_reset(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        try:
            return script(keys=keys, args=arguments)
        except redis.ResponseError as error:
            if is_refusal(error) or isinstance(error, redis.exceptions.OutOfMemoryError):
                raise
            self._client.delete(*keys)
            log.warning("broker.state_forgotten", key=keys[0], error=str(error)[:200])
        return script(keys=keys, args=arguments)
