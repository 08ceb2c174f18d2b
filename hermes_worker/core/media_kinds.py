"""How a platform shows a file, going out and coming in."""

from __future__ import annotations

from enum import StrEnum


class MediaKind(StrEnum):
    """How a platform shows a file."""

    VOICE = "voice"
    """Audio that was recorded as a voice message (ogg, opus)."""
    AUDIO = "audio"
    VIDEO = "video"
    IMAGE = "image"
    DOCUMENT = "document"
