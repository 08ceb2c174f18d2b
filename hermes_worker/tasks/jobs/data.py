"""The directories in which scripts of jobs keep what they need the next time: each goes when its job goes."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from hermes_worker.core.errors import format_reason
from hermes_worker.local.paths import list_job_data_dirs
from hermes_worker.observe import log

_JOB_DIRECTORY = re.compile(r"[0-9a-f]{12}")


def remove_data(home: Path, forgotten: Callable[[Collection[str]], Collection[str]]) -> int:
    """Remove the data that the scripts of removed jobs kept in this home; return how many directories were removed.

    ``forgotten`` returns those of some job ids whose jobs were removed. The data of an unknown job stays. No link is
    followed. Idempotent; safe for several processes. Raises what ``forgotten`` raises.
    """
    found = {path.name: path for directory in list_job_data_dirs(home) for path in _iterate_job_directories(directory)}
    if not found:
        return 0
    return sum(_remove_directory(found[job_id]) for job_id in forgotten(found.keys()))


def remove_job_data(directory: Path, job_id: str) -> bool:
    """Remove the data of an erased job below ``directory``; return whether there was any. Idempotent."""
    kept = directory / job_id
    is_there = _JOB_DIRECTORY.fullmatch(job_id) is not None and kept.is_dir() and not kept.is_symlink()
    return is_there and _remove_directory(kept)


def _iterate_job_directories(directory: Path) -> Iterator[Path]:
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return
    for entry in entries:
        if _JOB_DIRECTORY.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            yield Path(entry.path)


def _remove_directory(directory: Path) -> bool:
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return False  # another process did it
    except OSError as error:
        log.warning("job_data.not_removed", directory=directory.name, error=format_reason(error))
        return False
    return True
