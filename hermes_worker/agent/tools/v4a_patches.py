"""Patches in the V4A format: several files, changed together or not at all (``patch``).

    *** Begin Patch
    *** Update File: src/app.py
    @@ def main @@
     context
    -old line
    +new line
    *** Add File: src/new.py
    +content
    *** Delete File: src/old.py
    *** Move File: a.py -> b.py
    *** End Patch

``parse_patch`` makes values of the text; ``PatchPlan`` works out, without touching a file, what every file becomes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from hermes_worker.agent.tools.fuzzy import EditRefused, is_already_there, replace_lines
from hermes_worker.agent.tools.textfile import TextFile

# A marker takes a whole line from its first column, so that text that only mentions one cannot end a patch.
_BEGIN: Final = re.compile(r"\*\*\* ?Begin Patch\s*")
_END: Final = re.compile(r"\*\*\* ?End Patch\s*")
_END_OF_FILE: Final = re.compile(r"\*\*\* ?End of File\s*")
_OPERATION: Final = re.compile(r"\*\*\* ?(Add|Update|Delete|Move) File: *(.*?)\s*")
_MOVE_TO: Final = re.compile(r"\*\*\* ?Move to: *(.*?)\s*")
_HINT: Final = re.compile(r"@@+ *(.*?) *(?:@@+)?\s*")
_RANGE: Final = re.compile(r"-\d+(?:,\d+)? \+\d+(?:,\d+)?")
"""The position of a change in unified diffs; it is ignored, since the lines themselves say it better."""
_NO_NEWLINE: Final = "\\"


class PatchSyntaxError(ValueError):
    """The text is not a V4A patch; the message names the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchHunk:
    """One change inside a file. ``old`` and ``new`` both hold the lines of context."""

    hint: str
    """Text of a line above the change; empty when none was given."""
    old: tuple[str, ...]
    new: tuple[str, ...]
    outer: tuple[str, ...] = ()
    """Texts of lines above the hint's line, each below the one before it."""
    is_at_end: bool = False
    """Its lines are the last ones of the file."""

    @property
    def hints(self) -> tuple[str, ...]:
        """Texts of lines that lead to the change, from the outside to the inside."""
        return (*self.outer, self.hint) if self.hint else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AddFile:
    path: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFile:
    path: str
    hunks: tuple[PatchHunk, ...]
    move_to: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFile:
    path: str
    to: str


Operation = AddFile | UpdateFile | DeleteFile | MoveFile


# --- parsing ---


def parse_patch(patch: str) -> tuple[Operation, ...]:
    """The operations of a patch, in order. Raises ``PatchSyntaxError``."""
    sections = _split_sections(_list_inner_lines(patch))
    if not sections:
        raise PatchSyntaxError("the patch has no '*** Add File:', '*** Update File:', '*** Delete File:' or '*** Move")
    return tuple(_parse_operation(section) for section in sections)


@dataclass(slots=True, kw_only=True)
class _Section:
    """The lines that belong to one ``*** ... File:`` line."""

    number: int
    verb: str
    target: str
    lines: list[tuple[int, str]] = field(default_factory=list)


def _list_inner_lines(patch: str) -> list[tuple[int, str]]:
    """The numbered lines between the markers; both markers may be missing."""
    numbered = [(number, line.removesuffix("\r")) for number, line in enumerate(patch.split("\n"), start=1)]
    start = next((index + 1 for index, (_, line) in enumerate(numbered) if _BEGIN.fullmatch(line)), 0)
    end = next((index for index, (_, line) in enumerate(numbered) if index >= start and _END.fullmatch(line)), None)
    return numbered[start:end]


def _split_sections(lines: Sequence[tuple[int, str]]) -> list[_Section]:
    sections: list[_Section] = []
    for number, line in lines:
        operation = _OPERATION.fullmatch(line)
        if operation:
            sections.append(_Section(number=number, verb=operation[1], target=operation[2]))
        elif sections:
            sections[-1].lines.append((number, line))
        elif line.strip():
            raise PatchSyntaxError(
                f"line {number}: {line[:80]!r} belongs to no file; start with '*** Update File: path'"
            )
    return sections


def _parse_operation(section: _Section) -> Operation:
    if not section.target:
        raise PatchSyntaxError(f"line {section.number}: the file's path is missing")
    match section.verb:
        case "Add":
            return AddFile(path=section.target, lines=_parse_added_lines(section))
        case "Update":
            return _parse_update(section)
        case "Delete":
            _require_nothing(section)
            return DeleteFile(path=section.target)
        case _:
            _require_nothing(section)
            source, arrow, to = section.target.partition(" -> ")
            if not (arrow and source.strip() and to.strip()):
                raise PatchSyntaxError(f"line {section.number}: write '*** Move File: old/path -> new/path'")
            return MoveFile(path=source.strip(), to=to.strip())


def _require_nothing(section: _Section) -> None:
    for number, line in section.lines:
        if line.strip():
            raise PatchSyntaxError(f"line {number}: a '{section.verb} File' section has no lines of its own")


def _parse_added_lines(section: _Section) -> tuple[str, ...]:
    for number, line in section.lines:
        if line and not line.startswith("+"):
            raise PatchSyntaxError(f"line {number}: every line of an added file begins with '+'")
    return tuple(line[1:] for _, line in section.lines if line)


def _parse_update(section: _Section) -> UpdateFile:
    move_to: str | None = None
    hunks: list[PatchHunk] = []
    hints, body = list[str](), list[str]()
    for _, line in section.lines:
        moved = _MOVE_TO.fullmatch(line)
        if moved:
            move_to = moved[1]
        elif line.startswith("@@"):
            # One such line behind another says where to look for it: first the class, then the method.
            if any(one.strip() for one in body):
                hunks += _parse_hunk(hints, body)
                hints = []
            hint_line, body = _HINT.fullmatch(line), []
            hints += [hint_line[1]] if hint_line and hint_line[1] and not _RANGE.fullmatch(hint_line[1]) else []
        elif _END_OF_FILE.fullmatch(line):
            hunks += _parse_hunk(hints, body, is_at_end=True)
            hints, body = [], []
        elif not line.startswith(_NO_NEWLINE):
            body.append(line)
    hunks += _parse_hunk(hints, body)
    if not hunks and move_to is None:
        raise PatchSyntaxError(f"line {section.number}: the update of {section.target!r} changes nothing")
    return UpdateFile(path=section.target, hunks=tuple(hunks), move_to=move_to)


def _parse_hunk(hints: Sequence[str], body: Sequence[str], *, is_at_end: bool = False) -> list[PatchHunk]:
    """The hunk, or nothing when no line is marked: models write context between changes to say where they are."""
    # Empty lines at the end separate sections; elsewhere an empty line is a line of context without its blank.
    lines = list(body)
    while lines and not lines[-1]:
        lines.pop()
    if not any(line[:1] in ("+", "-") for line in lines):
        return []
    old = tuple(_strip_prefix(line) for line in lines if not line.startswith("+"))
    new = tuple(_strip_prefix(line) for line in lines if not line.startswith("-"))
    *outer, hint = hints or [""]
    return [PatchHunk(hint=hint, old=old, new=new, outer=tuple(outer), is_at_end=is_at_end)]


def _strip_prefix(line: str) -> str:
    return line[1:] if line[:1] in ("+", "-", " ") else line


# --- planning ---


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchedFile:
    """A file before and after the patch; ``None`` means that there is no file."""

    path: str
    before: TextFile | None
    after: TextFile | None


class PatchPlan:
    """The files as they would be after the operations so far. ``load`` reads a file (``None``: there is none) and may
    raise ``ValueError`` with the reason why it cannot be edited. Paths are canonical."""

    def __init__(self, load: Callable[[str], TextFile | None]) -> None:
        self._load = load
        self._before: dict[str, TextFile | None] = {}
        self._after: dict[str, TextFile | None] = {}
        self.moves: list[tuple[str, str]] = []
        self.errors: list[str] = []
        self.notes: list[str] = []

    @property
    def changes(self) -> tuple[PatchedFile, ...]:
        """The files that differ in the end, in the order in which they came up."""
        return tuple(
            PatchedFile(path=path, before=before, after=self._after[path])
            for path, before in self._before.items()
            if before != self._after[path]
        )

    def apply_operation(self, operation: Operation, names: Mapping[str, str]) -> None:
        """Apply one operation to the plan; what is wrong with it is added to ``errors``. ``names`` gives the canonical
        path of every path in the operation."""
        try:
            match operation:
                case AddFile():
                    self._add(operation, names)
                case UpdateFile():
                    self._update(operation, names)
                case DeleteFile():
                    self._require_existing(operation.path, names)
                    self._after[names[operation.path]] = None
                case MoveFile():
                    self._move(operation.path, operation.to, names)
                case _:
                    assert_never(operation)
        except ValueError as error:
            self.errors.append(f"{operation.path}: {error}")

    def _add(self, operation: AddFile, names: Mapping[str, str]) -> None:
        if self._load_current_file(names[operation.path]) is not None:
            raise ValueError("the file is already there; use '*** Update File:' to change it")
        text = "".join(f"{line}\n" for line in operation.lines)
        self._after[names[operation.path]] = TextFile(text=text)

    def _move(self, path: str, to: str, names: Mapping[str, str]) -> None:
        file = self._require_existing(path, names)
        if self._load_current_file(names[to]) is not None:
            raise ValueError(f"cannot be moved to {to!r}: something is already there")
        self._after[names[to]] = file
        self._after[names[path]] = None
        self.moves.append((path, to))

    def _update(self, operation: UpdateFile, names: Mapping[str, str]) -> None:
        file = self._require_existing(operation.path, names)
        text = file.text
        problems: list[str] = []
        for number, hunk in enumerate(operation.hunks, start=1):
            outcome = _apply_hunk(hunk, text)
            if isinstance(outcome, str):
                text = outcome
            elif is_already_there(text, "\n".join(hunk.old), "\n".join(hunk.new)):
                self.notes.append(f"{operation.path}: hunk {number} is already in the file")
            else:
                problems.append(f"hunk {number}{f' ({hunk.hint})' if hunk.hint else ''}: {outcome.message}")
        if problems:
            raise ValueError("; ".join(problems))
        self._after[names[operation.path]] = file.replace_text(text)
        if operation.move_to is not None:
            self._move(operation.path, operation.move_to, names)

    def _require_existing(self, path: str, names: Mapping[str, str]) -> TextFile:
        file = self._load_current_file(names[path])
        if file is None:
            raise ValueError("there is no such file")
        return file

    def _load_current_file(self, path: str) -> TextFile | None:
        if path not in self._after:
            self._before[path] = self._after[path] = self._load(path)
        return self._after[path]


def _apply_hunk(hunk: PatchHunk, text: str) -> str | EditRefused:
    """``text`` with the hunk applied. Hints are only needed when the lines alone do not say where."""
    if not hunk.old:
        return _insert_lines(hunk, text)
    if hunk.is_at_end and isinstance(done := _replace_below(hunk, text, _find_tail_start(text, len(hunk.old))), str):
        return done
    whole, below = _replace_below(hunk, text, 0), _find_below_hints(hunk.hints, text)
    if isinstance(whole, str) or below is None:
        return whole
    found = _replace_below(hunk, text, below)
    return found if isinstance(found, str) else whole


def _replace_below(hunk: PatchHunk, text: str, place: int) -> str | EditRefused:
    """Apply a hunk to the part of a text that begins at ``place``, and return the whole text."""
    found = replace_lines(text[place:], hunk.old, hunk.new)
    return found if isinstance(found, EditRefused) else text[:place] + found.text


def _find_tail_start(text: str, lines: int) -> int:
    """The index at which the last lines of a text begin."""
    place = len(text.rstrip("\n"))
    for _ in range(lines):
        place = text.rfind("\n", 0, place)
        if place < 0:
            return 0
    return place + 1


def _find_below_hints(hints: Sequence[str], text: str) -> int | None:
    """The index at which the line of the last hint begins, each hint looked for below the one before it; ``None`` where
    one is not found.
    """
    place = 0
    for number, hint in enumerate(hints):
        found = text.find(hint, place)
        if found < 0:
            return None
        line = text.rfind("\n", 0, found) + 1
        end = text.find("\n", found)
        place = line if number == len(hints) - 1 else len(text) if end < 0 else end + 1
    return place if hints else None


def _insert_lines(hunk: PatchHunk, text: str) -> str | EditRefused:
    """New lines alone go below the line of the hint, or to the end of the file."""
    added = "".join(f"{line}\n" for line in hunk.new)
    if not hunk.hints or hunk.is_at_end:
        return (text if text.endswith("\n") or not text else text + "\n") + added
    above = _find_below_hints(hunk.hints, text) if len(hunk.hints) > 1 else 0
    lines = text[above or 0 :].split("\n")
    found = [index for index, line in enumerate(lines) if hunk.hint in line]
    if above is None or (len(found) != 1 and len(hunk.hints) == 1):
        return EditRefused(message=f"the line {hunk.hint!r} is there {len(found)} times; give lines of context instead")
    after = found[0] + 1
    return text[: above or 0] + "\n".join([*lines[:after], *hunk.new, *lines[after:]])
