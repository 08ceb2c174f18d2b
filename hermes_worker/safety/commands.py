"""The commands of a command line, as values: the reader makes them (``safety.shell``), the table judges them.

Words stand as the program gets them, with quotes undone. An unknown part of a word stands in it as one of the marks
below, which no text can contain by itself (``strip_marks``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

EXPANSION: Final = "\ue000"
"""Text by an expansion inside one word: ``"$x"``."""
SPLIT: Final = "\ue001"
"""An expansion that may become any number of words: ``$x``, ``"$@"``."""
ANY: Final = "\ue002"
"""An unquoted ``*``."""
ANY_CHAR: Final = "\ue003"
"""An unquoted ``?``."""
ANY_OF: Final = "\ue004"
"""An unquoted ``[``."""
PROCESS: Final = "\ue005"
"""The output, or the input, of other commands: ``<(...)``."""
BRACE_OPEN: Final = "\ue006"
BRACE_COMMA: Final = "\ue007"
BRACE_CLOSE: Final = "\ue008"
FIELD: Final = "\ue009"
"""``$IFS`` outside quotes: a gap between words."""
MARKS: Final = "".join((EXPANSION, SPLIT, ANY, ANY_CHAR, ANY_OF, PROCESS, BRACE_OPEN, BRACE_COMMA, BRACE_CLOSE, FIELD))
_UNMARK: Final = str.maketrans(dict.fromkeys(MARKS, "\ufffd"))

COMMANDS_MAX: Final = 25_000
DEPTH_MAX: Final = 12
_UPSTREAM_MAX: Final = 500


class Unreadable(ValueError):
    """The line is longer, deeper or has more commands than a guard reads."""


def strip_marks(text: str) -> str:
    """``text`` without characters that stand for marks."""
    return text.translate(_UNMARK)


def has_expansion(word: str) -> bool:
    """Whether the word may be another one when it is run."""
    return any(mark in word for mark in MARKS)


@dataclass(slots=True, kw_only=True)
class ShellCommand:
    """One simple command, or a compound one: then without words, with the redirections of the whole."""

    words: list[str] = field(default_factory=list)
    """The first is the program as written."""
    assignments: list[str] = field(default_factory=list)
    """``NAME=value`` in front of it, or for themselves."""
    writes_to: list[str] = field(default_factory=list)
    """Targets of output redirections."""
    reads_from: list[str] = field(default_factory=list)
    """Sources of input redirections; ``&3`` for another descriptor, ``PROCESS`` for what other commands write."""
    documents: list[str] = field(default_factory=list)
    """Bodies of here-documents and here-strings."""
    nested: list[ShellCommand] = field(default_factory=list)
    """The commands that its substitutions run."""
    before: ShellCommand | None = None
    """The command whose output is piped into this one."""
    group: ShellCommand | None = None
    """The compound command it stands in, whose input is its input."""
    members: list[ShellCommand] = field(default_factory=list)
    """The commands inside a compound command."""
    function: str = ""
    """The function whose body it stands in."""
    wrappers: list[list[str]] = field(default_factory=list)
    """The wrappers around it: ``["sudo", "-E"]``, ``["xargs"]``, ``["find"]``; outermost first."""
    is_detached: bool = False
    """Whether it ends in ``&``."""
    is_sure: bool = True
    """False when the reader only supposes that a program runs these words, or that it runs them here."""

    @property
    def name(self) -> str:
        """The program without its folder, in lower case."""
        return get_program_name(self.words[0]) if self.words else ""

    @property
    def args(self) -> list[str]:
        return self.words[1:]

    @property
    def input(self) -> ShellCommand | None:
        """The command that says where standard input comes from: this one or one around it; ``None``: inherited."""
        command: ShellCommand | None = self
        while command is not None:
            if command.before is not None or command.documents or command.reads_from:
                return command
            command = command.group
        return None

    @property
    def upstream(self) -> Iterator[ShellCommand]:
        """The commands that write what it reads from a pipe, nearest first."""
        fed = self.input
        command = fed.before if fed is not None else None
        left = _UPSTREAM_MAX
        while command is not None and left > 0:
            yield command
            yield from command.members[:left]
            left -= 1 + len(command.members)
            command = command.before

    def find_wrapper(self, name: str) -> list[str] | None:
        return next((wrapper for wrapper in self.wrappers if wrapper[0] == name), None)


def get_program_name(word: str) -> str:
    """A program without its folder, in lower case."""
    return word.rpartition("/")[2].lower()


def parse_name_set(text: str) -> frozenset[str]:
    """A set of names, written as a text."""
    return frozenset(text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellReading:
    """A command line as read."""

    commands: Sequence[ShellCommand]
    """Everything it would run, in the order of the text."""
    doubts: Sequence[str]
    """The parts that could not be read for certain; each once."""


# --- options and operands --------------------------------------------------------------------------------------------


def find_short_flags(args: Sequence[str]) -> set[str]:
    """The letters of all options in one-dash form, wherever they stand before ``--``."""
    letters: set[str] = set()
    for arg in args:
        if arg == "--":
            break
        if arg.startswith("-") and not arg.startswith("--"):
            letters |= set(arg[1:])
    return letters


def find_operands(args: Sequence[str]) -> list[str]:
    """The arguments that are no options."""
    found: list[str] = []
    only_operands = False
    for arg in args:
        if arg == "--" and not only_operands:
            only_operands = True
        elif only_operands or not arg.startswith("-") or arg == "-":
            found.append(arg)
    return found


_ABBREVIATION_CHARS_MIN: Final = 4
"""Least characters of an abbreviated long option, its dashes included: ``--ha`` may be ``--hard``."""


def is_option(arg: str, option: str) -> bool:
    """Whether ``arg`` is the long ``option``, with or without its value, also abbreviated (GNU programs, git)."""
    bare = arg.partition("=")[0]
    return bare == option or (
        len(bare) >= _ABBREVIATION_CHARS_MIN and bare.startswith("--") and option.startswith(bare)
    )


def has_option(args: Sequence[str], *options: str) -> bool:
    """Whether one of the long ``options`` stands before ``--``."""
    for arg in args:
        if arg == "--":
            return False
        if any(is_option(arg, option) for option in options):
            return True
    return False


def find_option_values(args: Sequence[str], *options: str) -> Iterator[str]:
    """The values given to ``options``: ``-o x``, ``-ox``, ``--output x``, ``--output=x``."""
    for position, arg in enumerate(args):
        if arg == "--":
            return
        for option in options:
            if arg == option or (option.startswith("--") and "=" not in arg and is_option(arg, option)):
                yield from args[position + 1 : position + 2]
            elif option.startswith("--") and is_option(arg, option):
                yield arg.partition("=")[2]
            elif not option.startswith("--") and not arg.startswith("--") and arg.startswith(option):
                yield arg[len(option) :]
