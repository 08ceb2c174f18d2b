"""What was sent where."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration

EXTENSION = Extension(
    name="hermes-deliveries",
    version="1",
    summary="What was sent where",
    routers=(
        RouterDeclaration(
            name="deliveries",
            implementation="hermes_worker.features.deliveries.routes:router",
            paths=(
                "/v1/deliveries",
                "/v1/deliveries/{delivery_id}",
                "/v1/deliveries/{delivery_id}/retry",
                "/v1/dead-targets",
            ),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="gateway send",
            summary="Send a message to a chat or an address, from a script.",
            implementation="hermes_worker.features.deliveries.sending_verbs:send",
        ),
        CommandDeclaration(
            name="gateway deliveries",
            summary="List and show what was sent where, and send it again.",
            implementation="hermes_worker.features.deliveries.verbs:deliveries",
        ),
    ),
)
