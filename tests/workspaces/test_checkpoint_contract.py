"""Checkpoints of every kind of workspace. The kinds are those of the contract of workspaces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.host_checkpoints import RESTORE, Watched, kept, moment
from support.podman_service import podman_missing
from workspaces import test_workspace_contract as contract
from workspaces.test_workspace_contract import _OF_MACHINE, KINDS, Kind, Shell

from hermes_worker.features.checkpoints.files import host_files, host_scripts
from hermes_worker.features.checkpoints.files.host_files import HostFiles
from hermes_worker.features.checkpoints.files.shadow import NotKept, ShadowStore
from hermes_worker.features.checkpoints.rules import CheckpointLimits
from hermes_worker.workspaces.base import ScriptHost
from hermes_worker.workspaces.local import LocalWorkspace

podman = contract.podman


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.machine] if name in _OF_MACHINE else []) for name in (*KINDS, "docker")
    ]
)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    with ExitStack() as stack:
        if request.param == "docker":
            if lacking := podman_missing():
                pytest.skip(lacking)
            yield contract._docker(stack, request.getfixturevalue("podman"))
            return
        yield KINDS[request.param](stack, tmp_path)


def worker(kind: Kind, directory: Path, limits: CheckpointLimits | None = None) -> ShadowStore:
    """The checkpoints, as yet another worker has them."""
    workspace = kind.open()
    if isinstance(workspace, LocalWorkspace):
        return ShadowStore(directory, workspace.root, limits)
    return ShadowStore(directory, "there", limits, files=HostFiles(lambda: workspace))


_SEE = 'find . -type f -o -type l | sort | while read -r f; do echo "$f $(stat -c %a "$f") $(cat "$f")"; done'
HOSTILE = ("-rf", "sp ace", "quo'te\"s", "new\nline", "$(touch x)", "*", "ünï", "a\nend 0", " .", "back\\slash")


def test_a_worker_restores_what_another_kept(kind: Kind, tmp_path: Path) -> None:
    shell = Shell(kind.open())
    shell("mkdir -p src/deep; echo one > src/a.py; echo '#!/bin/sh' > run; chmod 750 run; echo x > src/deep/x")
    shell("ln -s src/a.py link; echo S=1 > .env; mkdir .git; echo g > .git/g")
    before = shell(_SEE).output
    first = kept(worker(kind, tmp_path / "store"))
    assert (first.files, first.left_out_total) == (4, 0)
    shell("mkfifo pipe; rm -r src link; echo file > src; chmod 640 run; ln -s /etc link")
    shell("mkdir -p new/deep; echo b > new/deep/b")

    store = worker(kind, tmp_path / "store")
    assert [each.path for each in store.list_changes(first)] == [
        *("link", "new/deep/b", "run", "src/a.py", "src/deep/x", "src"),
    ]
    done = worker(kind, tmp_path / "store").restore(first, RESTORE)

    assert not done.failed
    assert shell(_SEE).output.replace(b" 755 ", b" 750 ") == before
    assert shell("test -x run && test ! -e new && test -p pipe && readlink link").output == b"src/a.py\n"
    undone = worker(kind, tmp_path / "store").restore(done.before, RESTORE, paths=["new", "src"])
    assert not undone.failed
    assert shell("cat src new/deep/b; readlink link").output == b"file\nb\nsrc/a.py\n"


def test_files_of_any_name_are_kept_and_put_back(kind: Kind, tmp_path: Path) -> None:
    workspace = kind.open()
    for name in HOSTILE:
        workspace.write_bytes(f"{name}/{name}", name.encode())
    first = kept(worker(kind, tmp_path / "store"))
    assert first.files == len(HOSTILE)
    Shell(workspace)("find . -mindepth 1 -maxdepth 1 -exec rm -r -- {} +; echo other > other")
    done = worker(kind, tmp_path / "store").restore(first, RESTORE)
    assert (len(done.written), done.removed, done.failed) == (len(HOSTILE), ("other",), {})
    for name in HOSTILE:
        assert workspace.read_bytes(f"{name}/{name}") == name.encode()


def test_no_link_leads_out_of_the_workspace(kind: Kind, tmp_path: Path) -> None:
    shell = Shell(kind.open())
    out = shell("cd ..; mkdir outside; echo secret > outside/secret; cd outside; pwd -P").output.decode().strip()
    shell(f"mkdir d; echo mine > d/secret; ln -s {out} way; ln -s {out}/secret file")
    store = worker(kind, tmp_path / "store")
    first = kept(store)
    assert first.files == 3
    shell(f"rm -r d file; ln -s {out} d; echo more > file")
    assert not worker(kind, tmp_path / "store").restore(first, RESTORE).failed
    assert shell("cat ../outside/secret d/secret; ls ../outside").output == b"secret\nmine\nsecret\n"
    assert shell("test -L file && test -L way && test ! -L d").exit_code == 0
    contents = [store.read_content(change.after.sha) for change in store.list_changes(first, first) if change.after]
    assert b"secret\n" not in contents


def test_what_is_too_large_or_closed_is_left_as_it_is(kind: Kind, tmp_path: Path) -> None:
    shell = Shell(kind.open())
    shell("head -c 101 /dev/zero > large; echo a > a")
    store = worker(kind, tmp_path / "store", CheckpointLimits(file_bytes=100))
    first = kept(store)
    assert (first.left_out, first.left_out_total) == (("large",), 1)
    shell("echo small > large; echo b > a")
    assert not store.restore(first, RESTORE).failed
    assert shell("cat large a").output == b"small\na\n"


def test_a_host_that_dies_leaves_the_checkpoints_that_were_there(kind: Kind, tmp_path: Path) -> None:
    if kind.kill_host is None or kind.start_host is None or kind.kill_host.__qualname__.startswith("_shell"):
        pytest.skip("the host of this kind is the machine of the test")
    workspace = kind.open()
    assert isinstance(workspace, ScriptHost)
    watched = Watched(workspace)
    store = ShadowStore(tmp_path / "store", "there", files=HostFiles(lambda: watched))
    Shell(workspace)("echo one > a")
    first = kept(store)
    Shell(workspace)("echo two > a")
    watched.meddle[host_scripts.SENT] = kind.kill_host
    with pytest.raises(NotKept):
        store.keep_checkpoint(moment(2))
    kind.start_host()
    assert [each.id for each in store.list_checkpoints()] == [first.id]
    assert kept(worker(kind, tmp_path / "store"), 2).files == 1


@pytest.mark.slow
def test_ten_thousand_files_that_did_not_change_cost_the_worker_150_ms(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_files, "_YOUNG_S", -1)
    workspace = kind.open()
    fill = "for d in $(seq 100); do mkdir d$d; for n in $(seq 100); do echo $d $n > d$d/$n.txt; done; done"
    assert Shell(workspace)(fill).exit_code == 0
    store = worker(kind, tmp_path / "store")
    began, worked = time.monotonic(), time.process_time()
    assert kept(store).files == 10_000
    first_s, first_cpu_s = time.monotonic() - began, time.process_time() - worked
    took = []
    for iteration in range(2, 7):
        began, worked = time.monotonic(), time.process_time()
        assert store.keep_checkpoint(moment(iteration)) is None
        took.append((time.monotonic() - began, time.process_time() - worked))
    print(f"\nthe first look: {first_s:.1f} s, {first_cpu_s:.1f} s of our processor; nothing changed:", end=" ")
    print(f"{min(took)[0] * 1000:.0f} ms at best, {min(cpu for _, cpu in took) * 1000:.0f} ms of our processor")
    Shell(workspace)("find . -mindepth 1 -delete")  # engines take long over volumes that hold so much
    assert min(cpu for _, cpu in took) <= 0.150
