"""Describe a stack in words of its roles and its work. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from hermes_worker.core.run import RunStatus

_ROLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "api": "API",
        "worker": "workers",
        "beat": "scheduler",
        "gateway": "gateway",
        "browser": "browsers",
        "mcp-host": "MCP servers",
        "postgres": "database",
        "valkey-server": "broker",
        "redis-server": "broker",
    }
)
"""What people call the processes of a stack. Others only serve these."""
_WORK: Final[Mapping[RunStatus, str]] = MappingProxyType(
    {
        RunStatus.RUNNING: "at work",
        RunStatus.WAITING_FOR_CHILDREN: "waiting for what they delegated",
        RunStatus.WAITING_FOR_APPROVAL: "waiting for a permission",
        RunStatus.WAITING_FOR_INPUT: "waiting for an answer",
        RunStatus.QUEUED: "queued",
        RunStatus.PAUSED: "paused",
    }
)


def describe_roles(parts: Iterable[str]) -> str:
    """Describe the processes of a stack, which are named as ``ps`` does."""
    running = {_ROLES.get(part.split()[0], "") for part in parts if part.strip()}
    return ", ".join(role for role in dict.fromkeys(_ROLES.values()) if role in running) or "none"


def describe_silent_workers(parts: Iterable[str], alive: Iterable[Iterable[str]]) -> str | None:
    """Describe the worker processes of a stack that no living worker of the database is; ``alive`` are the queues of
    each that is. ``None`` where there are none."""
    living = {frozenset(queues) for queues in alive}
    workers = [part.split()[1] for part in parts if part.startswith("worker ")]
    silent = [queues for queues in workers if frozenset(queues.split(",")) not in living]
    if not silent:
        return None
    named = f"the worker of {silent[0]} gives" if len(silent) == 1 else f"the workers of {' and of '.join(silent)} give"
    return f"{named} no sign of life: it hangs, or is just starting; 'hermes-worker doctor' looks closer"


def describe_work(statuses: Sequence[RunStatus], *, is_cut: bool) -> str:
    """Describe the open runs by what they do; ``is_cut`` says that there are more than were counted."""
    counts = Counter(_WORK.get(status, status.value.replace("_", " ")) for status in statuses)
    if not counts:
        return "nothing is at work"
    runs = f"{'more than ' if is_cut else ''}{len(statuses)} open {'run' if len(statuses) == 1 else 'runs'}"
    return f"{runs}: {', '.join(f'{count} {what}' for what, count in counts.most_common())}"
