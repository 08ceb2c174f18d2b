"""Remove the folders that ended processes left on this machine."""

from __future__ import annotations

from pathlib import Path

from hermes_worker.system.own_folders import get_temporary_place, remove_left_folders


def list_own_folder_parents(home: Path) -> tuple[Path, ...]:
    """Folders in which processes make folders of their own, which later processes remove (``system.own_folders``)."""
    return get_temporary_place(), home / "browsers", home / "mcp-servers"


def remove_left_on_machine(home: Path) -> int:
    """Remove the folders that ended processes have left on this machine; return how many. Idempotent."""
    return sum(map(remove_left_folders, list_own_folder_parents(home)))
