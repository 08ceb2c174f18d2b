"""Hides credentials in text: see ``masking`` for how, ``redactor`` for what tools return."""

from __future__ import annotations

from hermes_worker.safety.redaction.masking import (
    KNOWN_CHARS_MIN,
    holds_marker,
    is_secret_name,
    mark_secret,
    mask_known,
    mask_secret,
    redact,
    redact_code,
)
from hermes_worker.safety.redaction.redactor import Redactor, prints_configuration

__all__ = [
    "KNOWN_CHARS_MIN",
    "Redactor",
    "holds_marker",
    "is_secret_name",
    "mark_secret",
    "mask_known",
    "mask_secret",
    "prints_configuration",
    "redact",
    "redact_code",
]
