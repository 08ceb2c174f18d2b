"""Search a tree of files with the standard library only: what ``search_files`` runs where ripgrep is not installed.

This file is also run as a program *inside the workspace* (its text is passed to ``python -c``), for three reasons: the
files may be on another machine, a search must stop when its call is cancelled, and a regular expression that takes
exponential time holds the interpreter's lock and would freeze every other call of the worker.

It prints what ``rg --null`` prints, and skips what it skips when told to look at ``.gitignore`` files only: hidden
files, links, binary files, and what a ``.gitignore`` at or below the searched folder names.
"""

# ruff: noqa: PTH112, PTH118, PTH119
# Without pathlib it starts in two thirds of the time.

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import product

_PROBE_BYTES = 8192
_FILE_BYTES_MAX = 32 * 1024 * 1024
_RULES_BYTES_MAX = 1024 * 1024
_ALTERNATIVES_MAX = 64


def matches_glob(path: str, pattern: str) -> bool:
    """Whether a relative path matches: a pattern without ``/`` is about the file's name, any other about the whole
    path. ``**`` stands for any number of folders and ``{a,b}`` for one or the other."""
    return any(_matches_plain_glob(path, plain) for plain in _expand_braces(pattern))


def _matches_plain_glob(path: str, pattern: str) -> bool:
    parts = path.split("/")
    if "/" not in pattern:
        return fnmatchcase(parts[-1], pattern)
    return _matches_parts(parts, pattern.lstrip("/").split("/"))


def _matches_parts(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """One row per pattern of which prefixes of the path it reaches: linear where recursion would be exponential."""
    reached = [True] + [False] * len(parts)
    for pattern in patterns:
        if pattern == "**":
            first = reached.index(True) if True in reached else len(reached)
            reached = [index >= first for index in range(len(reached))]
        else:
            reached = [False] + [reached[i] and fnmatchcase(part, pattern) for i, part in enumerate(parts)]
    return reached[-1]


def _expand_braces(pattern: str) -> list[str]:
    pieces = re.split(r"\{([^{}]*,[^{}]*)\}", pattern)
    # Every other piece is the inside of a pair of braces.
    choices = [piece.split(",") if index % 2 else [piece] for index, piece in enumerate(pieces)]
    count = 1
    for options in choices:
        count *= len(options)
    return [pattern] if count > _ALTERNATIVES_MAX else ["".join(combination) for combination in product(*choices)]


class IgnoreRules:
    """The rules of one ``.gitignore`` (see gitignore(5)), for paths relative to its folder."""

    def __init__(self, text: str) -> None:
        self._rules = [rule for line in text.split("\n") if (rule := self._parse(line))]

    @staticmethod
    def _parse(line: str) -> tuple[bool, bool, list[str]] | None:
        """Whether the rule takes paths back in, whether it is about folders only, and the pattern's parts."""
        line = re.sub(r"(?<!\\)[ \t\r]+$", "", line)
        if not line or line.startswith("#"):
            return None
        is_exception = line.startswith("!")
        pattern = line[is_exception:].removeprefix("\\")
        is_for_folders = pattern.endswith("/")
        pattern = pattern.rstrip("/")
        if not pattern:
            return None
        is_anchored = "/" in pattern
        parts = pattern.lstrip("/").split("/")
        return is_exception, is_for_folders, parts if is_anchored else ["**", *parts]

    def decide_ignored(self, path: str, is_folder: bool) -> bool | None:
        """Whether the path is ignored; ``None`` when no rule matches it. The last rule that matches decides."""
        parts = path.split("/")
        for is_exception, is_for_folders, patterns in reversed(self._rules):
            if (is_folder or not is_for_folders) and _matches_parts(parts, patterns):
                return not is_exception
        return None


_Rules = list[tuple[str, IgnoreRules]]
"""Folders and what their ``.gitignore`` says, the nearest last."""


def list_files(top: str) -> Iterator[str]:
    """The files of a tree that a search looks at; ``top`` itself when it is a file."""
    if not os.path.isdir(top):
        yield top
        return
    yield from _walk_tree(top)


def _walk_tree(top: str) -> Iterator[str]:
    # A stack and no recursion: a tree may be deeper than the interpreter's stack.
    waiting = [_list_entries(top, "", [])]
    while waiting:
        found = next(waiting[-1], None)
        if found is None:
            waiting.pop()
            continue
        path, is_folder, rules = found
        if is_folder:
            waiting.append(_list_entries(top, path, rules))
        else:
            yield os.path.join(top, path)


def _list_entries(top: str, folder: str, rules: _Rules) -> Iterator[tuple[str, bool, _Rules]]:
    """The entries of a folder that are searched: path, whether it is a folder, and the rules for what it holds."""
    here = os.path.join(top, folder) if folder else top
    try:
        with os.scandir(here) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:
        return
    rules = rules + _read_rules(here, folder)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = f"{folder}/{entry.name}" if folder else entry.name
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
            is_wanted = is_folder or entry.is_file(follow_symlinks=False)
        except OSError:
            continue
        if is_wanted and not _is_ignored(path, is_folder, rules):
            yield path, is_folder, rules


def _read_rules(here: str, folder: str) -> _Rules:
    try:
        text = _read_plain_file(os.path.join(here, ".gitignore"), _RULES_BYTES_MAX + 1).decode("utf-8", "replace")
    except OSError:
        return []
    # One that is far too long has no rules: half of one might name files that an exception behind it takes back in.
    return [(folder, IgnoreRules(text))] if len(text) <= _RULES_BYTES_MAX else []


def _read_plain_file(path: str, bytes_max: int) -> bytes:
    """The beginning of a regular file. Raises ``OSError`` for anything else (a FIFO, a device, a link).

    Like ``hermes_worker.system.plainfiles``, which cannot be imported where this runs.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        return file.read(bytes_max)


def _is_ignored(path: str, is_folder: bool, rules: _Rules) -> bool:
    """The nearest ``.gitignore`` that says anything about the path decides."""
    for folder, own in reversed(rules):
        verdict = own.decide_ignored(path[len(folder) + 1 :] if folder else path, is_folder)
        if verdict is not None:
            return verdict
    return False


def _find_matching_lines(path: str, pattern: re.Pattern[str]) -> tuple[list[str], list[int]]:
    """The file's lines and the indexes of those that match; nothing for a binary or unreadable file."""
    try:
        data = _read_plain_file(path, _FILE_BYTES_MAX)
    except OSError:
        return [], []
    if b"\0" in data[:_PROBE_BYTES]:
        return [], []
    lines = data.decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()
    return lines, [index for index, line in enumerate(lines) if pattern.search(line)]


def _print_content(path: str, lines: Sequence[str], hits: Sequence[int], context: int) -> None:
    matched = set(hits)
    shown = sorted({n for hit in hits for n in range(max(0, hit - context), min(len(lines), hit + context + 1))})
    for index in shown:
        sys.stdout.write(f"{path}\0{index + 1}{':' if index in matched else '-'}{lines[index]}\n")


def _search(query: dict[str, object]) -> None:
    output = str(query["output"])
    pattern = re.compile(str(query["pattern"]))
    for path in list_files(str(query["path"])):
        if query["glob"] and not matches_glob(os.path.basename(path), str(query["glob"])):
            continue
        lines, hits = _find_matching_lines(path, pattern)
        if not hits:
            continue
        if output == "count":
            sys.stdout.write(f"{path}\0{len(hits)}\n")
        elif output == "files":
            sys.stdout.write(f"{path}\0")
        else:
            _print_content(path, lines, hits[: int(str(query["hits_max"]))], int(str(query["context"])))


def main(arguments: Sequence[str]) -> int:
    """``arguments``: one JSON object with path, pattern (``null``: list files), output, context, glob, hits_max."""
    sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    query = json.loads(arguments[0])
    try:
        if query["pattern"] is None:
            for path in list_files(query["path"]):
                sys.stdout.write(f"{path}\0")
        else:
            _search(query)
        sys.stdout.flush()
    except re.error as error:
        sys.stdout.write(f"the pattern is not a regular expression: {error}")
        return 2
    except BrokenPipeError:
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
