"""Keys of chat sessions: which session a message of a chat belongs to, with the same result on every machine. Pure.

Theory of operation. A key is ``agent:PROFILE:PLATFORM:`` followed by what distinguishes the conversation there. A
direct chat is one conversation, in a group every member has one of their own, and a thread is shared by all who write
in it. Ids come from platforms and, through them, from strangers: each is escaped so that it has no ``:``, no ``/`` and
nothing else that separates parts of a key, so no id can stand for a chat, a thread and a member at once. A key is
therefore always a valid name of a session; ids of Telegram, Discord, Slack and WhatsApp stay unchanged.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

SESSION_KEY_CHARS_MAX: Final = 256
"""The most characters of a session's name. A longer key ends with the hash of all of it."""
DIRECT: Final = "dm"
"""The type of a chat with one person."""
_DEFAULT_PROFILES = frozenset({"", "default"})
_PLAIN = "!$&'()*+,;=@"
"""Characters that stand in ids as they are, beside letters, digits and ``-._~``."""


_SCOPED = ("slack", "irc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOrigin:
    """The chat in which a message was written, by the platform's own ids; an empty text where there is none."""

    platform: str
    chat_type: str = DIRECT
    """``dm``, ``group``, ``channel``, ``thread``, ``forum`` and so on."""
    chat: str = ""
    thread: str = ""
    user: str = ""
    scope: str = ""
    """The workspace in which the chat's id is unique, on Slack; on IRC, the owner of the nick that the chat has at the
    moment."""
    profile: str = ""
    account: str = ""
    """The name of the account that receives the chat, when it is not the platform's usual one. A person has the same id
    in chats with two accounts."""

    @property
    def is_direct(self) -> bool:
        """Whether one person alone writes there."""
        return self.chat_type == DIRECT


def build_session_key(origin: ChatOrigin) -> str:
    """Build the key of a conversation, of at most ``SESSION_KEY_CHARS_MAX`` printable characters of ASCII."""
    parts = _build_direct_parts(origin) if origin.is_direct else _build_group_parts(origin)
    scope = [origin.scope] if origin.platform in _SCOPED and origin.scope else []
    namespace = _build_namespace(origin.profile)
    platform = f"{origin.platform}@{origin.account}" if origin.account else origin.platform
    written = [_escape(part) for part in (platform, origin.chat_type, *scope, *parts)]
    key = ":".join(["agent", namespace, *written])
    if len(key) <= SESSION_KEY_CHARS_MAX:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f"{key[: SESSION_KEY_CHARS_MAX - len(digest) - 1]}#{digest}"


def name_session(origin: ChatOrigin, generation: int) -> str:
    """Name the session of a conversation that has begun ``generation`` new sessions."""
    key = build_session_key(origin)
    if not generation:
        return key
    name = f"{key}~{generation}"
    if len(name) <= SESSION_KEY_CHARS_MAX:
        return name
    return f"agent:{hashlib.sha256(key.encode()).hexdigest()}~{generation}"


def name_session_counter(origin: ChatOrigin, *, is_guest: bool) -> str:
    """Name the counter of a chat's sessions. Guests have one of their own, which starts at zero."""
    key = build_session_key(origin)
    return f"guest:{hashlib.sha256(key.encode()).hexdigest()}" if is_guest else key


def is_shared_by_members(origin: ChatOrigin) -> bool:
    """Whether several people write in this session, so that each message has to name its author."""
    return not origin.is_direct and bool(origin.thread)


def strip_whatsapp_id(name: str) -> str:
    """Strip domain, device and plus sign from the id of a person on WhatsApp; empty when nothing is left."""
    return name.strip().replace("+", "", 1).partition(":")[0].partition("@")[0]


def _build_direct_parts(origin: ChatOrigin) -> list[str]:
    """The parts of a direct chat's key. A chat without an id is identified by the person, so that two people never
    share a session."""
    chat = strip_whatsapp_id(origin.chat) if origin.platform == "whatsapp" else origin.chat
    return [part for part in (chat or _choose_member(origin), origin.thread) if part]


def _build_group_parts(origin: ChatOrigin) -> list[str]:
    member = "" if origin.thread else _choose_member(origin)
    return [part for part in (origin.chat, origin.thread, member) if part]


def _choose_member(origin: ChatOrigin) -> str:
    return strip_whatsapp_id(origin.user) or origin.user if origin.platform == "whatsapp" else origin.user


def _build_namespace(profile: str) -> str:
    """The name space of a profile. A profile that is itself called ``main`` is marked, with a character that no
    profile's name has."""
    if profile in _DEFAULT_PROFILES:
        return "main"
    return "main~" if profile == "main" else _escape(profile)


def _escape(part: str) -> str:
    return quote(part, safe=_PLAIN, errors="surrogatepass").replace("..", "%2E%2E")
