"""Build what gathers artifacts from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_worker.tasks.build import SharedParts

if TYPE_CHECKING:
    from hermes_worker.features.artifacts.work import GatheringContext
    from hermes_worker.tasks.context import WorkerContext


def build_gathering_parts(shared: SharedParts, parts: WorkerContext) -> GatheringContext:
    """Build the parts for gathering the artifacts of runs."""
    from hermes_worker.features.artifacts.work import GatheringContext
    from hermes_worker.store.artifacts.gatherings import Gatherings

    kept = shared.settings.artifacts
    return GatheringContext(
        gatherings=Gatherings(shared.database),
        keep_content=shared.contents.keep,
        sender=shared.publisher,
        leases=shared.leases,
        workspace=parts.workspace,
        file_bytes_max=kept.file_mb_max * 1024**2,
        run_bytes_max=kept.run_mb_max * 1024**2,
    )
