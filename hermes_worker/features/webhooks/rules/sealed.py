"""The secret of a route as it stands in its row: encrypted, but for the word that says there is none."""

from __future__ import annotations

from hermes_worker.features.webhooks.rules.route import NO_AUTH
from hermes_worker.settings.sealing import Keyring


def sealed_secret(keyring: Keyring, route: str, secret: str) -> str:
    """Raises ``ConfigurationError`` when there is no server key."""
    return secret if secret == NO_AUTH else keyring.seal(secret, of=_place(route))


def opened_secret(keyring: Keyring, route: str, stored: str) -> str:
    """Raises ``SealedElsewhere``."""
    return keyring.opened(stored, of=_place(route))


def resealed_secret(keyring: Keyring, route: str, stored: str) -> str | None:
    """What is to stand in the row instead: of one that an earlier version stored in the clear, or that was sealed with
    an earlier key. ``None`` when it is as it should be. Raises ``SealedElsewhere``."""
    return None if stored == NO_AUTH else keyring.resealed(stored, of=_place(route))


def _place(route: str) -> str:
    return f"the webhook route {route!r}"
