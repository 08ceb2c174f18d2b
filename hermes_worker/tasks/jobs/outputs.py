"""The documents kept of jobs' runs: a directory per job, and only so many in each (docs/behaviour.md, "Job output")."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hermes_worker.observe import log

_JOB_DIRECTORY = re.compile(r"[0-9a-f]{12}")
_DOCUMENT = re.compile(r"\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2}\.md")


def prune_outputs(directory: Path, kept: int) -> int:
    """Remove all but the newest ``kept`` documents of each job below ``directory``; returns how many. 0 keeps all.

    Nothing but documents is touched, and no link is followed. Idempotent; safe for several processes.
    """
    if kept <= 0:
        return 0
    try:
        jobs = [entry.path for entry in os.scandir(directory) if _is_job(entry)]
    except FileNotFoundError:
        return 0
    return sum(_prune_job(Path(job), kept) for job in jobs)


def _is_job(entry: os.DirEntry[str]) -> bool:
    return _JOB_DIRECTORY.fullmatch(entry.name) is not None and entry.is_dir(follow_symlinks=False)


def _prune_job(directory: Path, kept: int) -> int:
    removed = 0
    try:
        # The names are times, so their order is that of the runs.
        documents = sorted(path for path in directory.iterdir() if _DOCUMENT.fullmatch(path.name))
        for path in documents[:-kept]:
            path.unlink(missing_ok=True)
            removed += 1
    except OSError as error:
        log.warning("output.not_pruned", directory=directory.name, error=error.strerror)
    return removed
