"""Keys that seal stored texts."""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension, RouterDeclaration

EXTENSION = Extension(
    name="hermes-encryption",
    version="1",
    summary="Keys that seal stored texts",
    routers=(
        RouterDeclaration(
            name="encryption",
            implementation="hermes_worker.features.encryption.routes:router",
            paths=("/v1/encryption/keys",),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="data encryption",
            summary="Encrypt texts in the database, and change the keys.",
            implementation="hermes_worker.features.encryption.verbs:encryption",
        ),
    ),
)
