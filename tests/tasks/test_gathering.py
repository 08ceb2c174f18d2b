"""A worker gathers what runs left: real files, hostile names, and collectors that are killed on the way."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.store import TTL_S, Store, asks, opened

from hermes_worker.core.effects import GatherArtifacts
from hermes_worker.core.replay import Replay
from hermes_worker.features.artifacts.files import ArtifactQuota, FoundFile, SkippedFile, WantedFiles, gather_files
from hermes_worker.features.artifacts.rules import FILES_MAX
from hermes_worker.features.artifacts.work import GatheringContext, gather_artifacts
from hermes_worker.store.artifacts.contents import RowContents
from hermes_worker.store.artifacts.gatherings import Gatherings
from hermes_worker.store.artifacts.listing import Artifacts, RunArtifacts
from hermes_worker.store.rows import Hint
from hermes_worker.store.workers import Workers
from hermes_worker.tasks.leases import Leases
from hermes_worker.workspaces.base import Workspace
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.ref import WorkspaceRef


class Sent:
    """A broker that keeps what it is given."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def send(self, hints: Any) -> int:
        self.hints += hints
        return len(hints)

    def count_waiting(self) -> None:
        return None


@dataclass
class Bench:
    """A worker that gathers, and one workspace."""

    store: Store
    root: Path
    parts: GatheringContext

    @classmethod
    def over(cls, store: Store, root: Path) -> Bench:
        leases = Leases(Workers(store.database), name="gatherer", queues="tools", ttl_s=TTL_S)
        leases.register()
        parts = GatheringContext(
            gatherings=Gatherings(store.database),
            keep_content=RowContents(store.database).keep,
            sender=Sent(),
            leases=leases,
            workspace=lambda _: local(root),
            file_bytes_max=1_000,
            run_bytes_max=5_000,
        )
        return cls(store, root, parts)

    def ended(self, *patterns: str, has_calls: bool = True, root: Path | None = None) -> GatherArtifacts:
        """A run that has ended and declared these; ``root`` where its workspace is said to be."""
        ref = WorkspaceRef(kind="local", root=str(root or self.root)).to_json()
        run_id = self.store.submit(artifacts=patterns or ("**",), workspace=ref).run_id
        if has_calls:
            self.store.ask_tools(run_id, asks(Replay.PURE))
            self.store.settle(run_id)
        hints = self.store.answer(run_id)
        return next(hint.effect for hint in hints if isinstance(hint.effect, GatherArtifacts))

    def gather(self, effect: GatherArtifacts, **changes: Any) -> RunArtifacts:
        gather_artifacts(replace(self.parts, **changes), effect, time.time())
        return self.of(effect)

    def of(self, effect: GatherArtifacts) -> RunArtifacts:
        return Artifacts(self.store.database).list_artifacts(effect.run_id)


def local(root: Path) -> LocalWorkspace:
    return LocalWorkspace(str(root), base_env={"PATH": "/usr/bin:/bin"}, hermes_home="")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "workspace").mkdir()
    with opened(f"sqlite:///{tmp_path / 'test.db'}") as store:
        yield Bench.over(store, tmp_path / "workspace")


def left_out(found: RunArtifacts) -> dict[str, str]:
    return {one.path: one.reason for one in found.left_out_named}


def test_files_that_fit_and_were_made_or_changed_are_kept(bench: Bench) -> None:
    effect = bench.ended("*.csv", "out/**")
    (bench.root / "new.csv").write_text("1,2\n")
    (bench.root / "out" / "deep").mkdir(parents=True)
    (bench.root / "out" / "deep" / "fig.png").write_bytes(b"\x89PNG\0")
    (bench.root / "notes.txt").write_text("nobody asked for these")
    found = bench.gather(effect)
    assert found.state == "done"
    told = {view.path: (view.size, view.media_type) for view in found.files}
    assert told == {"new.csv": (4, "text/csv"), "out/deep/fig.png": (5, "image/png")}
    content = {view.path: Artifacts(bench.store.database).load_content(view) for view in found.files}
    assert content["out/deep/fig.png"] == b"\x89PNG\0"


def test_a_file_from_before_the_run_is_none_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("before")
    born = (tmp_path / "a.csv").stat().st_ctime
    assert taken(tmp_path, since=born + 1) == []
    os.utime(tmp_path / "a.csv", (0, 0))  # what changes a file cannot put back the time of its change
    assert [one.path for one in taken(tmp_path, since=born)] == ["a.csv"]


def taken(root: Path, *, since: float = 0.0, files: int = 100) -> list[FoundFile | SkippedFile]:
    wanted = WantedFiles(patterns=("**",), since=since, file_bytes_max=1_000)
    return list(gather_files(local(root), wanted, ArtifactQuota(files=files, bytes=10_000)))


def test_nothing_but_plain_files_of_the_workspace_is_taken(bench: Bench, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("not yours")
    root = bench.root
    (root / "link.txt").symlink_to(outside / "secret.txt")
    (root / "folder").symlink_to(outside)
    os.link(outside / "secret.txt", root / "hard.txt")
    os.mkfifo(root / "pipe.txt")
    (root / "zero.txt").symlink_to("/dev/zero")
    for name in (".env", ".env.local", "id_rsa", "tls.key", "auth.json"):
        (root / name).write_text("secret")
    for folder in (".git", ".ssh", "node_modules"):
        (root / folder).mkdir()
        (root / folder / "config").write_text("token")
    (root / "large.bin").write_bytes(b"x" * 1_001)
    (root / "fine.txt").write_text("mine")
    found = bench.gather(bench.ended("**"))
    assert [view.path for view in found.files] == ["fine.txt"]
    assert left_out(found) == {
        ".env": "it is protected",
        ".env.local": "it is protected",
        "auth.json": "files of that name hold credentials",
        "folder": "it is a link",
        "hard.txt": "it has another name (a hard link)",
        "id_rsa": "it is protected",
        "large.bin": "it has more than 1000 bytes",
        "link.txt": "it is a link",
        "pipe.txt": "it is not a regular file",
        "tls.key": "files of that name hold credentials",
        "zero.txt": "it is a link",
    }
    assert "not yours" not in str([Artifacts(bench.store.database).load_content(view) for view in found.files])


def test_hostile_names_are_kept_as_they_are_or_named(bench: Bench) -> None:
    for name in (b"invoice\xe2\x80\xaexcod.exe", b"broken\xff", b"new\nline", b'quote"and\\', b"..."):
        (bench.root / os.fsdecode(name)).write_text("x")
    deep = bench.root
    for _ in range(40):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "too deep").write_text("x")
    found = bench.gather(bench.ended("**"))
    assert [view.path for view in found.files] == ["...", "invoice\u202excod.exe", 'quote"and\\']
    assert left_out(found) == {"broken?": "its name is not plain text", "new\nline": "its name is not plain text"}


def test_a_file_that_becomes_a_link_is_never_followed(bench: Bench, tmp_path: Path) -> None:
    """Somebody swaps a file and a folder for links, as fast as it goes, while they are read."""
    secret = tmp_path / "outside"
    secret.mkdir()
    (secret / "a.txt").write_text("SECRET")
    (bench.root / "d").mkdir()
    stop = threading.Event()

    def swap() -> None:
        file, folder, other = bench.root / "a.txt", bench.root / "e", bench.root / "other"
        while not stop.is_set():
            file.write_text("mine")
            other.symlink_to(secret / "a.txt")
            other.replace(file)
            file.unlink()
            folder.mkdir()
            (folder / "a.txt").write_text("mine")
            folder.rename(other)
            folder.symlink_to(secret)
            (other / "a.txt").unlink()
            other.rmdir()
            folder.unlink()

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        read = [one for _ in range(300) for one in taken(bench.root) if isinstance(one, FoundFile)]
    finally:
        stop.set()
        swapping.join()
    assert all(one.content in (b"mine", b"") for one in read)


def test_the_number_and_the_bytes_of_files_are_bounded(bench: Bench, tmp_path: Path) -> None:
    for number in range(8):
        (bench.root / f"{number}.bin").write_bytes(bytes([number]) * 1_000)
    found = bench.gather(bench.ended("**"))
    assert ([view.path for view in found.files], found.left_out) == ([f"{n}.bin" for n in range(5)], 3)
    many = tmp_path / "many"
    many.mkdir()
    for number in range(FILES_MAX + 30):
        (many / f"{number:04}").write_text("x")
    found = bench.gather(bench.ended("**", root=many), workspace=lambda _: local(many))
    assert (len(found.files), found.left_out, len(found.left_out_named)) == (FILES_MAX, 30, 20)


class Killed(BaseException):
    """The process of a collector ends here."""


def test_a_collector_that_is_killed_anywhere_leaves_the_same_files_once(bench: Bench) -> None:
    """Each attempt dies after one content more; the last one is let through."""
    for number in range(2):
        (bench.root / f"{number}.txt").write_text(f"file {number}")
    effect = bench.ended("**")
    for attempt in (1, 2):
        keep_content = Dying(bench.store, after=attempt).keep
        leases = Leases(Workers(bench.store.database), name=f"mortal{attempt}", queues="tools", ttl_s=TTL_S)
        leases.register()
        with pytest.raises(Killed):
            bench.gather(replace(effect, attempt=attempt), keep_content=keep_content, leases=leases)
        bench.store.workers.expire_leases(f"mortal{attempt}")
        swept = bench.store.sweep()
        assert replace(effect, attempt=attempt + 1) in [hint.effect for hint in swept.hints]
    found = bench.gather(replace(effect, attempt=3))
    assert [(view.path, found.state) for view in found.files] == [("0.txt", "done"), ("1.txt", "done")]
    assert bench.gather(effect) == bench.gather(replace(effect, attempt=4)) == found, "stale messages change nothing"


class Dying(RowContents):
    """Its process is killed when it has kept so many contents."""

    def __init__(self, store: Store, *, after: int) -> None:
        super().__init__(store.database)
        self._left = after

    def keep(self, tenant: str, content: bytes) -> str:
        kept = super().keep(tenant, content)
        self._left -= 1
        if self._left == 0:
            raise Killed
        return kept


def test_a_collector_that_was_frozen_writes_nothing_when_it_wakes(bench: Bench) -> None:
    (bench.root / "a.txt").write_text("first")
    effect = bench.ended("**")

    def overtaken(_: str) -> Workspace:
        bench.store.workers.expire_leases("gatherer")
        bench.store.sweep()
        return local(bench.root)

    found = bench.gather(effect, workspace=overtaken)
    assert (found.state, list(found.files)) == ("pending", [])
    other = Leases(Workers(bench.store.database), name="other", queues="tools", ttl_s=TTL_S)
    other.register()
    assert [view.path for view in bench.gather(replace(effect, attempt=2), leases=other).files] == ["a.txt"]


def test_a_workspace_that_is_gone_is_told_and_no_new_one_is_made(bench: Bench, tmp_path: Path) -> None:
    effect = bench.ended("**", root=tmp_path / "gone")
    for attempt in (1, 2, 3):
        found = bench.gather(replace(effect, attempt=attempt))
    assert found.state == "failed"
    assert found.reason is not None
    assert "not on the worker 'gatherer'" in found.reason
    assert str(tmp_path) not in found.reason
    assert not (tmp_path / "gone").exists()


def test_a_run_without_tool_calls_left_nothing(bench: Bench, tmp_path: Path) -> None:
    found = bench.gather(bench.ended("**", has_calls=False, root=tmp_path / "never made"))
    assert (found.state, list(found.files)) == ("done", [])


class Elsewhere:
    """A workspace of another kind, as far as it is read: its own door, and nothing of times."""

    def __init__(self, inner: LocalWorkspace) -> None:
        self.root = inner.root
        self.resolve = inner.resolve
        self.may_read: Callable[[str], bool] = inner.may_read
        self.read_bytes = inner.read_bytes
        self.entries = inner.entries


def test_a_workspace_of_another_kind_is_read_through_its_own_door(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    (root / "out").mkdir(parents=True)
    (root / "out" / "a.txt").write_text("mine")
    (root / ".env").write_text("secret")
    (root / "etc").symlink_to("/etc")
    (root / "link.txt").symlink_to(root / "out" / "a.txt")
    os.mkfifo(root / "pipe")
    elsewhere: Any = Elsewhere(local(root))
    wanted = WantedFiles(patterns=("**",), since=time.time() + 60, file_bytes_max=1_000)
    found = list(gather_files(elsewhere, wanted, ArtifactQuota(files=10, bytes=1_000)))
    assert [one for one in found if isinstance(one, FoundFile)] == [
        FoundFile(path="out/a.txt", content=b"mine", modified_at=0.0)
    ]
    assert {one.path for one in found if isinstance(one, SkippedFile)} == {".env", "link.txt", "pipe"}
