"""Workspaces in object storage: a session goes on on another machine, whoever is killed, and nobody else reads it.

The servers are moto's and npm's s3rver. Real object storage is untried.
"""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.object_server import build_account, moto_server, s3rver
from support.object_worker import NAME, build_settings, open_on
from support.store import Store
from support.warm_commands import WarmProcess

from hermes_worker.core.errors import UnavailableError
from hermes_worker.features.object_storage.bucket_files import Bucket
from hermes_worker.features.object_storage.build import build_object_parts
from hermes_worker.features.object_storage.head_rows import WorkspaceHeads
from hermes_worker.features.object_storage.rules import PART_BYTES, SnapshotName
from hermes_worker.features.object_storage.service import try_bucket
from hermes_worker.features.object_storage.tables import workspace_heads
from hermes_worker.features.object_storage.target_files import ObjectTarget
from hermes_worker.features.object_storage.workspace_files import KeptWorkspace
from hermes_worker.store.artifacts.contents import RowContents
from hermes_worker.store.engine.sealing import select_stored_text
from hermes_worker.store.tables import blobs
from hermes_worker.workspaces.base import HostLost, WorkspaceAway, WorkspaceError
from hermes_worker.workspaces.processes import ProcessOrder

OURS = SnapshotName(tenant="default", name=NAME)


@pytest.fixture(scope="module", params=["moto", "s3rver"])
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = moto_server() if request.param == "moto" else s3rver(tmp_path_factory.mktemp("s3rver"))
    with server as address:
        yield address


@pytest.fixture
def bucket(endpoint: str) -> Bucket:
    """Empty."""
    found = Bucket(build_account(endpoint))
    found.delete([each.key for each in found.list_objects("")])
    return found


class Machines:
    """Machines that share a database and a bucket, and no volume."""

    def __init__(self, directory: Path, endpoint: str, store: Store, bucket: Bucket) -> None:
        self.directory = directory
        self.endpoint = endpoint
        self.store = store
        self.bucket = bucket
        self.heads = WorkspaceHeads(store.database)

    def on(self, name: str, tenant: str = "default") -> KeptWorkspace:
        """The session's workspace on one of them, as a call finds it."""
        workspace = open_on(self.directory / name, self.endpoint, self.store.database, tenant)
        workspace.refresh()
        return workspace

    def target(self, name: str) -> ObjectTarget:
        found = build_object_parts(build_settings(self.directory / name, self.endpoint), self.store.database).target
        assert found is not None
        return found

    def tree(self) -> str | None:
        head = self.heads.find_head(OURS)
        return head.tree if head else None

    def run_elsewhere(self, name: str, command: str, faults: str) -> int:
        """Have a process of a machine do it; return its exit code."""
        given = {
            "home": str(self.directory / name),
            "endpoint": self.endpoint,
            "database": self.store.database.url.render_as_string(hide_password=False),
            "faults": faults,
            "command": command,
        }
        code = "from support.object_worker import main; main()"
        with Path(os.devnull).open("r+") as nothing:
            return WarmProcess(["-c", code, json.dumps(given)], os.environ, None, [nothing] * 3).wait()


@pytest.fixture
def machines(tmp_path: Path, endpoint: str, store: Store, bucket: Bucket) -> Machines:
    return Machines(tmp_path / "machines", endpoint, store, bucket)


def run(workspace: KeptWorkspace, command: str) -> str:
    result = workspace.execute(
        command, cwd=None, env={}, timeout_s=60, output_bytes_max=10_000, should_stop=lambda: False
    )
    return result.output.decode()


def test_a_session_goes_on_on_another_machine(machines: Machines) -> None:
    first = machines.on("a")
    first.write_bytes("src/main.py", b"print(1)\n")
    run(
        first,
        "mkdir -p empty/inner && ln -s src/main.py link && echo x > run.sh && chmod 755 run.sh && touch -d @9 old",
    )
    run(first, f"head -c {2 * PART_BYTES + 5} /dev/zero > large")
    second = machines.on("b")
    root = Path(second.root)
    assert second.read_bytes("src/main.py") == b"print(1)\n"
    assert (root / "empty/inner").is_dir() and str((root / "link").readlink()) == "src/main.py"
    assert (root / "run.sh").stat().st_mode & stat.S_IXUSR and (root / "old").stat().st_mtime == 9
    assert (root / "large").stat().st_size == 2 * PART_BYTES + 5
    run(second, "rm -r src empty large && mkdir src && echo 2 > src/other.py")
    assert run(machines.on("a"), "find . | sort") == ".\n./link\n./old\n./run.sh\n./src\n./src/other.py\n"


def test_what_did_not_change_is_not_sent_again(machines: Machines) -> None:
    workspace = machines.on("a")
    run(workspace, "for n in 1 2 3 4 5; do mkdir $n; echo $n > $n/file; done")
    before, tree = {each.key for each in machines.bucket.list_objects("")}, machines.tree()
    run(workspace, "cat 1/file")
    assert machines.tree() == tree, "a command that only reads makes no snapshot"
    run(machines.on("b"), "echo new > 3/file")
    added = {each.key for each in machines.bucket.list_objects("")} - before
    assert len(added) == 3, "the file, its folder and the root"


def test_calls_on_two_machines_at_once_are_joined_by_path(machines: Machines) -> None:
    run(machines.on("a"), "echo 0 > both; echo 0 > mine; echo 0 > theirs; echo 0 > gone")
    first, second = machines.on("a"), machines.on("b")
    run(first, "echo a > both; echo a > mine; rm gone")
    run(second, "echo b > both; echo b > theirs; mkdir new; echo b > new/file")
    seen = "cat both mine theirs new/file; ls"
    expected = "b\na\nb\nb\nboth\nmine\nnew\ntheirs\n"
    assert [run(machines.on(name), seen) for name in ("a", "b", "c")] == [expected] * 3


@pytest.mark.parametrize(
    ("ours", "theirs", "left"),
    [
        ("rm f; mkdir f; echo ours > f/in", "echo theirs > f", "f/in"),
        ("rm -r d; echo ours > d", "echo theirs > d/file", "d"),
    ],
)
def test_a_file_in_the_place_of_a_folder_is_a_conflict_that_the_later_wins(
    machines: Machines, ours: str, theirs: str, left: str
) -> None:
    run(machines.on("a"), "echo 0 > f; mkdir d; echo 0 > d/file")
    first, second = machines.on("a"), machines.on("b")
    run(second, theirs)
    run(first, ours)
    assert run(machines.on("c"), f"cat {left}") == "ours\n"
    assert run(machines.on("b"), f"cat {left}") == "ours\n"


@pytest.mark.parametrize("point", ["snapshot.during_upload", "snapshot.after_upload"])
def test_a_kill_before_the_row_moves_loses_nothing(machines: Machines, point: str) -> None:
    run(machines.on("a"), "echo kept > file; mkdir many; for n in 1 2 3 4 5 6 7 8; do echo $n > many/$n; done")
    tree = machines.tree()
    command = "echo changed > file; for n in 1 2 3 4 5 6 7 8; do echo again$n > many/$n; done"
    assert machines.run_elsewhere("a", command, f"{point}=kill@1") == -signal.SIGKILL
    assert machines.tree() == tree
    assert run(machines.on("b"), "cat file many/8") == "kept\n8\n", "another machine has what counts, whole"
    assert run(machines.on("a"), "cat file") == "changed\n", "the machine still has what the killed call did"
    run(machines.on("a"), "echo more > more")
    assert run(machines.on("b"), "cat file more many/8") == "changed\nmore\nagain8\n"


def test_a_kill_after_the_row_moved_changes_nothing(machines: Machines) -> None:
    run(machines.on("a"), "echo kept > file")
    assert machines.run_elsewhere("a", "echo changed > file", "snapshot.after_head=kill") == -signal.SIGKILL
    assert run(machines.on("b"), "cat file") == "changed\n"
    run(machines.on("b"), "echo later > file")
    assert run(machines.on("a"), "cat file") == "later\n"


def test_a_kill_while_files_are_brought_is_made_good(machines: Machines) -> None:
    run(machines.on("a"), "for n in 1 2 3 4 5 6; do echo $n > $n; done")
    assert machines.run_elsewhere("b", "", "snapshot.between_files=kill@4") == -signal.SIGKILL
    assert 0 < len(list((machines.directory / "b/workspaces" / NAME).iterdir())) < 6
    assert run(machines.on("b"), "cat 1 2 3 4 5 6") == "1\n2\n3\n4\n5\n6\n"
    assert run(machines.on("a"), "cat 1 2 3 4 5 6") == "1\n2\n3\n4\n5\n6\n", "what was half here was not kept"


def test_storage_that_is_away_makes_the_outcome_unknown_and_keeps_the_files_here(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = machines.on("a")
    workspace.write_bytes("file", b"before")
    closed = machines.endpoint.rpartition(":")[0] + ":9"
    away = open_on(machines.directory / "a", closed, machines.store.database)
    with pytest.raises(HostLost, match="object storage cannot be used"):
        run(away, "echo -n after > file")
    with pytest.raises(WorkspaceAway, match="object storage cannot be used"):
        open_on(machines.directory / "new", closed, machines.store.database).refresh()
    assert machines.on("b").read_bytes("file") == b"before"
    run(machines.on("a"), "true")
    assert machines.on("b").read_bytes("file") == b"after"


def test_objects_are_apart_by_tenant_and_readable_by_nobody_else(machines: Machines) -> None:
    for tenant in ("default", "acme"):
        machines.on("a", tenant).write_bytes("file", b"the secret of somebody")
    found = list(machines.bucket.list_objects(""))
    folders = {each.key.rpartition("/")[0] for each in found}
    assert folders == {f"installation/{tenant}/workspaces/{NAME}" for tenant in ("default", "acme")}
    bodies = [machines.bucket.get(each.key) or b"" for each in found]
    assert not any(b"secret" in body for body in bodies) and len(set(bodies)) == len(bodies)
    names = {each.key.rpartition("/")[2] for each in found}
    assert len(names) == len(found), "the same content has another name for another tenant"


def test_an_object_that_was_changed_or_moved_is_refused(machines: Machines) -> None:
    machines.on("a").write_bytes("one", b"1")
    machines.on("a").write_bytes("two", b"2")
    keys = [each.key for each in machines.bucket.list_objects("")]
    bodies = [machines.bucket.get(key) or b"" for key in keys]
    for key, body in zip(keys, (*bodies[1:], bodies[0]), strict=True):
        machines.bucket.put(key, body)
    with pytest.raises(WorkspaceAway, match="not what was written"):
        machines.on("b")


def test_a_removed_workspace_leaves_no_object_and_no_secret(machines: Machines) -> None:
    machines.on("a").write_bytes("file", b"x")
    machines.on("a", "acme").write_bytes("file", b"x")
    target = machines.target("b")
    assert target.list_roots() == sorted(
        str(machines.directory / "b/workspaces" / each) for each in (NAME, f"tenants/acme/{NAME}")
    )
    assert target.remove_named("default", {NAME}) == 1
    assert machines.heads.find_head(OURS) is None
    assert {each.key.split("/")[1] for each in machines.bucket.list_objects("")} == {"acme"}
    with pytest.raises(WorkspaceError):
        machines.on("b").read_bytes("file")


def test_objects_whose_row_went_before_they_did_are_found_and_removed(
    machines: Machines, request: pytest.FixtureRequest
) -> None:
    if "s3rver" in request.node.name:
        pytest.skip("s3rver names no common prefix of keys with several more slashes, as S3 does")
    machines.on("a").write_bytes("file", b"x")
    machines.heads.remove_head(OURS)
    target = machines.target("a")
    [root] = target.list_roots()
    target.remove(root)
    assert not list(machines.bucket.list_objects("")) and not target.list_roots()


def test_an_idle_workspace_gives_its_disk_back_and_loses_what_no_snapshot_needs(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = machines.on("a")
    workspace.write_bytes("file", b"first")
    workspace.write_bytes("file", b"second")
    target, root = machines.target("a"), Path(workspace.root)
    before = len(list(machines.bucket.list_objects("")))
    assert target.release_resources(workspace.root) and not root.exists()
    assert len(list(machines.bucket.list_objects(""))) == before, "young ones stay: a backup may need them"
    assert machines.on("a").read_bytes("file") == b"second"
    monkeypatch.setattr(target, "_grace_s", -3600.0)
    target.release_resources(workspace.root)
    assert len(list(machines.bucket.list_objects(""))) == 2, "the file and the root"
    assert machines.on("b").read_bytes("file") == b"second"


def test_files_that_are_only_here_are_not_given_up(machines: Machines) -> None:
    workspace = machines.on("a")
    workspace.write_bytes("file", b"kept")
    (Path(workspace.root) / "only-here").write_text("by a killed call")
    assert not machines.target("a").release_resources(workspace.root)
    assert (Path(workspace.root) / "only-here").exists()


def test_a_directory_that_was_removed_by_hand_is_filled_again(machines: Machines) -> None:
    workspace = machines.on("a")
    workspace.write_bytes("file", b"x")
    root = Path(workspace.root)
    root.rename(root.with_name("aside"))
    assert machines.on("a").read_bytes("file") == b"x"


def test_artifacts_have_a_row_with_a_secret_and_an_object(machines: Machines) -> None:
    contents = build_object_parts(
        build_settings(machines.directory, machines.endpoint), machines.store.database
    ).contents
    first, again, others = (contents.keep(tenant, b"a report") for tenant in ("default", "default", "acme"))
    assert first == again != others and len(list(machines.bucket.list_objects(""))) == 2
    with machines.store.database.read() as connection:
        body = str(connection.execute(sa.select(blobs.c.body).where(blobs.c.hash == first)).scalar_one())
    assert contents.load("default", first, body) == b"a report"
    with pytest.raises(UnavailableError, match="HERMES_OBJECT_STORAGE"):
        RowContents(machines.store.database).load("default", first, body)
    with pytest.raises(UnavailableError):
        contents.load("acme", first, body)


def test_background_processes_are_refused_in_a_sentence(machines: Machines) -> None:
    order = ProcessOrder.__new__(ProcessOrder)
    with pytest.raises(WorkspaceError, match="foreground"):
        machines.on("a").start_process("p", order)


def test_the_secret_is_sealed_like_other_texts(machines: Machines) -> None:
    machines.on("a").write_bytes("file", b"x")
    assert type(workspace_heads.c.secret.type).__name__ == "SealedText"
    assert select_stored_text(workspace_heads.c.secret) is not None


def test_the_doctor_tries_the_bucket(machines: Machines, tmp_path: Path) -> None:
    assert try_bucket(build_settings(tmp_path, machines.endpoint)) is None
    closed = machines.endpoint.rpartition(":")[0] + ":9"
    assert "cannot be used" in str(try_bucket(build_settings(tmp_path, closed)))
