"""Ids of people and chats that a model sees only as hashes. Pure.

A hash is the beginning of a SHA-256 without salt, as in the original, so that a person has the same one in every
session. An id that can be guessed (a telephone number has few digits) can be found again: this keeps ids out of
providers' logs, and is no secret. Ids are hashed in prompts only. Routing, rows and names of sessions keep the real
ones; names of people are not hashed.
"""

from __future__ import annotations

import hashlib
from typing import Final

HASHING_PLATFORMS: Final = frozenset(
    {"whatsapp", "signal", "telegram", "bluebubbles", "ntfy", "sms", "email", "photon", "simplex"}
)
"""Platforms on which no message needs a real id. On others (Discord, Slack) a mention does, so ids are shown."""
_DIGITS = 12


def hides_ids(platform: str, *, is_wanted: bool) -> bool:
    """Whether prompts get hashes. ``is_wanted`` is the setting ``privacy.redact_pii``."""
    return is_wanted and platform in HASHING_PLATFORMS


def hash_user_id(identifier: str) -> str:
    """Hash a person's id for a prompt."""
    return f"user_{_compute_digest(identifier)}"


def hash_chat_id(identifier: str) -> str:
    """Hash a chat's id for a prompt; a prefix such as ``telegram:`` stays."""
    prefix, colon, rest = identifier.partition(":")
    return f"{prefix}:{_compute_digest(rest)}" if prefix and colon else _compute_digest(identifier)


def _compute_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
