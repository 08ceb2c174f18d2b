"""Who did what."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration

EXTENSION = Extension(
    name="hermes-audit",
    version="1",
    summary="Who did what",
    routers=(
        RouterDeclaration(
            name="audit",
            implementation="hermes_worker.features.audit.routes:router",
            paths=("/v1/audit",),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="data audit",
            summary="List and export who did what.",
            implementation="hermes_worker.features.audit.verbs:audit",
        ),
    ),
)
