"""Commands that only read, so that nobody has to be asked whether they may be done a second time. Pure.

A list of what is known to be harmless, and not of dangers: a program, an option or a construct that is not known here
counts as an effect. ``git`` does not stand here, because a repository's configuration names programs that even
``git status`` runs. The names mean the programs that they usually mean: who asks has to know that no variable changes
that. Whether a command is *dangerous* is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hermes_worker.safety.commands import (
    ShellCommand,
    Unreadable,
    find_operands,
    find_short_flags,
    has_expansion,
    has_option,
    parse_name_set,
)
from hermes_worker.safety.shell import read_commands

_READERS: Final = parse_name_set(
    "basename cat cd cksum cmp comm cut df diff dirname du echo egrep expand false fgrep fold free grep groups head id "
    "jq ls md5sum nl nproc od paste pwd readlink realpath seq sha1sum sha256sum sha512sum stat tac tail test tr true "
    "type uname uptime wc which whoami [ :"
)
"""Programs that write nothing, whatever their arguments."""
_FOLDERS: Final = ("", "/bin/", "/usr/bin/")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Effects:
    """What a program that reads must not be given."""

    letters: str = ""
    options: tuple[str, ...] = ()
    beginnings: tuple[str, ...] = ()
    operands_max: int | None = None


_READERS_WITHOUT: Final[Mapping[str, _Effects]] = {
    "find": _Effects(beginnings=("-delete", "-exec", "-ok", "-fls", "-fprint")),
    "printf": _Effects(letters="v"),
    "rg": _Effects(options=("--pre", "--hostname-bin", "--search-zip"), letters="z"),
    "sort": _Effects(letters="o", options=("--output", "--compress-program")),
    "tree": _Effects(letters="o"),
    "uniq": _Effects(operands_max=1),
}
_SED_PRINTS: Final = re.compile(r"[\d,$]*p")
_NOWHERE: Final = ("/dev/null", "/dev/stdout", "/dev/stderr")
_UNREAD: Final = re.compile(r"\b(?:for|select)\b|\\\n")
"""A loop may give PATH another value, and the reader does not name its variable."""


def is_reading(text: str) -> bool:
    """Whether a command line surely does nothing but read. An unreadable or doubtful one does not count as such."""
    try:
        reading = read_commands(text)
    except Unreadable:
        return False
    if not reading.commands or reading.doubts or _UNREAD.search(text):
        return False
    return all(_reads(command) for command in reading.commands)


def _reads(command: ShellCommand) -> bool:
    if command.assignments or command.function or any(target not in _NOWHERE for target in command.writes_to):
        return False
    if any(source.startswith("/dev/") for source in command.reads_from):  # bash connects to /dev/tcp/HOST/PORT
        return False
    if not command.words:
        return True
    folder, _, name = command.words[0].rpartition("/")
    if (f"{folder}/" if folder else "") not in _FOLDERS:
        return False
    if name in _READERS:
        return True
    if any(has_expansion(word) for word in command.args):  # any option may come of it
        return False
    if name == "sed":
        return _prints_lines(command.args)
    effects = _READERS_WITHOUT.get(name)
    return effects is not None and not _has_effects(command.args, effects)


def _prints_lines(args: list[str]) -> bool:
    """Whether ``sed`` is given one script that prints, and files."""
    is_script = args[:1] == ["-n"] and _SED_PRINTS.fullmatch("".join(args[1:2])) is not None
    return is_script and not any(arg.startswith("-") for arg in args[2:])


def _has_effects(args: list[str], effects: _Effects) -> bool:
    if any(word.startswith(effects.beginnings) for word in args) or has_option(args, *effects.options):
        return True
    is_too_many = effects.operands_max is not None and len(find_operands(args)) > effects.operands_max
    return is_too_many or bool(find_short_flags(args) & set(effects.letters))
