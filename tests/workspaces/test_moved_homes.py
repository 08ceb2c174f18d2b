"""Files of a home that was moved or copied: checkpoints are found, and nobody takes a copy for the original."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from hermes_worker.core.home_paths import from_stored_document, to_stored_document
from hermes_worker.features.checkpoints.files import places
from hermes_worker.features.checkpoints.files.shadow import ShadowStore
from hermes_worker.features.checkpoints.rules import Moment
from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.opening import CopyRule
from hermes_worker.workspaces.process_daemon import client as daemon_files
from hermes_worker.workspaces.processes import ProcessState
from hermes_worker.workspaces.ref import WorkspaceRef

OWN = "run_" + "a1" * 16
MOMENT = Moment(session_id=OWN, run_id=OWN, iteration=1, tool="patch")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "old"
    (home / "workspaces" / OWN).mkdir(parents=True)
    (home / "workspaces" / OWN / "a.txt").write_text("one\n")
    return home


def stored(home: Path) -> str:
    ours = WorkspaceRef(kind="local", root=str(home / "workspaces" / OWN)).to_json()
    return to_stored_document(ours, "root", (str(home),))


def checkpoints(home: Path, text: str) -> ShadowStore:
    found = places.find_store(home, "default", from_stored_document(text, "root", (str(home),)))
    assert found is not None
    return found


def as_before(home: Path) -> ShadowStore:
    """A store as code of 0.1 made it."""
    root = str(home / "workspaces" / OWN)
    return ShadowStore(places._locate_directory(home, "default", root), root)


@pytest.mark.parametrize("is_old", [False, True])
def test_checkpoints_are_found_after_every_move(home: Path, tmp_path: Path, is_old: bool) -> None:
    text = stored(home)
    kept = (as_before(home) if is_old else checkpoints(home, text)).keep_checkpoint(MOMENT)
    assert kept is not None
    assert checkpoints(home, text).list_checkpoints() == [kept]
    for name in ("new", "third"):
        home = home.rename(tmp_path / name)
        assert checkpoints(home, text).list_checkpoints() == [kept]
        (home / "workspaces" / OWN / "a.txt").write_text("two\n")
        assert [each.path for each in checkpoints(home, text).list_changes(kept)] == ["a.txt"]


def test_a_store_outside_the_home_keeps_its_name(home: Path, tmp_path: Path) -> None:
    root = str(tmp_path / "project")
    ref = WorkspaceRef(kind="local", root=root).to_json()
    assert checkpoints(home, ref).directory == places._locate_directory(home, "default", root)


def test_a_process_of_the_original_does_not_run_in_its_copy(tmp_path: Path) -> None:
    """On the same machine its daemon is alive, and watches the directory that the copy was made of."""
    original, copy = tmp_path / "proc_1", tmp_path / "copy"
    original.mkdir()
    said = {**daemon_files.describe_self(original), "beat": time.time(), "state": ProcessState.RUNNING.value}
    daemon_files.replace_file(original / "state", json.dumps(said).encode())
    shutil.copytree(original, copy)
    assert daemon_files.read_look(original).state is ProcessState.RUNNING
    assert daemon_files.read_look(copy).state is ProcessState.LOST
    assert daemon_files.read_look(original.rename(tmp_path / "moved")).state is ProcessState.RUNNING


@pytest.mark.parametrize(
    ("kind", "root", "is_refused"),
    [
        ("local", "/srv/home/workspaces/x", False),
        ("local", "/real/home/workspaces/x", False),
        ("local", "/srv/homes/x", True),
        ("local", "/srv/home2/workspaces/x", True),
        ("ssh", "/srv/home/workspaces/x", True),
        ("docker", "/workspace/files/x", True),
        ("cloud", "/srv/home/workspaces/x", True),
    ],
)
def test_a_copy_opens_what_is_its_own(kind: str, root: str, is_refused: bool) -> None:
    ref = WorkspaceRef(kind=kind, root=root)
    homes = ("/srv/home", "/real/home")
    CopyRule(homes, lambda: False).require_own(ref)
    if not is_refused:
        CopyRule(homes, lambda: True).require_own(ref)
        return
    with pytest.raises(WorkspaceError, match=r"restored copy.*'hermes-worker data restore --original-gone'"):
        CopyRule(homes, lambda: True).require_own(ref)
