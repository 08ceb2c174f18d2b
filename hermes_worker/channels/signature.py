"""Signatures of webhooks: make ours, verify those of others.

Ours is the scheme V2: the hex HMAC-SHA256 of ``<timestamp>.<body>`` under the shared secret, in
``X-Webhook-Signature-V2``, with the Unix time in ``X-Webhook-Timestamp``. The timestamp is signed, so a recorded
request stops working after five minutes. A message with an id is signed by Standard Webhooks as well
(standardwebhooks.com, specification 1.0), for which every language has a verifier.

The headers of an incoming request decide its scheme, in a fixed order, and only that scheme is verified: a request with
a bad svix signature does not pass because it also carries a good one of another scheme.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

TOLERANCE_S = 300
"""Seconds that a signed timestamp may be old, or ahead."""

SIGNATURE_HEADER = "X-Webhook-Signature-V2"
TIMESTAMP_HEADER = "X-Webhook-Timestamp"


class Scheme(StrEnum):
    """How an incoming request is signed."""

    SVIX = "svix"
    """Standard Webhooks, under its own names or under those of svix."""
    GITHUB = "github"
    GITLAB = "gitlab"
    V2 = "v2"
    LEGACY = "legacy"
    """Hex HMAC of the body without a timestamp: replayable. Accepted with a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Whether a request is signed with the secret. ``reason`` is for the log, not for the sender."""

    is_valid: bool
    scheme: Scheme | None
    reason: str
    proof: str | None = None
    """What only the holder of the secret could have made for this very request, in whichever header it came; ``None``
    where nothing of the request is signed."""


def sign(body: bytes, secret: str, at: datetime, *, message_id: str = "") -> dict[str, str]:
    """Make the headers that sign ``body``. A message with an id is signed by Standard Webhooks too. Raises
    ``ValueError`` for an empty secret, which would prove nothing."""
    if not secret:
        raise ValueError("a webhook cannot be signed with an empty secret")
    timestamp = str(int(at.timestamp()))
    headers = {
        TIMESTAMP_HEADER: timestamp,
        SIGNATURE_HEADER: _compute_hex_hmac(secret, timestamp.encode() + b"." + body),
    }
    keys = _list_keys(secret)
    if not message_id or not keys:
        return headers
    given = " ".join(f"v1,{_sign_message(key, message_id, timestamp, body)}" for key in keys)
    return {**headers, "webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": given}


def sign_button(secret: str, chat: str, thread: str, value: str) -> str:
    """Sign what a button says and the chat and thread that it stands in, for platforms that prove nothing about a
    press. Raises ``ValueError`` for an empty secret."""
    if not secret:
        raise ValueError("a button cannot be signed with an empty secret")
    return _compute_hex_hmac(secret, "\n".join(("hermes-worker press", chat, thread, value)).encode("utf-8", "replace"))


def verify(headers: Mapping[str, str], body: bytes, secret: str, now: datetime) -> Verification:
    """Verify the one scheme that the headers announce. Header names are compared without case; ``body`` is the body as
    received. Takes the same time for a wrong signature wherever it differs."""
    if not secret:
        return Verification(is_valid=False, scheme=None, reason="no secret is configured")
    lowered = {name.lower(): value.strip() for name, value in headers.items()}
    if any(name in lowered for name in ("svix-id", "svix-timestamp", "svix-signature")):
        return _verify_message(lowered, "svix", body, secret, now)
    if "webhook-signature" in lowered:  # its id alone is sent by others, too
        return _verify_message(lowered, "webhook", body, secret, now)
    if "x-hub-signature-256" in lowered:
        expected = _compute_hex_hmac(secret, body)
        is_valid = _is_same(lowered["x-hub-signature-256"], f"sha256={expected}")
        return _build_verdict(Scheme.GITHUB, is_valid, expected)
    if "x-gitlab-token" in lowered:
        return _build_verdict(Scheme.GITLAB, _is_same(lowered["x-gitlab-token"], secret))
    if SIGNATURE_HEADER.lower() in lowered:
        return _verify_v2(lowered, body, secret, now)
    if "x-webhook-signature" in lowered:
        expected = _compute_hex_hmac(secret, body)
        return _build_verdict(Scheme.LEGACY, _is_same(lowered["x-webhook-signature"], expected), expected)
    return Verification(is_valid=False, scheme=None, reason="the request is not signed")


def _verify_v2(headers: Mapping[str, str], body: bytes, secret: str, now: datetime) -> Verification:
    timestamp = headers.get(TIMESTAMP_HEADER.lower(), "")
    if not _is_fresh(timestamp, now):
        return Verification(is_valid=False, scheme=Scheme.V2, reason=_STALE)
    expected = _compute_hex_hmac(secret, timestamp.encode() + b"." + body)
    return _build_verdict(Scheme.V2, _is_same(headers[SIGNATURE_HEADER.lower()], expected), expected)


def _verify_message(headers: Mapping[str, str], names: str, body: bytes, secret: str, now: datetime) -> Verification:
    """Verify a message of Standard Webhooks whose headers begin with ``names``. The header holds several
    ``v1,<signature>`` while a secret is being rotated."""
    identifier, timestamp = headers.get(f"{names}-id", ""), headers.get(f"{names}-timestamp", "")
    if not identifier or not _is_fresh(timestamp, now):
        return Verification(is_valid=False, scheme=Scheme.SVIX, reason=_STALE)
    keys = _list_keys(secret)
    if not keys:
        reason = "the secret begins with 'whsec_' but is not base64"
        return Verification(is_valid=False, scheme=Scheme.SVIX, reason=reason)
    given = [part.partition(",") for part in headers.get(f"{names}-signature", "").split()]
    signatures = [signature for version, _, signature in given if version == "v1"]
    expected = [_sign_message(key, identifier, timestamp, body) for key in keys]
    matches = [_is_same(signature, one) for signature in signatures for one in expected]
    return _build_verdict(Scheme.SVIX, any(matches), expected[0])


def _sign_message(key: bytes, identifier: str, timestamp: str, body: bytes) -> str:
    signed = b".".join((identifier.encode("utf-8", "replace"), timestamp.encode(), body))
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _list_keys(secret: str) -> list[bytes]:
    """List the keys that a secret may stand for: it is base64 behind ``whsec_``; without that it is the text itself,
    and base64 for the official verifiers, where it is long enough to be meant."""
    encoded = secret.removeprefix("whsec_")
    plain = [secret.encode()] if encoded == secret else []
    try:
        decoded = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        return plain
    return [*plain, decoded] if decoded and (not plain or len(decoded) >= _KEY_BYTES_MIN) else plain


_KEY_BYTES_MIN = 24
"""Standard Webhooks wants keys of 24 to 64 bytes."""
_STALE = "the timestamp is missing or more than five minutes off"


def _is_fresh(timestamp: str, now: datetime) -> bool:
    if not (timestamp.isascii() and timestamp.isdigit()) or len(timestamp) > 12:
        return False
    return abs(now.timestamp() - int(timestamp)) <= TOLERANCE_S


def _build_verdict(scheme: Scheme, is_valid: bool, proof: str | None = None) -> Verification:
    reason = "the signature is right" if is_valid else "the signature is wrong"
    return Verification(is_valid=is_valid, scheme=scheme, reason=reason, proof=proof if is_valid else None)


def _compute_hex_hmac(secret: str, message: bytes) -> str:
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def _is_same(given: str, expected: str) -> bool:
    # As bytes: the text form of compare_digest raises for what is not ASCII, and headers come from outside.
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
