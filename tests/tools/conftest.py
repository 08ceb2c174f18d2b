from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from hermes_worker.agent.tools.base import ToolContext, ToolPolicies, ToolResult
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.workspaces.local import LocalWorkspace

PATH = "/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def workspace(tmp_path: Path) -> LocalWorkspace:
    root = tmp_path / "workspace"
    root.mkdir()
    (tmp_path / "home").mkdir()
    return LocalWorkspace(str(root), base_env={"PATH": PATH, "HOME": str(tmp_path / "home"), "LANG": "C.UTF-8"})


@pytest.fixture
def root(workspace: LocalWorkspace) -> Path:
    return Path(workspace.root)


class Session:
    """A session that calls tools one after the other: what a call wants remembered, the next one is given."""

    def __init__(self, workspace: LocalWorkspace) -> None:
        self.workspace = workspace
        self.documents: dict[str, Any] = {}
        self.catalog = build_default_catalog()
        self.cancelled = threading.Event()
        self.calls = 0
        self.policies = ToolPolicies()

    def context(self) -> ToolContext:
        return ToolContext(
            run_id="run",
            session_id="session",
            idempotency_key=f"call-{self.calls}",
            attempt=1,
            workspace=self.workspace,
            session=dict(self.documents),
            cancelled=self.cancelled,
            policies=self.policies,
        )

    def result(self, name: str, /, **arguments: Any) -> ToolResult:
        self.calls += 1
        result = run_tool(self.catalog.get(name), json.dumps(arguments), self.context())
        for key, value in result.session_updates.items():
            if value is None:
                self.documents.pop(key, None)
            else:
                self.documents[key] = value
        return result

    def __call__(self, name: str, /, **arguments: Any) -> Any:
        """The document of a result, which must not be an error."""
        result = self.result(name, **arguments)
        assert not result.is_error, result.text
        return json.loads(result.text)

    def error(self, name: str, /, **arguments: Any) -> str:
        """The message of a result, which must be an error."""
        result = self.result(name, **arguments)
        assert result.is_error, result.text
        return str(json.loads(result.text)["error"])


@pytest.fixture
def session(workspace: LocalWorkspace) -> Session:
    return Session(workspace)
