"""The operations of the API about what agents remember."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_worker.features.memory.schema import MemoryChangedObject, MemoryObject, MemoryVersionObject
from hermes_worker.operation import ApiRequest, build_get, build_post, make_reader


def memory(*, profile: str | None = None) -> ApiRequest[MemoryObject]:
    """What agents of the tenant remember, with who wrote what, and the changes that wait for a person."""
    return build_get("/v1/memory", make_reader(MemoryObject), profile=profile)


def change_memory(
    target: str,
    operations: Sequence[Mapping[str, Any]],
    *,
    profile: str | None = None,
    idempotency_key: str | None = None,
) -> ApiRequest[MemoryChangedObject]:
    """Add, replace and remove entries of ``memory`` or ``user``, all together or nothing:
    ``[{"action": "add", "content": "likes tea"}]``."""
    return build_post(
        "/v1/memory/{target}",
        make_reader(MemoryChangedObject),
        {"target": target},
        body={"operations": [dict(each) for each in operations]},
        key=idempotency_key,
        profile=profile,
    )


def undo_memory(
    target: str, *, entry_id: str | None = None, profile: str | None = None, idempotency_key: str | None = None
) -> ApiRequest[MemoryChangedObject]:
    """Take the last change of an entry back, or of the one that was changed last."""
    body = {"entry_id": entry_id}
    return build_post(
        "/v1/memory/{target}/undo",
        make_reader(MemoryChangedObject),
        {"target": target},
        body=body,
        key=idempotency_key,
        profile=profile,
    )


def settle_memory(
    target: str, staged_id: str, approve: bool, *, idempotency_key: str | None = None
) -> ApiRequest[MemoryChangedObject]:
    """Make a change that waits for a person, or drop it."""
    body = {"staged_id": staged_id, "approve": approve}
    return build_post(
        "/v1/memory/{target}/settle",
        make_reader(MemoryChangedObject),
        {"target": target},
        body=body,
        key=idempotency_key,
    )


def redact_memory(
    target: str, entry_id: str, version: int, *, idempotency_key: str | None = None
) -> ApiRequest[MemoryVersionObject]:
    """Empty the text of a past version of an entry."""
    body = {"entry_id": entry_id, "version": version}
    return build_post(
        "/v1/memory/{target}/redact",
        make_reader(MemoryVersionObject),
        {"target": target},
        body=body,
        key=idempotency_key,
    )


def memory_history(
    target: str,
    *,
    entry_id: str | None = None,
    behind: int | None = None,
    limit: int = 100,
    profile: str | None = None,
) -> ApiRequest[list[MemoryVersionObject]]:
    """List the changes of ``memory`` or ``user``, the newest first; ``behind`` is the number to go on after."""
    return build_get(
        "/v1/memory/{target}/history",
        make_reader(list[MemoryVersionObject], "data"),
        {"target": target},
        entry_id=entry_id,
        behind=behind,
        limit=limit,
        profile=profile,
    )
