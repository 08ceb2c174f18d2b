"""Ids of tool calls in the forms that their readers take. Pure, and the same on every worker (invariant I7).

A transcript keeps an id as the model gave it; a wire maps it when it is sent, the call and its result alike. An id that
fits is never changed.
"""

from __future__ import annotations

import hashlib
import re
import string

_DIGITS = string.digits + string.ascii_letters
_SHORT = re.compile(r"[a-zA-Z0-9]{9}")
"""What Mistral's API and the templates of its models take: "alphanumeric strings with length 9"."""


def short_id(text: str) -> str:
    """Nine letters or digits that stand for ``text``: it is an id for every reader."""
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8])
    digits = []
    for _ in range(9):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)


def mistral_id(call_id: str) -> str:
    """``call_id`` for a reader that takes nine letters or digits only."""
    return call_id if _SHORT.fullmatch(call_id) else short_id(call_id)


def id_within(call_id: str, chars_max: int) -> str:
    """``call_id`` for a reader that takes at most so many characters, of which there must be more than nine."""
    return call_id if len(call_id) <= chars_max else f"{call_id[: chars_max - 10]}_{short_id(call_id)}"
