"""A session as a conversation of OpenAI's API, and its rows as items. Pure.

The id of a conversation is that of its session, ``conv_`` for ``run_``, or the name that a client gave it. The id of an
item is made of the session's id and of the number of its row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints, WithJsonSchema

from hermes_worker.api.errors import ApiError
from hermes_worker.api.openai.response_objects import PartName, build_call_item, build_input_part
from hermes_worker.api.openai.response_schema import ADDED_ITEMS, INPUT_ITEMS, is_conversation_id
from hermes_worker.api.schema import Answers
from hermes_worker.core.messages import Role
from hermes_worker.store.kept_conversations import ItemRow, KeptConversation

_ITEM_ID = re.compile(r"(?:msg|mcp|fc|fco)_(?P<session>[0-9a-f]{32})s(?P<seq>[0-9a-f]{5,8})")


def read_session_name(conversation: str) -> str:
    """Read a session's name from a conversation's id, or from a name that a client gave."""
    return f"run_{conversation.removeprefix('conv_')}" if is_conversation_id(conversation) else conversation


def conversation_not_found(conversation: str) -> ApiError:
    return ApiError(404, f"Conversation with id {conversation[:80]!r} not found.", code="conversation_not_found")


# --- requests --------------------------------------------------------------------------------------------------------

_Metadata = Annotated[
    dict[
        Annotated[str, StringConstraints(min_length=1, max_length=64)],
        Annotated[str, StringConstraints(max_length=512)],
    ],
    Field(max_length=16),
]


class NewConversation(BaseModel, extra="ignore", strict=True):
    """A conversation to be begun."""

    items: Annotated[Any, WithJsonSchema({"anyOf": [INPUT_ITEMS, {"type": "null"}]})] = Field(
        None, description="What was said before. System messages join the system prompt."
    )
    metadata: _Metadata | None = None


class ConversationChange(BaseModel, extra="ignore", strict=True):
    """New metadata of a conversation."""

    metadata: _Metadata | None = Field(description="Instead of what there was; null for none.")


class NewItems(BaseModel, extra="ignore", strict=True):
    """Items to add at the end of a conversation."""

    items: Annotated[Any, WithJsonSchema(ADDED_ITEMS)] = Field(
        description="The next turn sends them. System messages are refused: a prompt never changes."
    )


# --- answers ---------------------------------------------------------------------------------------------------------


class ConversationObject(BaseModel):
    """A conversation."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(BaseModel):
    """A conversation that was deleted."""

    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: Literal[True] = True


ITEM: Answers = {
    200: {
        "description": "The item.",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string"},
                        "type": {"enum": ["message", "mcp_call", "function_call", "function_call_output"]},
                        "status": {"const": "completed"},
                    },
                    "required": ["id", "type", "status"],
                }
            }
        },
    }
}


def build_conversation_object(kept: KeptConversation) -> ConversationObject:
    return ConversationObject(
        id=kept.name or f"conv_{kept.session_id.removeprefix('run_')}",
        created_at=int(kept.created_at),
        metadata=dict(kept.metadata),
    )


# --- items -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTools:
    """The names of the tools that a session has."""

    agent: Collection[str]
    client: Collection[str]

    def is_of_client(self, name: str, row: ItemRow) -> bool:
        """Whether a client did the call whose result is ``row``."""
        return name in self.client or (not row.is_of_run and name not in self.agent)


def read_seq(item: str, session_id: str) -> int | None:
    """Read the row number from an item's id; ``None`` for the id of no item of this session."""
    match = _ITEM_ID.fullmatch(item)
    if match is None or match["session"] != session_id.removeprefix("run_"):
        return None
    seq = int(match["seq"], 16)
    return seq if seq < 2**31 else None


def list_items(
    session_id: str, rows: Sequence[ItemRow], lead: ItemRow | None, tools: SessionTools
) -> list[dict[str, Any]]:
    """List the items of ``rows``, which follow each other. ``lead`` is the reply before them. A call stands where its
    result does."""
    calls = {} if lead is None else _index_calls(lead)
    items: list[dict[str, Any]] = []
    for row in rows:
        body = json.loads(row.body)
        if row.role is Role.TOOL:
            items += _build_call_items(session_id, row, calls.get(str(body.get("tool_call_id"))) or {}, tools)
            continue
        if row.role is Role.ASSISTANT:
            calls = _index_calls(row)
        if body.get("content"):
            items.append(_build_message_item(session_id, row, body["content"]))
    return items


def _index_calls(reply: ItemRow) -> dict[str, Mapping[str, Any]]:
    return {str(call.get("id")): call for call in json.loads(reply.body).get("tool_calls") or ()}


def _build_item_id(kind: str, session_id: str, seq: int) -> str:
    return f"{kind}_{session_id.removeprefix('run_')}s{seq:05x}"


def _build_message_item(session_id: str, row: ItemRow, content: Any) -> dict[str, Any]:
    kind = "output_text" if row.role is Role.ASSISTANT else "input_text"
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    return {
        "id": _build_item_id("msg", session_id, row.seq),
        "type": "message",
        "status": "completed",
        "role": row.role.value,
        "content": [build_input_part(kind, part) for part in parts],
    }


def _build_call_items(
    session_id: str, row: ItemRow, call: Mapping[str, Any], tools: SessionTools
) -> list[dict[str, Any]]:
    body, function = json.loads(row.body), call.get("function") or {}
    name = str(function.get("name") or "")
    if not tools.is_of_client(name, row):
        item = build_call_item(PartName(run_id=session_id, part=0), row.seq, call, body)
        return [item | {"id": _build_item_id("mcp", session_id, row.seq)}]
    of_both = {"status": "completed", "call_id": str(body.get("tool_call_id"))}
    asked = {"name": name, "arguments": str(function.get("arguments") or "")}
    return [
        {"id": _build_item_id("fc", session_id, row.seq), "type": "function_call", **of_both, **asked},
        {
            "id": _build_item_id("fco", session_id, row.seq),
            "type": "function_call_output",
            **of_both,
            "output": str(body.get("content") or ""),
        },
    ]
