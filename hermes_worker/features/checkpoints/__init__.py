"""Files of a workspace before an agent changed them."""

from __future__ import annotations

from hermes_worker.extension import Extension, RouterDeclaration

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
)
