"""Verify that a request is a platform's: signatures and times. Pure; each check raises ``Forged``.

A sender never learns why: the sentences are for the log. Bytes are compared as they came, in constant time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from hermes_worker.channels.inbound.receiving import Forged, UnreadableInbound
from hermes_worker.channels.signature import TOLERANCE_S
from hermes_worker.core.inbound import EVENT_KEY_CHARS_MAX

_FORM_FIELDS_MAX = 200


def check_same(given: str, expected: str) -> None:
    """Raise ``Forged`` for two different texts; takes the same time wherever they differ."""
    if not hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8", "replace")):
        raise Forged("the signature is wrong")


def encode_secret(secret: str, variable: str) -> bytes:
    """Encode a secret. An empty one would prove nothing. Raises ``Forged``."""
    if not secret:
        raise Forged(f"{variable} is not set")
    return secret.encode()


def check_fresh(seconds: str, at: datetime) -> None:
    """Raise ``Forged`` for what is no Unix time in seconds, or is more than ``TOLERANCE_S`` away from ``at``."""
    if not (seconds.isascii() and seconds.isdigit()) or len(seconds) > 12:
        raise Forged("the time is no number of seconds")
    if abs(at.timestamp() - int(seconds)) > TOLERANCE_S:
        raise Forged("the time is more than five minutes off")


def compute_hex_hmac(secret: bytes, message: bytes) -> str:
    return hmac.new(secret, message, "sha256").hexdigest()


def compute_base64_hmac(secret: bytes, message: bytes, digest: str = "sha256") -> str:
    return base64.b64encode(hmac.new(secret, message, digest).digest()).decode()


def parse_json(body: bytes) -> Mapping[str, Any]:
    """Parse a JSON object that was verified to be the platform's. Raises ``UnreadableInbound``."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise UnreadableInbound("the body is not JSON") from None
    if not isinstance(value, dict):
        raise UnreadableInbound("the body is not a JSON object")
    return value


def parse_form(body: bytes) -> list[tuple[str, str]]:
    """Parse the fields of a form, in order. Raises ``UnreadableInbound``."""
    try:
        return parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FORM_FIELDS_MAX)
    except ValueError:
        raise UnreadableInbound("the form cannot be read") from None


def make_event_key(*parts: str) -> str:
    """Make the key of an event from the ids that tell it from others; a digest where they are longer than a key may
    be."""
    key = ":".join(parts)
    if len(key) <= EVENT_KEY_CHARS_MAX:
        return key
    return f"sha256:{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()}"
