"""Many runs at once."""

from __future__ import annotations

from hermes_worker.extension import Extension, RouterDeclaration

EXTENSION = Extension(
    name="hermes-batches",
    version="1",
    summary="Many runs at once",
    routers=(
        RouterDeclaration(
            name="batches",
            implementation="hermes_worker.features.batches.routes:router",
            paths=(
                "/v1/batch/runs",
                "/v1/batch/stop",
                "/v1/runs/{run_id}/wait",
                "/v1/batch/wait",
                "/v1/runs/{run_id}/retry",
            ),
        ),
    ),
)
