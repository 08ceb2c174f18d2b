"""The settings of what carries the hints that wake workers."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.settings.declaring import declare_setting
from hermes_worker.settings.kinds import BROKER_URL, convert_socket_url


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What carries the hints that wake workers."""

    url: str | None = declare_setting(
        "broker.url",
        "HERMES_BROKER_URL",
        BROKER_URL,
        is_shown=False,
        audience="operator",
        reason="more than one machine runs processes; hints do not reach the others without it.",
    )
    """Redis or Valkey server, 6.2 or later: `redis://`, `rediss://`, `unix://`, `redis+socket://`, or
    `redis+sentinel://user:password@sentinel:26379,sentinel2:26379/mymaster/0`. Not set: `hermes-worker up` starts one
    of its own, on a Unix socket."""

    @property
    def client_url(self) -> str | None:
        """``url`` as redis-py writes it: sockets are ``unix://...?db=n``."""
        return convert_socket_url(self.url, "unix", "db") if self.url else None
