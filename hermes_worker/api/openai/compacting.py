"""``POST /v1/responses/compact`` and ``/v1/responses/input_tokens``: what a conversation comes to, before the next
response."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, WithJsonSchema

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, WRITES, Caller
from hermes_worker.api.bodies import make_body_reader
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import ApiError, invalid
from hermes_worker.api.openai import response_schema
from hermes_worker.api.openai.brought_files import load_files
from hermes_worker.api.openai.client_tools import read_tools
from hermes_worker.api.openai.conversation_objects import conversation_not_found, read_session_name
from hermes_worker.api.openai.models import choose_model
from hermes_worker.api.openai.response_input import encode_compaction, parse_items
from hermes_worker.api.openai.response_objects import build_usage
from hermes_worker.api.openai.responses import load_response
from hermes_worker.api.openai.waiting import ClientLeft, require_reader_room, wait_for_end
from hermes_worker.api.stopping import stop_abandoned
from hermes_worker.core.compactions import select_visible
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.metering import estimate_tokens
from hermes_worker.core.principals import Principal
from hermes_worker.extension import NO_TOOLS
from hermes_worker.services.submission import Submission, accept, announce, prepare_run
from hermes_worker.store.runs.runs import SessionNotFound
from hermes_worker.store.sessions import Sessions
from hermes_worker.stream.readers import TooManyReaders

router = APIRouter(prefix="/v1/responses", tags=["openai"], responses=schema.declare_errors(503))

_ITEMS = {"anyOf": [{"type": "string"}, response_schema.INPUT_ITEMS, {"type": "null"}]}


class _SaidRequest(BaseModel, extra="ignore", strict=True):
    """What was said in a conversation. Fields that are not named here are ignored."""

    input: Annotated[Any, WithJsonSchema(_ITEMS)] = None
    model: str | None = Field(None, max_length=256)
    instructions: str | None = Field(None, max_length=200_000)
    previous_response_id: str | None = Field(None, max_length=256, description="With what was said up to it.")


class CompactRequest(
    _SaidRequest,
    json_schema_extra={
        "anyOf": [
            {
                "required": ["input"],
                "properties": {
                    "input": {"type": ["string", "array"], "items": {}, "minLength": 1, "minItems": 1},
                },
            },
            {
                "required": ["previous_response_id"],
                "properties": {"previous_response_id": {"type": "string", "minLength": 1}},
            },
        ]
    },
):
    """A conversation to be summarised."""


class CountRequest(_SaidRequest):
    """A request for a response, whose tokens are estimated."""

    conversation: Annotated[Any, WithJsonSchema({"type": ["string", "object", "null"]})] = None
    tools: Annotated[Any, WithJsonSchema({"type": ["array", "null"], "items": {"type": "object"}})] = None


class InputTokens(BaseModel):
    """An estimate of the tokens that a model would be sent first."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class CompactionItem(BaseModel):
    """A conversation in short, for the 'input' of a later request."""

    id: str
    type: Literal["compaction"] = "compaction"
    encrypted_content: str


class CompactedConversation(BaseModel):
    """A conversation that was made shorter, or that is as it was where there was nothing to summarise."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[CompactionItem]
    usage: dict[str, Any]


@router.post(
    "/compact",
    response_model=CompactedConversation,
    openapi_extra=schema.declare_body(CompactRequest, is_required=True),
    responses=schema.declare_errors(404, 408, 429, 502),
    dependencies=[WRITES],
)
async def compact_response(
    context: Context,
    caller: Caller,
    request: Request,
    body: Annotated[CompactRequest, Depends(make_body_reader(CompactRequest))],
) -> Any:
    """Summarise a conversation: a run of its own, in a session of its own. What it gives stands for the conversation in
    the 'input' of a later request."""
    require_reader_room(context)
    rows = await context.call_store(_list_rows, context, caller, body)
    if not rows:
        raise invalid("input", "Give 'input' or 'previous_response_id': there is nothing to summarise.")
    submission = Submission(
        input="/compress",
        compress="",
        history=[row for row in rows if row["role"] not in ("system", "developer")],
        instructions=body.instructions,
        toolsets=(NO_TOOLS,),
        model=choose_model(context, body.model),
        principal=caller,
    )
    created = await context.call_store(accept, context.client, submission)
    context.spawn(context.tell_broker(announce, context.client, created))
    try:
        view = await wait_for_end(context, request, created.run_id)
    except (ClientLeft, TooManyReaders, ApiError) as error:
        context.spawn(stop_abandoned(context, created.run_id, by=caller.display_name))
        if isinstance(error, ClientLeft):
            return Response(status_code=499)  # the client has left
        raise
    if not view.is_completed:
        raise ApiError(502, view.error or "The conversation could not be summarised.", code="agent_incomplete")
    short = await context.call_store(_load_visible, context, created.run_id)
    digits = created.run_id.removeprefix("run_")
    return CompactedConversation(
        id=f"resp_{digits}",
        created_at=int(view.created_at),
        output=[CompactionItem(id=f"cmp_{digits}", encrypted_content=encode_compaction(short))],
        usage=build_usage(view.usage),
    )


@router.post(
    "/input_tokens",
    response_model=InputTokens,
    openapi_extra=schema.declare_body(CountRequest, is_required=True),
    responses=schema.declare_errors(404, 408),
    dependencies=[READS],
)
async def count_input_tokens(
    context: Context, caller: Caller, body: Annotated[CountRequest, Depends(make_body_reader(CountRequest))]
) -> InputTokens:
    """Estimate how many tokens the first model call of such a response would be sent: the system prompt, the tools and
    what was said. Nothing is begun."""
    return InputTokens(input_tokens=await context.call_store(_count_tokens, context, caller, body))


def _count_tokens(context: ApiContext, caller: Principal, body: CountRequest) -> int:
    rows = [*_list_rows(context, caller, body), *_list_conversation(context, caller, body.conversation)]
    brought = read_tools(body.tools, None, nested=False)
    submission = Submission(
        input="count",
        instructions=body.instructions,
        model=choose_model(context, body.model),
        principal=caller,
        client_tools=brought.tools,
    )
    new = prepare_run(context.client, submission)
    return estimate_tokens((new.system_prompt, new.tools, *map(dump_canonical_json, rows)))


def _load_visible(context: ApiContext, run_id: str) -> list[Mapping[str, Any]]:
    """Load what a model is shown of the conversation up to a run."""
    return [json.loads(row.body) for row in select_visible(context.client.views.load_transcript(run_id))]


def _list_rows(context: ApiContext, caller: Principal, body: _SaidRequest) -> Sequence[Mapping[str, Any]]:
    """List what was said up to the response that a request names, and in its input."""
    earlier: list[Mapping[str, Any]] = []
    if body.previous_response_id is not None:
        kept = load_response(context, caller.tenant, body.previous_response_id)
        earlier = _load_visible(context, kept.of.run_id)
    given = body.input
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    given = load_files(context, caller, given, "input")
    return [*earlier, *(parse_items(given, "input") if given is not None else ())]


def _list_conversation(context: ApiContext, caller: Principal, given: object) -> Sequence[Mapping[str, Any]]:
    name = given.get("id") if isinstance(given, dict) else given
    if name is None:
        return ()
    if not isinstance(name, str):
        raise invalid("conversation", "Invalid 'conversation': it must be a name.", "invalid_type")
    sessions = Sessions(context.client.database, caller.tenant, caller.source)
    try:
        return [json.loads(row.body) for row in sessions.list_messages(read_session_name(name))]
    except SessionNotFound:
        raise conversation_not_found(name[:80]) from None
