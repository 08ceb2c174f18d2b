"""Files of a workspace before an agent changed them."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration, UpkeepDeclaration

EXTENSION = Extension(
    name="hermes-checkpoints",
    version="1",
    summary="Files of a workspace before an agent changed them",
    routers=(
        RouterDeclaration(
            name="checkpoints",
            implementation="hermes_worker.features.checkpoints.routes:router",
            paths=(
                "/v1/runs/{run_id}/checkpoints",
                "/v1/runs/{run_id}/diff",
                "/v1/runs/{run_id}/restore",
            ),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="runs checkpoints",
            summary="What was kept of the files of a run's workspace, the newest first.",
            implementation="hermes_worker.features.checkpoints.verbs:checkpoints",
        ),
        CommandDeclaration(
            name="runs diff",
            summary="How the files of a run's workspace differ from what they were.",
            implementation="hermes_worker.features.checkpoints.verbs:diff",
        ),
        CommandDeclaration(
            name="runs restore",
            summary="Make the files of a run's workspace what they were.",
            implementation="hermes_worker.features.checkpoints.verbs:restore",
        ),
    ),
    upkeep=(
        UpkeepDeclaration(
            name="checkpoints",
            forget_sessions="hermes_worker.features.checkpoints.files.places:forget_sessions",
        ),
    ),
)
