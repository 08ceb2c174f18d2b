"""The signature of Meta's and GitHub's requests: the hex HMAC-SHA256 of the body."""

from __future__ import annotations

from hermes_worker.channels.inbound.proofs import check_same, compute_hex_hmac, encode_secret
from hermes_worker.channels.inbound.receiving import WebhookRequest


def check_hub_signature(request: WebhookRequest, secret: str, variable: str) -> None:
    """Raise ``Forged`` for a request whose signature does not fit."""
    given = request.require_header("x-hub-signature-256")
    check_same(given, f"sha256={compute_hex_hmac(encode_secret(secret, variable), request.body)}")
