"""Remove files of a home: documents of jobs, and workspaces of sessions that are idle or deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hermes_worker import installed
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.retention_rules import RetentionKind
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.local.paths import get_output_dir, get_workspaces_dir, list_job_data_dirs
from hermes_worker.tasks.jobs.data import remove_job_data
from hermes_worker.tasks.jobs.outputs import prune_outputs
from hermes_worker.tasks.maintenance import remove_left_on_machine
from hermes_worker.workspaces.pruning import prune_workspaces, remove_workspaces


def remove_files(home: Path, tenant: str, sessions: Sequence[str], jobs: Sequence[str]) -> Counter[str]:
    """Remove what this machine has of erased sessions and jobs: workspaces of their own, documents, and what scripts
    kept. Idempotent. Only ids that the product drew are taken for names of directories."""
    removed: Counter[str] = Counter()
    removed["workspaces"] = len(remove_workspaces(get_workspaces_dir(home, tenant), sessions))
    over = frozenset(sessions)
    for what, forget_sessions in installed.list_upkeep("forget_sessions"):
        removed[what] = forget_sessions(home, tenant, over.intersection)
    kept = [get_output_dir(home), *list_job_data_dirs(home)]
    removed["documents"] = sum(remove_job_data(directory, job_id) for directory in kept for job_id in jobs)
    return +removed


def prune_files(home: Path, pruner: Pruner, *, outputs_kept: int) -> dict[RetentionKind, int]:
    """Remove the files of this machine that the rules let go; return how many of each kind. ``outputs_kept`` is the
    number of documents that stay of each job. Job documents have no tenant, so the default one's rule holds for them
    all.
    """
    remove_left_on_machine(home)
    age_s = pruner.load_rules(DEFAULT_TENANT)[RetentionKind.OUTPUTS].age_s
    removed = {RetentionKind.OUTPUTS: prune_outputs(get_output_dir(home), outputs_kept, age_s=age_s)}
    for tenant in pruner.list_tenants():
        if pruner.may_remove_workspaces(tenant):
            find_expired = partial(pruner.find_expired_workspaces, tenant)
            found = prune_workspaces(get_workspaces_dir(home, tenant), find_expired)
            for _, forget_sessions in installed.list_upkeep("forget_sessions"):
                forget_sessions(home, tenant, find_expired)
            count = removed.get(RetentionKind.WORKSPACES, 0) + len(found)
            removed[RetentionKind.WORKSPACES] = count
    return removed
