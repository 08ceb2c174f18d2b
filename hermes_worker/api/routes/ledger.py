"""The tool calls of a run, one by one, and the runs of its tree."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from hermes_worker.api import schema
from hermes_worker.api.auth import READS
from hermes_worker.api.context import Context
from hermes_worker.api.errors import RouteRefusal, answer_errors
from hermes_worker.api.owners import OwnRun
from hermes_worker.api.routes.runs import build_run_object
from hermes_worker.schemas.runs import CallDetailObject, CallList, TreeObject, TreeRunObject
from hermes_worker.services.presenters import build_call_detail, build_entry_object
from hermes_worker.store.runs.call_ledger import CallNotFound, Ledger
from hermes_worker.store.runs.trees import TREE_RUNS_MAX, TreeNode, load_tree

router = APIRouter(
    prefix="/v1/runs",
    tags=["runs"],
    route_class=answer_errors(
        {
            CallNotFound: RouteRefusal(404, "call_not_found", "call", "Call not found: {call}"),
        }
    ),
    responses=schema.declare_errors(503),
)
_CALL_FORM = r"^[0-9]{1,6}\.[0-9]{1,4}$"


_Call = Annotated[str, Path(pattern=_CALL_FORM, description="Iteration and position: 3.0.")]
_After = Annotated[str | None, Query(pattern=_CALL_FORM, description="List calls behind this one.")]


@router.get("/{run_id}/calls", response_model=CallList, responses=schema.declare_errors(404, 410), dependencies=[READS])
async def list_calls(
    context: Context, run_id: OwnRun, after: _After = None, limit: Annotated[int, Query(ge=1, le=500)] = 100
) -> CallList:
    """The tool calls of a run: what may be repeated, how often each was begun, and who holds it."""
    ledger = Ledger(context.client.database)
    found = await context.call_store(
        ledger.list_calls, run_id, after=_parse_place(after) if after else None, limit=limit + 1
    )
    return CallList(data=[build_entry_object(entry) for entry in found[:limit]], has_more=len(found) > limit)


@router.get(
    "/{run_id}/calls/{call}",
    response_model=CallDetailObject,
    responses=schema.declare_errors(404, 410),
    dependencies=[READS],
)
async def get_call(context: Context, run_id: OwnRun, call: _Call) -> CallDetailObject:
    """One tool call with its arguments and its result."""
    ledger = Ledger(context.client.database)
    found = await context.call_store(ledger.load_call, run_id, *_parse_place(call))
    return build_call_detail(found)


@router.get(
    "/{run_id}/tree", response_model=TreeObject, responses=schema.declare_errors(404, 410), dependencies=[READS]
)
async def get_tree(context: Context, run_id: OwnRun) -> TreeObject:
    """The runs of the tree that ``run_id`` is in: what it delegated, and the turns that background answers began."""
    shape = await context.call_store(load_tree, context.client.database, run_id, limit=TREE_RUNS_MAX)
    return TreeObject(
        root_run_id=shape.nodes[0].run.run_id,
        total=shape.total,
        data=[_build_tree_run(node) for node in shape.nodes],
    )


def _parse_place(call: str) -> tuple[int, int]:
    iteration, _, position = call.partition(".")
    return int(iteration), int(position)


def _build_tree_run(node: TreeNode) -> TreeRunObject:
    return TreeRunObject(
        run=build_run_object(node.run),
        parent_run_id=node.parent_run_id,
        depth=node.depth,
        child_index=node.child_index,
        parent_call=None if node.call is None else f"{node.call[0]}.{node.call[1]}",
        background=node.is_background,
    )
