"""Name the folders that neither checkpoints nor hints of projects look into. Pure."""

from __future__ import annotations

from typing import Final

IGNORED_FOLDERS: Final = frozenset(
    {
        *(".git", ".hg", ".svn", ".worktrees"),
        *("node_modules", "dist", "build", "target", ".next", ".nuxt", "coverage"),
        *("__pycache__", ".cache", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".tox", ".gradle"),
        *(".venv", "venv", "env"),
    }
)
"""Folders that programs make again, and histories of other version control systems."""
UNKEPT_REMARK: Final = "folders such as build, dist, target, node_modules and .git are neither kept nor compared"
"""What people who look at checkpoints are told."""


def is_ignored_folder(name: str) -> bool:
    """Whether a folder of this name is not searched."""
    return name in IGNORED_FOLDERS or name.lower() == ".git"
