"""Requests of chat completions as they are checked, and answers as they are documented."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, WithJsonSchema

from hermes_worker.api.errors import ApiError, invalid
from hermes_worker.api.messages import ITEMS_MAX
from hermes_worker.api.openai.client_tools import CHAT_TOOLS, TOOL_CHOICE
from hermes_worker.api.openai.structured import CHAT_FORMAT
from hermes_worker.api.schema import IMAGE_PART, TEXT, TEXT_PART, WHOLE, Answers
from hermes_worker.services.submission import Submission

SESSION = r"^(?!.*\.\.)[!-.0-\[\]-~]{1,256}$"
"""Pattern of a session's name: it fits into a header and never looks like a path."""
_YES, _NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def _read_flag(value: object) -> object:
    """Read a flag as Hermes Agent does, from a boolean or from one of its words."""
    if isinstance(value, str) and value.lower() in (*_YES, *_NO):
        return value.lower() in _YES
    return value


CHOICES_MAX = 8
"""Most choices of one answer, each of which is a run."""
FLAG = BeforeValidator(_read_flag)
FLAG_SCHEMA = {"anyOf": [{"type": "boolean"}, {"enum": [*_YES, *_NO]}]}


# --- the request -----------------------------------------------------------------------------------------------------


def _list_schema(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "array", "maxItems": ITEMS_MAX, "items": parts[0] if len(parts) == 1 else {"anyOf": parts}}


def _declare_message(roles: list[str], content: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "role": {"enum": roles},
            "content": content[0] if len(content) == 1 else {"anyOf": content},
            **more,
        },
        "required": ["role", "content", *more],
    }


_REFUSAL = {
    "type": "object",
    "properties": {"type": {"const": "refusal"}, "refusal": TEXT},
    "required": ["type", "refusal"],
}
_CALL = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "function": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "arguments": TEXT},
            "required": ["name", "arguments"],
        },
    },
    "required": ["id", "function"],
}
_CALLS = {"type": "array", "maxItems": ITEMS_MAX, "items": _CALL}
_TEXTS = [TEXT, _list_schema([TEXT_PART])]
_MESSAGES = {
    "type": "array",
    "minItems": 1,
    "maxItems": ITEMS_MAX,
    "description": "The conversation. The last message is the user's, those before it are history; system messages "
    "join the system prompt.",
    "items": {
        "anyOf": [
            _declare_message(["user"], [TEXT, _list_schema([TEXT_PART, IMAGE_PART])]),
            _declare_message(["system", "developer"], _TEXTS),
            _declare_message(["assistant"], [TEXT, _list_schema([TEXT_PART, _REFUSAL])]),
            _declare_message(["assistant"], [{"type": "null"}], tool_calls={**_CALLS, "minItems": 1}),
            _declare_message(["tool"], _TEXTS, tool_call_id={"type": "string"}),
        ]
    },
}


class StreamOptions(BaseModel, extra="ignore", strict=True):
    """Options of a stream."""

    include_usage: bool | None = None


_STREAM_OPTIONS = {
    "type": ["object", "null"],
    "properties": {
        "include_usage": {
            "type": ["boolean", "null"],
            "description": "Send the usage in a chunk of its own, without choices.",
        }
    },
}


class ChatRequest(BaseModel, extra="ignore", strict=True):
    """A conversation to be answered. Fields that are not named here are passed over: the agent decides how its model is
    asked."""

    messages: Annotated[Any, WithJsonSchema(_MESSAGES)]
    model: str | None = Field(
        None, max_length=256, description="Echoed. Only a name that GET /v1/models lists changes which model works."
    )
    stream: Annotated[bool, FLAG, WithJsonSchema(FLAG_SCHEMA)] | None = None
    stream_options: Annotated[StreamOptions | None, WithJsonSchema(_STREAM_OPTIONS)] = None
    n: Annotated[int, Field(ge=1, le=CHOICES_MAX), WHOLE] | None = Field(
        None, description="More than one: each is a run without tools, in a session of its own. Not streamed."
    )
    tools: Annotated[Any, WithJsonSchema(CHAT_TOOLS)] = Field(
        None, description="Functions of the client, beside the tools that the agent has itself."
    )
    tool_choice: Annotated[Any, WithJsonSchema(TOOL_CHOICE)] = None
    functions: Annotated[Any, WithJsonSchema({"type": ["array", "null"], "maxItems": 0, "items": {}})] = Field(
        None, description="Not supported."
    )
    response_format: Annotated[Any, WithJsonSchema(CHAT_FORMAT)] = Field(
        None, description="The answer as JSON; it is sent back twice if it does not fit."
    )
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
    def choices(self) -> int:
        return self.n or 1

    @property
    def counts_apart(self) -> bool:
        """Whether the usage has a chunk of its own."""
        return bool(self.stream_options and self.stream_options.include_usage)


def require_possible(body: ChatRequest) -> None:
    """Raise ``ApiError`` for a field that would change the answer and is not supported."""
    if body.functions:
        raise invalid("functions", "'functions' is not supported: send them as 'tools'.", "unsupported_parameter")
    if body.functions is not None and not isinstance(body.functions, list):
        raise invalid("functions", "Invalid 'functions': it must be a list.", "invalid_type")


def require_choosable(body: ChatRequest, submission: Submission) -> None:
    """Raise ``ApiError`` for a request for several choices that only one run could answer."""
    if body.is_streamed:
        raise invalid("n", "'n' above 1 cannot be streamed: leave 'stream' out.", "unsupported_parameter")
    if submission.client_tools:
        message = "'n' above 1 is for runs without tools: leave 'tools' out, or ask for one answer."
        raise invalid("n", message, "unsupported_parameter")
    if submission.session_id is not None:
        message = "'n' above 1 begins a session for each answer: name no session, or ask for one answer."
        raise invalid("n", message, "unsupported_parameter")


def require_session_name(header: str, given: str | None) -> None:
    """Raise ``ApiError`` for a header that is no name of a session."""
    if given is not None and not re.fullmatch(SESSION, given):
        words = "1 to 256 printable ASCII characters without spaces, '/', '\\' and '..'"
        raise ApiError(400, f"Invalid {header}: it must be {words}.", code="invalid_session_id", param=header)


BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": ChatRequest.model_json_schema()}},
    }
}


# --- answers ---------------------------------------------------------------------------------------------------------

_HERMES = {
    "type": "object",
    "description": "Only of an answer that is not whole.",
    "properties": {
        "completed": {"type": "boolean"},
        "partial": {"type": "boolean"},
        "failed": {"type": "boolean"},
        "error": {"type": ["string", "null"]},
        "error_code": {"enum": ["output_truncated", "agent_error"]},
    },
    "required": ["completed", "partial", "failed", "error", "error_code"],
}
_COUNT = {"type": "integer"}
_USAGE = {
    "type": "object",
    "properties": {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT},
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
}
_FINISH = {"enum": ["stop", "length", "content_filter", "error"]}
_COMMON = {"id": {"type": "string", "pattern": "^chatcmpl-"}, "created": _COUNT, "model": {"type": "string"}}
_COMPLETION = {
    "type": "object",
    "properties": {
        **_COMMON,
        "object": {"const": "chat.completion"},
        "choices": {
            "type": "array",
            "minItems": 1,
            "maxItems": CHOICES_MAX,
            "items": {
                "type": "object",
                "properties": {
                    "index": _COUNT,
                    "message": {
                        "type": "object",
                        "properties": {"role": {"const": "assistant"}, "content": {"type": "string"}},
                        "required": ["role", "content"],
                    },
                    "finish_reason": _FINISH,
                },
                "required": ["index", "message", "finish_reason"],
            },
        },
        "usage": _USAGE,
        "hermes": _HERMES,
    },
    "required": [*_COMMON, "object", "choices", "usage"],
}
_STREAM = {
    "type": "object",
    "properties": {
        "event": {
            "enum": ["message", "hermes.tool.progress"],
            "description": "Named where the agent uses a tool; 'message' is what SSE calls an event without a name.",
        },
        "data": {"type": "string", "description": "A chat.completion.chunk, an error, or [DONE]."},
    },
    "required": ["data"],
}
_INCOMPLETE = {
    "type": "object",
    "properties": {"error": {"$ref": "#/components/schemas/ErrorDetail"}},
    "required": ["error"],
}
ANSWERS: Answers = {
    200: {
        "description": "The answer, or the stream in which it is written.",
        "content": {"application/json": {"schema": _COMPLETION}, "text/event-stream": {"itemSchema": _STREAM}},
    },
    502: {
        "description": "The run ended without an answer. It is not to be sent again by itself.",
        "content": {"application/json": {"schema": _INCOMPLETE}},
    },
}
