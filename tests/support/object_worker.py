"""A process that changes a workspace in object storage and may be killed on the way: its machine, and what to do, are
its arguments."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hermes_worker.features.object_storage.build import build_object_parts
from hermes_worker.features.object_storage.rules import SnapshotName, find_root
from hermes_worker.features.object_storage.workspace_files import KeptWorkspace, open_kept_workspace
from hermes_worker.local.paths import get_workspaces_dir
from hermes_worker.settings import Settings, load_settings
from hermes_worker.store.engine.database import Database
from hermes_worker.system.faults import arm_faults
from hermes_worker.workspaces.ref import OpeningOptions

NAME = "run_0123456789abcdef0123456789abcdef"


def build_settings(home: Path, endpoint: str) -> Settings:
    """The settings of a machine whose home is ``home``."""
    given = {
        "HERMES_OBJECT_STORAGE": "s3://hermes-files/installation",
        "HERMES_OBJECT_STORAGE_ENDPOINT": endpoint,
        "HERMES_OBJECT_STORAGE_ACCESS_KEY": "S3RVER",
        "HERMES_OBJECT_STORAGE_SECRET_KEY": "S3RVER",
        "HERMES_WORKSPACE": "objects",
    }
    return load_settings(given, home=home)


def open_on(home: Path, endpoint: str, database: Database, tenant: str = "default") -> KeptWorkspace:
    """Open the workspace of one session on the machine whose home is ``home``."""
    settings = build_settings(home, endpoint)
    parts = build_object_parts(settings, database)
    options = OpeningOptions(base_env={"PATH": "/usr/bin:/bin"}, open_keeper=parts.open_keeper)
    root = find_root(SnapshotName(tenant=tenant, name=NAME), str(get_workspaces_dir(settings.home)))
    return open_kept_workspace(root, options)


def main() -> None:
    given = json.loads(sys.argv[1])
    arm_faults(given["faults"])
    workspace = open_on(Path(given["home"]), given["endpoint"], Database(given["database"]))
    workspace.refresh()
    if given["command"]:
        workspace.execute(
            given["command"],
            cwd=None,
            env={},
            timeout_s=60,
            output_bytes_max=1000,
            should_stop=lambda: False,
        )


if __name__ == "__main__":
    main()
