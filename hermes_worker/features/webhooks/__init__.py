"""Events of others that start runs."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration, UpkeepDeclaration

EXTENSION = Extension(
    name="hermes-webhooks",
    version="1",
    summary="Events of others that start runs",
    routers=(
        RouterDeclaration(name="webhooks", implementation="hermes_worker.features.webhooks.management_routes:router"),
        RouterDeclaration(name="inbound", implementation="hermes_worker.features.webhooks.event_routes:router"),
        RouterDeclaration(
            name="webhook_routes",
            implementation="hermes_worker.features.webhooks.routes:router",
            paths=(
                "/v1/webhook-routes",
                "/v1/webhook-routes/{name}",
                "/v1/webhook-routes/{name}/signature",
            ),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="gateway webhooks",
            summary="Let others start runs: add, list, remove and try routes for their events.",
            implementation="hermes_worker.features.webhooks.verbs:webhook",
        ),
    ),
    upkeep=(
        UpkeepDeclaration(
            name="webhook_routes",
            begin_serving="hermes_worker.features.webhooks.service:reseal_routes",
            list_checks="hermes_worker.features.webhooks.checks:list_checks",
        ),
    ),
    tables=("hermes_worker.features.webhooks.tables:webhook_routes",),
)
