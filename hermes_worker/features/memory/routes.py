"""Agent memories: people read, change, undo and redact them (docs/memory.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from hermes_worker.api import schema
from hermes_worker.api.auth import Caller, declare_scope
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import ApiError, RouteRefusal, answer_errors
from hermes_worker.core.principals import KeyScope, Principal
from hermes_worker.features.memory.build import build_memory_policy
from hermes_worker.features.memory.rows import (
    HISTORY_MAX,
    Memories,
    MemoryNotFound,
    MemoryVersionStands,
    MemoryView,
)
from hermes_worker.features.memory.rules import (
    OPERATIONS_MAX,
    MemoryAuthor,
    MemoryChangeOutcome,
    MemoryEntry,
    MemoryKey,
    MemoryPolicy,
    MemoryRefused,
    MemoryRules,
    MemoryTarget,
    count_chars,
    format_usage,
    parse_operations,
)
from hermes_worker.features.memory.schema import (
    ChangedEntry,
    MemoryChangedObject,
    MemoryEntryObject,
    MemoryObject,
    MemoryVersionList,
    MemoryVersionObject,
    OneMemory,
    StagedObject,
)

router = APIRouter(
    prefix="/v1/memory",
    tags=["memory"],
    route_class=answer_errors(
        {
            MemoryNotFound: RouteRefusal(404, "memory_not_found"),
            MemoryVersionStands: RouteRefusal(409, "version_stands"),
            MemoryRefused: lambda refused: MemoryConflict(refused),
        },
        JsonRoute,
    ),
    dependencies=[declare_scope(KeyScope.MEMORY)],
    responses=schema.declare_errors(400, 503),
)

_CHARS_MAX = 100_000
_Profile = Annotated[
    str | None,
    Query(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,59}$", description="Whose memory. Default: that of `memory.profile`."),
]
_Target = Annotated[Literal["memory", "user"], Path(description="The agent's own notes, or what it knows of the user.")]
_EntryId = Annotated[str, Field(pattern=r"^mem_[0-9a-f]{12}$")]


class OperationBody(BaseModel, extra="forbid"):
    """One wish. An entry is meant by a piece of its text or by its id, and then only in ``version`` where that is
    given."""

    action: Literal["add", "replace", "remove"]
    content: str | None = Field(default=None, max_length=_CHARS_MAX)
    old_text: str | None = Field(default=None, max_length=_CHARS_MAX)
    entry_id: _EntryId | None = None
    version: Annotated[int, Field(strict=True, ge=1, le=2**31 - 1), schema.WHOLE] | None = None


class ChangeBody(BaseModel, extra="forbid"):
    """A change: all of it is made, or nothing."""

    operations: list[OperationBody] = Field(min_length=1, max_length=OPERATIONS_MAX)


class UndoBody(BaseModel, extra="forbid"):
    """Which entry to undo."""

    entry_id: _EntryId | None = Field(default=None, description="Default: the entry that was changed last.")


class SettleBody(BaseModel, extra="forbid"):
    """A person's decision about a staged change."""

    staged_id: str = Field(pattern=r"^mst_[0-9a-f]{12}$")
    approve: bool = Field(strict=True)


class RedactBody(BaseModel, extra="forbid"):
    """The past version to redact."""

    entry_id: _EntryId
    version: Annotated[int, Field(strict=True, ge=1, le=2**31 - 1), schema.WHOLE]


@router.get("")
async def show_memory(context: Context, caller: Caller, profile: _Profile = None) -> MemoryObject:
    """Both memories of the tenant as they stand, with who wrote what, and the changes that wait for a person."""
    policy = await _read_policy(context, caller)
    views = await context.call_store(_open_memories(context).list_current, caller.tenant, profile or policy.profile)
    return MemoryObject(
        profile=profile or policy.profile,
        memory=_build_memory(views, MemoryTarget.MEMORY, policy),
        user=_build_memory(views, MemoryTarget.USER, policy),
        staged=[_build_staged(view) for view in views if view.state == "staged"],
    )


@router.post("/{target}", responses=schema.declare_errors(409))
async def change_memory(
    context: Context, caller: Caller, target: _Target, body: ChangeBody, profile: _Profile = None
) -> MemoryChangedObject:
    """Add, replace and remove entries, all together or nothing. A change that was made for what has changed meanwhile,
    and one that would be too much, is refused with what stands there (409, ``current_entries``)."""
    place, rules, author = await _resolve_memory(context, caller, target, profile)
    operations = parse_operations([one.model_dump(exclude_none=True) for one in body.operations])
    changed = await context.call_store(_open_memories(context).change, place, operations, rules, author)
    return _build_changed(changed, target, rules)


@router.post("/{target}/undo", responses=schema.declare_errors(404, 409))
async def undo_memory(
    context: Context, caller: Caller, target: _Target, body: UndoBody, profile: _Profile = None
) -> MemoryChangedObject:
    """Have an entry be what it was before its last change. Undoing that does it again."""
    place, rules, author = await _resolve_memory(context, caller, target, profile)
    changed = await context.call_store(_open_memories(context).undo, place, rules, author, entry_id=body.entry_id)
    return _build_changed(changed, target, rules)


@router.post("/{target}/settle", responses=schema.declare_errors(404, 409))
async def settle_memory(context: Context, caller: Caller, target: _Target, body: SettleBody) -> MemoryChangedObject:
    """Make a change that waits for a person, or drop it."""
    _, rules, author = await _resolve_memory(context, caller, target, None)
    policy = await _read_policy(context, caller)
    settle = _open_memories(context).settle_staged
    changed = await context.call_store(
        settle, caller.tenant, body.staged_id, policy.build_rules, author, approves=body.approve
    )
    return _build_changed(changed, target, rules)


@router.post("/{target}/redact", responses=schema.declare_errors(404, 409))
async def redact_memory(context: Context, caller: Caller, target: _Target, body: RedactBody) -> MemoryVersionObject:
    """Redact the text of a past version. That it existed, who wrote it and when, stays."""
    view = await context.call_store(_open_memories(context).redact, caller.tenant, body.entry_id, body.version)
    return _build_version(view)


@router.get("/{target}/history")
async def memory_history(
    context: Context,
    caller: Caller,
    target: _Target,
    profile: _Profile = None,
    entry_id: Annotated[str | None, Query(pattern=r"^mem_[0-9a-f]{12}$", description="Of this entry only.")] = None,
    behind: Annotated[int | None, Query(ge=1, le=2**53, description="Behind this number.")] = None,
    limit: Annotated[int, Query(ge=1, le=HISTORY_MAX)] = 100,
) -> MemoryVersionList:
    """The versions of a memory, newest first, with who wrote each."""
    place = (await _resolve_memory(context, caller, target, profile))[0]
    history = _open_memories(context).list_versions
    found = await context.call_store(history, place, entry_id=entry_id, before=behind, limit=limit)
    return MemoryVersionList(data=[_build_version(view) for view in found])


def _open_memories(context: ApiContext) -> Memories:
    return Memories(context.client.database)


async def _read_policy(context: ApiContext, caller: Principal) -> MemoryPolicy:
    """Read the memory policy of the caller's tenant, as it is now."""
    chosen = await context.call_store(context.client.live_settings.choose_settings, caller.tenant)
    return build_memory_policy(chosen.settings)


async def _resolve_memory(
    context: ApiContext, caller: Principal, target: str, profile: str | None
) -> tuple[MemoryKey, MemoryRules, MemoryAuthor]:
    policy = await _read_policy(context, caller)
    place = MemoryKey(tenant=caller.tenant, profile=profile or policy.profile, target=MemoryTarget(target))
    return place, policy.build_rules(place.target), MemoryAuthor(name=caller.display_name)


def _build_memory(views: Sequence[MemoryView], target: MemoryTarget, policy: MemoryPolicy) -> OneMemory:
    found = [view for view in views if view.target == target and view.state == "current"]
    return OneMemory(
        entries=[_build_version(view) for view in found],
        chars=count_chars([view.content or "" for view in found]),
        limit=policy.limits[target],
    )


def _build_staged(view: MemoryView) -> StagedObject:
    return StagedObject.from_record(
        view,
        staged_id=view.entry_id,
        operations=json.loads(view.content or "[]"),
    )


def _build_version(view: MemoryView) -> MemoryVersionObject:
    return MemoryVersionObject.model_validate(dict(zip(MemoryView._fields, view, strict=True)))


def _build_entry(entry: MemoryEntry) -> MemoryEntryObject:
    return MemoryEntryObject(entry_id=entry.entry_id, version=entry.version, content=entry.content)


def _build_changed(changed: MemoryChangeOutcome, target: str, rules: MemoryRules) -> MemoryChangedObject:
    return MemoryChangedObject(
        target=target,
        message=changed.message,
        changed=[ChangedEntry(entry_id=entry_id, version=version) for entry_id, version in changed.changed],
        entries=[_build_entry(entry) for entry in changed.entries],
        usage=format_usage([entry.content for entry in changed.entries], rules.limit),
    )


class MemoryConflict(ApiError):
    """A change that does not fit the current entries, which the answer lists, or that must not be stored."""

    def __init__(self, refused: MemoryRefused) -> None:
        super().__init__(409, str(refused), code=f"memory_{refused.kind.value}", param="operations")
        self._entries = [_build_entry(entry).model_dump() for entry in refused.entries]

    @property
    def document(self) -> dict[str, Any]:
        return {**super().document, "current_entries": self._entries}
