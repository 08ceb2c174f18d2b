"""Which files of a workspace a checkpoint holds, and when one is due. Pure."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import Final

FILES_MAX: Final = 50_000
"""Of one checkpoint, as in Hermes Agent; of a larger workspace none is made."""
DEPTH_MAX: Final = 48
"""Folders between the workspace and a file; deeper ones are left out."""
LEFT_OUT_MAX: Final = 1_000
"""Files whose names are kept because they were left out: a restore does not touch them."""

_FOLDERS: Final = frozenset(
    {
        *(".git", ".hg", ".svn", ".worktrees"),
        *("node_modules", "dist", "build", "target", ".next", ".nuxt", "coverage"),
        *("__pycache__", ".cache", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".tox", ".gradle"),
        *(".venv", "venv", "env"),
    }
)
"""What programs make again, and the histories of others."""
_FILES: Final = (
    *(".git", ".coverage", ".DS_Store", "Thumbs.db", "*.hermes-tmp"),
    *("*.pyc", "*.pyo", "*.so", "*.dylib", "*.dll", "*.o", "*.a", "*.jar", "*.class", "*.exe", "*.obj"),
    *(
        "*.mp4",
        "*.mov",
        "*.mkv",
        "*.webm",
        "*.zip",
        "*.tar",
        "*.gz",
        "*.tgz",
        "*.xz",
        "*.bz2",
        "*.7z",
        "*.rar",
        "*.iso",
    ),
    *(
        ".env",
        ".env.*",
        ".envrc",
        ".netrc",
        ".npmrc",
        ".pypirc",
        "*.pem",
        "*.key",
        "*.p12",
        "*.pfx",
        "id_rsa*",
        "id_ed25519*",
    ),
    *("*.log",),
)
"""What is built, packed or secret: a second copy of a secret is one more to lose."""
_FILE: Final = re.compile("|".join(fnmatch.translate(pattern) for pattern in _FILES), re.IGNORECASE)


def ignored_folders() -> tuple[str, ...]:
    """Patterns of a shell for the names of folders that are not looked into."""
    return (".[gG][iI][tT]", *sorted(_FOLDERS))


def is_ignored_folder(name: str) -> bool:
    """Whether a folder of this name is not looked into."""
    return name in _FOLDERS or name.lower() == ".git"


def is_ignored_file(name: str) -> bool:
    """Whether a file of this name is left alone, by checkpoints and by restores."""
    return _FILE.match(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLimits:
    """How much is kept of one workspace."""

    checkpoints: int = 50
    """The newest ones."""
    file_bytes: int = 10 * 1024**2
    """A larger file is left out."""
    store_bytes: int = 500 * 1024**2
    """Compressed, of all checkpoints of a workspace together; the newest one stays whatever it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When and for whom a checkpoint was made."""

    session_id: str
    run_id: str
    iteration: int
    """Of the run; 0 for one that a restore made."""
    tool: str
    """What was about to run: a tool, or ``restore``."""

    @property
    def turn(self) -> tuple[str, int]:
        """At most one checkpoint is made of it."""
        return (self.run_id, self.iteration)


def is_due(moment: Moment, last: Moment | None) -> bool:
    """Whether a call begins an iteration of which there is no checkpoint yet."""
    return last is None or moment.turn != last.turn


def is_worth_keeping(tree: str, moment: Moment, last_tree: str | None, last: Moment | None) -> bool:
    """Whether a checkpoint says anything that the one before it does not. The first of a run always does: it is what
    the run began with."""
    return tree != last_tree or last is None or moment.run_id != last.run_id
