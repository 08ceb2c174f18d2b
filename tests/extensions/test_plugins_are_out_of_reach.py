"""An agent cannot bring an extension: what would make code of it lies where no command and no file tool gets at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.extensions_of_others import CODE, plugin

from hermes_worker.settings import load_settings
from hermes_worker.workspaces.base import Workspace, WorkspaceError
from hermes_worker.workspaces.build import build_sandbox
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import make_session_ref


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    plugin(tmp_path / "home")
    (tmp_path / "home" / "config.yaml").write_text("extensions:\n  enabled: []\n")
    return tmp_path / "home"


@pytest.fixture
def workspace(home: Path, tmp_path: Path) -> Workspace:
    """A session's own, below the home, as a worker opens it."""
    settings = load_settings({"HERMES_SANDBOX": "require", "HOME": str(tmp_path)}, home=home)
    options = OpeningOptions(
        base_env={"PATH": os.environ["PATH"]}, hermes_home=str(home), sandbox=build_sandbox(settings)
    )
    return open_workspace(make_session_ref(str(home / "workspaces"), "s1"), options)


def test_a_command_neither_sees_nor_changes_plugins(home: Path, workspace: Workspace) -> None:
    place = home / "plugins"
    said = workspace.execute(
        f"cat {place}/loud/__init__.py; echo evil > {place}/loud/__init__.py; mkdir -p {place}/evil; "
        f"echo evil >> {home}/config.yaml; touch here; echo done",
        cwd=None,
        env={},
        timeout_s=60,
        output_bytes_max=10_000,
        should_stop=lambda: False,
    ).output.decode()
    assert "done" in said
    assert "def shout" not in said
    assert (Path(workspace.root) / "here").exists()
    assert (place / "loud" / "__init__.py").read_text() == CODE
    assert sorted(entry.name for entry in place.iterdir()) == ["loud"]
    assert "evil" not in (home / "config.yaml").read_text()


def test_a_file_tool_refuses_plugins_and_the_configuration(home: Path, workspace: Workspace) -> None:
    for path in (home / "plugins" / "loud" / "__init__.py", home / "plugins" / "evil.py", home / "config.yaml"):
        with pytest.raises(WorkspaceError):
            workspace.write_bytes(str(workspace.resolve(str(path), for_write=True)), b"evil")
    assert (home / "plugins" / "loud" / "__init__.py").read_text() == CODE
