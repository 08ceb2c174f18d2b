"""What an agent writes has the permissions its user is used to, however private the worker's own files are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.confined import machine, working

from hermes_worker.workspaces.local import LocalWorkspace


@pytest.fixture(autouse=True)
def private_worker() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def made(tmp_path: Path, umask: int | None) -> LocalWorkspace:
    return LocalWorkspace(str(tmp_path), base_env={"PATH": os.environ["PATH"]}, umask=umask)


def modes(root: Path) -> dict[str, int]:
    return {path.relative_to(root).as_posix(): path.stat().st_mode & 0o7777 for path in root.rglob("*")}


def run(workspace: LocalWorkspace, command: str) -> None:
    ran = workspace.execute(command, cwd=None, env={}, timeout_s=60, output_bytes_max=1_000, should_stop=lambda: False)
    assert ran.exit_code == 0, ran.output


def test_commands_and_file_tools_write_with_the_umask_of_the_user(tmp_path: Path) -> None:
    workspace = made(tmp_path, 0o022)
    run(workspace, "touch command; mkdir folder")
    workspace.write_bytes("a/b/tool", b"x")
    expected = {"command": 0o644, "folder": 0o755, "a": 0o755, "a/b": 0o755, "a/b/tool": 0o644}
    assert modes(tmp_path) == expected


def test_confined_commands_do_as_well(tmp_path: Path) -> None:
    with machine(tmp_path, working("bubblewrap")) as confined:
        confined.workspace._umask = 0o027
        run(confined.workspace, "touch command; mkdir folder")
        assert modes(confined.root) == {"command": 0o640, "folder": 0o750}


def test_without_one_the_worker_decides(tmp_path: Path) -> None:
    workspace = made(tmp_path, None)
    run(workspace, "touch command")
    workspace.write_bytes("a/tool", b"x")
    assert modes(tmp_path) == {"command": 0o600, "a": 0o700, "a/tool": 0o600}


def test_a_file_that_is_replaced_keeps_its_permissions_and_a_folder_its_group(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("")
    (tmp_path / "script").chmod(0o750)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o2770)
    workspace = made(tmp_path, 0o022)
    workspace.write_bytes("script", b"new")
    workspace.write_bytes("shared/inner/file", b"new")
    assert modes(tmp_path)["script"] == 0o750
    assert modes(tmp_path)["shared/inner"] == 0o2755
