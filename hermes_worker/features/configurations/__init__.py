"""The configuration of a fleet, with versions."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration

EXTENSION = Extension(
    name="hermes-configurations",
    version="1",
    summary="The configuration of a fleet, with versions",
    routers=(
        RouterDeclaration(
            name="configurations",
            implementation="hermes_worker.features.configurations.routes:router",
            paths=(
                "/v1/configuration",
                "/v1/configuration/versions",
                "/v1/tenants/{tenant}/configuration",
                "/v1/tenants/{tenant}/configuration/versions",
            ),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="config",
            summary="Show, change and check the settings.",
            implementation="hermes_worker.features.configurations.verbs:config",
            section="Administer",
        ),
    ),
)
