"""Which commands there are in a chat, for whom, and what taking back a turn leaves. Pure.

Each command has the least role that may use it. An operator gives others with rules such as ``jobs=member``; what
allows something, or shows what belongs to a whole tenant, is never a guest's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from hermes_worker.core.gateway import ChatCommand, ChatRole
from hermes_worker.core.messages import Role

_NOBODY: Final = "nobody"
_ORDER: Final = (ChatRole.OWNER, ChatRole.MEMBER, ChatRole.GUEST)
"""From much to little."""
_LEAST: Final[Mapping[ChatCommand, ChatRole]] = MappingProxyType(
    {
        ChatCommand.APPROVE: ChatRole.MEMBER,
        ChatCommand.DENY: ChatRole.MEMBER,
        ChatCommand.MODEL: ChatRole.MEMBER,
        ChatCommand.JOBS: ChatRole.OWNER,
        ChatCommand.SETHOME: ChatRole.OWNER,
    }
)
"""Where that is more than a guest."""
_EVERYBODYS: Final = frozenset({ChatCommand.START, ChatCommand.HELP})
_OPEN: Final = "|".join(sorted(one.value for one in ChatCommand if one not in _LEAST and one not in _EVERYBODYS))
COMMAND_RULE: Final = (
    rf"(?:(?:{'|'.join(sorted(one.value for one in _LEAST))})=(?:owner|member|{_NOBODY})"
    rf"|(?:{_OPEN})=(?:owner|member|guest|{_NOBODY}))"
)
"""A rule, as operators write it."""

_HELP: Final[Mapping[ChatCommand, str]] = MappingProxyType(
    {
        ChatCommand.NEW: "/new – begin a new conversation",
        ChatCommand.STOP: "/stop – stop what is being done",
        ChatCommand.STATUS: "/status – what is being done",
        ChatCommand.QUEUE: "/queue TEXT – say it after what is being done",
        ChatCommand.STEER: "/steer TEXT – say it to what is being done",
        ChatCommand.UNDO: "/undo – take back what was said last, and the answer to it",
        ChatCommand.TITLE: "/title TEXT – call this conversation so; /title alone says what it is called",
        ChatCommand.USAGE: "/usage – what this conversation has used",
        ChatCommand.COMPRESS: "/compress FOCUS – summarise what was said, most of all this",
        ChatCommand.MODEL: "/model NAME – ask this model from now on; /model alone says which ones there are",
        ChatCommand.APPROVE: (
            "/approve – allow what I asked about, once; /approve session or /approve always for longer"
        ),
        ChatCommand.DENY: "/deny REASON – do not allow it",
        ChatCommand.JOBS: "/jobs – what is done by schedule, and when",
        ChatCommand.SETHOME: "/sethome – send here what goes to this platform without naming a chat",
    }
)


class CommandAccess:
    """Who may use which command."""

    def __init__(self, rules: Sequence[str] = ()) -> None:
        """``rules`` as ``COMMAND_RULE`` has them; the last one about a command counts."""
        named = (rule.partition("=") for rule in rules)
        said = {ChatCommand(command): None if role == _NOBODY else ChatRole(role) for command, _, role in named}
        usual = {command: _LEAST.get(command, ChatRole.GUEST) for command in ChatCommand}
        self._least: Mapping[ChatCommand, ChatRole | None] = {**usual, **said}

    def allows(self, role: ChatRole, command: ChatCommand) -> bool:
        """Whether somebody of ``role`` may use ``command``."""
        least = self._least[command]
        return least is not None and _ORDER.index(role) <= _ORDER.index(least)

    def help_for(self, role: ChatRole) -> str:
        """What somebody of ``role`` may do, a line each."""
        return "\n".join(line for command, line in _HELP.items() if self.allows(role, command))


class TurnRow(NamedTuple):
    """A row of a transcript."""

    seq: int
    role: Role
    run_pk: int
    """Of the run that wrote it; 0 for one that was copied from another session."""


def begins_last_turn(rows: Sequence[TurnRow]) -> int | None:
    """The number of the row with which the last turn begins, among the last rows of a transcript in order: that is all
    its last run wrote, or, of a copy, what was said last and everything behind it. ``None`` where the rows do not show
    the beginning."""
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
