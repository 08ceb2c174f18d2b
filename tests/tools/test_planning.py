from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.agent.tools.planning import plan_call, resolve_lexically
from hermes_worker.core.segments import plan_segments
from hermes_worker.workspaces.local import LocalWorkspace

CATALOG = build_default_catalog()


def _segments(*calls: tuple[str, Any], canonical: Any = resolve_lexically) -> tuple[int, ...]:
    return plan_segments(
        [
            plan_call(
                CATALOG.get_spec(name) if name in CATALOG.names else None,
                name,
                arguments if isinstance(arguments, str) else json.dumps(arguments),
                canonical=canonical,
            )
            for name, arguments in calls
        ]
    )


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([("read_file", {"path": "a"}), ("read_file", {"path": "b"})], (0, 0)),
        ([("read_file", {"path": "a"}), ("read_file", {"path": "a"})], (0, 0)),
        ([("read_file", {"path": "a"}), ("write_file", {"path": "./a"}), ("read_file", {"path": "b"})], (0, 1, 1)),
        ([("write_file", {"path": "a/b"}), ("write_file", {"path": "a/c"}), ("patch", {"path": "a"})], (0, 0, 1)),
        ([("search_files", {"pattern": "x"}), ("terminal", {"command": "x"}), ("todo", {})], (0, 1, 2)),
        ([("search_files", "{broken"), ("search_files", {"pattern": "x"}), ("search_files", {})], (0, 1, 1)),
        ([("read_file", "[1]"), ("read_file", {"path": "x"})], (0, 1)),
        ([("read_file", {"path": "a"}), ("patch", {"mode": "patch", "path": "b", "patch": "x"})], (0, 1)),
        ([("read_file", {"path": "a"}), ("nosuch", {}), ("read_file", {"path": "b"})], (0, 1, 2)),
    ],
)
def test_the_batch_is_split_where_calls_could_disturb_each_other(calls: Any, expected: tuple[int, ...]) -> None:
    assert _segments(*calls) == expected


def test_links_are_seen_through_where_the_workspace_can_be_seen(workspace: LocalWorkspace, root: Path) -> None:
    (root / "real").touch()
    (root / "link").symlink_to("real")
    calls = [("write_file", {"path": "real"}), ("write_file", {"path": "link"})]
    assert _segments(*calls) == (0, 0)
    assert _segments(*calls, canonical=lambda path: str(workspace.resolve(path))) == (0, 1)


def test_a_path_that_will_be_refused_runs_alone(workspace: LocalWorkspace) -> None:
    calls = [("read_file", {"path": "a"}), ("read_file", {"path": "/etc/passwd"}), ("read_file", {"path": "b"})]
    assert _segments(*calls, canonical=lambda path: str(workspace.resolve(path))) == (0, 1, 2)
