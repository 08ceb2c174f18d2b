"""What the verbs of ``memory`` ask the API, as typed calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hermes_worker.cli.reaching import api_client
from hermes_worker.cli.server import read
from hermes_worker.core.messages import canonical_json
from hermes_worker.features.memory.rows import MemoryView
from hermes_worker.features.memory.rules import (
    MemoryOperation,
    MemoryTarget,
    chars_of,
)

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient


class StandingMemory(NamedTuple):
    """Both memories of a profile."""

    profile: str
    views: Sequence[MemoryView]
    """Entries, and changes that wait for a person."""
    limits: Mapping[MemoryTarget, int]

    def entries(self, target: MemoryTarget) -> list[MemoryView]:
        return [view for view in self.views if view.target == target and view.state == "current"]

    @property
    def staged(self) -> list[MemoryView]:
        return [view for view in self.views if view.state == "staged"]

    def chars(self, target: MemoryTarget) -> int:
        return chars_of([view.content or "" for view in self.entries(target)])


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTold:
    """What a change came to."""

    message: str
    changed: tuple[str, ...]
    """Entries with their versions: ``mem_0123456789ab@2``."""


def open_memory(home: Path | None, profile: str | None) -> Memory:
    """``profile`` of ``None`` is that of the settings. Raises ``ConfigurationError``, ``UnavailableError``."""
    return Memory(api_client(home), profile)


class Memory:
    """The memories of one tenant and profile."""

    def __init__(self, client: HermesClient, profile: str | None) -> None:
        self._client = client
        self._profile = profile

    def standing(self) -> StandingMemory:
        told = self._client.memory(profile=self._profile)
        views = [_view(each) for target in MemoryTarget for each in told[target.value]["entries"]]
        views += [_staged(each) for each in told["staged"]]
        limits = {target: int(told[target.value]["limit"]) for target in MemoryTarget}
        return StandingMemory(profile=str(told["profile"]), views=views, limits=limits)

    def change(self, target: MemoryTarget, operations: Sequence[MemoryOperation]) -> MemoryTold:
        wanted = [operation.as_document() for operation in operations]
        return _remote(self._client.change_memory(target.value, wanted, profile=self._profile))

    def undo(self, target: MemoryTarget, entry_id: str | None) -> MemoryTold:
        return _remote(self._client.undo_memory(target.value, entry_id=entry_id, profile=self._profile))

    def settle(self, staged_id: str, *, approves: bool) -> MemoryTold:
        return _remote(self._client.settle_memory(MemoryTarget.MEMORY.value, staged_id, approve=approves))

    def redact(self, target: MemoryTarget, entry_id: str, version: int) -> MemoryView:
        return _view(self._client.redact_memory(target.value, entry_id, version))

    def history(self, target: MemoryTarget, entry_id: str | None, limit: int) -> Sequence[MemoryView]:
        found = self._client.memory_history(target.value, entry_id=entry_id, limit=limit, profile=self._profile)
        return [_view(each) for each in found]


def _told(message: str, changed: Sequence[tuple[str, int]]) -> MemoryTold:
    return MemoryTold(message=message, changed=tuple(f"{entry_id}@{version}" for entry_id, version in changed))


def _remote(told: Mapping[str, Any]) -> MemoryTold:
    return _told(str(told["message"]), [(str(each["entry_id"]), int(each["version"])) for each in told["changed"]])


def _view(told: Mapping[str, Any]) -> MemoryView:
    return cast("MemoryView", read(MemoryView, {name: told.get(name) for name in MemoryView._fields}))


def _staged(told: Mapping[str, Any]) -> MemoryView:
    return MemoryView(
        number=int(told["number"]),
        target=str(told["target"]),
        entry_id=str(told["staged_id"]),
        version=1,
        act="propose",
        state="staged",
        content=canonical_json(told["operations"]),
        author=str(told["author"]),
        run_id=told["run_id"],
        at=float(told["at"]),
        redacted_at=None,
    )
