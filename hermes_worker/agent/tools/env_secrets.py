"""The secrets in a workspace's environment files, hidden wherever a tool's result prints them.

A command, a script, a background process or a page that a browser filled can show what stands in ``.env`` without its
name beside it, so it is the values that are looked for. A text that was changed (encoded, cut into pieces) is not
recognised: this is a seat belt. Real protection is to keep no secrets where agents run commands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from hermes_worker.safety.redaction import is_secret_name
from hermes_worker.workspaces.base import EnvironmentFilesHolder, Workspace

_LINE: Final = re.compile(r"^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(.*?)\s*$")
_CHARS_MIN: Final = 8
"""Least characters of the value of a name that sounds like a secret's."""
_RANDOM_CHARS_MIN: Final = 16
_RANDOM: Final = re.compile(r"(?=.*[A-Za-z])(?=.*\d)[A-Za-z0-9_+/=.~-]+")
"""Matches values that look like a key, whatever their name."""
_DIRECTORIES: Final = ("PWD", "OLDPWD")
_NAME: Final = re.compile(r"(?i)key|secret|token|pass|pwd|auth|cred|dsn|private")
"""Names that count as a secret's in such a file: more than in other texts."""
_PLAIN: Final = re.compile(r"(?i)true|false|none|null|development|production|localhost|changeme")
_TOOLSETS: Final = frozenset({"browser", "code_execution", "file", "terminal"})
"""The toolsets whose tools can show the content of files of the workspace."""


def find_workspace_secrets(toolset: str, workspace: Workspace) -> tuple[str, ...]:
    """The values to hide in a result of a tool of ``toolset``; empty where its tools see no files."""
    if toolset not in _TOOLSETS or not isinstance(workspace, EnvironmentFilesHolder):
        return ()
    # The longest first: one may hold another.
    return tuple(sorted(set(_spell_values(find_secrets(workspace.read_env_texts()))), key=len, reverse=True))


def find_secrets(texts: Iterable[str]) -> Iterator[str]:
    """The values of environment files that are secrets, by their name or by their look."""
    for text in texts:
        for line in text.splitlines():
            if found := _LINE.match(line):
                value = _unquote(found[2])
                if _is_secret(found[1], value):
                    yield value


def _unquote(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return re.sub(r"\s+#.*$", "", value)


def _is_secret(name: str, value: str) -> bool:
    if _PLAIN.fullmatch(value):
        return False
    if is_secret_name(name) or (name not in _DIRECTORIES and _NAME.search(name)):
        return len(value) >= _CHARS_MIN
    return len(value) >= _RANDOM_CHARS_MIN and _RANDOM.fullmatch(value) is not None and "/" not in value


def _spell_values(values: Iterable[str]) -> Iterator[str]:
    """Each value unchanged, and as JSON writes it."""
    for value in values:
        yield value
        yield json.dumps(value)[1:-1]
        yield json.dumps(value, ensure_ascii=False)[1:-1]
