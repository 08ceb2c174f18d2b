"""What comes in from people on platforms, as values. Pure.

A platform's ``receive`` makes these of raw requests (``channels.inbound``). Everything in them is text of strangers:
it names chats, people and files, and it is never an instruction to us. ``event_key`` tells one event of an account
from all others, so an event that a platform sends again is known again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from hermes_worker.core.json_values import size_of, text_of
from hermes_worker.core.media_kinds import MediaKind, kind_of_media_type

EVENT_KEY_CHARS_MAX = 200


class ChatKind(StrEnum):
    """Who can write in a chat. The values are the chat types of a session's key."""

    DIRECT = "dm"
    """One person and the account."""
    GROUP = "group"
    CHANNEL = "channel"
    """Many read, and some or all write."""
    THREAD = "thread"
    """A chat that is itself a thread, with an id of its own (Discord)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundChat:
    """Where something was written, by the platform's own ids."""

    id: str
    """What a delivery to this chat names: ``telegram:<id>`` is a target."""
    kind: ChatKind = ChatKind.DIRECT
    thread: str = ""
    """A thread or topic in the chat; empty for none."""
    scope: str = ""
    """What the id is unique in, where that is less than the platform: Slack's workspace, Discord's guild."""
    name: str = ""
    """As people see it."""
    topic: str = ""
    """What people wrote about the chat."""
    answered_as: str = ""
    """What a delivery names for the thread, where that is more than ``thread``: a mail's subject and its references."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundSender:
    """Who wrote."""

    id: str
    """The platform's id; empty where it tells none, which lets nobody in."""
    other_id: str = ""
    """A second id that the platform vouches for: a number, a mail address, an id in a wider scope."""
    alt_id: str = ""
    """The user name that the person chose, and may change. It may read like the id of somebody else."""
    name: str = ""
    is_bot: bool = False
    """A program, or an automatic reply: it is never answered."""


def is_meant(entry: str, *, ids: Iterable[str], name: str = "") -> bool:
    """Whether an entry of an operator's list means the person with these ``ids``, who chose ``name`` for themselves.

    ``@ada`` is a name and ``4242`` an id. A word without ``@`` is a name as well where the platform's ids look
    otherwise, so nobody is let in because they call themselves by the id of somebody else.
    """
    word, known = entry.casefold(), {each.casefold() for each in ids if each}
    if word in known:
        return True
    bare = word.removeprefix("@")
    is_name = bool(name) and bare == name.casefold().removeprefix("@")
    if word.startswith("@"):
        # IRC and others tell a name that its network vouches for, and nothing else.
        return is_name or (not name and bare in known and not bare.isdigit())
    # The ids of Matrix begin with the sign, and rules for persons leave it out.
    return f"@{word}" in known or (is_name and not _is_like_an_id(word, known))


def _is_like_an_id(word: str, known: Iterable[str]) -> bool:
    return word.lstrip("+-").isdigit() or any(len(word) == len(each) for each in known if not each.isdigit())


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRef:
    """A file that somebody sent. It is not fetched yet."""

    kind: MediaKind
    id: str
    """What the platform's download takes: an id, or a URL."""
    name: str = ""
    """As the sender called it; it may hold anything."""
    media_type: str = ""
    """As the platform says; it may be wrong."""
    size_bytes: int | None = None
    """As the platform says; ``None`` where it says nothing."""

    @classmethod
    def told(cls, id: str, *, media_type: object, name: object, size: object) -> MediaRef:
        """Of what a platform's JSON says of a file, shown as its type is shown. Total."""
        said = text_of(media_type)
        return cls(kind=kind_of_media_type(said), id=id, name=text_of(name), media_type=said, size_bytes=size_of(size))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """What every event has."""

    event_key: str
    """Unique within the account: at most ``EVENT_KEY_CHARS_MAX`` characters."""
    chat: InboundChat
    sender: InboundSender
    message_id: str = ""
    """Of the message that this is, that was edited, or that bears the button."""
    sent_at: float | None = None
    """Epoch seconds, as the platform says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundMessage(_Event):
    """A message. A text that begins with ``/`` is a command where the product knows one; the platform need not care."""

    kind: Literal["message"] = "message"
    text: str = ""
    """A caption, for media."""
    media: tuple[MediaRef, ...] = ()
    reply_to: str = ""
    """The id of the message that it answers."""
    quoted_as: str = ""
    """What a delivery names to answer this very message, where that is more than ``message_id``."""
    reply_to_text: str = ""
    """What that message says, where the platform tells."""
    is_addressed: bool = False
    """The account is named in it, or it answers a message of the account. In a group nothing else is taken."""
    album: str = ""
    """The same for messages that were sent as one (photos of an album)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundCommand(_Event):
    """A command in the platform's own form: Slack's slash commands, Discord's interactions."""

    kind: Literal["command"] = "command"
    name: str = ""
    """Without ``/``, in lower case."""
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundButton(_Event):
    """Somebody pressed a button of ours."""

    kind: Literal["button"] = "button"
    value: str = ""
    """What we gave the button."""
    may_be: tuple[ChatKind, ...] = ()
    """What kind of chat it is in, where a press does not say it as a message does; ``chat`` has one of them."""
    press_id: str = ""
    """What the platform wants to hear again when the press is acknowledged; empty for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundEdit(_Event):
    """A message was changed. Its event key is another than that of the message."""

    kind: Literal["edit"] = "edit"
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundMove(_Event):
    """A chat has another id from now on (Telegram: a group became a supergroup)."""

    kind: Literal["move"] = "move"
    to_chat: str = ""


Inbound = InboundMessage | InboundCommand | InboundButton | InboundEdit | InboundMove
