"""Whether this worker consumes, and what it waits for when it does not, as two files that others look at."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_WAITING_SUFFIX = ".waiting"


def waiting_file(ready_file: Path) -> Path:
    """The file in which a worker with this ready file says what it waits for."""
    return ready_file.with_name(ready_file.name + _WAITING_SUFFIX)


def read_cause(ready_file: Path) -> str | None:
    """What the worker with this ready file waits for, as a sentence; ``None`` when it waits for nothing."""
    try:
        return waiting_file(ready_file).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def read_causes(directory: Path) -> dict[str, str]:
    """What the workers with ready files in ``directory`` wait for, by the names of these files without their
    endings.
    """
    found = directory.glob(f"*{_WAITING_SUFFIX}")
    ready_files = sorted(path.with_name(path.name.removesuffix(_WAITING_SUFFIX)) for path in found)
    return {path.stem: cause for path in ready_files if (cause := read_cause(path)) is not None}


class ReadyMark:
    """The ready file of one process. A disk on which it cannot be written costs the mark and not the worker."""

    def __init__(self, ready_file: Path | None = None) -> None:
        self.ready_file = ready_file

    def declare_ready(self) -> None:
        """Say that the process consumes."""
        if self.ready_file is not None:
            with suppress(OSError):
                self.ready_file.touch()
            waiting_file(self.ready_file).unlink(missing_ok=True)

    def declare_waiting(self, cause: str) -> None:
        """Say that the process consumes nothing until ``cause`` has passed."""
        if self.ready_file is not None:
            self.ready_file.unlink(missing_ok=True)
            with suppress(OSError):
                waiting_file(self.ready_file).write_text(f"{cause}\n", encoding="utf-8")

    def withdraw(self) -> None:
        """Say that the process does not consume, and waits for nothing: it has not begun, or leaves. Idempotent."""
        if self.ready_file is not None:
            self.ready_file.unlink(missing_ok=True)
            waiting_file(self.ready_file).unlink(missing_ok=True)


readiness = ReadyMark()
"""The ready mark of this process."""
