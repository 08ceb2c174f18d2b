"""Messages that only say that nothing is said; they are not delivered."""

from __future__ import annotations

import re

_CHARS_MAX = 64
_DECORATION = "*_~`()[]\"' \t\r\n"
_NARRATION = re.compile(
    r"(?:silent|silence|no response|no reply)|\N{SPEAKER WITH CANCELLATION STROKE}+|[.\u2026\s]+", re.I
)


def is_silence_narration(text: str) -> bool:
    """Whether the whole message is a stage direction such as ``*(silent)*``, a muted speaker or dots."""
    if len(text) > _CHARS_MAX:
        return False
    bare = text.strip(_DECORATION).rstrip("!").removesuffix("\ufe0f").strip(_DECORATION)
    without_stop = bare.rstrip(".") or bare
    return bare != "" and _NARRATION.fullmatch(" ".join(without_stop.split())) is not None
