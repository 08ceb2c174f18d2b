"""``/v1/conversations``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, WRITES, Caller
from hermes_worker.api.bodies import make_body_reader, read_object, validate_body
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import ApiError, invalid
from hermes_worker.api.openai import response_schema
from hermes_worker.api.openai.brought_files import bring_files, load_files
from hermes_worker.api.openai.chat_schema import SESSION
from hermes_worker.api.openai.conversation_objects import (
    ITEM,
    ConversationChange,
    ConversationDeleted,
    ConversationObject,
    NewConversation,
    NewItems,
    SessionTools,
    build_conversation_object,
    conversation_not_found,
    list_items,
    read_seq,
    read_session_name,
)
from hermes_worker.api.openai.response_input import parse_items
from hermes_worker.api.stopping import stop
from hermes_worker.core.messages import Role
from hermes_worker.core.principals import Principal
from hermes_worker.services.client_tools import list_session_tool_names
from hermes_worker.services.submission import InvalidSubmission, Submission, prepare_run
from hermes_worker.store.kept_conversations import (
    ItemInUse,
    ItemRow,
    KeptConversation,
    KeptConversations,
    build_document,
)
from hermes_worker.store.runs.runs import NewRun, SessionNotFound
from hermes_worker.store.sessions import Sessions

router = APIRouter(prefix="/v1/conversations", tags=["openai"], responses=schema.declare_errors(503))

_PassedOver = Query(description="Passed over.")
_INSTRUCTING = frozenset({"system", "developer"})


def _require_own(context: ApiContext, caller: Principal, conversation: str) -> KeptConversation:
    try:
        if not re.fullmatch(SESSION, conversation):
            raise SessionNotFound(conversation)
        return KeptConversations(context.client.database, caller.tenant).get(read_session_name(conversation))
    except SessionNotFound:
        raise conversation_not_found(conversation) from None


async def _find_own_conversation(context: Context, caller: Caller, conversation_id: str) -> KeptConversation:
    return await context.call_store(_require_own, context, caller, conversation_id)


_OwnConversation = Annotated[KeptConversation, Depends(_find_own_conversation)]


async def _change(request: Request, kept: _OwnConversation) -> ConversationChange:
    del kept  # another tenant's is answered with 404 before the body is read
    return validate_body(await read_object(request), ConversationChange)


# --- conversations ---------------------------------------------------------------------------------------------------


@router.post(
    "",
    response_model=ConversationObject,
    openapi_extra=schema.declare_body(NewConversation),
    responses=schema.declare_errors(408),
    dependencies=[WRITES],
)
async def create_conversation(
    context: Context,
    caller: Caller,
    body: Annotated[NewConversation, Depends(make_body_reader(NewConversation, without_body={}))],
) -> ConversationObject:
    """Begin a conversation, with what was said before. Responses go on with it as their ``conversation``."""
    rows = [] if body.items is None else parse_items(await bring_files(context, caller, body.items, "items"), "items")
    kept = await context.call_store(_open, context, caller, rows, body.metadata or {})
    return build_conversation_object(kept)


def _open(
    context: ApiContext, caller: Principal, rows: list[dict[str, Any]], metadata: dict[str, str]
) -> KeptConversation:
    """Open a session as its first turn would: its prompt is built for a run, which is not created."""
    client = context.client
    new = _build_first_turn(context, caller, rows)
    sessions = Sessions(client.database, caller.tenant)
    view = sessions.open(new, title=None, model=None, kept=build_document(metadata))
    return KeptConversations(client.database, caller.tenant).get(view.label.id)


def _build_first_turn(context: ApiContext, caller: Principal, rows: list[dict[str, Any]]) -> NewRun:
    """Build the turn that such rows would come before. Raises ``ApiError`` where they cannot be stored."""
    client = context.client
    instructions = [str(row["content"]) for row in rows if row["role"] in _INSTRUCTING]
    first = Submission(
        input="-",
        history=[row for row in rows if row["role"] not in _INSTRUCTING],
        instructions="\n\n".join(text for text in instructions if text.strip()) or None,
        principal=caller,
        source="api",
    )
    try:
        return prepare_run(client, first)
    except InvalidSubmission as error:
        param = "items" if error.field in ("history", "instructions") else error.field
        raise invalid(param, f"Invalid {param!r}: {error}.") from None


@router.get(
    "/{conversation_id}", response_model=ConversationObject, responses=schema.declare_errors(404), dependencies=[READS]
)
async def get_conversation(kept: _OwnConversation) -> ConversationObject:
    """A conversation. Every session is one, however it began."""
    return build_conversation_object(kept)


@router.post(
    "/{conversation_id}",
    response_model=ConversationObject,
    openapi_extra=schema.declare_body(ConversationChange, is_required=True),
    responses=schema.declare_errors(404, 408),
    dependencies=[WRITES],
)
async def change_conversation(
    context: Context, caller: Caller, kept: _OwnConversation, body: Annotated[ConversationChange, Depends(_change)]
) -> ConversationObject:
    """Keep other metadata with a conversation."""
    conversations = KeptConversations(context.client.database, caller.tenant)
    try:
        changed = await context.call_store(conversations.describe, kept.session_id, body.metadata or {})
    except SessionNotFound:
        raise conversation_not_found(build_conversation_object(kept).id) from None
    return build_conversation_object(changed)


@router.delete(
    "/{conversation_id}",
    response_model=ConversationDeleted,
    responses=schema.declare_errors(404),
    dependencies=[WRITES],
)
async def delete_conversation(context: Context, caller: Caller, kept: _OwnConversation) -> ConversationDeleted:
    """Forget that this session is a conversation; what is at work in it is stopped. Its responses stay, and the rows go
    when retention lets them."""
    conversations = KeptConversations(context.client.database, caller.tenant)
    try:
        open_runs = await context.call_store(conversations.delete, kept.session_id)
    except SessionNotFound:
        raise conversation_not_found(build_conversation_object(kept).id) from None
    for run_id in open_runs:
        await stop(context, run_id, by=caller.display_name)
    return ConversationDeleted(id=build_conversation_object(kept).id)


# --- items -----------------------------------------------------------------------------------------------------------


@router.get(
    "/{conversation_id}/items",
    response_model=None,
    responses=response_schema.ITEMS | schema.declare_errors(404),
    dependencies=[READS],
)
async def list_conversation_items(
    context: Context,
    caller: Caller,
    kept: _OwnConversation,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: response_schema.Order = "desc",
    after: Annotated[str | None, Query(max_length=64, description="The id of the last item seen.")] = None,
    include: Annotated[list[str] | None, _PassedOver] = None,
) -> Response:
    """The items of a conversation, which are what was said and done in it; a call is listed when it has its result."""
    found = await context.call_store(_load_page, context, caller.tenant, kept, after, order == "asc", limit + 1)
    return _answer_list(found[:limit], has_more=len(found) > limit)


def _answer_list(items: Sequence[dict[str, Any]], *, has_more: bool) -> Response:
    ids = {"first_id": items[0]["id"] if items else None, "last_id": items[-1]["id"] if items else None}
    return JSONResponse({"object": "list", "data": items, **ids, "has_more": has_more})


async def _read_new_items(request: Request, kept: _OwnConversation) -> NewItems:
    del kept  # as above
    return validate_body(await read_object(request), NewItems)


@router.post(
    "/{conversation_id}/items",
    response_model=None,
    openapi_extra=schema.declare_body(NewItems, is_required=True),
    responses=response_schema.ITEMS | schema.declare_errors(404, 408, 409),
    dependencies=[WRITES],
)
async def create_conversation_items(
    context: Context,
    caller: Caller,
    kept: _OwnConversation,
    body: Annotated[NewItems, Depends(_read_new_items)],
    include: Annotated[list[str] | None, _PassedOver] = None,
) -> Response:
    """Add items at the end of a conversation, while no run is active in it. Answers with the items that were stored."""
    return _answer_list(await context.call_store(_append, context, caller, kept, body.items), has_more=False)


def _append(context: ApiContext, caller: Principal, kept: KeptConversation, given: object) -> list[dict[str, Any]]:
    rows = parse_items(load_files(context, caller, given, "items"), "items")
    if any(row["role"] in _INSTRUCTING for row in rows):
        raise invalid("items", "Invalid 'items': the prompt of a conversation that there is stays as it is.")
    brought = _build_first_turn(context, caller, rows).spec.history
    if _list_result_ids(brought) != _list_result_ids(rows):
        message = (
            "Invalid 'items': each function_call needs its function_call_output in the same request, and no other."
        )
        raise invalid("items", message)
    try:
        added = KeptConversations(context.client.database, caller.tenant).append(kept.session_id, brought)
    except SessionNotFound:
        raise conversation_not_found(build_conversation_object(kept).id) from None
    agent, client = list_session_tool_names(context.client, caller.tenant, kept.session_id)
    return list_items(kept.session_id, added, None, SessionTools(agent=agent, client=client))


@router.get(
    "/{conversation_id}/items/{item_id}",
    response_model=None,
    responses=ITEM | schema.declare_errors(404),
    dependencies=[READS],
)
async def get_conversation_item(
    context: Context,
    caller: Caller,
    kept: _OwnConversation,
    item_id: str,
    include: Annotated[list[str] | None, _PassedOver] = None,
) -> Response:
    """One item of a conversation."""
    item = await context.call_store(_find_item, context, caller.tenant, kept, item_id)
    if item is None:
        raise _item_not_found(item_id)
    return JSONResponse(item)


def _list_result_ids(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted(str(row["tool_call_id"]) for row in rows if row["role"] == Role.TOOL.value)


@router.delete(
    "/{conversation_id}/items/{item_id}",
    response_model=ConversationObject,
    responses=schema.declare_errors(404, 409),
    dependencies=[WRITES],
)
async def delete_conversation_item(
    context: Context, caller: Caller, kept: _OwnConversation, item_id: str
) -> ConversationObject:
    """Delete the last item, if a client added it and no model has seen it yet."""
    await context.call_store(_take_back, context, caller.tenant, kept, item_id)
    return build_conversation_object(kept)


def _take_back(context: ApiContext, tenant: str, kept: KeptConversation, item_id: str) -> None:
    seq = read_seq(item_id, kept.session_id)
    if seq is None or _find_item(context, tenant, kept, item_id) is None:
        raise _item_not_found(item_id)
    try:
        KeptConversations(context.client.database, tenant).delete_item(kept.session_id, seq)
    except SessionNotFound:
        raise conversation_not_found(build_conversation_object(kept).id) from None
    except ItemInUse:
        message = (
            "Only the last item can be deleted, and only a message that was brought and not sent to a model yet: what "
            "was said stays as it was said. Begin another conversation with the items that are to count."
        )
        raise ApiError(409, message, code="item_is_told", param="item_id") from None


def _item_not_found(item: str, param: str | None = None) -> ApiError:
    return ApiError(404, f"Item with id {item[:80]!r} not found.", code="item_not_found", param=param)


class _ItemReader:
    """The items of one conversation, read by places."""

    def __init__(self, context: ApiContext, tenant: str, kept: KeptConversation) -> None:
        self._conversations = KeptConversations(context.client.database, tenant)
        self._kept = kept
        agent, client = list_session_tool_names(context.client, tenant, kept.session_id)
        self._tools = SessionTools(agent=agent, client=client)

    def load_item(self, item_id: str) -> dict[str, Any] | None:
        """Load an item; ``None`` where there is none of this id."""
        seq = read_seq(item_id, self._kept.session_id)
        rows = [] if seq is None else self._list_rows(seq, is_ascending=True, limit=1)
        found = [item for item in self._build_items(rows, is_ascending=True) if item["id"] == item_id]
        return found[0] if found else None

    def load_page(self, after: str | None, *, is_ascending: bool, wanted: int) -> list[dict[str, Any]]:
        """Load up to two items more than ``wanted`` behind ``after``; ``None`` begins at an end. Raises
        ``ApiError``."""
        start = None if after is None else read_seq(after, self._kept.session_id)
        if after is not None and self.load_item(after) is None:
            raise _item_not_found(after, "after")
        found: list[dict[str, Any]] = []
        while len(found) < wanted + 2:  # of the row of ``after``, two may have been seen
            rows = self._list_rows(start, is_ascending=is_ascending, limit=wanted)
            if not rows:
                break
            found += self._build_items(rows, is_ascending=is_ascending)
            start = rows[-1].seq + (1 if is_ascending else -1)
        behind = 0 if after is None else [item["id"] for item in found].index(after) + 1
        return found[behind : behind + wanted]

    def _list_rows(self, start: int | None, *, is_ascending: bool, limit: int) -> list[ItemRow]:
        return self._conversations.list_items(
            self._kept.session_pk, start=start, is_ascending=is_ascending, limit=limit
        )

    def _build_items(self, rows: Sequence[ItemRow], *, is_ascending: bool) -> list[dict[str, Any]]:
        """List the items of rows that follow each other, in the order in which the rows are given."""
        ordered = rows if is_ascending else rows[::-1]
        lead = None
        if ordered and ordered[0].role is Role.TOOL:
            lead = self._conversations.find_reply_before(self._kept.session_pk, ordered[0].seq)
        items = list_items(self._kept.session_id, ordered, lead, self._tools)
        return items if is_ascending else items[::-1]


def _load_page(
    context: ApiContext, tenant: str, kept: KeptConversation, after: str | None, is_ascending: bool, wanted: int
) -> list[dict[str, Any]]:
    return _ItemReader(context, tenant, kept).load_page(after, is_ascending=is_ascending, wanted=wanted)


def _find_item(context: ApiContext, tenant: str, kept: KeptConversation, item_id: str) -> dict[str, Any] | None:
    return _ItemReader(context, tenant, kept).load_item(item_id)
