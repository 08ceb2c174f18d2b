"""Files of workspaces and of runs in object storage, for tools workers that share no volume."""

from __future__ import annotations

from hermes_worker.extension import Extension, UpkeepDeclaration, WorkspaceDeclaration
from hermes_worker.features.object_storage.rules import KIND

EXTENSION = Extension(
    name="hermes-object-storage",
    version="1",
    summary="Workspaces and artifacts in object storage",
    workspaces=(
        WorkspaceDeclaration(
            name=KIND, implementation="hermes_worker.features.object_storage.workspace_files:open_kept_workspace"
        ),
    ),
    upkeep=(
        UpkeepDeclaration(
            name="object_storage", list_checks="hermes_worker.features.object_storage.checks:list_checks"
        ),
    ),
    tables=("hermes_worker.features.object_storage.tables:workspace_heads",),
)
