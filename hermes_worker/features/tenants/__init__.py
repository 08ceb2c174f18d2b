"""Tenants, their limits and keys."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration

EXTENSION = Extension(
    name="hermes-tenants",
    version="1",
    summary="Tenants, their limits and keys",
    routers=(
        RouterDeclaration(
            name="tenants",
            implementation="hermes_worker.features.tenants.routes:router",
            paths=(
                "/v1/limits",
                "/v1/limits/keys/{key_id}",
                "/v1/tenants/{tenant}/limits",
            ),
        ),
        RouterDeclaration(
            name="access",
            implementation="hermes_worker.features.tenants.key_routes:router",
            paths=(
                "/v1/tenants",
                "/v1/tenants/{tenant}/disable",
                "/v1/tenants/{tenant}/enable",
                "/v1/places",
                "/v1/keys",
                "/v1/keys/{key_id}/rotate",
                "/v1/keys/{key_id}",
            ),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="tenants",
            summary="List and create tenants, their limits, and keys of the HTTP API.",
            implementation="hermes_worker.features.tenants.verbs:tenants",
            section="Administer",
        ),
        CommandDeclaration(
            name="tenants keys",
            summary="Create, list, rotate and revoke keys of the HTTP API.",
            implementation="hermes_worker.features.tenants.verbs:keys",
        ),
    ),
)
