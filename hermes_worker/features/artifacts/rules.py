"""Decide which files of a workspace a run leaves as artifacts. Pure.

A run declares them as patterns: ``report.md``, ``*.csv``, ``out/**``. Matching files count when they were made or
changed since the run began. Matching takes time proportional to the length of the pattern times the length of the path,
whatever they are: there is no backtracking that a caller could exploit.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import PurePosixPath

from hermes_worker.core.media_kinds import OCTETS, guess_type_of_name

PATH_CHARS_MAX = 1_024
"""The most characters of a path below the workspace."""
DEPTH_MAX = 32
"""Folders between the workspace and a file."""
FILES_MAX = 200
"""The most artifacts of one run."""
LEFT_OUT_SHOWN_MAX = 20
"""Files that match and were left out, which are named with a reason; further ones are only counted."""
NEVER_ENTERED = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules"})
"""Folders that tools make: their files were not asked for, and some hold credentials."""
_SECRET_NAMES = frozenset({".npmrc", "auth.json", "authorized_keys", "credentials", "credentials.json"})
_SECRET_SUFFIXES = frozenset({".key", ".kdbx", ".keystore", ".p12", ".pem", ".pfx"})
_RUN_BY_BROWSERS = frozenset({"application/xml", "image/svg+xml", "text/html"})


def matches_any(path: str, patterns: Sequence[str]) -> bool:
    """Whether a path below the workspace matches one of the patterns. ``*`` and ``?`` stand for characters of a name,
    and ``**`` for any number of folders. A pattern without ``/`` matches names in every folder."""
    parts = path.split("/")
    return any(_fits(parts, _split_pattern(pattern)) for pattern in patterns)


def _split_pattern(pattern: str) -> list[str]:
    parts = pattern.split("/")
    return parts if len(parts) > 1 else ["**", *parts]


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Match path parts with pattern parts. ``reached`` holds the beginnings of the path for which the pattern read so
    far can stand."""
    reached = {0}
    for wanted in pattern:
        if wanted == "**":
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(parts) and _name_fits(parts[at], wanted)}
        if not reached:
            return False
    return len(parts) in reached


def _name_fits(name: str, pattern: str) -> bool:
    """Match one name with wildcards. Returning to the last ``*`` only is enough for them."""
    at = in_pattern = 0
    star, resume = -1, 0
    while at < len(name):
        if in_pattern < len(pattern) and pattern[in_pattern] == "*":
            star, resume = in_pattern, at
            in_pattern += 1
        elif in_pattern < len(pattern) and pattern[in_pattern] in ("?", name[at]):
            at, in_pattern = at + 1, in_pattern + 1
        elif star >= 0:
            resume += 1
            at, in_pattern = resume, star + 1
        else:
            return False
    return all(char == "*" for char in pattern[in_pattern:])


def explain_refusal(path: str) -> str | None:
    """Why a file with this path is never an artifact, for any content; ``None`` when it may be one."""
    if len(path) > PATH_CHARS_MAX:
        return f"its path has more than {PATH_CHARS_MAX} characters"
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in path):
        return "its name is not plain text"
    name = PurePosixPath(path).name.casefold()
    if name in _SECRET_NAMES or PurePosixPath(name).suffix in _SECRET_SUFFIXES:
        return "files of that name hold credentials"
    return None


def find_media_type(path: str) -> str:
    """The media type by the file's extension; octets for unknown extensions, and for types that a browser would
    execute."""
    told = guess_type_of_name(PurePosixPath(path).suffix)
    return OCTETS if told in _RUN_BY_BROWSERS else told


def sanitize_name(path: str) -> str:
    """The name of a file for a download, with an underscore for every invisible or direction-changing character."""
    name = PurePosixPath(path).name
    return "".join("_" if unicodedata.category(char)[0] == "C" or char in '"\\' else char for char in name) or "_"
