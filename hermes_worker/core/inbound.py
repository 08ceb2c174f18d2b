"""Events from people on chat platforms, as values. Pure.

A platform's ``receive`` builds these from raw requests (``channels.inbound``). Everything in them is text of strangers:
it names chats, people and files, and it is never an instruction to us. ``event_key`` identifies an event within its
account, so an event that a platform sends again is recognised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from hermes_worker.core.json_values import read_size, read_text
from hermes_worker.core.media_kinds import MediaKind, find_kind

EVENT_KEY_CHARS_MAX = 200


class ChatKind(StrEnum):
    """The kinds of chats, by who can write in them. The values are the chat types in a session's key."""

    DIRECT = "dm"
    """One person and the account."""
    GROUP = "group"
    CHANNEL = "channel"
    """Many read, and some or all write."""
    THREAD = "thread"
    """A chat that is itself a thread, with an id of its own (Discord)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundChat:
    """The chat in which something was written, by the platform's own ids."""

    id: str
    """The id in a delivery's target: ``telegram:<id>``."""
    kind: ChatKind = ChatKind.DIRECT
    thread: str = ""
    """The id of a thread or topic in the chat; empty for none."""
    scope: str = ""
    """The workspace or guild within which the id is unique, where it is not unique on the platform (Slack, Discord)."""
    name: str = ""
    """The name that people see."""
    topic: str = ""
    """The chat's description, written by people."""
    answered_as: str = ""
    """The thread in a delivery's target, where that is more than ``thread``: a mail's subject and its references."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundSender:
    """The person or program that wrote."""

    id: str
    """The platform's id; empty when it gives none, and then the sender is never admitted."""
    other_id: str = ""
    """A second id that the platform vouches for: a number, a mail address, an id in a wider scope."""
    alt_id: str = ""
    """The user name that the person chose, and may change. It may look like the id of another person."""
    name: str = ""
    is_bot: bool = False
    """A program, or an automatic reply: it is never answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRef:
    """A file that a person sent. It is not fetched yet."""

    kind: MediaKind
    id: str
    """The argument of the platform's download: an id, or a URL."""
    name: str = ""
    """The sender's name for the file; it may hold anything."""
    media_type: str = ""
    """The platform's media type; it may be wrong."""
    size_bytes: int | None = None
    """The platform's size; ``None`` when it gives none."""

    @classmethod
    def from_platform(cls, id: str, *, media_type: object, name: object, size: object) -> MediaRef:
        """Build the reference from fields of a platform's JSON. The kind follows from the media type. Total."""
        said = read_text(media_type)
        return cls(kind=find_kind(said), id=id, name=read_text(name), media_type=said, size_bytes=read_size(size))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """The fields of every event."""

    event_key: str
    """Unique within the account: at most ``EVENT_KEY_CHARS_MAX`` characters."""
    chat: InboundChat
    sender: InboundSender
    message_id: str = ""
    """The id of this message, of the edited one, or of the one that bears the button."""
    sent_at: float | None = None
    """Epoch seconds, as the platform says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundMessage(_Event):
    """A message. A text that begins with ``/`` is a command where the product knows one; the platform need not care."""

    kind: Literal["message"] = "message"
    text: str = ""
    """The text, or the caption of media."""
    media: tuple[MediaRef, ...] = ()
    reply_to: str = ""
    """The id of the message to which it replies; empty for none."""
    quoted_as: str = ""
    """How a delivery names this very message in order to reply, where that is more than ``message_id``."""
    reply_to_text: str = ""
    """The text of the message to which it replies, where the platform gives it."""
    is_addressed: bool = False
    """The account is named in it, or it replies to a message of the account. In a group, other messages are ignored."""
    album: str = ""
    """Equal for messages that were sent as one (photos of an album); empty for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundCommand(_Event):
    """A command in the platform's own form: Slack's slash commands, Discord's interactions."""

    kind: Literal["command"] = "command"
    name: str = ""
    """Lower case, without ``/``."""
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundButton(_Event):
    """A press of a button of ours."""

    kind: Literal["button"] = "button"
    value: str = ""
    """The value that we gave the button."""
    may_be: tuple[ChatKind, ...] = ()
    """The possible kinds of the chat, when a press does not say which; ``chat`` has one of them."""
    press_id: str = ""
    """The id that acknowledges the press at the platform; empty when none is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundEdit(_Event):
    """A message was changed. Its event key differs from the message's own."""

    kind: Literal["edit"] = "edit"
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundMove(_Event):
    """A chat has another id from now on (Telegram: a group became a supergroup)."""

    kind: Literal["move"] = "move"
    to_chat: str = ""


Inbound = InboundMessage | InboundCommand | InboundButton | InboundEdit | InboundMove


def list_media(event: Inbound) -> Sequence[MediaRef]:
    """List the files of an event."""
    return event.media if isinstance(event, InboundMessage) else ()
