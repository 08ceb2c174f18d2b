"""How long ended work is kept, its deletion, and the export and erasure of what belongs to somebody."""

from __future__ import annotations

from hermes_worker.extension import Extension, RouterDeclaration

EXTENSION = Extension(
    name="hermes-retention",
    version="1",
    summary="How long ended work is kept, its deletion, and the export and erasure of what belongs to somebody",
    routers=(
        RouterDeclaration(
            name="retention",
            implementation="hermes_worker.features.retention.routes:router",
            paths=(
                "/v1/retention",
                "/v1/holds",
                "/v1/holds/{number}",
                "/v1/prunes",
            ),
        ),
        RouterDeclaration(
            name="erasures",
            implementation="hermes_worker.features.retention.erasure_routes:router",
            paths=(
                "/v1/exports",
                "/v1/erasures/foretold",
                "/v1/erasures",
                "/v1/erasures/replayed",
                "/v1/erasures/{receipt_id}/work",
                "/v1/erasure-receipts",
                "/v1/erasure-receipts/{receipt_id}",
            ),
        ),
    ),
)
