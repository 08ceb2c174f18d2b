"""A kind of workspace: sessions work in a directory of their own inside the one that they are given."""

from __future__ import annotations

from pathlib import Path

from hermes_worker.extending import OpeningOptions, Workspace, local_workspace


def open_crate(root: str, options: OpeningOptions) -> Workspace:
    """The crate in ``root``."""
    return local_workspace(str(Path(root) / "crate"), options)
