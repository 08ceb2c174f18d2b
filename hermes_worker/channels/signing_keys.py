"""Public keys of platforms that sign tokens: fetched when a request needs them, and kept for an hour."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_worker.channels.errors import DeliveryError
from hermes_worker.channels.exchange import perform
from hermes_worker.channels.inbound.receiving import KeysExchange
from hermes_worker.channels.receivers import Receiver
from hermes_worker.core.errors import UnavailableError
from hermes_worker.net.urls import UrlPolicy
from hermes_worker.net.wire import send

KEPT_S = 3_600.0
AGAIN_S = 30.0
"""Seconds until keys are fetched again where there were none: so few requests can strangers cause."""
ASKING_S = 10.0
_BYTES_MAX = 1_000_000

PublicKeys = Mapping[str, Mapping[str, object]]


@dataclass(slots=True)
class _PlatformKeys:
    lock: threading.Lock = field(default_factory=threading.Lock)
    keys: PublicKeys = field(default_factory=dict)
    fails: str = ""
    until: float = 0.0


class SigningKeys:
    """The keys of all platforms, in one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, _PlatformKeys] = {}

    def get_keys(self, receiver: Receiver, credentials: Any) -> PublicKeys:
        """Get the keys of a platform, fetching them if needed; empty for a platform that signs no tokens. Blocks
        meanwhile. Raises ``UnavailableError`` when they cannot be fetched."""
        exchange = receiver.fetch_signing_keys(credentials)
        if exchange is None:
            return {}
        with self._lock:
            kept = self._kept.setdefault(receiver.platform, _PlatformKeys())
        with kept.lock:
            if time.monotonic() >= kept.until:
                self._renew(kept, exchange)
            if not kept.keys:
                raise UnavailableError(f"the keys of {receiver.platform} cannot be had: {kept.fails}")
            return kept.keys

    @staticmethod
    def _renew(kept: _PlatformKeys, exchange: KeysExchange) -> None:
        """Fetch the keys again. While that fails, the old ones stay valid."""
        found = _fetch_keys(exchange)
        if isinstance(found, DeliveryError):
            kept.fails, kept.until = found.message, time.monotonic() + AGAIN_S
        else:
            kept.keys, kept.until = found, time.monotonic() + KEPT_S


def _fetch_keys(exchange: KeysExchange) -> PublicKeys | DeliveryError:
    # The operator or the vendor names the address; no redirect is followed.
    policy = UrlPolicy(allows_private=True)
    return perform(exchange, lambda request: send(request, policy, total_s=ASKING_S, body_bytes_max=_BYTES_MAX))
