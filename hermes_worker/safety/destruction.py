"""Commands that may destroy files of the workspace, so that a checkpoint is made before them. Pure.

The list is Hermes Agent's (``rm``, ``mv``, ``cp``, ``sed -i``, ``truncate``, ``dd``, ``shred``, some of ``git``, ``>``)
and programs like them. It decides about a copy and not about a permission: a command that is not on it, such as a
script that deletes files, is run without one.
"""

from __future__ import annotations

from typing import Final

from hermes_worker.core.ignored_folders import is_ignored_folder
from hermes_worker.safety.commands import (
    ShellCommand,
    Unreadable,
    find_operands,
    find_short_flags,
    has_expansion,
    has_option,
)
from hermes_worker.safety.dangers import find_edited_paths, read_command

_PROGRAMS: Final = frozenset(
    {
        *("rm", "rmdir", "unlink", "shred", "truncate", "dd", "wipefs", "srm"),
        *("mv", "cp", "install", "ln", "rsync", "scp", "rename", "ed", "ex", "patch", "sponge", "tee"),
        *("tar", "unzip", "7z", "cpio"),
    }
)
_GIT: Final = frozenset(
    {
        *("reset", "clean", "checkout", "restore", "switch", "rm", "mv", "stash", "merge", "rebase", "pull"),
        *("revert", "cherry-pick", "am", "apply", "read-tree"),
    }
)
_NOWHERE: Final = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/fd/")


def is_destructive(text: str) -> bool:
    """Whether a command line looks as if it changed or removed files. An unreadable one counts as such."""
    try:
        reading = read_command(text)
    except Unreadable:
        return True
    return any(_destroys(command) for command in reading.commands)


def describe_unkept(text: str) -> str:
    """Describe, for the person who decides about a command, the folders that it may destroy and no checkpoint keeps;
    empty where it names none."""
    try:
        reading = read_command(text)
    except Unreadable:
        return ""
    words = (word for command in reading.commands if _destroys(command) for word in find_operands(command.args))
    found = dict.fromkeys(part for word in words for part in word.split("/") if is_ignored_folder(part))
    return f"no checkpoint keeps {', '.join(found)}: this cannot be put back" if found else ""


def _destroys(command: ShellCommand) -> bool:
    if any(not target.startswith(("&", *_NOWHERE)) for target in command.writes_to):
        return True
    name, args = command.name, command.args
    if not command.words:
        return False
    if name in _PROGRAMS or has_expansion(command.words[0]):
        return True
    if name == "git":
        return any(word in _GIT for word in find_operands(args)[:3])
    if name == "find":
        return "-delete" in args
    if name in ("gzip", "bzip2", "xz", "zstd"):
        return not (find_short_flags(args) & {"c", "l", "t", "k"} or has_option(args, "--stdout", "--list", "--keep"))
    return any(True for _ in find_edited_paths(command))
