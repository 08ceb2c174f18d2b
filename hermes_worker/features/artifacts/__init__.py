"""Files that runs leave, and files that clients upload."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration, UpkeepDeclaration

EXTENSION = Extension(
    name="hermes-artifacts",
    version="1",
    summary="Files that runs leave, and files that clients upload",
    routers=(
        RouterDeclaration(
            name="artifacts",
            implementation="hermes_worker.features.artifacts.routes:router",
            paths=(
                "/v1/runs/{run_id}/artifacts",
                "/v1/artifacts/{artifact_id}/content",
            ),
        ),
        RouterDeclaration(name="files", implementation="hermes_worker.features.artifacts.file_routes:router"),
    ),
    commands=(
        CommandDeclaration(
            name="runs artifacts",
            summary="The files that a run made or changed and that were kept; with --fetch, get them.",
            implementation="hermes_worker.features.artifacts.verbs:artifacts",
        ),
    ),
    upkeep=(
        UpkeepDeclaration(
            name="gatherings",
            sweep_rows="hermes_worker.store.artifacts.gatherings:take_back_gatherings",
            resend_rows="hermes_worker.store.artifacts.gatherings:resend_gatherings",
        ),
        UpkeepDeclaration(
            name="uploaded files", prune_rows="hermes_worker.store.artifacts.uploads:delete_expired_uploads"
        ),
    ),
)
