"""Commands in chats: which there are, who may use them, and where the last turn begins that ``/undo`` takes back. Pure.

Each command has a least role that may use it. An operator sets others with rules such as ``jobs=member``, for one chat
with ``telegram:default/-100123/undo=owner`` (``*`` for all chats of the account), and for one person, whatever their
role, with ``telegram:default/@4242/stop=no``. A rule for a person wins over one for a chat, and that over one for an
account. Commands that allow something, or show what belongs to a whole tenant, are never a guest's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from hermes_worker.core.chat_accounts import ACCOUNT_PATTERN, EVERY_CHAT, is_meant
from hermes_worker.core.messages import Role
from hermes_worker.core.slash_commands import SLASH_COMMANDS
from hermes_worker.core.sources import CHAT_SOURCE, GUEST_SOURCE


class ChatRole(StrEnum):
    """The roles of people in chats, from the most to the least powerful."""

    OWNER = "owner"
    """Everything, including permissions that last."""
    MEMBER = "member"
    GUEST = "guest"
    """Only talk: no tool with effects, no answer to an approval, no memory."""

    @property
    def source(self) -> str:
        """The source of the runs that they begin."""
        return GUEST_SOURCE if self is ChatRole.GUEST else CHAT_SOURCE


class ChatCommand(StrEnum):
    """The commands ``/name``. Other names are answered as unknown."""

    START = "start"
    HELP = "help"
    STOP = "stop"
    NEW = "new"
    RESET = "reset"
    STATUS = "status"
    QUEUE = "queue"
    STEER = "steer"
    TITLE = "title"
    USAGE = "usage"
    COMPRESS = "compress"
    UNDO = "undo"
    MODEL = "model"
    JOBS = "jobs"
    SETHOME = "sethome"
    APPROVALS = "approvals"
    APPROVE = "approve"
    DENY = "deny"


_NOBODY: Final = "nobody"
_EVERYWHERE: Final = ""
_ORDER: Final = (ChatRole.OWNER, ChatRole.MEMBER, ChatRole.GUEST)
"""Roles from the most to the least powerful."""
_LEAST: Final[Mapping[ChatCommand, ChatRole]] = MappingProxyType(
    {
        ChatCommand.APPROVALS: ChatRole.MEMBER,
        ChatCommand.APPROVE: ChatRole.MEMBER,
        ChatCommand.DENY: ChatRole.MEMBER,
        ChatCommand.MODEL: ChatRole.MEMBER,
        ChatCommand.JOBS: ChatRole.OWNER,
        ChatCommand.SETHOME: ChatRole.OWNER,
    }
)
"""The least role of a command, where that is more than a guest."""
_EVERYBODYS: Final = frozenset({ChatCommand.START, ChatCommand.HELP})
_OPEN: Final = "|".join(sorted(one.value for one in ChatCommand if one not in _LEAST and one not in _EVERYBODYS))
_CLOSED: Final = "|".join(sorted(one.value for one in _LEAST))
_YES, _NO = "yes", "no"
COMMAND_RULE: Final = (
    rf"(?:(?:{ACCOUNT_PATTERN}/[^\s,=@][^\s,=]{{0,199}}/)?(?:(?:{_CLOSED})=(?:owner|member|{_NOBODY})"
    rf"|(?:{_OPEN})=(?:owner|member|guest|{_NOBODY}))"
    rf"|{ACCOUNT_PATTERN}/@[^\s,=]{{1,200}}/(?:{_CLOSED}|{_OPEN})=(?:{_YES}|{_NO}))"
)
"""A rule, as operators write it."""

_HELP: Final[Mapping[ChatCommand, str]] = MappingProxyType(
    {ChatCommand(row.name): f"/{row.name} {row.chat_text}" for row in SLASH_COMMANDS if row.chat_text}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandUser:
    """The person who uses a command, and the chat."""

    role: ChatRole
    account: str = ""
    """The account's name in rows; empty when it does not matter."""
    chat: str = ""
    person: str = ""
    other_id: str = ""
    """A second id of the person (``core.inbound``)."""
    alt_id: str = ""
    """The user name that the person chose."""


class CommandAccess:
    """The access rules of commands."""

    def __init__(self, rules: Sequence[str] = ()) -> None:
        """``rules`` have the form ``COMMAND_RULE``; the last one about a command in a place counts."""
        self._least: dict[tuple[str, ChatCommand], ChatRole | None] = {
            (_EVERYWHERE, command): _LEAST.get(command, ChatRole.GUEST) for command in ChatCommand
        }
        self._persons: dict[tuple[str, ChatCommand], dict[str, bool]] = {}
        for rule in rules:
            named, _, said = rule.rpartition("=")
            place, _, command = named.rpartition("/")
            if said in (_YES, _NO):
                account, _, person = place.partition("/@")
                of_command = self._persons.setdefault((account, ChatCommand(command)), {})
                of_command[person.casefold()] = said == _YES
            else:
                self._least[place, ChatCommand(command)] = None if said == _NOBODY else ChatRole(said)

    def allows(self, who: CommandUser, command: ChatCommand) -> bool:
        """Whether the user may use ``command``."""
        if command in _LEAST and who.role is ChatRole.GUEST:
            return False
        rules = self.find_person_rules(who.account, command)
        for name in ("", who.alt_id):  # a rule for an id comes before one for a name
            for person, may in rules.items():
                if is_meant(person, ids=(who.person, who.other_id), name=name):
                    return may
        least = self.find_least_role(who.account, who.chat, command)
        return least is not None and _ORDER.index(who.role) <= _ORDER.index(least)

    def find_least_role(self, account: str, chat: str, command: ChatCommand) -> ChatRole | None:
        """Find the least role that may use ``command`` in a chat; ``None`` when no role may."""
        for place in (f"{account}/{chat}", f"{account}/{EVERY_CHAT}"):
            if (place, command) in self._least:
                return self._least[place, command]
        return self._least[_EVERYWHERE, command]

    def find_person_rules(self, account: str, command: ChatCommand) -> Mapping[str, bool]:
        """Find the persons with rules about a command on an account, each with whether they may use it."""
        return self._persons.get((account, command), {})

    def format_help(self, who: CommandUser) -> str:
        """List the commands that the user may use, a line each."""
        return "\n".join(line for command, line in _HELP.items() if self.allows(who, command))


class TurnRow(NamedTuple):
    """A row of a transcript."""

    seq: int
    role: Role
    run_pk: int
    """The run that wrote the row; 0 for one that was copied from another session."""


def find_last_turn(rows: Sequence[TurnRow]) -> int | None:
    """Find the number of the row with which the last turn begins, among the last rows of a transcript in order: the
    rows of its last run, or, in a copy, the last message of the user and everything after it. ``None`` when the rows do
    not reach back to the beginning."""
    first = None
    for row in reversed(rows):
        if row.run_pk != rows[-1].run_pk:
            break
        is_said = row.role is Role.USER
        if row.run_pk == 0 and first is not None and not is_said:
            break
        if is_said or row.run_pk != 0:
            first = row.seq
    is_cut_off = bool(rows) and first == rows[0].seq and first > 1
    return None if is_cut_off else first
