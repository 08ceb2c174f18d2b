"""Text in rows that only a holder of the server key can read: a copy of the database holds nothing that can be used.

Sealed text names the key it was sealed with, so that keys can be changed: the new one seals, earlier ones still open.
It also says what it belongs to, so that it cannot be moved to another row.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.settings.kinds import Secret

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

_MARK = "sealed:"
_PURPOSE = b"hermes-worker row"
_SIGN_PURPOSE = b"hermes-worker address"
_ID_PURPOSE = b"hermes-worker key id"
_ID_BYTES = 4


class SealedElsewhere(HermesError):
    """A text was sealed with a key that is not here."""


class Keyring:
    """Server keys: the first seals, all of them open."""

    def __init__(self, keys: Sequence[Secret]) -> None:
        self._keys = {_derive_key_id(key.reveal()): key for key in reversed(keys)}
        self._current = _derive_key_id(keys[0].reveal()) if keys else None

    def seal(self, text: str, *, of: str) -> str:
        """``of`` says what the text belongs to. Raises ``ConfigurationError`` when there is no key."""
        if self._current is None:
            raise ConfigurationError(
                "there is no server key to encrypt this with: set HERMES_SERVER_KEY (server.key) to the key of the "
                "API servers"
            )
        box = build_fernet(self._keys[self._current].reveal(), _PURPOSE)
        token = box.encrypt(dump_canonical_json({"of": of, "text": text}).encode())
        return f"{_MARK}{self._current}:{token.decode()}"

    def open_sealed(self, stored: str, *, of: str) -> str:
        """What was sealed; what was stored before there was sealing is as it is. Raises ``SealedElsewhere``."""
        if not stored.startswith(_MARK):
            return stored
        key_id, _, token = stored.removeprefix(_MARK).partition(":")
        key = self._keys.get(key_id)
        document = _decrypt_document(key.reveal(), token) if key else None
        if document is None or document.get("of") != of:
            raise SealedElsewhere(
                f"the secret of {of} was encrypted with another server key ({key_id[:16]}): set HERMES_SERVER_KEY "
                "(server.key) to that one, put it into HERMES_SERVER_PREVIOUS_KEYS, or choose a new secret"
            )
        return document["text"]

    def reseal(self, stored: str, *, of: str) -> str | None:
        """Seal a stored text with the current key. ``None`` when it is sealed with it already, or when there is no key.
        Raises ``SealedElsewhere``."""
        if self._current is None or stored.startswith(f"{_MARK}{self._current}:"):
            return None
        return self.seal(self.open_sealed(stored, of=of), of=of)

    def sign(self, text: str) -> str:
        """Proof that a holder of the current key wrote ``text``; it fits an address. Raises ``ConfigurationError`` when
        there is no key."""
        if self._current is None:
            raise ConfigurationError("there is no server key to sign this with: set HERMES_SERVER_KEY (server.key)")
        return f"{self._current}.{_compute_signature(self._keys[self._current].reveal(), text)}"

    def is_signed(self, text: str, proof: str) -> bool:
        """Whether ``proof`` is what ``sign`` gave for ``text``, under any of the keys."""
        key_id, _, given = proof.partition(".")
        key = self._keys.get(key_id)
        # Compared in the same time wherever the two differ, and also where the key is not known.
        expected = _compute_signature(key.reveal() if key else "", text)
        return hmac.compare_digest(expected.encode(), given.encode("utf-8", "surrogatepass")) and key is not None


def _compute_signature(key: str, text: str) -> str:
    return hmac.new(_derive_key(key, _SIGN_PURPOSE), text.encode(), hashlib.sha256).hexdigest()


def build_fernet(key: str, purpose: bytes) -> Fernet:
    """Encryption with a key that is made from ``key`` for one purpose."""
    # Imported when it is needed: most processes encrypt nothing.
    from cryptography.fernet import Fernet

    return Fernet(base64.urlsafe_b64encode(_derive_key(key, purpose)))


@lru_cache(maxsize=64)
def _derive_key(key: str, purpose: bytes) -> bytes:
    # HKDF with SHA-256, without a salt, of one block (RFC 5869): every API needs it for the ids of its keys, and the
    # library for it takes 8 MB.
    extracted = hmac.digest(bytes(32), key.encode(), hashlib.sha256)
    return hmac.digest(extracted, purpose + b"\x01", hashlib.sha256)


def _derive_key_id(key: str) -> str:
    return _derive_key(key, _ID_PURPOSE)[:_ID_BYTES].hex()


def _decrypt_document(key: str, token: str) -> dict[str, str] | None:
    from cryptography.fernet import InvalidToken

    try:
        document = json.loads(build_fernet(key, _PURPOSE).decrypt(token.encode("utf-8", "replace")))
    except InvalidToken:
        return None
    return document if isinstance(document, dict) else None
