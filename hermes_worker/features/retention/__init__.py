"""How long ended work is kept, its deletion, and the export and erasure of what belongs to somebody."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration

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
        RouterDeclaration(
            name="session_deletion",
            implementation="hermes_worker.features.retention.session_routes:router",
            paths=("/api/sessions/{session_id}",),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="data prune",
            summary="Delete what the rules of retention let go.",
            implementation="hermes_worker.features.retention.verbs:prune",
        ),
        CommandDeclaration(
            name="data retention",
            summary="Show and change how long things are kept, and hold what must stay.",
            implementation="hermes_worker.features.retention.verbs:retention",
        ),
        CommandDeclaration(
            name="data export",
            summary="Write everything of a person, a session or a tenant as JSON lines.",
            implementation="hermes_worker.features.retention.erasure_verbs:export",
        ),
        CommandDeclaration(
            name="data erase",
            summary="Delete everything of a person, a session or a tenant, and leave a receipt.",
            implementation="hermes_worker.features.retention.erasure_verbs:erase",
        ),
    ),
    tables=(
        "hermes_worker.features.retention.tables:retention_rules",
        "hermes_worker.features.retention.tables:retention_marks",
        "hermes_worker.features.retention.tables:erasures",
    ),
)
