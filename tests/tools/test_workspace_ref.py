from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef, make_session_ref

_PLAIN = OpeningOptions(base_env={})


def test_a_reference_survives_being_stored() -> None:
    ref = WorkspaceRef(kind=WorkspaceKind.LOCAL, root="/srv/workspaces/1")
    assert WorkspaceRef.from_json(ref.to_json()) == ref


@pytest.mark.parametrize("text", ["{}", "[]", '{"kind":"local"}', "nonsense"])
def test_a_text_that_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        WorkspaceRef.from_json(text)


@pytest.mark.parametrize("root", ["relative", "", "/srv/../etc", "/srv/a\0b"])
def test_a_root_must_be_absolute_and_plain(root: str) -> None:
    with pytest.raises(ValueError):
        WorkspaceRef(kind=WorkspaceKind.LOCAL, root=root)


def test_opening_a_workspace_makes_a_directory_that_only_its_owner_enters(tmp_path: Path) -> None:
    ref = make_session_ref(str(tmp_path / "all"), "session-1")
    workspace = open_workspace(ref, _PLAIN)
    assert workspace.root == str(tmp_path / "all" / "session-1")
    assert stat.S_IMODE(Path(workspace.root).stat().st_mode) == 0o700
    workspace.write_bytes("x", b"1")
    assert open_workspace(ref, _PLAIN).read_bytes("x") == b"1"


def test_a_kind_that_no_enabled_extension_brings_cannot_be_opened() -> None:
    with pytest.raises(WorkspaceError, match="no enabled extension brings workspaces of the kind 'moon'"):
        open_workspace(WorkspaceRef.from_json('{"kind":"moon","root":"/x"}'), _PLAIN)


def test_a_workspace_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkspaceError, match="cannot be made"):
        open_workspace(WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(tmp_path / "file" / "x")), _PLAIN)
    with pytest.raises(WorkspaceError, match="cannot be made"):
        open_workspace(WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(tmp_path / "file")), _PLAIN)


@pytest.mark.parametrize("session_id", ["..", "../other", "/etc", "a/b", "", ".", "a\0b", "ü", "x" * 500, "\ud800"])
def test_a_hostile_session_id_gets_a_directory_of_its_own_directly_below(session_id: str) -> None:
    ref = make_session_ref("/srv/workspaces", session_id)
    assert Path(ref.root).parent == Path("/srv/workspaces")
    assert ref == make_session_ref("/srv/workspaces", session_id)


@settings(deadline=None)
@given(st.text(), st.text())
def test_two_sessions_never_share_a_directory(one: str, other: str) -> None:
    roots = {make_session_ref("/w", session_id).root for session_id in (one, other)}
    assert len(roots) == len({one, other})
