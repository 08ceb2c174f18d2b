"""Asking a platform whose the credentials of an account are."""

from __future__ import annotations

import time

from hermes_worker.channels.errors import DeliveryError
from hermes_worker.channels.receivers import ConfiguredAccount
from hermes_worker.gateway.sockets import asked

_ASKS_S = 10.0


def identified(account: ConfiguredAccount) -> str | DeliveryError | None:
    """What the platform calls the account; ``None`` where it cannot be asked. Raises ``ConfigurationError``."""
    exchange = account.receiver.identify(account.receiver.credentials(account.values))
    return None if exchange is None else asked(exchange, account.account, time.monotonic() + _ASKS_S)
