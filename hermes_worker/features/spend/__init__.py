"""What runs cost."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration

EXTENSION = Extension(
    name="hermes-spend",
    version="1",
    summary="What runs cost",
    routers=(
        RouterDeclaration(
            name="spend",
            implementation="hermes_worker.features.spend.routes:router",
            paths=("/v1/spend",),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="runs spend",
            summary="What runs cost, by day, model, tenant, job or session.",
            implementation="hermes_worker.features.spend.verbs:spend",
        ),
    ),
)
