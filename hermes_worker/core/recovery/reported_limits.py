"""Token limits that providers mention in their error messages.

Messages are written by servers and may be anything, so they are cut and their white space is collapsed before a
regular expression sees them.
"""

from __future__ import annotations

import math
import re

_LIMIT_TEXT_MAX = 4_000
"""Characters of a message that are searched for numbers; error pages of gateways can be very long."""

_CONTEXT_LIMIT_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        # Ours, from here to the mark. Each was seen at the source that is named, as quoted in ``test_reported_limits``.
        # vLLM 0.16 (harbor-framework/harbor#996, March 2026) and LM Studio 0.3 (lmstudio-bug-tracker#546, March 2025).
        r"context length (?:is|of) only (\d{4,})",
        # vLLM 0.8 (xorbitsai/inference#3785, July 2025; EleutherAI/lm-evaluation-harness#2880, April 2025).
        r"maximum model length of (\d{4,})",
        # LM Studio 0.4 (anomalyco/opencode#11141, January 2026).
        r"n_keep \(\d+\) >= n_ctx \((\d{4,})\)",
        # llama-server from October 2025 on (ggml-org/llama.cpp#16486), and SGLang.
        r"context (?:size|length) \((\d{4,}) tokens\)",
        # llama-cpp-python (ComfyUI_VLM_nodes#81, June 2024).
        r"exceeds n_ctx: \d+ > (\d{4,})",
        # Gemini (google-gemini/gemini-cli#6678, August 2025; #27197, May 2026) and Vertex ("only supports up to N").
        r"number of tokens allowed \(?(\d{4,})",
        r"only supports up to (\d{4,})",
        # xAI (cline/cline#3120, April 2025).
        r"maximum prompt length is (\d{4,})",
        # Text Generation Inference, ``router/src/validation.rs`` (read in November 2026).
        r"`max_new_tokens` must be <= (\d{4,})",
        r"`inputs` must have less than (\d{4,}) tokens",
        # DashScope (QwenLM/qwen-code#98, July 2025; QwenLM/qwen-code#2068, March 2026).
        r"range of input length should be \[\d+, (\d{4,})\]",
        # Cerebras (cline/cline#5140, July 2025; anomalyco/opencode#1551, August 2025).
        r"current length is \d+ while limit is (\d{4,})",
        # The end of ours.
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
        r"can only afford (\d+)",
        r"=\s*(\d+)\s*$",
    )
)
_WINDOW = re.compile(r"(?:maximum context length is|context length is only) (\d+)|`max_new_tokens` must be <= (\d+)")
_INPUT_PARTS = re.compile(r"\((\d+)\s+of text input,\s*(\d+)\s+of tool input,\s*\d+\s+in the output\)")
_INPUT_CHARACTERS = re.compile(r"prompt contains (\d+)\s*character")
_INPUT_TOKENS = re.compile(
    r"prompt contains (?:at least )?(\d+)\s*input tokens|you passed (\d+) input tokens|given: (\d+) `inputs` tokens"
)
ROOM_MIN = 256
"""An answer needs so many tokens; where less is left beside the input, only a shorter input helps."""
_CHARS_PER_TOKEN_LOW = 3
"""Few characters to a token reserve too much for the input rather than too little."""


def _normalize(message: str) -> str:
    r"""Shorten a message and collapse its white space. Without this, the nested ``\s*`` of the patterns take minutes on
    a page of blanks."""
    return " ".join(message[:_LIMIT_TEXT_MAX].lower().split())


def require_plausible_window(value: object) -> int | None:
    """``value`` if it can be a context window in tokens; servers state nonsense, such as 0 for "not known"."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if value in _CONTEXT_LIMITS else None


def parse_context_limit(message: str) -> int | None:
    """The context window, in tokens, that an error message reports; ``None`` when it reports none that is plausible."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", _normalize(message))
    for pattern in _CONTEXT_LIMIT_PATTERNS:
        match = pattern.search(text)
        if match and (limit := _parse_int(match[1])) in _CONTEXT_LIMITS:
            return limit
    return None


def parse_available_output_tokens(message: str) -> int | None:
    """Parse how many output tokens would have fitted, when the message says that too many were requested and gives
    enough numbers to tell. ``None`` also when the input alone fills the window: then only a shorter input helps."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", _normalize(message))
    if not _reports_output_cap(text):
        return None
    for pattern in _STATED_OUTPUT_CAP:
        match = pattern.search(text)
        if match and (cap := _parse_int(match[1])) >= 1:
            return cap
    room = _compute_room(text)
    return room if room is not None and room >= ROOM_MIN else None


def is_output_cap_error(message: str) -> bool:
    """Whether the message says that the *output* cap is too large, and nothing about the input being too long.

    Broader than ``parse_available_output_tokens``: it also knows wordings that give no number. Such a refusal repeats
    for as long as the same cap is sent, and no compression of the input changes that.
    """
    text = _normalize(message)
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
        or ("context length is only" in text and "requested" in text and "output tokens" in text)
        or "`inputs` tokens + `max_new_tokens` must be" in text
        or "range of max_tokens should be" in text
        or (names_parameter and "maximum allowed number of output tokens" in text)
        or (names_parameter and "supports at most" in text)
        or "can only afford" in text  # OpenRouter, error 402: the rest of the credit pays for N tokens
    )


def _compute_room(text: str) -> int | None:
    """The window minus the input, from messages that give both in some unit."""
    window = _WINDOW.search(text)
    if window is None:
        return None
    tokens = _read_number(window)
    if parts := _INPUT_PARTS.search(text):
        return tokens - _parse_int(parts[1]) - _parse_int(parts[2])
    if characters := _INPUT_CHARACTERS.search(text):
        return tokens - math.ceil(_parse_int(characters[1]) / _CHARS_PER_TOKEN_LOW)
    if said := _INPUT_TOKENS.search(text):
        return tokens - _read_number(said)
    return None


def _read_number(match: re.Match[str]) -> int:
    """The number in the one group of the match that is not empty."""
    return next(_parse_int(digits) for digits in match.groups() if digits)


def _parse_int(digits: str) -> int:
    """A number from a message; absurdly long ones are cut, they only have to stay absurd."""
    return int(digits[:18])


def _contains(text: str, patterns: tuple[str, ...]) -> bool:
    return any(pattern in text for pattern in patterns)
