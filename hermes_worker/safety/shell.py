"""Reads a command line as bash does: which simple commands it would run, with quoting undone.

A reading for guards, not a shell. Its judge is a real bash (``tests/core/test_shell_against_bash.py``).

Theory of operation. One pass goes from left to right (``_ShellReader.read_all``), one token at a time. Three things are
kept:

* the *current command*, to which words, assignments and redirections are added until an operator, a line end or a
  bracket finishes it (``_finish_command``); a finished command joins ``commands``, the flat list that the rules look
  at;
* a stack of *frames*, one for each compound command that is open (``if``, ``{``, ``(``, ``case`` ...). It tells where a
  command begins, and what is a pattern, a condition or arithmetic instead: a reserved word counts only where a command
  may begin. Closing a frame makes the compound command the current one again, for its redirections;
* *here-documents* whose body is still to come: it begins behind the line end.

So ``if grep -q x "$f"; then cat f | sh & fi > out`` becomes four commands:

    words            before   group    other
    grep -q x MARK            the if   MARK stands for what "$f" becomes
    cat f                     the if
    sh               cat      the if   detached; ``before`` is whose output it reads
    (none)                             the if itself: members are the three above, writes to ``out``

A substitution (``$(...)``, backquotes, ``<(...)``) is read by a reader of its own from the same place on, and what it
runs is in ``nested`` of the command that it stands in, and in the flat list.

What cannot be read for certain is a *doubt* (a bracket that closes nothing, a function of an unusual name, a text that
ends too early), and a doubt asks a person: reading on after one may name too much, never silently too little. That is
why wrong-looking input is read on with and not refused: bash runs the lines in front of a syntax error.

Every step is counted against a budget in proportion to the length, which all readers of one line share, so no text
takes long; none raises anything but ``Unreadable``, for a line that is nested too deeply or has too many parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from hermes_worker.safety.commands import (
    ANY,
    ANY_CHAR,
    ANY_OF,
    BRACE_CLOSE,
    BRACE_COMMA,
    BRACE_OPEN,
    COMMANDS_MAX,
    DEPTH_MAX,
    EXPANSION,
    FIELD,
    PROCESS,
    SPLIT,
    ShellCommand,
    ShellReading,
    Unreadable,
    has_expansion,
)

_STEPS_PER_CHAR: Final = 40
_STEPS_MIN: Final = 20_000
_BRACE_WORDS_MAX: Final = 256
_FRAMES_MAX: Final = 100
_NESTING_MAX: Final = 40
_PIPELINE_MAX: Final = 200
_NAME_PARTS_MAX: Final = 8
_META: Final = frozenset(" \t\n;&|()<>")
_ORDINARY: Final = re.compile(r"[^ \t\n;&|()<>\\'\"`$*?\[{},]+")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[\])?\+?=")
_PARAMETER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!_-]")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_UNQUOTED_MARKS: Final = {"*": ANY, "?": ANY_CHAR, "[": ANY_OF, "{": BRACE_OPEN, ",": BRACE_COMMA, "}": BRACE_CLOSE}
_OPERATORS: Final = frozenset(
    {";", ";;", ";&", ";;&", "&", "&&", "|", "||", "|&", "&>", "&>>"}
    | {"<", ">", "<<", "<<-", "<<<", ">>", ">|", "<>", "<&", ">&"}
)
_DECLARING: Final = frozenset({"declare", "typeset", "local", "export", "readonly"})
"""Builtins whose arguments may be array literals."""
_COMPOUND: Final = frozenset({"{", "if", "while", "until", "for", "select", "case", "[["})


@dataclass(slots=True)
class _ReadingBudget:
    """The steps that are left, shared by all readers of one line."""

    steps: int
    commands: int = COMMANDS_MAX
    nesting: int = 0
    """Expansions and quotes that are open inside one another."""
    doubts: dict[str, None] = field(default_factory=dict)

    def spend(self, steps: int = 1) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise Unreadable("the command takes too long to be checked")

    @contextmanager
    def enter_nesting(self) -> Iterator[None]:
        self.nesting += 1
        if self.nesting > _NESTING_MAX:
            raise Unreadable("the command is nested too deeply to be checked")
        yield
        self.nesting -= 1


def read_commands(text: str) -> ShellReading:
    """Read the commands that ``text`` runs by itself; the commands that its words carry (``sudo``, ``sh -c``) are left
    alone. Raises ``Unreadable``.
    """
    budget = _ReadingBudget(_STEPS_MIN + _STEPS_PER_CHAR * len(text))
    reader = _ShellReader(text, budget, 0)
    reader.read_all()
    found: list[ShellCommand] = []
    _flatten(reader.commands, found)
    return ShellReading(commands=found, doubts=list(budget.doubts))


def _flatten(commands: Iterable[ShellCommand], found: list[ShellCommand]) -> None:
    for command in commands:
        _flatten(command.nested, found)
        found.append(command)


@dataclass(slots=True)
class _ShellWord:
    """A word as it was read."""

    text: str
    """Quotes undone; braces are still marks."""
    is_plain: bool
    """Nothing of it was quoted or expanded, so it may be a reserved word."""
    prefix: str
    """The characters before the first quote or expansion."""
    source: str
    """The word as written."""


@dataclass(slots=True)
class _CompoundFrame:
    """An open compound command."""

    kind: str
    group: ShellCommand
    function: str
    awaits_pattern: bool = False


@dataclass(slots=True)
class _HereDocument:
    """A here-document whose body is still to come."""

    command: ShellCommand
    delimiter: str
    strips_tabs: bool
    is_expanded: bool


class _ShellReader:
    """One pass over a text, or over a substitution inside it."""

    def __init__(
        self, text: str, budget: _ReadingBudget, depth: int, at: int = 0, is_substitution: bool = False
    ) -> None:
        if depth > DEPTH_MAX:
            raise Unreadable("the command is nested too deeply to be checked")
        self._text = text
        self._budget = budget
        self._depth = depth
        self.at = at
        self._is_substitution = is_substitution
        self.commands: list[ShellCommand] = []
        self._frames: list[_CompoundFrame] = []
        self._current = ShellCommand()
        self._is_prefixed = False
        """The current command began with an assignment or a redirection: no reserved word may follow."""
        self._is_closed = False
        """The current command is a compound one that has ended: only redirections may follow."""
        self._awaits_document = False
        """The current command has a here-document whose body is still to come."""
        self._piped = 0
        self._pending_function = ""
        self._documents: list[_HereDocument] = []

    # --- the main loop -----------------------------------------------------------------------------------------------

    def read_all(self) -> None:
        """Read up to the end, or to the bracket that closes this substitution."""
        while self.at < len(self._text):
            self._budget.spend()
            if self._frames and self._frames[-1].awaits_pattern:
                self._read_pattern(self._frames[-1])
            elif self._read_token():
                break
        else:
            if self._is_substitution:
                self._add_doubt("a substitution that does not end")
        self._finish_command()
        if self._frames:
            self._add_doubt("a compound command that does not end")
        if self._documents:
            self._add_doubt("a here-document that does not end")

    def _read_token(self) -> bool:
        """Read one token. True when it closed this substitution."""
        char = self._text[self.at]
        if self._skip_gap():
            return False
        if char == "\n":
            self._read_newline()
        elif char == "(":
            self._open_bracket()
        elif char == ")":
            return self._close_bracket()
        elif char in "<>" and self._text.startswith("(", self._skip_continuations(self.at + 1)):
            self._read_word_token()
        elif char in ";&|<>":
            self._read_operator()
        else:
            self._read_word_token()
        return False

    def _skip_gap(self) -> bool:
        """Skip a blank, a continuation or a comment."""
        text, at = self._text, self.at
        if text[at] in " \t":
            self.at += 1
        elif text.startswith("\\\n", at):
            self.at += 2
        elif text[at] == "#":
            # A comment ends at its line, also after a backslash.
            end = text.find("\n", at)
            self.at = len(text) if end < 0 else end
        else:
            return False
        return True

    def _skip_gaps(self, *, lines: bool = False) -> None:
        while self.at < len(self._text):
            self._budget.spend()
            if lines and self._text[self.at] == "\n":
                self._read_newline()
            elif not self._skip_gap():
                return

    def _skip_continuations(self, at: int) -> int:
        """``at`` after continuations of the line, which bash takes out before it looks for operators."""
        while self._text.startswith("\\\n", at):
            self._budget.spend()
            at += 2
        return at

    def _read_newline(self) -> None:
        self.at += 1
        self._finish_command()
        if self._documents:
            self._read_documents()

    def _add_doubt(self, why: str) -> None:
        self._budget.doubts[why] = None

    # --- commands ----------------------------------------------------------------------------------------------------

    def _finish_command(self, before: ShellCommand | None = None) -> None:
        """End the current command and begin the next, which reads what ``before`` writes."""
        command = self._current
        has_content = command.words or command.assignments or command.nested or command.writes_to
        if has_content or command.documents or command.reads_from or self._awaits_document:
            self._keep_command(command)
        self._begin_command(before)

    def _keep_command(self, command: ShellCommand) -> None:
        self._budget.commands -= 1
        if self._budget.commands < 0:
            raise Unreadable("the command has too many parts to be checked")
        self.commands.append(command)
        if self._frames:
            self._frames[-1].group.members.append(command)

    def _begin_command(self, before: ShellCommand | None = None) -> None:
        frame = self._frames[-1] if self._frames else None
        group = frame.group if frame else None
        self._current = ShellCommand(before=before, group=group, function=frame.function if frame else "")
        self._is_prefixed = self._is_closed = self._awaits_document = False
        self._piped = self._piped + 1 if before is not None else 0
        if self._piped == _PIPELINE_MAX:
            raise Unreadable("the pipeline is too long to be checked")

    def _push_frame(self, kind: str) -> None:
        if self._current.words or self._is_prefixed or self._is_closed:
            self._add_doubt("a compound command where none can begin")
            self._finish_command()
        function = self._pending_function or self._current.function
        self._pending_function = ""
        self._frames.append(_CompoundFrame(kind, self._current, function))
        if len(self._frames) > _FRAMES_MAX:
            raise Unreadable("the command is nested too deeply to be checked")
        self._begin_command()

    def _pop_frame(self, kind: str) -> None:
        """Close a compound command; what follows are its redirections."""
        self._finish_command()
        if not self._frames or self._frames[-1].kind != kind:
            self._add_doubt("a compound command that ends without having begun")
            return
        self._current = self._frames.pop().group
        self._is_closed = True

    def _open_bracket(self) -> None:
        words = self._current.words
        end = self._find_function_brackets()
        if end and len(words) == 1 and not self._is_prefixed and not self._is_closed:
            self.at = end
            self._define_function(words[0])
            return
        if not words and not self._is_prefixed and not self._is_closed and self._read_arithmetic_command():
            return
        self.at += 1
        self._push_frame("(")

    def _find_function_brackets(self) -> int:
        """The place behind ``( )``, or 0."""
        at = self.at + 1
        while at < len(self._text) and (self._text[at] in " \t" or self._text.startswith("\\\n", at)):
            self._budget.spend()
            at += 1 if self._text[at] in " \t" else 2
        return at + 1 if self._text.startswith(")", at) else 0

    def _define_function(self, name: str) -> None:
        nested, self._current.nested = self._current.nested, []
        self._current.words.clear()
        if nested:
            self._keep_command(ShellCommand(nested=nested))
        if has_expansion(name):
            self._add_doubt("a function of an unusual name")
        self._pending_function = name

    def _close_bracket(self) -> bool:
        self.at += 1
        if self._frames and self._frames[-1].kind == "(":
            self._pop_frame("(")
        elif self._is_substitution:
            return True
        else:
            self._add_doubt("a bracket that closes nothing")
            self._finish_command()
        return False

    def _read_operator(self) -> None:
        operator, after = self._text[self.at], self.at + 1
        while (end := self._skip_continuations(after)) < len(self._text) and operator + self._text[end] in _OPERATORS:
            operator += self._text[end]
            after = end + 1
        self.at = after
        if "<" in operator or ">" in operator:
            self._read_redirection(operator)
        elif operator in ("|", "|&"):
            self._finish_command(self._current)
        elif operator in (";;", ";&", ";;&"):
            self._finish_command()
            if self._frames and self._frames[-1].kind == "case":
                self._frames[-1].awaits_pattern = True
            else:
                self._add_doubt("the end of a case where there is none")
        else:
            self._current.is_detached = operator == "&"
            self._finish_command()

    # --- words in their places ---------------------------------------------------------------------------------------

    def _read_word_token(self) -> None:
        token = self._read_word()
        if self._take_descriptor(token):
            return
        words = self._current.words
        if token.is_plain and not words and self._take_reserved_word(token.text):
            return
        if self._is_closed:
            self._add_doubt("a word after a compound command")
            self._finish_command()
            words = self._current.words
        if _ASSIGNMENT.match(token.prefix) and (not words or words[0] in _DECLARING):
            self._read_assignment(token)
            return
        self._pending_function = ""
        words += self._split_fields(token.text)

    def _take_descriptor(self, token: _ShellWord) -> bool:
        """Take the number, or the variable, in front of a redirection; return whether there is one."""
        follows = self._text[self.at : self.at + 1]
        if not follows or follows not in "<>" or not token.is_plain:
            return False
        return token.text.isdecimal() or (token.source[:1] == "{" and bool(_NAME.fullmatch(token.source[1:-1])))

    def _read_assignment(self, token: _ShellWord) -> None:
        text = _restore_braces(token.text)
        if self._text.startswith("(", self.at) and text.endswith("="):
            self._read_array()
            text += SPLIT
        if self._current.words:
            self._current.words.append(text)
        else:
            self._current.assignments.append(text)
            self._is_prefixed = True

    def _read_array(self) -> None:
        """Read the words of an array, which are data; what they expand is run."""
        self.at += 1
        while True:
            self._skip_gaps()
            if self.at >= len(self._text):
                self._add_doubt("an array that does not end")
                return
            char = self._text[self.at]
            if char == "\n":
                self.at += 1
            elif char == ")":
                self.at += 1
                return
            elif char in ";&|(" or (char in "<>" and not self._text.startswith("(", self.at + 1)):
                self._add_doubt("an operator inside an array")
                self.at += 1
            else:
                self._read_word(is_array=True)

    def _split_fields(self, text: str) -> list[str]:
        words: list[str] = []
        spellings = _expand_braces(text, self._budget) if BRACE_OPEN in text else [text]
        if len(spellings) > _BRACE_WORDS_MAX:
            self._add_doubt("braces that stand for very many words")
        for spelling in spellings:
            # What braces leave empty is no word, unless it was quoted.
            plain = _restore_braces(spelling) if spelling or BRACE_OPEN not in text else SPLIT
            words += [part for part in plain.split(FIELD) if part] if FIELD in plain else [plain]
        return words

    def _take_reserved_word(self, word: str) -> bool:
        """Act on a reserved word where one may stand."""
        word = _restore_braces(word)
        if self._is_prefixed:
            if word in _COMPOUND or word in _OPENERS or word in _CLOSERS:
                self._add_doubt("a reserved word where none can stand")
            return False
        if word in _CLOSERS:
            self._pop_frame(_CLOSERS[word])
        elif word in _OPENERS:
            self._push_frame(_OPENERS[word])
        elif word in _BETWEEN:
            self._finish_command()
            if not self._frames or self._frames[-1].kind != _BETWEEN[word]:
                self._add_doubt("a reserved word where none can stand")
        elif self._is_closed:
            return False
        else:
            return self._take_special_word(word)
        return True

    def _take_special_word(self, word: str) -> bool:
        match word:
            case "!":
                pass
            case "time":
                return self._read_time()
            case "coproc":
                self._read_coproc()
            case "function":
                self._skip_gaps()
                name = self._read_word().text
                self._skip_gaps()
                if self._text.startswith("(", self.at) and (end := self._find_function_brackets()):
                    self.at = end
                self._pending_function = name
            case "for" | "select":
                self._push_frame("loop")
                self._read_loop_header()
            case "case":
                self._read_case()
            case "[[":
                self._read_condition()
            case _:
                return False
        return True

    def _read_time(self) -> bool:
        """Take the reserved word ``time`` with its one option; with any other it is a program, and false is
        returned.
        """
        while True:
            self._skip_gaps()
            at = self.at
            if not self._text.startswith("-", at):
                return True
            token = self._read_word()
            if not token.is_plain or token.text not in ("-p", "--"):
                self.at = at
                self._current.words.append("time")
                return True

    def _read_coproc(self) -> None:
        """Read ``coproc``, whose input others write. A name is only read in front of a compound command."""
        self._current.reads_from.append(PROCESS)
        self._skip_gaps()
        at = self.at
        if at >= len(self._text) or self._text[at] in _META:
            return
        kept, self._current = self._current, ShellCommand()
        first = self._read_word()
        self._skip_gaps()
        follows, after = self._text[self.at : self.at + 1], self.at
        second = self._read_word() if follows and follows not in _META else None
        is_compound = follows == "(" or (
            second is not None and second.is_plain and _restore_braces(second.text) in _COMPOUND
        )
        self.at = after if is_compound and _restore_braces(first.text) not in _COMPOUND else at
        self._current = kept

    def _read_loop_header(self) -> None:
        self._skip_gaps()
        if self._text.startswith("((", self.at):
            if not self._read_arithmetic_command():
                self._add_doubt("arithmetic that is none")
            self._begin_command()
            return
        if self.at < len(self._text) and self._text[self.at] not in _META:
            self._read_word()
        self._skip_gaps(lines=True)
        at = self.at
        if at >= len(self._text) or self._text[at] in _META:
            return
        token = self._read_word()
        if not token.is_plain or token.text != "in":
            self.at = at
            return
        while True:
            self._skip_gaps()
            is_word = self.at < len(self._text) and (
                self._text[self.at] not in _META or self._text.startswith(("<(", ">("), self.at)
            )
            if not is_word:
                return
            self._read_word()

    # --- case, conditions, arithmetic --------------------------------------------------------------------------------

    def _read_case(self) -> None:
        self._push_frame("case")
        self._skip_gaps()
        if self.at < len(self._text) and self._text[self.at] not in _META:
            self._read_word()
        self._skip_gaps(lines=True)
        token = self._read_word() if self.at < len(self._text) and self._text[self.at] not in _META else None
        if token is None or not token.is_plain or token.text != "in":
            self._add_doubt("a case without patterns")
            return
        self._finish_command()
        self._frames[-1].awaits_pattern = True

    def _read_pattern(self, frame: _CompoundFrame) -> None:
        """Read one list of patterns, with the bracket behind it."""
        self._skip_gaps(lines=True)
        if self.at >= len(self._text):
            return
        at = self.at
        if self._text[at] == "(":
            self.at += 1
        elif self._text[at] not in _META:
            token = self._read_word()
            if token.is_plain and token.text == "esac":
                frame.awaits_pattern = False
                self._pop_frame("case")
                return
            self.at = at
        self._read_pattern_text(")", "\n;&")
        if self._text.startswith(")", self.at):
            self.at += 1
        else:
            self._add_doubt("a pattern that does not end")
        frame.awaits_pattern = False
        self._finish_command()

    def _read_pattern_text(self, until: str, breaks: str) -> None:
        """Read up to one of ``until`` outside quotes and inner brackets; words and bars are data, expansions are
        run.
        """
        level, start = 0, self.at
        while self.at < len(self._text):
            self._budget.spend()
            char = self._text[self.at]
            if level == 0 and (char in until or char in breaks):
                return
            if char == "\\":
                self.at += 2
            elif char in "'\"`$" or self._text.startswith(("<(", ">("), self.at):
                self._read_piece([])
            elif char == "#" and self._text[self.at - 1] in " \t\n" and self.at > start:
                self._add_doubt("a comment inside a pattern")
                self.at += 1
            else:
                level += (char == "(") - (char == ")" and level > 0)
                self._check_control(char)
                self.at += 1

    def _read_condition(self) -> None:
        """Read ``[[ ... ]]``: its words are data."""
        command = self._current
        command.words.append("[[")
        is_regex = False
        while True:
            self._skip_gaps()
            if self.at >= len(self._text):
                self._add_doubt("a condition that does not end")
                return
            if is_regex:
                self._read_pattern_text(" \t\n", "&;<>")
                is_regex = False
                continue
            char = self._text[self.at]
            if char == "\n" and not self._documents:
                self.at += 1
            elif char in "\n;":
                self._add_doubt("a condition that does not end")
                return
            elif char in _META and not self._text.startswith(("<(", ">("), self.at):
                self.at += 1
            elif self._read_condition_word(command):
                self._is_closed = True
                return
            else:
                is_regex = command.words[-1] == "=~"

    def _read_condition_word(self, command: ShellCommand) -> bool:
        """Read a word of a condition. True when it ended it."""
        token = self._read_word()
        if token.is_plain and token.text == "]]":
            return True
        command.words.append(_restore_braces(token.text))
        if self._text.startswith("(", self.at) and token.text[-1:] in (ANY, ANY_CHAR, "+", "@", "!"):
            self._read_pattern_text(" \t\n", "&;<>")
        return False

    def _read_arithmetic_command(self) -> bool:
        """Read ``((...))``; return false when the brackets turn out to be two subshells."""
        if not self._text.startswith("((", self.at):
            return False
        end = self._find_arithmetic_end(self.at + 2)
        if end < 0:
            self._add_doubt("brackets that may be arithmetic")
            return False
        self.at += 2
        self._expand_up_to(end)
        self.at = end + 2
        self._is_closed = True
        return True

    def _find_arithmetic_end(self, at: int) -> int:
        """The position of the ``))`` of arithmetic, or -1."""
        text, level = self._text, 0
        while at < len(text):
            self._budget.spend()
            char = text[at]
            if char == "\\":
                at += 2
                continue
            if char in "'\"`":
                found = _SIMPLE_QUOTE.match(text, at)
                if found is None:
                    self._add_doubt("quotes inside arithmetic")
                else:
                    at = found.end()
                    continue
            elif char == "(":
                level += 1
            elif char == ")":
                if level == 0:
                    return at if text.startswith(")", at + 1) else -1
                level -= 1
            at += 1
        return -1

    def _expand_up_to(self, end: int, *, in_document: bool = False) -> None:
        """Read the expansions of a text that is not split into words."""
        while self.at < end:
            self._budget.spend()
            char = self._text[self.at]
            if char == "\\":
                self.at += 2
            elif char == "$":
                self._read_dollar([], is_quoted=True)
            elif char == "`":
                self._read_backticks(is_quoted=not in_document)
            elif not in_document and char in "<>" and self._text.startswith("(", self.at + 1):
                self._add_doubt("a process inside arithmetic")
                self.at += 1
            else:
                self.at += 1
        if self.at > end and not in_document:
            self._add_doubt("arithmetic whose end is not certain")

    # --- redirections ------------------------------------------------------------------------------------------------

    def _read_redirection(self, operator: str) -> None:
        command = self._current
        if not self._is_closed:
            self._is_prefixed = True
        self._skip_gaps()
        text, at = self._text, self.at
        if at >= len(text) or (text[at] in _META and not text.startswith(("<(", ">("), at)):
            self._add_doubt("a redirection without a target")
            return
        if operator in ("<<", "<<-"):
            self._read_delimiter(command, operator == "<<-")
            return
        target = _restore_braces(self._read_word().text)
        if operator == "<<<":
            command.documents.append(target)
        elif operator == "<&":
            command.reads_from += [] if target == "-" else [f"&{target}"]
        elif operator == "<":
            command.reads_from.append(target)
        elif operator != ">&" or not re.fullmatch(r"[0-9]*-?", target):
            command.writes_to.append(target)
            if operator == "<>":
                command.reads_from.append(target)

    def _read_delimiter(self, command: ShellCommand, strips_tabs: bool) -> None:
        """Read the delimiter of a here-document. It is not expanded, only unquoted."""
        kept, doubts = self._current, len(self._budget.doubts)
        self._current = ShellCommand()
        token = self._read_word()
        self._current = kept
        source = token.source
        if "`" in source or re.search(r"\$[({\['\"]|[<>]\(", source) or len(self._budget.doubts) > doubts:
            self._add_doubt("a here-document with an unusual delimiter")
        unquoted = re.sub(r"\\\n", "", source)
        is_quoted = any(char in unquoted for char in "'\"\\")
        delimiter = _unquote_delimiter(unquoted)
        if "\n" in delimiter or not delimiter:
            self._add_doubt("a here-document with an unusual delimiter")
        self._awaits_document = True
        self._documents.append(_HereDocument(command, delimiter, strips_tabs, not is_quoted))

    def _read_documents(self) -> None:
        documents, self._documents = self._documents, []
        for document in documents:
            body = self._read_body(document)
            document.command.documents.append(body)
            if document.is_expanded:
                inner = _ShellReader(body, self._budget, self._depth + 1)
                inner._expand_up_to(len(body), in_document=True)
                document.command.nested += inner._current.nested

    def _read_body(self, document: _HereDocument) -> str:
        lines: list[str] = []
        while self.at < len(self._text):
            self._budget.spend()
            line = self._read_line(document.is_expanded)
            if document.strips_tabs:
                line = line.lstrip("\t")
            if line == document.delimiter:
                return "\n".join(lines)
            if self._is_substitution and line.startswith(document.delimiter):
                self._add_doubt("a here-document that may end with a substitution")
            lines.append(line)
        self._add_doubt("a here-document that does not end")
        return "\n".join(lines)

    def _read_line(self, joins: bool) -> str:
        """Read one line of a body; a backslash joins it to the next where the body is expanded."""
        parts: list[str] = []
        while True:
            self._budget.spend()
            end = self._text.find("\n", self.at)
            end = len(self._text) if end < 0 else end
            line = self._text[self.at : end]
            self.at = min(end + 1, len(self._text))
            backslashes = len(line) - len(line.rstrip("\\"))
            if not joins or backslashes % 2 == 0 or end == len(self._text):
                parts.append(line)
                return "".join(parts)
            parts.append(line[:-1])

    # --- words -------------------------------------------------------------------------------------------------------

    def _read_word(self, *, is_array: bool = False) -> _ShellWord:
        start = self.at
        is_first = not self._current.words
        parts: list[str] = []
        prefix: str | None = None
        is_plain = True
        while self.at < len(self._text):
            self._budget.spend()
            char = self._text[self.at]
            is_process = char in "<>" and self._text.startswith("(", self._skip_continuations(self.at + 1))
            if char in _META and not is_process:
                break
            if self._text.startswith("\\\n", self.at):
                self.at += 2
                continue
            if char == "[" and prefix is None and _may_subscript(parts, is_first, is_array):
                is_plain = False
                self._read_subscript(parts)
                continue
            if char in "\\'\"`$" or is_process:
                prefix = "".join(parts) if prefix is None else prefix
                is_plain = False
            self._read_piece(parts)
        text = "".join(parts)
        if self.at == start:
            self.at += 1  # never without progress, whatever stands here
            self._add_doubt("a character that cannot be read")
        return _ShellWord(text, is_plain, text if prefix is None else prefix, self._text[start : self.at])

    def _read_piece(self, parts: list[str]) -> None:
        """Read one part of a word: a quoted text, an expansion, a mark or ordinary characters."""
        text, char = self._text, self._text[self.at]
        if char == "\\":
            escaped = text[self.at + 1 : self.at + 2] or "\\"
            self._check_control(escaped)
            parts.append(escaped)
            self.at += 2
        elif char == "'":
            parts.append(self._read_single_quoted())
        elif char == '"':
            parts.append(self._read_double_quoted())
        elif char == "`":
            self._read_backticks(is_quoted=False)
            parts.append(SPLIT)
        elif char == "$":
            self._read_dollar(parts, is_quoted=False)
        elif char in "<>":
            self.at = self._skip_continuations(self.at + 1) + 1
            self._read_process_substitution(char)
            parts.append(PROCESS)
        elif char in _UNQUOTED_MARKS:
            parts.append(_UNQUOTED_MARKS[char])
            self.at += 1
        else:
            found = _ORDINARY.match(text, self.at)
            run = found[0] if found else char
            self._budget.spend(len(run) >> 3)
            self._check_control(run)
            parts.append(run)
            self.at += len(run)

    def _check_control(self, text: str) -> None:
        if _CONTROL.search(text):
            self._add_doubt("control characters outside quotes")

    def _read_subscript(self, parts: list[str]) -> None:
        """Read ``[...]`` of an array in front of an assignment: one word, with everything inside."""
        self.at += 1
        level = 0
        while self.at < len(self._text):
            self._budget.spend()
            char = self._text[self.at]
            if char == "]" and level == 0:
                self.at += 1
                break
            level += (char == "[") - (char == "]")
            if char == "\n":
                self._add_doubt("a subscript over several lines")
            if char in "'\"`$\\":
                self._read_piece([])
            else:
                self.at += 1
        else:
            self._add_doubt("a subscript that does not end")
        parts.append("[]" if self._text.startswith(("=", "+="), self.at) else f"{ANY_OF}]")

    def _read_single_quoted(self) -> str:
        end = self._text.find("'", self.at + 1)
        if end < 0:
            self._add_doubt("a quote that does not end")
            end = len(self._text)
        inside = self._text[self.at + 1 : end]
        self.at = end + 1
        return inside

    def _read_double_quoted(self) -> str:
        self.at += 1
        parts: list[str] = []
        while self.at < len(self._text):
            self._budget.spend()
            char = self._text[self.at]
            if char == '"':
                self.at += 1
                return "".join(parts)
            if char == "\\":
                escaped = self._text[self.at + 1 : self.at + 2]
                if escaped != "\n":
                    parts.append(escaped if escaped in ('"', "\\", "$", "`") else "\\" + escaped)
                self.at += 2
            elif char == "`":
                self._read_backticks(is_quoted=True)
                parts.append(EXPANSION)
            elif char == "$":
                self._read_dollar(parts, is_quoted=True)
            else:
                found = _IN_DOUBLE_QUOTES.match(self._text, self.at)
                run = found[0] if found else char
                parts.append(run)
                self.at += len(run)
        self._add_doubt("a quote that does not end")
        return "".join(parts)

    # --- expansions --------------------------------------------------------------------------------------------------

    def _read_dollar(self, parts: list[str], *, is_quoted: bool) -> None:
        with self._budget.enter_nesting():
            self._read_expansion(parts, is_quoted=is_quoted)

    def _read_expansion(self, parts: list[str], *, is_quoted: bool) -> None:
        text, follows = self._text, self._text[self.at + 1 : self.at + 2]
        mark = EXPANSION if is_quoted else SPLIT
        if follows == "(":
            self._read_bracket_expansion()
            parts.append(mark)
        elif follows == "{":
            parts.append(self._read_braced_parameter(is_quoted=is_quoted))
        elif follows == "[":
            self._read_old_arithmetic()
            parts.append(mark)
        elif follows == "'" and not is_quoted:
            self._read_ansi_c(parts)
        elif follows == '"' and not is_quoted:
            self.at += 1
            parts.append(self._read_double_quoted())
        elif (found := _PARAMETER.match(text, self.at + 1)) is not None:
            self.at = found.end()
            parts.append(_find_parameter_mark(found[0], is_quoted=is_quoted))
        else:
            if text.startswith("\\\n", self.at + 1):
                self._add_doubt("a line that is continued inside an expansion")
            parts.append("$")
            self.at += 1

    def _read_bracket_expansion(self) -> None:
        """Read ``$(...)`` or ``$((...))``."""
        if self._text.startswith("$((", self.at):
            end = self._find_arithmetic_end(self.at + 3)
            if end >= 0:
                self.at += 3
                self._expand_up_to(end)
                self.at = end + 2
                return
            self._add_doubt("brackets that may be arithmetic")
        if self._text.startswith("\\\n", self.at + 2):
            self._add_doubt("a line that is continued inside an expansion")
        self.at += 2
        self._current.nested += self._read_substitution()

    def _read_substitution(self, group: ShellCommand | None = None) -> list[ShellCommand]:
        """Read the commands up to the closing bracket; its opening has been read."""
        inner = _ShellReader(self._text, self._budget, self._depth + 1, self.at, is_substitution=True)
        inner._current.function = self._current.function
        if group is not None:
            inner._frames.append(_CompoundFrame("process", group, self._current.function))
            inner._begin_command()
            inner._frames.pop()
        inner.read_all()
        if self._documents and "\n" in self._text[self.at : inner.at]:
            self._add_doubt("a substitution over several lines before a here-document")
        self.at = inner.at
        return inner.commands

    def _read_process_substitution(self, direction: str) -> None:
        """Read ``<(...)`` or ``>(...)``, whose commands read what others write."""
        if self._text.startswith("(", self._skip_continuations(self.at)):
            # bash looks for the end of what may be arithmetic by brackets and quotes alone, comments included.
            self._add_doubt("brackets that may be arithmetic")
        group = ShellCommand(reads_from=[PROCESS]) if direction == ">" else None
        commands = self._read_substitution(group)
        for command in commands:
            command.group = command.group or group
        self._current.nested += commands

    def _read_backticks(self, *, is_quoted: bool) -> None:
        start = end = self.at + 1
        while end < len(self._text) and self._text[end] != "`":
            self._budget.spend()
            end += 2 if self._text[end] == "\\" else 1
        if end >= len(self._text):
            self._add_doubt("backticks that do not end")
        raw = self._text[start:end]
        if is_quoted and '"' in raw:
            self._add_doubt("quotes inside backticks inside quotes")
        body = re.sub(r"\\([$`\\])", r"\1", raw)
        self.at = end + 1
        inner = _ShellReader(body, self._budget, self._depth + 1)
        inner.read_all()
        self._current.nested += inner.commands

    def _read_old_arithmetic(self) -> None:
        """Read ``$[...]``."""
        self.at += 2
        level = 0
        while self.at < len(self._text):
            self._budget.spend()
            char = self._text[self.at]
            if char == "]" and level == 0:
                self.at += 1
                return
            level += (char == "[") - (char == "]")
            if char in "'\"\\":
                self._add_doubt("quotes inside arithmetic")
            if char in "`$":
                self._read_piece([])
            else:
                self.at += 1
        self._add_doubt("arithmetic that does not end")

    def _read_braced_parameter(self, *, is_quoted: bool) -> str:
        """Read ``${...}`` with its inner expansions; return the text that stands for its value."""
        self.at += 2
        start = self.at
        if self._text[start : start + 1] in (" ", "\t", "\n", "|"):
            self._add_doubt("an expansion that runs commands")
        while self.at < len(self._text):
            self._budget.spend()
            char = self._text[self.at]
            if char == "}":
                break
            if char == "\\":
                self.at += 2
            elif char == "'" and is_quoted:
                self._add_doubt("a single quote inside an expansion inside quotes")
                self.at += 1
            elif char == '"':
                self._read_double_quoted()
            elif char == "'" or char in "`$":
                self._read_piece([]) if not is_quoted else self._read_quoted_piece(char)
            elif char in "<>" and self._text.startswith("(", self.at + 1):
                self._read_piece([])
            else:
                self.at += 1
        else:
            self._add_doubt("an expansion that does not end")
        raw = self._text[start : self.at]
        self.at += 1
        if re.search(r"@P$", raw):
            self._add_doubt("an expansion that runs commands")
        return _find_parameter_mark(raw, is_quoted=is_quoted)

    def _read_quoted_piece(self, char: str) -> None:
        if char == "$":
            self._read_dollar([], is_quoted=True)
        else:
            self._read_backticks(is_quoted=True)

    def _read_ansi_c(self, parts: list[str]) -> None:
        end = self.at + 2
        while end < len(self._text) and self._text[end] != "'":
            self._budget.spend()
            end += 2 if self._text[end] == "\\" else 1
        if end >= len(self._text):
            self._add_doubt("a quote that does not end")
        inside = self._text[self.at + 2 : end]
        self.at = end + 1
        # A NUL ends the text.
        text = _ANSI_C.sub(_decode_ansi_c, inside).partition("\0")[0]
        if "\x01" in text or "\x7f" in text or "\\x{" in inside:
            self._add_doubt("characters that versions of bash read differently")
        parts.append(text)


_OPENERS: Final = {"if": "if", "while": "loop", "until": "loop", "{": "{"}
_CLOSERS: Final = {"fi": "if", "done": "loop", "}": "{", "esac": "case"}
_BETWEEN: Final = {"then": "if", "else": "if", "elif": "if", "do": "loop"}
_SIMPLE_QUOTE: Final = re.compile(r"\"[\w${}\[\]@#* +-]*\"")
_IN_DOUBLE_QUOTES: Final = re.compile(r"[^\"\\`$]+")
_ANSI_C: Final = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|c.|.)", re.DOTALL)
_ESCAPES: Final = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "e": "\x1b",
    "E": "\x1b",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
}
_LITERAL_ESCAPES: Final = "\\'\"?"


def _decode_ansi_c(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] in "xuU" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "\ufffd"
    if code[0] in "01234567":
        return chr(int(code, 8) & 0xFF)
    if code[0] == "c" and len(code) > 1:
        return chr(ord(code[1].upper()) & 0x1F)
    if code in _LITERAL_ESCAPES:
        return code
    return _ESCAPES.get(code, "\\" + code)


def _find_parameter_mark(parameter: str, *, is_quoted: bool) -> str:
    """The text that stands in a word for the value of ``parameter``. Home folders are spelled as a path."""
    if parameter == "HOME":
        return "~"
    if parameter == "HERMES_HOME":
        return "~/.hermes"
    if not is_quoted:
        return FIELD if parameter.startswith("IFS") and not parameter[3:4].isalnum() else SPLIT
    is_list = parameter in ("@", "*") or "[@]" in parameter or parameter.startswith(("@", "!"))
    return SPLIT if is_list else EXPANSION


def _may_subscript(parts: Sequence[str], is_first: bool, is_array: bool) -> bool:
    """Whether a ``[`` behind ``parts`` begins a subscript, which is one word with all that stands in it."""
    if is_array:
        return not parts
    return is_first and len(parts) <= _NAME_PARTS_MAX and _NAME.fullmatch("".join(parts)) is not None


def _restore_braces(text: str) -> str:
    """The word with its braces, and a bracket that begins no pattern, as they were written."""
    plain = text.replace(BRACE_OPEN, "{").replace(BRACE_COMMA, ",").replace(BRACE_CLOSE, "}")
    if ANY_OF not in plain or "]" in plain[plain.index(ANY_OF) :]:
        return plain
    return plain.replace(ANY_OF, "[")


def _unquote_delimiter(source: str) -> str:
    """A here-document's delimiter without its quotes."""
    return re.sub(
        r"\\(.)|'([^']*)'|\"((?:[^\"\\]|\\.)*)\"", lambda found: _unquote_part(found), source, flags=re.DOTALL
    )


def _unquote_part(found: re.Match[str]) -> str:
    if found[3] is not None:
        return re.sub(r"\\([$`\"\\])", r"\1", found[3])
    return found[1] or found[2] or ""


def _expand_braces(text: str, budget: _ReadingBudget) -> list[str]:
    """The words that ``{a,b}`` stands for. A sequence like ``{a..c}`` stands for unknown text."""
    done: list[str] = []
    waiting = [text]
    while waiting and len(done) + len(waiting) <= _BRACE_WORDS_MAX:
        word = waiting.pop()
        budget.spend(1 + len(word))
        found = _find_first_braces(word)
        if found is None:
            done.append(word)
            continue
        start, commas, end = found
        head, tail = word[:start], word[end + 1 :]
        edges = [start, *commas, end]
        choices = [word[a + 1 : b] for a, b in pairwise(edges)]
        if not commas:
            choices = [SPLIT]
        waiting += [head + choice + tail for choice in reversed(choices)]
    if waiting:
        return [SPLIT] * (_BRACE_WORDS_MAX + 1)
    return done


def _find_first_braces(word: str) -> tuple[int, list[int], int] | None:
    """The first pair of braces that expands: where it begins, its commas, where it ends."""
    open_at: list[tuple[int, list[int]]] = []
    best: tuple[int, list[int], int] | None = None
    for position, char in enumerate(word):
        if char == BRACE_OPEN:
            open_at.append((position, []))
        elif char == BRACE_COMMA and open_at:
            open_at[-1][1].append(position)
        elif char == BRACE_CLOSE and open_at:
            start, commas = open_at.pop()
            is_sequence = ".." in word[start:position]
            if (commas or is_sequence) and (best is None or start < best[0]):
                best = (start, commas, position)
            if best is not None and not open_at:
                break
    return best
