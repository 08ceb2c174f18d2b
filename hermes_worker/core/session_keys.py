"""Keys of chat sessions: which session a message of a chat belongs to, with the same result on every machine. Pure.

Theory of operation. A key is ``agent:PROFILE:PLATFORM:`` followed by what distinguishes the conversation there. A
direct chat is one conversation, in a group every member has one of their own, and a thread is shared by all who write
in it. Ids come from platforms and, through them, from strangers: each is escaped so that it has no ``:``, no ``/`` and
nothing else that separates parts of a key, so no id can stand for a chat, a thread and a member at once. A key is
therefore always a valid name of a session; ids of Telegram, Discord, Slack and WhatsApp stay unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
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
    user_alt: str = ""
    """A more lasting id of the same person, where the platform has one."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSharing:
    """The rule for which people have a session of their own. The defaults are the original's."""

    has_session_per_member: bool = True
    """Members of groups have one each (``group_sessions_per_user``)."""
    has_session_per_member_of_thread: bool = False
    """Members of threads in groups have one each (``thread_sessions_per_user``)."""


def build_session_key(origin: ChatOrigin, sharing: SessionSharing | None = None) -> str:
    """Build the key of a conversation, of at most ``SESSION_KEY_CHARS_MAX`` printable characters of ASCII."""
    parts = _build_direct_parts(origin) if origin.is_direct else _build_group_parts(origin, sharing or SessionSharing())
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


def is_shared_by_members(origin: ChatOrigin, sharing: SessionSharing | None = None) -> bool:
    """Whether several people write in this session, so that each message has to name its author."""
    return not origin.is_direct and not _is_per_member(origin, sharing or SessionSharing())


def choose_whatsapp_id(identifier: str, aliases: Collection[str] = ()) -> str:
    """Choose the one id of a person whom WhatsApp shows sometimes by number and sometimes by another id (``...@lid``):
    the shortest of ``identifier`` and its ``aliases``, without domain, device and plus sign; empty when nothing is
    left."""
    names = {_strip_whatsapp_id(name) for name in (identifier, *aliases)} - {""}
    return min(names, key=lambda name: (len(name), name), default="")


def _build_direct_parts(origin: ChatOrigin) -> list[str]:
    """The parts of a direct chat's key. A chat without an id is identified by the person, so that two people never
    share a session."""
    chat = choose_whatsapp_id(origin.chat) if origin.platform == "whatsapp" else origin.chat
    return [part for part in (chat or _choose_member(origin), origin.thread) if part]


def _build_group_parts(origin: ChatOrigin, sharing: SessionSharing) -> list[str]:
    member = _choose_member(origin) if _is_per_member(origin, sharing) else ""
    return [part for part in (origin.chat, origin.thread, member) if part]


def _is_per_member(origin: ChatOrigin, sharing: SessionSharing) -> bool:
    if not sharing.has_session_per_member:
        return False
    return not origin.thread or sharing.has_session_per_member_of_thread


def _choose_member(origin: ChatOrigin) -> str:
    member = origin.user_alt or origin.user
    return choose_whatsapp_id(member) or member if origin.platform == "whatsapp" else member


def _strip_whatsapp_id(name: str) -> str:
    return name.strip().replace("+", "", 1).partition(":")[0].partition("@")[0]


def _build_namespace(profile: str) -> str:
    """The name space of a profile. A profile that is itself called ``main`` is marked, with a character that no
    profile's name has."""
    if profile in _DEFAULT_PROFILES:
        return "main"
    return "main~" if profile == "main" else _escape(profile)


def _escape(part: str) -> str:
    return quote(part, safe=_PLAIN, errors="surrogatepass").replace("..", "%2E%2E")
