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


def kind_of_media_type(media_type: str) -> MediaKind:
    """By a type such as ``image/png``; a document where it says nothing."""
    kinds = {"image": MediaKind.IMAGE, "audio": MediaKind.AUDIO, "video": MediaKind.VIDEO}
    return kinds.get(media_type.strip().partition("/")[0].lower(), MediaKind.DOCUMENT)
