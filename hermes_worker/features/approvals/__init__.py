"""Questions that wait for a person."""

from __future__ import annotations

from hermes_worker.extension import Extension, RouterDeclaration

EXTENSION = Extension(
    name="hermes-approvals",
    version="1",
    summary="Questions that wait for a person",
    routers=(
        RouterDeclaration(
            name="approvals",
            implementation="hermes_worker.features.approvals.routes:router",
            paths=(
                "/v1/approvals",
                "/v1/approvals/history",
                "/v1/runs/{run_id}/approval",
                "/v1/runs/{run_id}/input",
            ),
        ),
    ),
)
