"""Provider keys that tenants bring."""

from __future__ import annotations

from hermes_worker.extension import (
    CommandDeclaration,
    Extension,
    RouterDeclaration,
    UpkeepDeclaration,
)

EXTENSION = Extension(
    name="hermes-provider-keys",
    version="1",
    summary="Provider keys that tenants bring",
    routers=(
        RouterDeclaration(
            name="provider_keys",
            implementation="hermes_worker.features.provider_keys.routes:router",
            paths=(
                "/v1/tenants/{tenant}/provider-keys",
                "/v1/tenants/{tenant}/provider-keys/{provider_key_id}",
            ),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="fleet providers keys",
            summary="Add, list and remove the provider keys of a tenant.",
            implementation="hermes_worker.features.provider_keys.verbs:keys",
        ),
    ),
    upkeep=(
        UpkeepDeclaration(
            name="provider_keys",
            list_checks="hermes_worker.features.provider_keys.checks:list_checks",
        ),
    ),
    tables=("hermes_worker.features.provider_keys.tables:provider_keys",),
)
