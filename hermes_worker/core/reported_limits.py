"""Token limits that providers mention in their error messages (reference, loop §9.7).

Messages are written by servers and may be anything, so they are cut and their white space is collapsed before a
regular expression sees them.
"""

from __future__ import annotations

import math
import re

_LIMIT_TEXT_MAX = 4_000
"""How much of a message is searched for numbers; error pages of gateways can be very long."""

_CONTEXT_LIMIT_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        r"max_model_len\s*(?:is\s*)?[:=(]?\s*(\d{4,})",
        r"maximum model length\s*(?:is\s*)?[:=(]?\s*(\d{4,})",
        r"(?:max(?:imum)?|limit)\s*(?:context\s*)?(?:length|size|window)?\s*(?:is|of|:)?\s*(\d{4,})",
        r"context\s*(?:length|size|window)\s*(?:is|of|:)?\s*(\d{4,})",
        r"(\d{4,})\s*(?:token)?\s*(?:context|limit)",
        r">\s*(\d{4,})\s*(?:max|limit|token)",
        r"(\d{4,})\s*(?:max(?:imum)?)\b",
        # Ours: "prompt is too long: 210000 > 200000" ends with the number.
        r"prompt is too long:\s*\d+\s*(?:tokens)?\s*>\s*(\d{4,})",
    )
)
_CONTEXT_LIMITS = range(1_024, 10_000_001)

_OUTPUT_PARAMETER = ("max_tokens", "max_output_tokens", "max_completion_tokens")
_OUTPUT_CAP = (
    "range of max_tokens should be",
    "available_tokens",
    "available tokens",
    "should be",
    "less than or equal",
    "must be",
    "maximum allowed number of output tokens",
)
_INPUT_TOO_LONG = (
    "prompt is too long",
    "prompt too long",
    "input is too long",
    "input token",
    "prompt length",
    "prompt contains",
    "reduce the length",
)
_STATED_OUTPUT_CAP = tuple(
    re.compile(pattern)
    for pattern in (
        r"range of max_tokens should be\s*\[\s*\d+\s*,\s*(\d+)\s*\]",
        # Ours: Anthropic and OpenAI when the cap exceeds what the model can write at all.
        r">\s*(\d+),? which is the maximum allowed number of output tokens",
        r"supports at most (\d+) (?:completion|output) tokens",
        r"available_tokens[:\s]+(\d+)",
        r"available\s+tokens[:\s]+(\d+)",
        r"=\s*(\d+)\s*$",
    )
)
_WINDOW = re.compile(r"maximum context length is (\d+)")
_INPUT_PARTS = re.compile(r"\((\d+)\s+of text input,\s*(\d+)\s+of tool input,\s*\d+\s+in the output\)")
_INPUT_CHARACTERS = re.compile(r"prompt contains (\d+)\s*character")
_INPUT_TOKENS = re.compile(r"prompt contains (?:at least )?(\d+)\s*input tokens")
_CHARS_PER_TOKEN_LOW = 3
"""Few characters to a token reserve too much for the input rather than too little."""


def _readable(message: str) -> str:
    """Without this, the nested ``\\s*`` of the patterns take minutes on a page of blanks."""
    return " ".join(message[:_LIMIT_TEXT_MAX].lower().split())


def parse_context_limit(message: str) -> int | None:
    """The context window, in tokens, that an error message reports; ``None`` when it reports none that is plausible."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", _readable(message))
    for pattern in _CONTEXT_LIMIT_PATTERNS:
        match = pattern.search(text)
        if match and (limit := _int(match[1])) in _CONTEXT_LIMITS:
            return limit
    return None


def parse_available_output_tokens(message: str) -> int | None:
    """How many output tokens would have fitted, when the message says that too many were asked for and gives enough
    numbers to tell. ``None`` also when the input alone fills the window: then only a shorter input helps."""
    text = _readable(message)
    if not _reports_output_cap(text):
        return None
    for pattern in _STATED_OUTPUT_CAP:
        match = pattern.search(text)
        if match and (cap := _int(match[1])) >= 1:
            return cap
    room = _room_beside_input(text)
    return room if room is not None and room >= 1 else None


def is_output_cap_error(message: str) -> bool:
    """Whether the message says that the *output* cap is too large, and nothing about the input being too long.

    Broader than ``parse_available_output_tokens``: it also knows wordings that give no number. Such a refusal repeats
    for as long as the same cap is sent, and no compression of the input changes that.
    """
    text = _readable(message)
    asks_too_much = (
        _contains(text, _OUTPUT_CAP)
        or ("in the output" in text and "maximum context length" in text)
        or ("requested" in text and "output tokens" in text)
    )
    return _contains(text, _OUTPUT_PARAMETER) and asks_too_much and not _contains(text, _INPUT_TOO_LONG)


def _reports_output_cap(text: str) -> bool:
    names_parameter = _contains(text, _OUTPUT_PARAMETER)
    speaks_of_window = "maximum context length" in text
    return (
        ("max_tokens" in text and _contains(text, ("available_tokens", "available tokens")))
        or ("in the output" in text and speaks_of_window)
        or (speaks_of_window and "requested" in text and "output tokens" in text)
        or "range of max_tokens should be" in text
        or (names_parameter and "maximum allowed number of output tokens" in text)
        or (names_parameter and "supports at most" in text)
    )


def _room_beside_input(text: str) -> int | None:
    """The window less the input, from messages that give both in some unit."""
    window = _WINDOW.search(text)
    if window is None:
        return None
    if parts := _INPUT_PARTS.search(text):
        return _int(window[1]) - _int(parts[1]) - _int(parts[2])
    if characters := _INPUT_CHARACTERS.search(text):
        return _int(window[1]) - math.ceil(_int(characters[1]) / _CHARS_PER_TOKEN_LOW)
    if tokens := _INPUT_TOKENS.search(text):
        return _int(window[1]) - _int(tokens[1])
    return None


def _int(digits: str) -> int:
    """A number from a message; absurdly long ones are cut, they only have to stay absurd."""
    return int(digits[:18])


def _contains(text: str, patterns: tuple[str, ...]) -> bool:
    return any(pattern in text for pattern in patterns)
