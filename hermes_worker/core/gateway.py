"""Decide what a person's message in a chat leads to: who may speak, and what a text asks for. Pure.

By default nobody may speak. People on an allow-list may, and people whom an operator paired with a code. A stranger who
writes directly is given a code, once in ten minutes; a group is not. Messages of programs are never answered, so two
bots never talk to each other. The numbers are those of the original.

A *guest* may talk and nothing else. Guests' conversations have a source of their own, so a run with powers never reads
what a guest wrote, and the question of such a run is never theirs to answer. Their sessions have the tools of
``GUEST_TOOLSETS``, and calls of these with an effect are refused (``may_be_called_for``).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hermes_worker.core.chat_accounts import is_meant
from hermes_worker.core.chat_buttons import WAIT_DIGITS_MAX
from hermes_worker.core.chat_commands import ChatCommand, ChatRole
from hermes_worker.core.client_tools import IS_CLIENTS
from hermes_worker.core.consent import render_for_chat
from hermes_worker.core.inbound import (
    ChatKind,
    Inbound,
    InboundButton,
    InboundChat,
    InboundCommand,
    InboundMessage,
    InboundSender,
)
from hermes_worker.core.invisible_characters import show_invisible
from hermes_worker.core.questions import Question
from hermes_worker.core.remote_tasks import IS_TASKS
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.core.sources import GUEST_SOURCE

GUEST_TOOLSETS: Final = ("web", "vision", "clarify")
"""The toolsets of guests: reading what is public, and being asked."""

CODE_SIGNS: Final = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""Without I, O, 0 and 1, which people confuse."""
CODE_CHARS: Final = 8
CODE_LIVES_S: Final = 3_600.0
CODE_EVERY_S: Final = 600.0
"""Least seconds between two codes for one stranger."""
CODES_MAX: Final = 3
"""Open codes of one account at a time."""
FAILURES_MAX: Final = 5
LOCKED_S: Final = 3_600.0
LOOK_AGAIN_S_MAX: Final = 60.0
"""Most seconds after which an account is polled again after a failed poll."""
STANDBY_S: Final = (2.0, 30.0)
"""Least and most seconds for which a gateway waits before it checks again whether an account's lease is free."""
BURST_CHARS_MAX: Final = 50_000
"""The most characters of messages that are joined into one turn."""
EVERYBODY: Final = "*"


class GroupPolicy(StrEnum):
    """The rule for people who speak in groups."""

    KNOWN = "known"
    """People who may speak elsewhere."""
    GUESTS = "guests"
    """Everybody: unknown people are guests."""
    OFF = "off"
    """No one."""


class Silence(StrEnum):
    """Why nothing is done about an event."""

    BOT = "bot"
    NAMELESS = "nameless"
    """The platform does not say who the sender was."""
    STRANGER = "stranger"
    GROUPS_OFF = "groups_off"
    NOT_ADDRESSED = "not_addressed"
    """It is in a group, and not addressed to the account."""
    EMPTY = "empty"
    UNKNOWN_KIND = "unknown_kind"
    """An edit, a move, or a press of a button that is not ours: it has no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speakers:
    """The people who may speak, as the operator configured them."""

    allowed: Collection[str] = ()
    """Owners: ids, numbers and addresses, and user names as ``@name`` (``is_meant``). ``*`` makes everybody a
    member."""
    guests: Collection[str] = ()
    """Guests, in the same form as ``allowed``."""
    groups: GroupPolicy = GroupPolicy.KNOWN
    open_groups: Collection[str] = ()
    """Ids of groups in which everybody is a member."""
    pairs: bool = True
    """Strangers who write directly are given a code."""

    def decide_role(self, sender: InboundSender, chat: InboundChat, paired: ChatRole | None) -> ChatRole | None:
        """Decide the highest role of a person in a chat; ``None`` for a stranger."""
        if _is_listed(sender, self.allowed):
            return ChatRole.OWNER
        if paired in (ChatRole.OWNER, ChatRole.MEMBER):
            return paired
        is_group = chat.kind is not ChatKind.DIRECT
        if EVERYBODY in self.allowed or (is_group and chat.id in self.open_groups):
            return ChatRole.MEMBER
        is_open = EVERYBODY in self.guests or (is_group and self.groups is GroupPolicy.GUESTS)
        return ChatRole.GUEST if is_open or _is_listed(sender, self.guests) else paired


def _is_listed(sender: InboundSender, names: Collection[str]) -> bool:
    ids = (sender.id, sender.other_id)
    return any(is_meant(name, ids=ids, name=sender.alt_id) for name in names if name != EVERYBODY)


def may_be_called_for(source: str | None, replay: Replay) -> bool:
    """Whether a call may begin in a run from ``source``: for a guest only one that changes nothing."""
    return source != GUEST_SOURCE or replay is Replay.PURE


@dataclass(frozen=True, slots=True, kw_only=True)
class EventIgnored:
    reason: Silence


@dataclass(frozen=True, slots=True)
class OfferCode:
    """A stranger may be given a pairing code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSaid:
    """A command; ``command`` is ``None`` for an unknown name."""

    command: ChatCommand | None
    name: str
    arguments: str = ""
    role: ChatRole
    """The role of its sender."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSaid:
    """A message that is a turn of the conversation."""

    text: str
    role: ChatRole
    """The role of its sender."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ButtonPressed:
    """A press of a button below a question."""

    wait_id: int
    """The number of the question, as the button says; a button can be forged."""
    answer: str
    """The choice of an approval, or the number of a choice, from 1."""
    role: ChatRole
    """The role of the person who pressed it."""


Reading = EventIgnored | OfferCode | CommandSaid | MessageSaid | ButtonPressed


def decide_event(event: Inbound, speakers: Speakers, paired: ChatRole | None) -> Reading:
    """Decide what an event asks for. ``paired`` is the sender's role by pairing, from the account's rows; ``None`` for
    a stranger."""
    if event.sender.is_bot:
        return EventIgnored(reason=Silence.BOT)
    if not event.sender.id:
        return EventIgnored(reason=Silence.NAMELESS)
    if not isinstance(event, InboundMessage | InboundCommand | InboundButton):
        return EventIgnored(reason=Silence.UNKNOWN_KIND)
    is_direct = event.chat.kind is ChatKind.DIRECT
    if speakers.groups is GroupPolicy.OFF and not is_direct:
        return EventIgnored(reason=Silence.GROUPS_OFF)
    role = speakers.decide_role(event.sender, event.chat, paired)
    if isinstance(event, InboundButton):
        return _decide_press(event.value, role)
    if role is None:
        return OfferCode() if is_direct and speakers.pairs else EventIgnored(reason=Silence.STRANGER)
    if isinstance(event, InboundCommand):
        return _parse_command(event.name, event.arguments, role)
    text = event.text.strip()
    is_command = text.startswith("/")
    if not (is_direct or event.is_addressed or is_command):
        return EventIgnored(reason=Silence.NOT_ADDRESSED)
    if is_command:
        name, *rest = text[1:].split(None, 1) or ("",)
        return _parse_command(name.partition("@")[0], "".join(rest), role)
    return MessageSaid(text=text, role=role) if text or event.media else EventIgnored(reason=Silence.EMPTY)


def _decide_press(value: str, role: ChatRole | None) -> ButtonPressed | EventIgnored:
    if role is None:
        return EventIgnored(reason=Silence.STRANGER)
    wait_id, _, answer = value.partition(":")
    is_ours = wait_id.isascii() and wait_id.isdigit() and len(wait_id) <= WAIT_DIGITS_MAX and bool(answer)
    if not is_ours:
        return EventIgnored(reason=Silence.UNKNOWN_KIND)
    return ButtonPressed(wait_id=int(wait_id), answer=answer, role=role)


def _parse_command(name: str, arguments: str, role: ChatRole) -> CommandSaid:
    word = name.strip().lower()[:64]
    known = ChatCommand(word) if word in tuple(ChatCommand) else None
    return CommandSaid(command=known, name=word, arguments=arguments.strip(), role=role)


def join_texts(waiting: str, text: str) -> str | None:
    """Join the input of a run that has not begun with what the same person wrote soon after; ``None`` when that would
    be too long."""
    whole = f"{waiting}\n\n{text}"
    return whole if len(whole) <= BURST_CHARS_MAX else None


# --- questions -------------------------------------------------------------------------------------------------------


def render_question(question: Question, wait_id: int | None = None) -> str | None:
    """Render a question of an agent as a message to its chat, without the line that says how to answer
    (``answer_binding.format_code_line``); ``None`` for one that no person answers."""
    request = question.request
    if question.kind is WaitKind.APPROVAL:
        return render_for_chat(request, wait_id)
    if question.kind is not WaitKind.INPUT or request.get(IS_CLIENTS) or request.get(IS_TASKS):
        return None
    numbered = [f"{number}. {choice}" for number, choice in enumerate(question.choices, 1)]
    return show_invisible("\n".join((str(request.get("question", "")), *numbered)))


# --- listening -------------------------------------------------------------------------------------------------------


def compute_poll_wait_s(failures: int, retry_after_s: float | None) -> float:
    """Seconds to wait after ``failures`` failed polls in a row, the last of which named ``retry_after_s``. Polling
    never ends, however many fail."""
    if retry_after_s is not None:
        return min(retry_after_s, 10 * LOOK_AGAIN_S_MAX)
    return float(min(LOOK_AGAIN_S_MAX, 0.5 * 2 ** min(failures, 10)))


def compute_standby_s(left_s: float | None) -> float:
    """Seconds until a standby gateway checks an account again whose lease lasts ``left_s``; ``None`` for a free
    account. So it checks at most twice a minute, and within two seconds of the lease's end."""
    shortest, longest = STANDBY_S
    if left_s is None or left_s <= 0:
        return shortest
    return min(left_s, longest)


# --- pairing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedCode:
    """The stored form of a pairing code."""

    salt: str
    hash: str

    def matches(self, code: str) -> bool:
        """Whether this is the hash of ``code``. Takes the same time for every wrong code."""
        return hmac.compare_digest(_hash_code(self.salt, code), self.hash)


def create_code() -> tuple[str, HashedCode]:
    """Create a pairing code. Returns the code to show, and the salted hash to store in its place."""
    code = "".join(secrets.choice(CODE_SIGNS) for _ in range(CODE_CHARS))
    salt = secrets.token_hex(16)
    return code, HashedCode(salt=salt, hash=_hash_code(salt, code))


def _hash_code(salt: str, code: str) -> str:
    written = code.strip().upper().encode("utf-8", "replace")
    return hashlib.scrypt(written, salt=salt.encode(), n=2**12, r=8, p=1, dklen=32).hex()
