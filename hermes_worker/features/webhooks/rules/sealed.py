"""The secret of a route in its row: encrypted, except for the word that says there is none."""

from __future__ import annotations

from hermes_worker.features.webhooks.rules.route import NO_AUTH
from hermes_worker.settings.sealing import Keyring


def seal_secret(keyring: Keyring, route: str, secret: str) -> str:
    """Encrypt a secret for its row. Raises ``ConfigurationError`` when there is no server key."""
    return secret if secret == NO_AUTH else keyring.seal(secret, of=_name_place(route))


def open_secret(keyring: Keyring, route: str, stored: str) -> str:
    """Decrypt a secret from its row. Raises ``SealedElsewhere``."""
    return keyring.open_sealed(stored, of=_name_place(route))


def reseal_secret(keyring: Keyring, route: str, stored: str) -> str | None:
    """Encrypt again a secret that an earlier version stored in the clear, or that was sealed with an earlier key;
    ``None`` when it is up to date. Raises ``SealedElsewhere``."""
    return None if stored == NO_AUTH else keyring.reseal(stored, of=_name_place(route))


def _name_place(route: str) -> str:
    return f"the webhook route {route!r}"
