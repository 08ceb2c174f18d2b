from __future__ import annotations

from pathlib import Path

import pytest

from hermes_worker.workspace.local import LocalWorkspace

PATH = "/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def workspace(tmp_path: Path) -> LocalWorkspace:
    root = tmp_path / "workspace"
    root.mkdir()
    (tmp_path / "home").mkdir()
    return LocalWorkspace(str(root), base_env={"PATH": PATH, "HOME": str(tmp_path / "home"), "LANG": "C.UTF-8"})


@pytest.fixture
def root(workspace: LocalWorkspace) -> Path:
    return Path(workspace.root)
