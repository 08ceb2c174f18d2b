"""Provider keys that tenants bring, as a process reads them from rows. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class DecryptedKey:
    """A tenant's provider key, decrypted for use."""

    key_id: str
    tenant: str
    provider: str
    key: str | None = field(repr=False)
    """The secret; ``None`` for a row that was tampered with, whose key cannot be used."""


class KeysVersion(NamedTuple):
    """Changes whenever a key is added or removed."""

    keys: int
    newest: float
    pks: int
