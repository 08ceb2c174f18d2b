"""A background process whose directory is removed while its daemon writes into it."""

from __future__ import annotations

import threading
from pathlib import Path

from hermes_worker.workspaces.process_daemon.client import remove_orphans, remove_process, replace_file


def test_a_directory_that_is_written_to_is_gone_once_it_is_removed(tmp_path: Path) -> None:
    for number in range(100):
        directory = tmp_path / f"proc_{number}"
        directory.mkdir()
        has_begun = threading.Event()

        def write(directory: Path = directory, has_begun: threading.Event = has_begun) -> None:
            try:
                while True:
                    replace_file(directory / "state", b"running")
                    has_begun.set()
            except OSError:
                return

        writer = threading.Thread(target=write)
        writer.start()
        has_begun.wait()
        remove_process(directory)
        assert not directory.exists()
        writer.join()
    assert list(tmp_path.iterdir()) == []


def test_what_was_about_to_be_removed_when_its_worker_was_killed_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".proc_1.12345678.gone").mkdir()
    (tmp_path / "proc_2").mkdir()
    (tmp_path / "proc_3").mkdir()
    assert remove_orphans(tmp_path, ["proc_2", "proc_3"], ["proc_3"]) == ["proc_2"]
    assert [left.name for left in tmp_path.iterdir()] == ["proc_3"]
