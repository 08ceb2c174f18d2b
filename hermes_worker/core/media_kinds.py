"""Kinds of files: how a platform shows them, and their media types by name and by their first bytes. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

OCTETS: Final = "application/octet-stream"
START_BYTES: Final = 8_192
"""First bytes of a file that are enough to tell its type."""
PICTURES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Media types of pictures that models accept."""
SOUNDS: Final = frozenset({"audio/ogg", "audio/mpeg", "audio/mp4", "audio/wav", "audio/flac"})
"""Media types of sounds that transcription services accept."""


class MediaKind(StrEnum):
    """The ways in which a platform shows a file."""

    VOICE = "voice"
    """Audio that was recorded as a voice message (ogg, opus)."""
    AUDIO = "audio"
    VIDEO = "video"
    IMAGE = "image"
    DOCUMENT = "document"


def find_kind(media_type: str) -> MediaKind:
    """The kind for a media type such as ``image/png``; a document for an unknown type."""
    kinds = {"image": MediaKind.IMAGE, "audio": MediaKind.AUDIO, "video": MediaKind.VIDEO}
    return kinds.get(media_type.strip().partition("/")[0].lower(), MediaKind.DOCUMENT)


# --- by name ---------------------------------------------------------------------------------------------------------

_OFFICE: Final = "application/vnd.openxmlformats-officedocument"
_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "png": "image/png",
        "jpg": "image/jpeg",
        "jpeg": "image/jpeg",
        "gif": "image/gif",
        "webp": "image/webp",
        "svg": "image/svg+xml",
        "ogg": "audio/ogg",
        "opus": "audio/ogg",
        "mp3": "audio/mpeg",
        "m4a": "audio/mp4",
        "wav": "audio/wav",
        "flac": "audio/flac",
        "amr": "audio/amr",
        "mp4": "video/mp4",
        "mov": "video/quicktime",
        "webm": "video/webm",
        "pdf": "application/pdf",
        "docx": f"{_OFFICE}.wordprocessingml.document",
        "xlsx": f"{_OFFICE}.spreadsheetml.sheet",
        "pptx": f"{_OFFICE}.presentationml.presentation",
        "zip": "application/zip",
        "gz": "application/gzip",
        "tar": "application/x-tar",
        "bz2": "application/x-bzip2",
        "parquet": "application/vnd.apache.parquet",
        "json": "application/json",
        "jsonl": "application/jsonl",
        "toml": "application/toml",
        "yaml": "application/yaml",
        "yml": "application/yaml",
        "xml": "application/xml",
        "html": "text/html",
        "txt": "text/plain",
        "log": "text/plain",
        "md": "text/markdown",
        "csv": "text/csv",
        "tsv": "text/tab-separated-values",
        "ics": "text/calendar",
    }
)
"""Media types by the extension of a name. The first extension of a type is the one that a file of it is given."""
_ENDINGS: Final[Mapping[str, str]] = MappingProxyType({_TYPES[ending]: ending for ending in reversed(tuple(_TYPES))})


def guess_type_of_name(name: str) -> str:
    """The media type by a file's name."""
    _, dot, ending = name.rpartition(".")
    return _TYPES.get(ending.lower(), OCTETS) if dot else OCTETS


def find_suffix(media_type: str) -> str:
    """The extension for files of this type, such as ``.png``; empty for a type without an extension of its own."""
    ending = _ENDINGS.get(media_type)
    return f".{ending}" if ending else ""


# --- by its first bytes ----------------------------------------------------------------------------------------------

_MAGIC: Final[Sequence[tuple[bytes, str]]] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
    (b"#!AMR", "audio/amr"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"PK\x05\x06", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (b"Rar!\x1a\x07", "application/vnd.rar"),
    (b"BZh", "application/x-bzip2"),
    (b"\xfd7zXZ\x00", "application/x-xz"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"\x1a\x45\xdf\xa3", "video/webm"),
    (b"\x7fELF", "application/x-executable"),
    (b"MZ", "application/x-msdownload"),
)
_RIFF: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
_SOUND_BRANDS: Final = (b"M4A ", b"M4B ", b"M4P ")


def guess_type_of_content(start: bytes) -> str:
    """The media type by the first ``START_BYTES`` of a file; its name and its sender's statement are ignored. Archives
    are reported as archives, office documents included."""
    if start[:4] == b"RIFF":
        return _RIFF.get(start[8:12], OCTETS)
    if start[4:8] == b"ftyp":
        return "audio/mp4" if start[8:12] in _SOUND_BRANDS else "video/mp4"
    for magic, media_type in _MAGIC:
        if start.startswith(magic):
            return media_type
    return "text/plain" if _is_text(start[:START_BYTES]) else OCTETS


def _is_text(start: bytes) -> bool:
    """Return whether the bytes are UTF-8; the last character may be cut."""
    if b"\0" in start:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start, final=len(start) < START_BYTES)
    except UnicodeDecodeError:
        return False
    return True
