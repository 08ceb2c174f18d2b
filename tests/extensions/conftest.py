from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_worker import installed, plugins
from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceRef


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What one test puts in force is gone in the next."""
    yield
    installed.put_in_force(None)
    plugins._BegunFor.key = plugins._BegunFor.installed = None


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(
        run_id="run",
        session_id="session",
        idempotency_key="key-1",
        attempt=1,
        workspace=open_workspace(WorkspaceRef(kind="local", root=str(tmp_path)), OpeningOptions(base_env={})),
        session={},
        cancelled=threading.Event(),
    )
