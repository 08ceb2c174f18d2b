"""The tool calls of a run, one by one, and the runs of its tree."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel

from hermes_worker.api import schema
from hermes_worker.api.auth import READS
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError
from hermes_worker.api.owners import OwnRun
from hermes_worker.api.routes.runs import build_run_object
from hermes_worker.core.run import CallStatus
from hermes_worker.services.presenters import build_call_line, build_call_texts
from hermes_worker.store.runs.call_ledger import CallEntry, CallInFull, CallNotFound, Ledger
from hermes_worker.store.runs.tree_shapes import TREE_RUNS_MAX, TreeNode, load_tree

router = APIRouter(prefix="/v1/runs", tags=["runs"], responses=schema.declare_errors(503))
_CALL_FORM = r"^[0-9]{1,6}\.[0-9]{1,4}$"


class LedgerEntryObject(BaseModel):
    """A tool call of a run. Times are epoch seconds."""

    object: Literal["hermes.call"] = "hermes.call"
    call: str
    """Its place in the run: iteration and position in its reply, ``3.0``."""
    iteration: int
    position: int
    tool: str
    effect: Literal["pure", "keyed", "once"]
    """Whether it may run again when its worker is lost: at will, with the same key, or never."""
    status: CallStatus
    waits_for: str | None
    attempts: int
    """How often it was begun."""
    takeovers: int
    """How often somebody else went on with it."""
    deaths: int
    """How many workers died while they held it."""
    claimed_at: float | None
    settled_at: float | None
    worker: str | None
    """The worker that holds it now."""


class CallList(BaseModel):
    """Calls in the order in which the model asked for them."""

    object: Literal["list"] = "list"
    data: list[LedgerEntryObject]
    has_more: bool


class CallDetailObject(LedgerEntryObject):
    """A tool call with its texts, in which secrets are hidden."""

    tool_call_id: str
    """The call's id in the model's reply."""
    arguments: str
    """JSON, as the model wrote it."""
    changed_arguments: str | None
    """JSON that it ran with instead, because a person or a rewriter changed it."""
    result: str | None
    """The result as the model got it; ``null`` before it is settled."""


class TreeRunObject(BaseModel):
    """A run of a tree."""

    run: schema.RunObject
    parent_run_id: str | None
    """The run that delegated to it, or whose background answer began it; ``null`` for the first."""
    depth: int
    child_index: int | None
    """Which task of the call that delegated to it."""
    parent_call: str | None
    """The place of that call, ``3.0``."""
    background: bool


class TreeObject(BaseModel):
    """The runs of a tree, in the order in which they came."""

    object: Literal["hermes.tree"] = "hermes.tree"
    root_run_id: str
    total: int
    """How many there are; the first 1000 are shown."""
    data: list[TreeRunObject]


_Call = Annotated[str, Path(pattern=_CALL_FORM, description="Iteration and position: 3.0.")]
_After = Annotated[str | None, Query(pattern=_CALL_FORM, description="List calls behind this one.")]


@router.get("/{run_id}/calls", response_model=CallList, responses=schema.declare_errors(404, 410), dependencies=[READS])
async def list_calls(
    context: Context, run_id: OwnRun, after: _After = None, limit: Annotated[int, Query(ge=1, le=500)] = 100
) -> CallList:
    """The tool calls of a run: what may be repeated, how often each was begun, and who holds it."""
    ledger = Ledger(context.client.database)
    found = await context.call_store(ledger.list_calls, run_id, after=_place(after) if after else None, limit=limit + 1)
    return CallList(data=[_entry_object(entry) for entry in found[:limit]], has_more=len(found) > limit)


@router.get(
    "/{run_id}/calls/{call}",
    response_model=CallDetailObject,
    responses=schema.declare_errors(404, 410),
    dependencies=[READS],
)
async def get_call(context: Context, run_id: OwnRun, call: _Call) -> CallDetailObject:
    """One tool call with its arguments and its result."""
    ledger = Ledger(context.client.database)
    try:
        found = await context.call_store(ledger.load_call, run_id, *_place(call))
    except CallNotFound:
        raise ApiError(404, f"Call not found: {call}", code="call_not_found", param="call") from None
    return _detail_object(found)


@router.get(
    "/{run_id}/tree", response_model=TreeObject, responses=schema.declare_errors(404, 410), dependencies=[READS]
)
async def get_tree(context: Context, run_id: OwnRun) -> TreeObject:
    """The runs of the tree that ``run_id`` is in: what it delegated, and the turns that background answers began."""
    shape = await context.call_store(load_tree, context.client.database, run_id, limit=TREE_RUNS_MAX)
    return TreeObject(
        root_run_id=shape.nodes[0].run.run_id,
        total=shape.total,
        data=[_tree_run(node) for node in shape.nodes],
    )


def _place(call: str) -> tuple[int, int]:
    iteration, _, position = call.partition(".")
    return int(iteration), int(position)


def _entry_fields(entry: CallEntry) -> dict[str, object]:
    return {**asdict(build_call_line(entry)), "iteration": entry.iteration, "position": entry.position}


def _entry_object(entry: CallEntry) -> LedgerEntryObject:
    return LedgerEntryObject.model_validate(_entry_fields(entry))


def _detail_object(found: CallInFull) -> CallDetailObject:
    return CallDetailObject.model_validate({**_entry_fields(found.entry), **asdict(build_call_texts(found))})


def _tree_run(node: TreeNode) -> TreeRunObject:
    return TreeRunObject(
        run=build_run_object(node.run),
        parent_run_id=node.parent_run_id,
        depth=node.depth,
        child_index=node.child_index,
        parent_call=None if node.call is None else f"{node.call[0]}.{node.call[1]}",
        background=node.is_background,
    )
