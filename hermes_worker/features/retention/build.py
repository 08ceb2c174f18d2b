"""Build the pruner and its rules from the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hermes_worker.core.retention_rules import DEFAULT_RULES, RetentionKind, RetentionRule, parse_rules
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database


def build_retention_rules(settings: Settings) -> dict[RetentionKind, RetentionRule]:
    """The retention rules of tenants without rules of their own."""
    return {**DEFAULT_RULES, **parse_rules(settings.retention.rules)}


def build_pruner(database: Database, settings: Settings) -> Pruner:
    return Pruner(database, build_retention_rules(settings))


def prune_files_here(database: Database, settings: Settings) -> dict[RetentionKind, int]:
    """Remove the files of this machine's home that the rules let go; return how many of each kind."""
    from hermes_worker.features.retention.work import prune_files

    return prune_files(settings.home, build_pruner(database, settings), outputs_kept=settings.cron.outputs_kept)


def remove_files_here(home: Path, tenant: str, sessions: Sequence[str], jobs: Sequence[str]) -> Mapping[str, int]:
    """Remove this machine's files of erased sessions and jobs. Idempotent."""
    from hermes_worker.features.retention.work import remove_files

    return remove_files(home, tenant, sessions, jobs)
