"""The families of patterns in providers' error messages, as ``error_patterns.toml`` lists them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hermes_worker.core.data_files import load_data


@dataclass(frozen=True, slots=True, kw_only=True)
class _PatternFile:
    family: Mapping[str, tuple[str, ...]]


FAMILIES = load_data(_PatternFile, "hermes_worker.core.recovery", "error_patterns.toml").family
"""The patterns by the name of their family."""

NOTHING_SERVED = re.compile(
    r"^\W*(?:error|http)?\W*(?:404)?\W*"
    r"(?:(?:page|path|url|route|resource|endpoint)? ?not found|no such (?:route|path))?[\W\d]*$"
    r"|cannot (?:post|get) /|(?:unknown|invalid) (?:request )?url|no route (?:matches|found)|requested url"
)
"""Ours: a 404 of a server that knows no such address. Any other words of a 404 are a reason."""

_REASONING_MODEL = re.compile(rf"(?:{'|'.join(map(re.escape, FAMILIES['reasoning_families']))})(?:$|[-._])")


def is_reasoning_model(model: str) -> bool:
    """Whether the name, with or without a ``vendor/`` in front, belongs to a model that may think for minutes in
    silence."""
    return _REASONING_MODEL.match(model.strip().lower().rpartition("/")[2]) is not None
