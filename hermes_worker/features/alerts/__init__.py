"""What is told to operators."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration

EXTENSION = Extension(
    name="hermes-alerts",
    version="1",
    summary="What is told to operators",
    routers=(
        RouterDeclaration(
            name="alerts",
            implementation="hermes_worker.features.alerts.routes:router",
            paths=(
                "/v1/alerts",
                "/v1/alerts/test",
                "/v1/alerts/targets",
            ),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="fleet alerts",
            summary="List what operators were told is wrong, and try whether they are reached.",
            implementation="hermes_worker.features.alerts.verbs:alerts",
        ),
    ),
)
