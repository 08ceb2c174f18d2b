"""How much a workspace may hold, and how full a command may make the disk."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.confined import RUNGS, working

from hermes_worker.settings import load_settings
from hermes_worker.workspaces.base import CommandResult, ExceededLimit, WorkspaceError
from hermes_worker.workspaces.build import find_workspace_bytes_max
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.helper.space import (
    FILE_BYTES_MIN,
    Content,
    Walk,
    Watch,
    measure_free_bytes,
    measure_room,
)
from hermes_worker.workspaces.sandbox.policy import CommandLimits, SandboxMode, SandboxPolicy

MB = 1024**2


def used(root: Path) -> int:
    walk = Walk(str(root))
    assert walk.finish(time.monotonic() + 60)
    return walk.bytes


class Confined:
    def __init__(self, rung: str, root: Path) -> None:
        self.rung = rung
        self.root = root

    def workspace(self, *, bytes_max: int = 0, free_bytes_min: int = 0, tmp_bytes: int = MB) -> LocalWorkspace:
        policy = SandboxPolicy(limits=CommandLimits(tmp_bytes=tmp_bytes))
        return LocalWorkspace(
            str(self.root),
            base_env={"PATH": os.environ["PATH"]},
            sandbox=Sandbox(SandboxMode.REQUIRE, policy, [RUNGS[self.rung]]),
            bytes_max=bytes_max,
            free_bytes_min=free_bytes_min,
        )


def run(workspace: LocalWorkspace, command: str) -> CommandResult:
    return workspace.execute(command, cwd=None, env={}, timeout_s=60, output_bytes_max=1000, should_stop=lambda: False)


@pytest.fixture(params=["bubblewrap", "landlock"])
def confined(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Confined]:
    working(request.param)
    root = tmp_path / "root"
    root.mkdir()
    yield Confined(request.param, root)


def test_a_file_counts_as_what_it_takes_and_links_count_once(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "big").write_bytes(b"x" * MB)
    os.link(tmp_path / "big", tmp_path / "a" / "again")
    (tmp_path / "empty").touch()
    os.truncate(tmp_path / "empty", 100 * 1024**3)
    (tmp_path / "out").symlink_to("/usr")
    assert used(tmp_path) == pytest.approx(MB + 4 * FILE_BYTES_MIN, abs=2 * FILE_BYTES_MIN)


def test_a_command_that_fills_the_workspace_is_ended(confined: Confined) -> None:
    result = run(
        confined.workspace(bytes_max=20 * MB), "for n in $(seq 600); do head -c 1M /dev/zero > $n; sleep 0.01; done"
    )
    assert result.excess is ExceededLimit.WORKSPACE
    assert result.exit_code == 137
    assert not (confined.root / "600").exists()


def test_many_empty_files_fill_it_too(confined: Confined) -> None:
    result = run(
        confined.workspace(bytes_max=20 * MB), "i=0; while [ $i -lt 60000 ]; do : > f$i; i=$((i+1)); done; echo all"
    )
    assert result.excess is ExceededLimit.WORKSPACE
    assert b"all" not in result.output


def test_a_full_workspace_can_be_tidied_up_but_not_filled_further(confined: Confined) -> None:
    (confined.root / "big").write_bytes(b"x" * 12 * MB)
    workspace = confined.workspace(bytes_max=10 * MB)
    with pytest.raises(WorkspaceError, match=r"holds 12 MB, and may hold 10 MB .*workspace_mb_max"):
        workspace.write_bytes("more", b"1")
    result = run(workspace, "head -c 9M /dev/zero > more; sleep 50")
    assert result.excess is ExceededLimit.WORKSPACE
    result = run(workspace, "rm big more; sleep 0.5; echo tidy")
    assert (result.output, result.excess) == (b"tidy\n", None)
    workspace.write_bytes("more", b"1")


def test_what_is_written_by_tools_counts(tmp_path: Path) -> None:
    workspace = LocalWorkspace(str(tmp_path), base_env={}, bytes_max=3 * MB)
    workspace.write_bytes("a", b"x" * MB)
    workspace.write_bytes("b", b"x" * MB)
    with pytest.raises(WorkspaceError, match="may hold 3 MB"):
        workspace.write_bytes("c", b"x" * (MB + 1))
    assert not (tmp_path / "c").exists()
    for _ in range(5):  # the same file again
        workspace.write_bytes("b", b"x" * MB)


def counts_files(path: Path) -> bool:
    """Whether the file system does; some do not."""
    return measure_room(str(path))[1] is not None


def test_many_new_empty_files_are_noticed_while_the_last_look_is_recent(tmp_path: Path) -> None:
    if not counts_files(tmp_path):
        pytest.skip("this file system does not count files")
    workspace = LocalWorkspace(str(tmp_path), base_env={}, bytes_max=8 * MB)
    workspace.write_bytes("first", b"1")
    for number in range(2 * 8 * MB // FILE_BYTES_MIN):
        (tmp_path / f"f{number}").touch()
    with pytest.raises(WorkspaceError, match="a file counts as 16 KB at least"):
        workspace.write_bytes("more", b"1")


def test_what_was_written_counts_in_bytes_and_in_files(tmp_path: Path) -> None:
    def write_big(number: int) -> None:
        with (tmp_path / f"big{number}").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 300 * MB)

    def make_files(number: int) -> None:
        for index in range(100):
            (tmp_path / f"f{number}-{index}").touch()

    content = Content(str(tmp_path), 0)
    assert not content.may_have_outgrown(400 * MB)
    # Others delete what is theirs from the same disk meanwhile, which hides what is written here: so it is repeated.
    assert any(write_big(number) or content.may_have_outgrown(400 * MB) for number in range(5))
    if counts_files(tmp_path):
        content = Content(str(tmp_path), 0)
        assert any(make_files(number) or content.may_have_outgrown(100 * FILE_BYTES_MIN) for number in range(100))


def test_a_directory_that_is_gone_may_hold_anything(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    content = Content(str(tmp_path / "d"), 0)
    (tmp_path / "d").rmdir()
    assert content.may_have_outgrown(1 << 60)


def test_a_command_that_makes_the_disk_nearly_full_is_ended(confined: Confined) -> None:
    kept_free = measure_free_bytes(str(confined.root)) - 300 * MB
    if kept_free < 300 * MB:
        pytest.skip("the disk has no 600 MB left")
    result = run(confined.workspace(free_bytes_min=kept_free), "fallocate -l 600M big; sleep 50")
    (confined.root / "big").unlink()
    assert result.excess is ExceededLimit.DISK


def test_the_temporary_files_of_a_command_are_bounded(confined: Confined) -> None:
    result = run(confined.workspace(tmp_bytes=4 * MB), "head -c 40M /dev/zero > $TMPDIR/big && sleep 50")
    assert result.excess is ExceededLimit.WORKSPACE or b"No space left" in result.output


def test_a_watch_sees_growth_at_once_and_an_unchanged_directory_is_not_walked_again(tmp_path: Path) -> None:
    watch = Watch(str(tmp_path), bytes_max=40 * MB, free_bytes_min=0)
    assert not watch.is_over()
    assert not watch.is_walking
    assert not watch.is_over()
    os.posix_fallocate(os.open(tmp_path / "big", os.O_CREAT | os.O_WRONLY), 0, 60 * MB)
    assert watch.is_over()


def test_a_tenants_workspace_has_an_end_and_other_peoples_has_not(tmp_path: Path) -> None:
    def chosen(**environ: str) -> int:
        return find_workspace_bytes_max(load_settings(environ, home=tmp_path))

    assert chosen() == 0
    assert chosen(HERMES_SANDBOX_PROFILE="tenant") == 10_240 * MB
    assert chosen(HERMES_SANDBOX_PROFILE="tenant", HERMES_WORKSPACE_MB_MAX="0") == 0
    assert chosen(HERMES_WORKSPACE_MB_MAX="7") == 7 * MB
