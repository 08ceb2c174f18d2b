"""The facts that the planner of ``core.segments`` needs about a call, taken from the tool and its arguments."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable
from typing import Any

from hermes_worker.agent.tools.arguments import coerce
from hermes_worker.core.delegation import DELEGATE_TOOL
from hermes_worker.core.recovery.repair import ArgumentsOutcome, assess_arguments
from hermes_worker.core.replay import Replay
from hermes_worker.core.segments import SegmentCall
from hermes_worker.extension import ToolSpec
from hermes_worker.workspaces.base import WorkspaceError

Canonical = Callable[[str], str]
"""Maps a path as a model wrote it to one canonical name. May raise ``WorkspaceError``."""


_SEVERAL_PATHS = {"patch": "patch"}
"""The argument by which a tool that otherwise touches one path touches several (V4A patches)."""


def resolve_lexically(path: str) -> str:
    """A ``Canonical`` for planners that cannot see the workspace: links are not followed."""
    return posixpath.normpath(posixpath.join("/", path))


def plan_call(spec: ToolSpec | None, name: str, arguments_json: str, *, canonical: Canonical) -> SegmentCall:
    """The call as data. ``spec`` is ``None`` for a tool that does not exist: such a call runs alone, and fails."""
    arguments = _parse_arguments(arguments_json)
    if spec is None or arguments is None:
        return SegmentCall(name=name, is_barrier=True)
    try:
        path = _find_path(spec, arguments, canonical)
    except WorkspaceError:
        return SegmentCall(name=name, is_barrier=True)
    return SegmentCall(
        name=name,
        is_parallel_safe=spec.is_parallel_safe,
        path=path,
        is_read_only=spec.replay is Replay.PURE,
    )


def find_replay_class(spec: ToolSpec, arguments_json: str) -> Replay:
    """The replay class of a call as a model wrote it."""
    if spec.replay_by is None:
        return spec.replay
    return spec.replay_of(_parse_arguments(arguments_json) or {})


def only_reads(spec: ToolSpec) -> bool:
    """Whether a call of the tool looks at something and does nothing: the same result again is no progress."""
    looks = spec.is_parallel_safe or spec.path_argument is not None
    return spec.replay is Replay.PURE and looks and spec.name != DELEGATE_TOOL


def _parse_arguments(text: str) -> dict[str, Any] | None:
    assessment = assess_arguments(text)
    if assessment.outcome is not ArgumentsOutcome.OK:
        return None
    value = json.loads(assessment.arguments)
    return value if isinstance(value, dict) else None


def _find_path(spec: ToolSpec, arguments: dict[str, Any], canonical: Canonical) -> str | None:
    if spec.path_argument is None or _SEVERAL_PATHS.get(spec.name) in arguments:
        return None
    value = coerce(arguments, spec.parameters).get(spec.path_argument)
    return canonical(value) if isinstance(value, str) and value else None
