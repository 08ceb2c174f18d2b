"""Replies in chats: which message an answer replies to, as the metadata of its run say. Pure.

A platform's message ids are unique within a chat only, so the metadata name both. Anybody may write metadata over the
API; only those of runs that chats began are trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from hermes_worker.core.sources import CHAT_SOURCES

_CHAT: Final = "chat"
_SENDER: Final = "account"
_MESSAGE: Final = "message"
_REPLIES: Final = "replies"
_ID_CHARS_MAX: Final = 500


class ReplyMode(StrEnum):
    """The parts of an answer that are sent as replies to the user's message."""

    OFF = "off"
    FIRST = "first"
    ALL = "all"


def build_reply_metadata(sender: str, message_id: str, mode: ReplyMode) -> dict[str, str]:
    """Build the metadata of a run about the message that began it, beside its chat; empty when ``message_id`` is empty.
    ``sender`` is the account, as targets name it."""
    if not message_id or len(message_id) > _ID_CHARS_MAX or mode is ReplyMode.OFF:
        return {}
    return {_SENDER: sender, _MESSAGE: message_id, _REPLIES: mode.value}


def find_reply_target(metadata: Mapping[str, str], source: str | None, *, sender: str, chat: str, part: int) -> str:
    """Find the id of the message to which part number ``part`` (from 0) of an answer replies; empty for none.
    ``sender`` and ``chat`` say where the part is sent."""
    is_there = metadata.get(_SENDER) == sender and metadata.get(_CHAT) == chat
    if source not in CHAT_SOURCES or not is_there:
        return ""
    is_reply = part == 0 or metadata.get(_REPLIES) == ReplyMode.ALL
    return metadata.get(_MESSAGE, "") if is_reply else ""
