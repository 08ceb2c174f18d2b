"""Whatever somebody puts where we look for a file: nobody waits for it, and little of it is read."""

from __future__ import annotations

import os
import socket
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hermes_worker.channels.files import FileGone, read_judged_file
from hermes_worker.channels.media import MediaFile
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.media_kinds import MediaKind
from hermes_worker.core.offered_skills import SkillError
from hermes_worker.features.skills.workspace_files import read_skill_folder
from hermes_worker.features.webhooks.management_routes import _load_lists
from hermes_worker.features.webhooks.rules.route import NO_AUTH, Route
from hermes_worker.local.paths import read_failed_start
from hermes_worker.local.valkey import find_running
from hermes_worker.settings import load_settings
from hermes_worker.system.plainfiles import NotPlain, read_plain
from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.local import LocalWorkspace

MEMORY_BYTES_MAX = 100_000_000


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))  # an absolute path of a test may be too long


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def holes(path: Path) -> None:
    path.touch()
    os.truncate(path, 10 * 1024**3)


def folder(path: Path) -> None:
    path.mkdir()


HOSTILE = [fifo, unix_socket, device, holes, folder]


def _skill(place: Path) -> Path:
    return place / "skills" / "review" / "SKILL.md"


def _file(place: Path) -> Path:
    return place / "a.txt"


def _read_filter(place: Path) -> object:
    route = Route(name="r", secret=NO_AUTH, filters=[{"field": "user", "in_file": "a.txt"}])
    return _load_lists(route, place)


def _attach(place: Path) -> object:
    judged = MediaFile(path=str(_file(place)), name="a.txt", kind=MediaKind.DOCUMENT, size=5)
    return read_judged_file(judged, MediaKind.DOCUMENT)


READERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any]]] = {
    "skill": (_skill, lambda place: read_skill_folder(place / "skills" / "review")),
    "variables": (lambda place: place / ".env", lambda place: load_settings({}, home=place)),
    "settings": (lambda place: place / "config.yaml", lambda place: load_settings({}, home=place)),
    "list of a filter": (_file, _read_filter),
    "attachment": (_file, _attach),
    "read_file": (_file, lambda place: LocalWorkspace(str(place), base_env={}).read_bytes("a.txt")),
    "write_file's look": (_file, lambda place: LocalWorkspace(str(place), base_env={}).read_bytes("a.txt", limit=0)),
    "password of the broker": (lambda place: place / "password", find_running),
    "record of the broker": (lambda place: place / "valkey.json", find_running),
    "note of a start": (lambda place: place / "run" / "start-failed", read_failed_start),
}


@pytest.mark.parametrize("put", HOSTILE, ids=lambda put: put.__name__)
@pytest.mark.parametrize("reader", READERS)
def test_what_lies_in_a_files_place_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, put: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    named, look = READERS[reader]
    path = named(tmp_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path)
    tracemalloc.start()
    try:
        with suppress(ConfigurationError, WorkspaceError, SkillError, FileGone, OSError):
            look(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("put", [fifo, device], ids=lambda put: put.__name__)
def test_only_a_regular_file_is_plain(tmp_path: Path, put: Callable[[Path], None]) -> None:
    put(tmp_path / "a")
    with pytest.raises(NotPlain):
        read_plain(tmp_path / "a", bytes_max=10)


def test_links_are_followed_only_where_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    (tmp_path / "link").symlink_to("file")
    assert read_plain(tmp_path / "link", bytes_max=4) == b"hell"
    with pytest.raises(OSError, match="symbolic links"):
        read_plain(tmp_path / "link", bytes_max=4, follows_links=False)
