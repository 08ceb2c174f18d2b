"""Requests of responses as they are checked, and answers as they are documented."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints, WithJsonSchema

from hermes_worker.api.errors import invalid
from hermes_worker.api.formats import NOT_BLANK
from hermes_worker.api.messages import ITEMS_MAX
from hermes_worker.api.openai.chat_schema import FLAG, FLAG_SCHEMA, SESSION
from hermes_worker.api.openai.client_tools import RESPONSE_TOOLS, TOOL_CHOICE
from hermes_worker.api.openai.structured import RESPONSE_FORMAT
from hermes_worker.api.schema import IMAGE_PART, TEXT, TEXT_PART, Answers

Order = Literal["asc", "desc"]
_RESPONSE_ID = re.compile(r"resp_(?P<run>[0-9a-f]{32})(?:p(?P<part>[1-9][0-9]{0,5}))?")
_CONVERSATION_ID = re.compile(r"conv_[0-9a-f]{32}")


def read_response_id(response: str) -> tuple[str, int] | None:
    """Read a run's id and the part's number from a response's id; ``None`` for a text that is none."""
    match = _RESPONSE_ID.fullmatch(response)
    return None if match is None else (f"run_{match['run']}", int(match["part"] or 0))


def is_conversation_id(text: str) -> bool:
    """Whether the text is the id of a session that has no name of its own."""
    return _CONVERSATION_ID.fullmatch(text) is not None


# --- the request -----------------------------------------------------------------------------------------------------


def _declare_item(roles: list[str], parts: list[dict[str, Any]]) -> dict[str, Any]:
    listed = {"type": "array", "maxItems": ITEMS_MAX, "items": parts[0] if len(parts) == 1 else {"anyOf": parts}}
    return {
        "type": "object",
        "properties": {
            "type": {"enum": ["message"]},
            "role": {"enum": roles},
            "content": {"anyOf": [TEXT, listed]},
        },
        "required": ["role", "content"],
    }


def _declare_items(*texts_of: str) -> dict[str, Any]:
    """Describe a list of items: the user's messages, messages with the roles ``texts_of``, and items that are
    ignored."""
    passed_over = {
        "type": "object",
        "properties": {"type": {"enum": ["reasoning", "mcp_call", "compaction"]}},
        "required": ["type"],
    }
    kinds = [_declare_item(["user"], [TEXT_PART, IMAGE_PART]), _declare_item([*texts_of], [TEXT_PART]), passed_over]
    return {"type": "array", "maxItems": ITEMS_MAX, "items": {"anyOf": kinds}}


INPUT_ITEMS = _declare_items("assistant", "system", "developer")
ADDED_ITEMS = _declare_items("assistant")
"""Items that a request may add to a conversation: no system messages, because a stored prompt does not change."""
_INPUT = {
    "anyOf": [{**TEXT, "pattern": NOT_BLANK}, {**INPUT_ITEMS, "minItems": 1}],
    "description": "The user's message, or items, the last of which is the user's message.",
}
_CONVERSATION = {
    "anyOf": [
        {"type": "null"},
        {"type": "string", "pattern": SESSION},
        {
            "type": "object",
            "properties": {"id": {"type": "string", "pattern": SESSION}},
            "required": ["id"],
        },
    ],
    "description": "Go on with the conversation of this name, or begin it. Not with previous_response_id.",
}
_TEXT_OPTIONS = {
    "type": ["object", "null"],
    "properties": {"format": RESPONSE_FORMAT},
    "description": "The answer as JSON; it is sent back twice if it does not fit.",
}


class ResponseRequest(BaseModel, extra="ignore", strict=True):
    """A request for a response. Fields that are not named here are ignored: the agent decides how its model is
    asked."""

    input: Annotated[Any, WithJsonSchema(_INPUT)]
    model: str | None = Field(
        None, max_length=256, description="Echoed. Only a name that GET /v1/models lists changes which model works."
    )
    instructions: str | None = Field(None, max_length=200_000, description="Joins a new session's system prompt.")
    previous_response_id: str | None = Field(None, max_length=256, description="Go on after this response.")
    conversation: Annotated[Any, WithJsonSchema(_CONVERSATION)] = None
    conversation_history: Annotated[Any, WithJsonSchema({"anyOf": [INPUT_ITEMS, {"type": "null"}]})] = None
    store: bool | None = Field(None, description="Default: true.")
    background: bool | None = Field(None, description="Answer at once; needs store.")
    stream: Annotated[bool, FLAG, WithJsonSchema(FLAG_SCHEMA)] | None = None
    tools: Annotated[Any, WithJsonSchema(RESPONSE_TOOLS)] = Field(
        None, description="Functions of the client, beside the tools that the agent has itself."
    )
    tool_choice: Annotated[Any, WithJsonSchema(TOOL_CHOICE)] = None
    text: Annotated[Any, WithJsonSchema(_TEXT_OPTIONS)] = None
    metadata: (
        dict[
            Annotated[str, StringConstraints(min_length=1, max_length=64)],
            Annotated[str, StringConstraints(max_length=512)],
        ]
        | None
    ) = Field(None, max_length=16, description="Kept with the run.")

    @property
    def is_streamed(self) -> bool:
        return bool(self.stream)

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def conversation_id(self) -> str | None:
        given = self.conversation
        return given.get("id") if isinstance(given, dict) else given


def require_possible(body: ResponseRequest) -> None:
    """Raise ``ApiError`` for fields that contradict each other, and for what is not supported."""
    if body.text is not None and not isinstance(body.text, dict):
        raise invalid("text", "Invalid 'text': it must be an object.", "invalid_type")
    if body.background and not body.is_stored:
        raise invalid("background", "'background' needs 'store': nobody could ask for the answer.")
    given = body.conversation_id
    if body.conversation is not None and (not isinstance(given, str) or not re.fullmatch(SESSION, given)):
        words = "a name of 1 to 256 printable ASCII characters without spaces, '/', '\\' and '..'"
        raise invalid("conversation", f"Invalid 'conversation': it must be {words}.")
    if given is not None and body.previous_response_id is not None:
        message = "'conversation' and 'previous_response_id' exclude each other."
        raise invalid("previous_response_id", message, "mutually_exclusive_parameters")


BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": ResponseRequest.model_json_schema()}},
    }
}


# --- answers ---------------------------------------------------------------------------------------------------------


class Deleted(BaseModel):
    """A response that was deleted."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


_OBJECT = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^resp_[0-9a-f]{32}(p[1-9][0-9]{0,5})?$"},
        "object": {"const": "response"},
        "created_at": {"type": "integer"},
        "status": {"enum": ["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]},
        "model": {"type": "string"},
        "output": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"id": {"type": "string"}, "type": {"enum": ["message", "mcp_call", "function_call"]}},
                "required": ["id", "type", "status"],
            },
        },
        "usage": {"type": ["object", "null"]},
        "error": {"type": ["object", "null"]},
        "metadata": {"type": "object"},
    },
    "required": ["id", "object", "created_at", "status", "model", "output", "usage", "error", "metadata"],
}
_STREAM = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "description": "response.created, response.output_text.delta, ..."},
        "data": {"type": "string", "description": "JSON with type and sequence_number."},
    },
    "required": ["event", "data"],
}
OBJECT: Answers = {
    200: {"description": "The response.", "content": {"application/json": {"schema": _OBJECT}}},
}
ANSWERS: Answers = {
    200: {
        "description": "The response, or the stream in which it is written.",
        "content": {"application/json": {"schema": _OBJECT}, "text/event-stream": {"itemSchema": _STREAM}},
    },
}
ITEMS: Answers = {
    200: {
        "description": "A page of items.",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "object": {"const": "list"},
                        "data": {"type": "array", "items": {"type": "object"}},
                        "has_more": {"type": "boolean"},
                    },
                    "required": ["object", "data", "has_more"],
                }
            }
        },
    }
}
