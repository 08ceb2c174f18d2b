"""Decide which files of a workspace a checkpoint holds, and when one is due. Pure."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import Final

from hermes_worker.core.ignored_folders import IGNORED_FOLDERS

FILES_MAX: Final = 50_000
"""The most files of one checkpoint, as in Hermes Agent; a larger workspace gets none."""
DEPTH_MAX: Final = 48
"""Folders between the workspace and a file; deeper ones are left out."""
LEFT_OUT_MAX: Final = 1_000
"""The most files that were left out and whose names are kept: a restore does not touch them."""

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
"""Built, packed or secret files: a second copy of a secret is one more to lose."""
_FILE: Final = re.compile("|".join(fnmatch.translate(pattern) for pattern in _FILES), re.IGNORECASE)


def list_ignored_folders() -> tuple[str, ...]:
    """Shell patterns for the names of folders that are not searched."""
    return (".[gG][iI][tT]", *sorted(IGNORED_FOLDERS))


def is_ignored_file(name: str) -> bool:
    """Whether checkpoints and restores ignore a file of this name."""
    return _FILE.match(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLimits:
    """The most that is kept for one workspace."""

    checkpoints: int = 50
    """How many of the newest checkpoints are kept."""
    file_bytes: int = 10 * 1024**2
    """A larger file is left out."""
    store_bytes: int = 500 * 1024**2
    """Compressed bytes of all checkpoints of a workspace together; the newest one is kept whatever its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When and for which run a checkpoint was made."""

    session_id: str
    run_id: str
    iteration: int
    """The run's iteration; 0 for one that a restore made."""
    tool: str
    """The tool that was about to run, or ``restore``."""

    @property
    def turn(self) -> tuple[str, int]:
        """A key: at most one checkpoint is made for equal values."""
        return (self.run_id, self.iteration)


def is_due(moment: Moment, last: Moment | None) -> bool:
    """Whether a call is the first of its iteration, so that a checkpoint is due."""
    return last is None or moment.turn != last.turn


def is_worth_keeping(tree: str, moment: Moment, last_tree: str | None, last: Moment | None) -> bool:
    """Whether a checkpoint differs from the one before it. The first of a run always counts: it is what the run began
    with."""
    return tree != last_tree or last is None or moment.run_id != last.run_id
