"""What a shell command line would run: its simple commands, with quoting undone, nested commands included.

A reading for guards, not a shell. It is linear in the length of the text and reads at most as much as a guard must
know: words, redirections, pipelines, substitutions, here-documents, wrappers (``sudo``, ``env``, ``xargs``,
``find -exec``) and payloads (``sh -c``, ``eval``). Text inside quotes is an argument and never a command, unless
something in the line makes it one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash", "ksh", "ash", "fish", "csh", "tcsh"})
_DEPTH_MAX: Final = 12
_COMMANDS_MAX: Final = 25_000
_KEYWORDS: Final = frozenset(
    {"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "!", "{", "}", "coproc", "time", "esac"}
)
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_BREAKS: Final = frozenset(" \t\n;&|()<>")


class Unreadable(ValueError):
    """The line is longer, deeper or has more commands than a guard reads."""


@dataclass(slots=True, kw_only=True)
class Command:
    """One simple command."""

    words: list[str] = field(default_factory=list)
    """Unquoted; the first is the program as written."""
    writes_to: list[str] = field(default_factory=list)
    """Targets of output redirections."""
    documents: list[str] = field(default_factory=list)
    """Bodies of here-documents and here-strings."""
    nested: list[Command] = field(default_factory=list)
    """What its substitutions run."""
    before: Command | None = None
    """The command whose output is piped into this one."""
    wrappers: list[list[str]] = field(default_factory=list)
    """What it was wrapped in: ``["sudo", "-E"]``, ``["xargs"]``, ``["find"]``; outermost first."""
    is_detached: bool = False
    """Ends in ``&``."""

    @property
    def name(self) -> str:
        """The program without its folder, in lower case."""
        return self.words[0].rpartition("/")[2].lower() if self.words else ""

    @property
    def args(self) -> list[str]:
        return self.words[1:]

    @property
    def upstream(self) -> Iterator[Command]:
        """The commands before it in its pipeline, nearest first."""
        command = self.before
        while command is not None:
            yield command
            command = command.before

    def wrapped_in(self, name: str) -> list[str] | None:
        return next((wrapper for wrapper in self.wrappers if wrapper[0] == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A command line as read."""

    commands: Sequence[Command]
    """Everything it would run, in the order of the text, payloads after what carries them."""
    skeleton: str
    """The text with the inside of quotes, comments and here-documents left out."""


def read(text: str) -> Reading:
    """Raises ``Unreadable``."""
    reader = _Reader(text, 0)
    commands = reader.run()
    found: list[Command] = []
    for command in commands:
        _collect(command, found, 0)
    return Reading(commands=found, skeleton="".join(reader.skeleton))


def _collect(command: Command, found: list[Command], depth: int) -> None:
    """``command``, what it wraps and carries, and what runs inside its words."""
    if depth > _DEPTH_MAX or len(found) > _COMMANDS_MAX:
        raise Unreadable("the command is nested too deeply or has too many parts to be checked")
    for inner in command.nested:
        _collect(inner, found, depth + 1)
    unwrapped = unwrap(command)
    found.append(unwrapped)
    for payload in _payloads(unwrapped):
        for inner in _Reader(payload, depth + 1).run():
            _collect(inner, found, depth + 1)
    for words, wrapper in _carried(unwrapped):
        wrappers = [*unwrapped.wrappers, wrapper]
        _collect(Command(words=words, wrappers=wrappers, before=unwrapped.before), found, depth + 1)


# --- wrappers and payloads -------------------------------------------------------------------------------------------

_WITH_VALUE: Final = {
    "sudo": "ugpCcDhRrTtU",
    "doas": "uC",
    "env": "uCS",
    "nice": "n",
    "ionice": "cnp",
    "timeout": "ks",
    "stdbuf": "ioe",
    "exec": "a",
    "xargs": "aEIiLlnPsd",
    "su": "",
}
_WRAPPERS: Final = frozenset(
    {"sudo", "doas", "env", "nohup", "setsid", "exec", "command", "builtin", "nice", "ionice", "timeout", "stdbuf"}
    | {"xargs", "busybox", "time", "chroot", "parallel", "watch", "caffeinate", "unbuffer"}
)


def unwrap(command: Command) -> Command:
    """The command without keywords, assignments and wrappers in front of it."""
    words = list(command.words)
    wrappers = list(command.wrappers)
    while words:
        name = words[0].rpartition("/")[2].lower()
        if words[0] in _KEYWORDS or _ASSIGNMENT.match(words[0]):
            words.pop(0)
            continue
        if name not in _WRAPPERS:
            break
        wrapper, rest = _split_wrapper(name, words[1:])
        if not rest:
            break
        wrappers.append([name, *wrapper])
        words = rest
    if words and words[0].startswith("{") and words[0].endswith("}") and "," in words[0]:
        words = [*words[0][1:-1].split(","), *words[1:]]  # brace expansion spells a command, too
    return Command(
        words=words,
        writes_to=command.writes_to,
        documents=command.documents,
        nested=command.nested,
        before=command.before,
        wrappers=wrappers,
        is_detached=command.is_detached,
    )


def _split_wrapper(name: str, words: list[str]) -> tuple[list[str], list[str]]:
    """The wrapper's own options, and the command it runs."""
    own: list[str] = []
    rest = list(words)
    takes_value = _WITH_VALUE.get(name, "")
    while rest:
        word = rest[0]
        if word == "--":
            rest.pop(0)
            break
        if word.startswith("-") and len(word) > 1:
            own.append(rest.pop(0))
            if not word.startswith("--") and word[-1] in takes_value and rest:
                own.append(rest.pop(0))
            continue
        if name in ("env", "sudo") and _ASSIGNMENT.match(word):
            own.append(rest.pop(0))
            continue
        break
    if name in ("timeout", "chroot") and rest:
        own.append(rest.pop(0))  # its duration, or its new root
    return own, rest


def short_flags(args: Sequence[str]) -> set[str]:
    """The letters of all options in one-dash form, wherever they stand before ``--``."""
    letters: set[str] = set()
    for arg in args:
        if arg == "--":
            break
        if arg.startswith("-") and not arg.startswith("--"):
            letters |= set(arg[1:])
    return letters


def operands(args: Sequence[str]) -> list[str]:
    """What is no option."""
    found: list[str] = []
    only_operands = False
    for arg in args:
        if arg == "--" and not only_operands:
            only_operands = True
        elif only_operands or not arg.startswith("-") or arg == "-":
            found.append(arg)
    return found


def _payloads(command: Command) -> Iterator[str]:
    """Texts among the words that a shell will read."""
    name, args = command.name, command.args
    if name == "eval":
        yield " ".join(args)
    if name in SHELLS or name == "su":
        yield from shell_payloads(args)
        yield from command.documents
    env = command.wrapped_in("env")
    if env and "-S" in env:
        yield env[env.index("-S") + 1] if env.index("-S") + 1 < len(env) else ""


def shell_payloads(args: Sequence[str]) -> Iterator[str]:
    """What follows ``-c``, also as part of ``-lc``."""
    for position, arg in enumerate(args[:-1]):
        if arg == "--command" or (arg.startswith("-") and not arg.startswith("--") and "c" in arg[1:]):
            yield args[position + 1]
            return


def _carried(command: Command) -> Iterator[tuple[list[str], list[str]]]:
    """Commands among the words of ``find -exec`` and its like."""
    if command.name not in ("find", "fd", "fdfind"):
        return
    args = command.args
    flags = ("-exec", "-execdir", "-ok", "-okdir") if command.name == "find" else ("-x", "-X", "--exec", "--exec-batch")
    for position, arg in enumerate(args):
        if arg in flags:
            rest = args[position + 1 :]
            end = next((n for n, word in enumerate(rest) if word in (";", "+")), len(rest))
            if rest[:end]:
                yield rest[:end], ["find"]


# --- reading ---------------------------------------------------------------------------------------------------------


class _Reader:
    """One pass over a text."""

    def __init__(self, text: str, depth: int) -> None:
        if depth > _DEPTH_MAX:
            raise Unreadable("the command is nested too deeply to be checked")
        self._text = text
        self._depth = depth
        self._at = 0
        self.skeleton: list[str] = []
        self._commands: list[Command] = []
        self._current = Command()
        self._pending: list[tuple[Command, str, bool]] = []
        """Here-documents whose body is still to come: whose, its delimiter, whether it is expanded."""

    def run(self, until: str = "") -> list[Command]:
        """Read up to the end, or up to a closing ``until`` of this level."""
        text = self._text
        while self._at < len(text):
            char = text[self._at]
            if until and char == until:
                self._at += 1
                break
            self._step(char)
        self._close()
        return self._commands

    def _step(self, char: str) -> None:
        text, at = self._text, self._at
        if char in " \t":
            self._skip(1)
        elif char == "\n":
            self._skip(1)
            self._close()
            self._read_documents()
        elif char == "#" and (at == 0 or text[at - 1] in " \t\n;&|("):
            end = text.find("\n", at)
            self._at = len(text) if end < 0 else end
        elif char in ";&|":
            self._separator(char)
        elif char in "()":
            # A subshell takes its input from the pipeline it stands in.
            piped = self._current.before if char == "(" and not self._current.words else None
            self._skip(1)
            self._close(piped)
        elif char in "<>":
            self._redirection()
        elif char == "&":
            self._separator(char)
        else:
            word, was_quoted = self._word()
            if not was_quoted and word.isdigit() and self._at < len(text) and text[self._at] in "<>":
                return  # the number of a file descriptor
            self._current.words.append(word)

    def _skip(self, count: int) -> None:
        self.skeleton.append(self._text[self._at : self._at + count])
        self._at += count

    def _close(self, before: Command | None = None) -> None:
        command = self._current
        if command.words or command.nested or command.writes_to or command.documents:
            self._commands.append(command)
            if len(self._commands) > _COMMANDS_MAX:
                raise Unreadable("the command has too many parts to be checked")
        self._current = Command(before=before)

    def _separator(self, char: str) -> None:
        text = self._text
        if text.startswith("&>", self._at):
            self._skip(1)
            self._redirection()
            return
        doubled = text.startswith(char * 2, self._at)
        current = self._current
        if char == "|" and not doubled:
            self._skip(2 if text.startswith("|&", self._at) else 1)
            self._close(current if current.words or current.before else None)
            return
        current.is_detached = char == "&" and not doubled
        self._skip(2 if doubled else 1)
        self._close()

    def _redirection(self) -> None:
        text = self._text
        found = re.compile(r"<<<|<<-?|<>|>>|>\||[<>]&|[<>]\(|[<>]").match(text, self._at)
        assert found is not None
        operator = found[0]
        self._skip(len(operator))
        if operator.endswith("("):
            self._current.nested += self._substitution(")")
            self._current.words.append("")
            return
        while self._at < len(text) and text[self._at] in " \t":
            self._skip(1)
        word, was_quoted = self._word() if self._at < len(text) and text[self._at] not in "\n;&|()<>" else ("", False)
        if operator in ("<<", "<<-"):
            self._pending.append((self._current, word, not was_quoted))
        elif operator == "<<<":
            self._current.documents.append(word)
        elif operator[0] == ">" or operator == "<>":
            self._current.writes_to.append(word)

    def _read_documents(self) -> None:
        for command, delimiter, is_expanded in self._pending:
            lines: list[str] = []
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line = self._text[self._at : end]
                self._at = min(end + 1, len(self._text))
                if line.lstrip("\t") == delimiter or line == delimiter:
                    break
                lines.append(line)
            body = "\n".join(lines)
            command.documents.append(body)
            if is_expanded:
                command.nested += _Reader(body, self._depth + 1).substitutions_only()
        self._pending.clear()

    def substitutions_only(self) -> list[Command]:
        """What runs when the text is expanded but not executed."""
        found: list[Command] = []
        while self._at < len(self._text):
            if self._text[self._at] == "\\":
                self._at += 2
            elif self._text.startswith("$(", self._at) and not self._text.startswith("$((", self._at):
                self._at += 2
                found += self._substitution(")")
            elif self._text[self._at] == "`":
                self._at += 1
                found += self._backticks()
            else:
                self._at += 1
        return found

    def _substitution(self, until: str) -> list[Command]:
        """The commands of a ``$(...)`` whose opening has been read."""
        inner = _Reader(self._text, self._depth + 1)
        inner._at = self._at
        commands = inner.run_nested(until)
        self._at = inner._at
        return commands

    def run_nested(self, until: str) -> list[Command]:
        """Like ``run``, with brackets of its own inside."""
        text, level = self._text, 0
        while self._at < len(text):
            char = text[self._at]
            if char == "(":
                level += 1
            elif char == until:
                if level == 0:
                    self._at += 1
                    break
                level -= 1
            self._step(char)
        self._close()
        return self._commands

    def _backticks(self) -> list[Command]:
        end = self._at
        while end < len(self._text) and self._text[end] != "`":
            end += 2 if self._text[end] == "\\" else 1
        body = self._text[self._at : end].replace("\\`", "`")
        self._at = min(end + 1, len(self._text))
        return _Reader(body, self._depth + 1).run()

    def _word(self) -> tuple[str, bool]:
        """A word without its quotes, and whether any of it was quoted."""
        text = self._text
        parts: list[str] = []
        was_quoted = False
        while self._at < len(text):
            char = text[self._at]
            if char in _BREAKS:
                break
            if char in "'\"" or text.startswith(("$'", '$"'), self._at):
                was_quoted = True
                parts.append(self._quoted())
                self.skeleton.append("''")
            elif char == "\\":
                parts.append(text[self._at + 1 : self._at + 2])
                was_quoted = True
                self._at += 2
            elif char == "`":
                self._at += 1
                self._current.nested += self._backticks()
            elif text.startswith("$((", self._at):
                self._skip(3)
            elif text.startswith("$(", self._at):
                self._at += 2
                self._current.nested += self._substitution(")")
                parts.append("$()")
            else:
                parts.append(char)
                self._skip(1)
        return "".join(parts), was_quoted

    def _quoted(self) -> str:
        text = self._text
        if text.startswith("$'", self._at):
            return self._ansi_c()
        if text[self._at] == "$":
            self._at += 1
        if text[self._at] == "'":
            end = text.find("'", self._at + 1)
            end = len(text) if end < 0 else end
            inside = text[self._at + 1 : end]
            self._at = end + 1
            return inside
        return self._double_quoted()

    def _ansi_c(self) -> str:
        end = self._at + 2
        while end < len(self._text) and self._text[end] != "'":
            end += 2 if self._text[end] == "\\" else 1
        inside = self._text[self._at + 2 : end]
        self._at = end + 1
        return _ANSI_C.sub(_ansi_c_char, inside)

    def _double_quoted(self) -> str:
        text = self._text
        self._at += 1
        parts: list[str] = []
        while self._at < len(text) and text[self._at] != '"':
            if text[self._at] == "\\":
                escaped = text[self._at + 1 : self._at + 2]
                parts.append(escaped if escaped in ('"', "\\", "$", "`", "\n") else "\\" + escaped)
                self._at += 2
            elif text[self._at] == "`":
                self._at += 1
                self._current.nested += self._backticks()
            elif text.startswith("$(", self._at) and not text.startswith("$((", self._at):
                self._at += 2
                self._current.nested += self._substitution(")")
                parts.append("$()")
            else:
                parts.append(text[self._at])
                self._at += 1
        self._at += 1
        return "".join(parts)


_ANSI_C: Final = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "e": "\x1b", "E": "\x1b", "a": "\a", "b": "\b"}


def _ansi_c_char(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] in "xu" and len(code) > 1:
        return chr(int(code[1:], 16))
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    return _ESCAPES.get(code, code)
