"""Names of chats as delivery targets: ``slack:#ops``. Pure.

Everybody who opens a group gives it any name, so a name is learnt only where somebody who is no guest wrote in it, and
never of a direct chat. One that two chats have means neither.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from hermes_worker.core.errors import HermesError
from hermes_worker.core.gateway import ChatRole
from hermes_worker.core.inbound import ChatKind, InboundChat

NAME_CHARS_MAX: Final = 100
CHAT_CHARS_MAX: Final = 200
_SHOWN_MAX: Final = 5


class AmbiguousChatName(HermesError):
    """Several chats are called so; the message names them."""


class KnownChat(NamedTuple):
    """A chat, by the account that is in it."""

    account: str
    chat: str
    thread: str | None = None

    @property
    def reference(self) -> str:
        """As ``parse_chat`` reads it behind the account."""
        return f"{self.chat}:{self.thread}" if self.thread else self.chat


def name_of(text: str) -> str:
    """A name as it is compared: without ``#``, case and spaces around it; empty for none that can be one."""
    plain = " ".join(re.sub(r"[\x00-\x1f\x7f]", " ", text).split()).removeprefix("#").strip().casefold()
    return plain if len(plain) <= NAME_CHARS_MAX else ""


def learnt_name(chat: InboundChat, role: ChatRole) -> str:
    """By which name a chat is known from a message of somebody of ``role``; empty for none."""
    is_learnt = role is not ChatRole.GUEST and chat.kind is not ChatKind.DIRECT and len(chat.id) <= CHAT_CHARS_MAX
    return name_of(chat.name) if is_learnt else ""


def the_only(found: Sequence[KnownChat], name: str) -> KnownChat | None:
    """The chat of a name; ``None`` for none. Raises ``AmbiguousChatName``."""
    if len(found) > 1:
        shown = ", ".join(sorted(chat.chat for chat in found)[:_SHOWN_MAX])
        raise AmbiguousChatName(f"{len(found)} chats are called {name!r}; write the id of one: {shown}")
    return found[0] if found else None
