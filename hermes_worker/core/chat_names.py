"""Names of chats as delivery targets: ``slack:#ops``. Pure.

Anybody who opens a group can give it any name, so a name is learnt only in chats where a person wrote who is no guest,
and never from a direct chat. A name of two chats is ambiguous and means neither.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from hermes_worker.core.chat_commands import ChatRole
from hermes_worker.core.errors import HermesError
from hermes_worker.core.inbound import ChatKind, InboundChat

NAME_CHARS_MAX: Final = 100
CHAT_CHARS_MAX: Final = 200
_SHOWN_MAX: Final = 5


class AmbiguousChatName(HermesError):
    """Several chats have this name; the message lists them."""


class KnownChat(NamedTuple):
    """A chat, with the account that is in it."""

    account: str
    chat: str
    thread: str | None = None

    @property
    def reference(self) -> str:
        """The reference after the account's name, as ``parse_chat`` reads it."""
        return f"{self.chat}:{self.thread}" if self.thread else self.chat


def normalize_name(text: str) -> str:
    """Normalise a name for comparison: without ``#``, case and surrounding spaces; empty for a text that cannot be a
    name."""
    plain = " ".join(re.sub(r"[\x00-\x1f\x7f]", " ", text).split()).removeprefix("#").strip().casefold()
    return plain if len(plain) <= NAME_CHARS_MAX else ""


def choose_learnable_name(chat: InboundChat, role: ChatRole) -> str:
    """The name by which a chat may be known after a message of a person with ``role``; empty for none."""
    is_learnt = role is not ChatRole.GUEST and chat.kind is not ChatKind.DIRECT and len(chat.id) <= CHAT_CHARS_MAX
    return normalize_name(chat.name) if is_learnt else ""


def require_unique(found: Sequence[KnownChat], name: str) -> KnownChat | None:
    """The only chat among ``found``; ``None`` when it is empty. Raises ``AmbiguousChatName``."""
    if len(found) > 1:
        shown = ", ".join(sorted(chat.chat for chat in found)[:_SHOWN_MAX])
        raise AmbiguousChatName(f"{len(found)} chats are called {name!r}; write the id of one: {shown}")
    return found[0] if found else None
