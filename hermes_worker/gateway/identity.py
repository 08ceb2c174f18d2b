"""Ask a platform to whom an account's credentials belong."""

from __future__ import annotations

from hermes_worker.channels.errors import DeliveryError
from hermes_worker.channels.exchange import perform
from hermes_worker.channels.receivers import ConfiguredAccount
from hermes_worker.net.urls import UrlPolicy
from hermes_worker.net.wire import send

_ASKS_S = 10.0


def identify_account(account: ConfiguredAccount) -> str | DeliveryError | None:
    """Ask the platform for its name of the account; ``None`` where it cannot be asked. Raises
    ``ConfigurationError``."""
    exchange = account.receiver.identify(account.receiver.build_credentials(account.values))
    if exchange is None:
        return None
    # The operator configures the address of a platform. The question needs no lease.
    policy = UrlPolicy(allows_private=True)
    return perform(exchange, lambda request: send(request, policy, total_s=_ASKS_S))
