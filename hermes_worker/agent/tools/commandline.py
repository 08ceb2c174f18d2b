"""What a shell command's text alone tells: whether it would never end, and what its exit code means.

These are hints for a model and not a guard: quoting that this reading gets wrong costs a better message, nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_CHARS_MAX: Final = 10_000
"""A longer command is a program; it is run without being read."""

_HEREDOC: Final = re.compile(r"<<-?\s*(['\"]?)(\w+)\1([^\n]*)\n.*?\n\s*\2[ \t]*(?=\n|$)", re.DOTALL)
_QUOTED: Final = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.", re.DOTALL)
_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#[^\n]*")
_DETACHED: Final = re.compile(r"(?:^|[;&|(\n]|\$\()\s*(?:nohup|setsid|disown)\b")
_ENDS_IN_BACKGROUND: Final = re.compile(r"(?<![&>|])&\s*$")
_INFORMATION: Final = re.compile(r"\s(?:--help|--version|-h|-V)(?:\s|$)")
_NEVER_ENDS: Final = re.compile(
    r"(?:^|[;&|(\n])\s*(?:npx\s+|\w+=\S*\s+)*"
    r"(?:(?:npm|pnpm|yarn|bun)\s+(?:run\s+)?(?:dev|start|serve|watch)\b"
    r"|docker[ -]compose\s+up\b(?!.*\s(?:-d|--detach)\b)"
    r"|next\s+dev\b|vite(?:\s+(?:dev|serve|preview))?\s*(?=$|[;&|]|--)|nodemon\b|uvicorn\s|gunicorn\s|hypercorn\s"
    r"|flask\s+run\b|rails\s+s(?:erver)?\b|python[\d.]*\s+-m\s+http\.server\b"
    r"|(?:python[\d.]*\s+)?manage\.py\s+runserver\b|tail\s+(?:-\S+\s+|\d+\s+)*-[fF]\b)"
    r"[^;&|\n]*(?P<after>&(?!&))?"
)

_NOTHING_MATCHED: Final = {1: "no lines matched (not an error)"}
_FILES_DIFFER: Final = {1: "the files differ (not an error)"}
_CONDITION_FALSE: Final = {1: "the condition is false (not an error)"}
_MEANINGS: Final[Mapping[str, Mapping[int, str]]] = {
    "grep": _NOTHING_MATCHED,
    "egrep": _NOTHING_MATCHED,
    "fgrep": _NOTHING_MATCHED,
    "rg": _NOTHING_MATCHED,
    "ack": _NOTHING_MATCHED,
    "diff": _FILES_DIFFER,
    "cmp": _FILES_DIFFER,
    "test": _CONDITION_FALSE,
    "[": _CONDITION_FALSE,
    "find": {1: "some folders could not be entered; the rest of the output is complete"},
    "git": {1: "often not an error, for example when 'git diff --exit-code' finds a difference"},
    "curl": {
        6: "the host's name could not be resolved",
        7: "the host refused the connection",
        22: "the server answered with an HTTP error",
        28: "the server took too long to answer",
    },
    "pytest": {1: "some tests failed", 2: "interrupted", 4: "wrong usage", 5: "no tests were collected"},
}
_GENERAL_MEANINGS: Final = {
    126: "the file was found but cannot be run as a program",
    127: "the command was not found",
    137: "killed (SIGKILL), often because memory ran out",
    139: "crashed (SIGSEGV)",
}


def find_refusal(command: str) -> str | None:
    """Why a command should not be started in the foreground, and what to do instead; ``None`` when it may run."""
    if not command.strip():
        return "the command is empty"
    if len(command) > _CHARS_MAX:
        return None
    plain = _strip_quotes(command)
    if _INFORMATION.search(plain):
        return None
    if _DETACHED.search(plain):
        return (
            "nohup, setsid and disown do not keep a process alive here: everything a command leaves running is ended "
            "with it. Run the command without them, and with background=true if it is to go on"
        )
    if _ENDS_IN_BACKGROUND.search(plain) and "wait" not in plain.split():
        return (
            "the command puts its work in the background and ends, which would end the work too. Leave out the '&' "
            "and use background=true"
        )
    server = _NEVER_ENDS.search(plain)
    if server and not server["after"]:
        return (
            "the command starts a server or a watcher that does not end by itself. Use background=true, or "
            "give it a limit with 'timeout 30 ...'"
        )
    return None


def explain_exit_code(command: str, exit_code: int) -> str | None:
    """The meaning of a non-zero exit code that is more than "failed"; ``None`` where it has no other."""
    if len(command) > _CHARS_MAX:
        return _GENERAL_MEANINGS.get(exit_code)
    words = re.split(r"\|\||&&|[|;&\n]", _strip_quotes(command).strip())[-1].split()
    while words and re.fullmatch(r"\w+=\S*", words[0]):
        words.pop(0)
    program = words[0].rpartition("/")[2] if words else ""
    return _MEANINGS.get(program, {}).get(exit_code) or _GENERAL_MEANINGS.get(exit_code)


def _strip_quotes(command: str) -> str:
    """The command without the inside of quotes, here-documents and comments."""
    without_documents = _HEREDOC.sub(lambda found: f"<< {found[3]}\n", command)
    return _COMMENT.sub("", _QUOTED.sub("''", without_documents)).strip()
