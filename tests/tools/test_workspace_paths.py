from __future__ import annotations

import os
import stat
import threading
from pathlib import Path, PurePosixPath

import pytest

from hermes_worker.workspaces.base import PathNotFound, WorkspaceError
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.protection import FileProtection


def test_a_relative_path_is_resolved_against_the_root_or_the_given_folder(
    workspace: LocalWorkspace, root: Path
) -> None:
    assert workspace.resolve("a/../b.txt") == PurePosixPath(root, "b.txt")
    assert workspace.resolve("b.txt", cwd="sub") == PurePosixPath(root, "sub/b.txt")
    assert workspace.resolve(str(root / "c")) == PurePosixPath(root, "c")


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "sub/../../secret",
        "/etc/hostname",
        "/",
        "",
        "a\0b",
        "\ud800",
        "~",
        "~/notes",
        "//etc/hostname",
        "sub/./../../workspace2/x",
    ],
)
def test_a_path_outside_the_workspace_is_refused(workspace: LocalWorkspace, path: str) -> None:
    for use in (workspace.read_bytes, workspace.remove, workspace.entries, workspace.resolve):
        with pytest.raises(WorkspaceError):
            use(path)
    with pytest.raises(WorkspaceError):
        workspace.write_bytes(path, b"x")


def test_a_folder_whose_name_begins_like_the_root_is_outside(workspace: LocalWorkspace, root: Path) -> None:
    sibling = root.parent / "workspace-other"
    sibling.mkdir()
    with pytest.raises(WorkspaceError, match="outside"):
        workspace.write_bytes(str(sibling / "x"), b"x")


def test_a_folder_outside_is_no_place_to_start_from(workspace: LocalWorkspace) -> None:
    with pytest.raises(WorkspaceError, match="outside"):
        workspace.resolve("x", cwd="/etc")


def test_a_link_that_leads_out_is_refused_wherever_it_is_in_the_path(workspace: LocalWorkspace, root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    (root / "new").symlink_to(outside / "not-yet-there")
    for path in ("folder/secret", "file", "new", "folder/../outside/secret"):
        with pytest.raises(WorkspaceError, match="outside"):
            workspace.read_bytes(path)
        with pytest.raises(WorkspaceError, match="outside"):
            workspace.write_bytes(path, b"x")
    assert (outside / "secret").read_text() == "s"
    assert not (outside / "not-yet-there").exists()


def test_a_link_inside_the_workspace_is_followed_and_kept(workspace: LocalWorkspace, root: Path) -> None:
    (root / "real.txt").write_text("old")
    (root / "link.txt").symlink_to("real.txt")
    workspace.write_bytes("link.txt", b"new")
    assert (root / "link.txt").is_symlink()
    assert workspace.read_bytes("real.txt") == b"new"


def test_links_in_a_circle_are_an_error(workspace: LocalWorkspace, root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    with pytest.raises(WorkspaceError):
        workspace.read_bytes("a")


def test_a_folder_swapped_for_a_link_after_the_check_is_not_followed(
    workspace: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "file").write_text("secret")
    (root / "sub").mkdir()
    (root / "sub" / "file").write_text("public")
    judged = LocalWorkspace.resolve

    def judge_then_swap(self: LocalWorkspace, path: str, *, cwd: str | None = None, for_write: bool = False) -> object:
        canonical = judged(self, path, cwd=cwd, for_write=for_write)
        (root / "sub").rename(root / "sub.old")
        (root / "sub").symlink_to(outside)
        return canonical

    monkeypatch.setattr(LocalWorkspace, "resolve", judge_then_swap)
    with pytest.raises(WorkspaceError):
        workspace.read_bytes("sub/file")


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        "deep/.env",
        ".env.local",
        ".env.production",
        ".ENV",
        ".envrc",
        ".ssh/config",
        "backup/.ssh/id_rsa",
        "keys/id_ed25519",
        ".aws/credentials",
        ".gnupg/x",
        ".netrc",
        ".git-credentials",
        ".pgpass",
    ],
)
def test_credentials_are_neither_read_nor_written(workspace: LocalWorkspace, root: Path, path: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("SECRET=1")
    (root / "innocent").symlink_to(path)
    for name in (path, "innocent"):
        with pytest.raises(WorkspaceError, match="protected"):
            workspace.read_bytes(name)
        with pytest.raises(WorkspaceError, match="protected"):
            workspace.write_bytes(name, b"x")
        with pytest.raises(WorkspaceError, match="protected"):
            workspace.remove(name)
    assert (root / path).read_text() == "SECRET=1"


def test_a_protected_name_that_is_a_link_is_protected_too(workspace: LocalWorkspace, root: Path) -> None:
    (root / "settings.txt").write_text("SECRET=1")
    (root / ".env").symlink_to("settings.txt")
    with pytest.raises(WorkspaceError, match="protected"):
        workspace.read_bytes(".env")


@pytest.mark.parametrize("path", [".env.example", "id_rsa.pub", ".docker/Dockerfile", ".npmrc", "env", "environment"])
def test_ordinary_project_files_are_not_protected(workspace: LocalWorkspace, path: str) -> None:
    workspace.write_bytes(path, b"x")
    assert workspace.read_bytes(path) == b"x"


PROTECTION = FileProtection(home="/home/ann", hermes_home="/srv/hermes")


@pytest.mark.parametrize(
    ("path", "may_read", "may_write"),
    [
        ("/home/ann/notes.txt", True, True),
        ("/home/ann/.docker/config.json", False, False),
        ("/home/ann/project/.docker/config.json", True, True),
        ("/home/ann/.kube/config", False, False),
        ("/home/ann/.config/gh/hosts.yml", False, False),
        ("/home/ann/.config/gcloud", False, False),
        ("/home/ann/.npmrc", False, False),
        ("/srv/hermes/.env", False, False),
        ("/srv/hermes/auth.json", False, False),
        ("/srv/hermes/mcp-tokens/x.json", False, False),
        ("/srv/hermes/hermes-worker.db", False, False),
        ("/srv/hermes/hermes-worker.db-wal", False, False),
        ("/srv/hermes/api.key", False, False),
        ("/srv/hermes/run/stack.json", False, False),
        ("/srv/hermes/valkey/valkey.json", False, False),
        ("/srv/hermes/config.yaml", False, False),
        ("/srv/hermes/scripts/check.sh", False, False),
        ("/srv/hermes/skills/x.md", False, False),
        ("/srv/hermes/webhooks/team.txt", False, False),
        ("/srv/hermes", False, False),
        ("/srv/hermes/workspaces/one/notes", True, True),
        ("/srv/hermes/workspaces/one/.env", False, False),
        ("/srv/hermes-notes/x", True, True),
        ("/etc/passwd", True, False),
        ("/etc/shadow", False, False),
        ("/etc/sudoers.d/x", False, False),
        ("/etc/systemd/system/x.service", True, False),
        ("/proc/self/environ", False, False),
        ("/proc/1/environ", False, False),
        ("/dev/sda", False, False),
        ("/sys/kernel", False, False),
        ("/", True, True),
    ],
)
def test_the_rules_hold_even_when_the_workspace_is_the_whole_disk(path: str, may_read: bool, may_write: bool) -> None:
    assert (PROTECTION.find_refusal(PurePosixPath(path), for_write=False) is None) == may_read
    assert (PROTECTION.find_refusal(PurePosixPath(path), for_write=True) is None) == may_write


def test_the_workers_own_environment_cannot_be_read_as_a_file() -> None:
    everything = LocalWorkspace("/", base_env={})
    with pytest.raises(WorkspaceError, match="protected"):
        everything.read_bytes("/proc/self/environ")
    with pytest.raises(WorkspaceError, match="protected"):
        everything.read_bytes(f"/proc/{os.getpid()}/environ")


def test_a_fifo_does_not_hang_the_reader(workspace: LocalWorkspace, root: Path) -> None:
    os.mkfifo(root / "pipe")
    for use in (workspace.read_bytes, workspace.remove):
        with pytest.raises(WorkspaceError, match="not a regular file"):
            use("pipe")
    with pytest.raises(WorkspaceError, match="not a regular file"):
        workspace.write_bytes("pipe", b"x")


def test_reading_says_what_is_wrong_and_only_names_the_path_given(workspace: LocalWorkspace, root: Path) -> None:
    (root / "folder").mkdir()
    (root / "file").write_text("x")
    with pytest.raises(PathNotFound, match=r"^'missing' does not exist$"):
        workspace.read_bytes("missing")
    with pytest.raises(PathNotFound):
        workspace.read_bytes("missing/too")
    with pytest.raises(WorkspaceError, match="'folder' is a directory"):
        workspace.read_bytes("folder")
    with pytest.raises(WorkspaceError, match="'file/x' is not a directory"):
        workspace.read_bytes("file/x")
    with pytest.raises(WorkspaceError, match=r"'\.' is a directory"):
        workspace.read_bytes(".")
    with pytest.raises(WorkspaceError, match="'" + "n" * 300):
        workspace.read_bytes("n" * 300)


def test_reading_can_be_limited(workspace: LocalWorkspace, root: Path) -> None:
    (root / "file").write_bytes(b"0123456789")
    assert workspace.read_bytes("file", limit=4) == b"0123"
    assert workspace.read_bytes("file", limit=0) == b""


def test_writing_makes_missing_folders(workspace: LocalWorkspace, root: Path) -> None:
    workspace.write_bytes("a/b/c.txt", b"x")
    assert (root / "a/b/c.txt").read_bytes() == b"x"


def test_writing_keeps_the_permissions_of_the_file(workspace: LocalWorkspace, root: Path) -> None:
    script = root / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    workspace.write_bytes("run.sh", b"new")
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    assert script.read_bytes() == b"new"


def test_a_write_that_fails_changes_nothing_and_leaves_nothing(
    workspace: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "file").write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WorkspaceError, match="No space left"):
        workspace.write_bytes("file", b"new")
    assert (root / "file").read_text() == "old"
    assert [entry.name for entry in root.iterdir()] == ["file"]


def test_a_folder_is_not_overwritten_by_a_file(workspace: LocalWorkspace, root: Path) -> None:
    (root / "folder").mkdir()
    with pytest.raises(WorkspaceError, match="is a directory"):
        workspace.write_bytes("folder", b"x")


def test_readers_see_the_old_or_the_new_content_and_never_a_part(workspace: LocalWorkspace) -> None:
    contents = {bytes([65 + n]) * 200_000 for n in range(3)}
    workspace.write_bytes("file", next(iter(contents)))
    done = threading.Event()

    def write() -> None:
        for _ in range(10):
            for content in contents:
                workspace.write_bytes("file", content)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert workspace.read_bytes("file") in contents
    writer.join()


def test_entries_are_sorted_and_mark_folders(workspace: LocalWorkspace, root: Path) -> None:
    (root / "b").mkdir()
    (root / "a.txt").touch()
    (root / "dangling").symlink_to("nowhere")
    assert workspace.entries(".") == ("a.txt", "b/", "dangling")
    with pytest.raises(PathNotFound):
        workspace.entries("missing")
    with pytest.raises(WorkspaceError, match="not a directory"):
        workspace.entries("a.txt")


def test_remove_deletes_one_file(workspace: LocalWorkspace, root: Path) -> None:
    (root / "file").touch()
    (root / "folder").mkdir()
    workspace.remove("file")
    assert not (root / "file").exists()
    with pytest.raises(PathNotFound):
        workspace.remove("file")
    with pytest.raises(WorkspaceError, match="is a directory"):
        workspace.remove("folder")


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_no_descriptor_is_left_open(workspace: LocalWorkspace, root: Path) -> None:
    def use_everything() -> None:
        workspace.write_bytes("a/b", b"x")
        workspace.read_bytes("a/b")
        workspace.entries("a")
        for path in ("a", "missing/x", "a/b/c", "pipe"):
            with pytest.raises(WorkspaceError):
                workspace.read_bytes(path)
        with pytest.raises(WorkspaceError):
            workspace.write_bytes("a", b"x")
        workspace.remove("a/b")

    os.mkfifo(root / "pipe")
    use_everything()
    before = _descriptors()
    use_everything()
    assert _descriptors() == before


def test_the_root_must_be_a_directory(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match="not a directory"):
        LocalWorkspace(str(tmp_path / "missing"), base_env={})
