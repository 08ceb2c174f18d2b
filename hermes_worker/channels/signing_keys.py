"""The public keys of platforms that sign tokens, asked for when a request needs them and kept for an hour."""

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
"""After this time it is asked again, where there were none: strangers cause no more requests than that."""
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
    """Of all platforms, in one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, _PlatformKeys] = {}

    def of(self, receiver: Receiver, credentials: Any) -> PublicKeys:
        """The keys of a platform; none for one that has none. Blocks while they are asked for. Raises
        ``UnavailableError`` when they cannot be had."""
        exchange = receiver.signing_keys(credentials)
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
        """What there was stays good while there is nothing newer."""
        found = _asked(exchange)
        if isinstance(found, DeliveryError):
            kept.fails, kept.until = found.message, time.monotonic() + AGAIN_S
        else:
            kept.keys, kept.until = found, time.monotonic() + KEPT_S


def _asked(exchange: KeysExchange) -> PublicKeys | DeliveryError:
    # The address is the operator's own setting, or the vendor's; no redirect is followed.
    policy = UrlPolicy(allows_private=True)
    return perform(exchange, lambda request: send(request, policy, total_s=ASKING_S, body_bytes_max=_BYTES_MAX))
