"""The documents kept of jobs' runs: a directory per job, and a limited number in each."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from hermes_worker.observe import log

_JOB_DIRECTORY = re.compile(r"[0-9a-f]{12}")
_DOCUMENT = re.compile(r"\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2}\.md")


def prune_outputs(directory: Path, kept: int, *, age_s: float | None = None) -> int:
    """Remove all but the newest ``kept`` documents of each job below ``directory``, and all but the newest of those
    older than ``age_s`` seconds; return how many were removed. 0 and ``None`` set no limit.

    Only documents are touched, and no link is followed. Idempotent; safe for several processes.
    """
    if kept <= 0 and age_s is None:
        return 0
    try:
        jobs = [entry.path for entry in os.scandir(directory) if _is_job(entry)]
    except FileNotFoundError:
        return 0
    old_before = None if age_s is None else time.time() - age_s
    return sum(_prune_job(Path(job), kept, old_before) for job in jobs)


def _is_job(entry: os.DirEntry[str]) -> bool:
    return _JOB_DIRECTORY.fullmatch(entry.name) is not None and entry.is_dir(follow_symlinks=False)


def _prune_job(directory: Path, kept: int, old_before: float | None) -> int:
    removed = 0
    try:
        # The names are times, so their order is that of the runs.
        documents = sorted(path for path in directory.iterdir() if _DOCUMENT.fullmatch(path.name))
        surplus = set(documents[:-kept] if kept > 0 else ())
        if old_before is not None:
            surplus |= {path for path in documents[:-1] if path.lstat().st_mtime < old_before}
        for path in sorted(surplus):
            path.unlink(missing_ok=True)
            removed += 1
    except OSError as error:
        log.warning("output.not_pruned", directory=directory.name, error=error.strerror)
    return removed
