"""Files that runs leave."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration

EXTENSION = Extension(
    name="hermes-artifacts",
    version="1",
    summary="Files that runs leave",
    routers=(
        RouterDeclaration(
            name="artifacts",
            implementation="hermes_worker.features.artifacts.routes:router",
            paths=(
                "/v1/runs/{run_id}/artifacts",
                "/v1/artifacts/{artifact_id}/content",
            ),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="runs artifacts",
            summary="The files that a run made or changed and that were kept; with --fetch, get them.",
            implementation="hermes_worker.features.artifacts.verbs:artifacts",
        ),
    ),
)
