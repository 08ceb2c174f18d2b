"""Sessions and messages under the original's names (docs/api.md, "Hermes Agent's wire"). Pure."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema

from hermes_worker.api.cursors import CURSOR
from hermes_worker.api.formats import NO_NUL, NOT_BLANK
from hermes_worker.api.messages import ITEMS_MAX
from hermes_worker.api.schema import IMAGE_PART, MODEL_FORM, SESSION_FORM, TEXT, TEXT_PART, RequestBody
from hermes_worker.core.budget import NANO
from hermes_worker.core.call_descriptions import ABOUT_CHARS_MAX, describe_call
from hermes_worker.core.messages import Role
from hermes_worker.core.search_queries import QUERY_CHARS_MAX
from hermes_worker.core.session_imports import MESSAGES_MAX as IMPORTED_MESSAGES_MAX
from hermes_worker.core.sources import is_session_id
from hermes_worker.core.titles import TITLE_CHARS_MAX
from hermes_worker.safety.redaction import redact_code
from hermes_worker.schemas.search import FoundObject
from hermes_worker.schemas.sessions import MessageObject, SessionObject
from hermes_worker.schemas.usage import UsageObject
from hermes_worker.store.search.finding import FOUND_MAX, FoundMessage
from hermes_worker.store.sessions import PAGE_MAX, MessageView, SessionView

MESSAGES_MAX = 1_000
_OFFSET_MAX = 1_000_000
_PROMPT_CHARS_MAX = 200_000
_REASON_CHARS_MAX = 40
NEW_NAME = rf"^(?!run_[0-9a-f]{{32}}$){SESSION_FORM[1:]}"
"""Pattern of a new name: it must not look like an id of ours."""


def _require_new_name(name: str) -> str:
    if not re.fullmatch(SESSION_FORM[1:-1], name) or is_session_id(name):
        raise ValueError(
            "it must be 1 to 256 printable ASCII characters without spaces, '/', '\\' and '..', and not look like an id"
        )
    return name


def _flatten_text(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _validate_title(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return _flatten_text(text)


_Name = Annotated[str, AfterValidator(_require_new_name), WithJsonSchema({"type": "string", "pattern": NEW_NAME})]
_Title = Annotated[
    str, Field(max_length=TITLE_CHARS_MAX, json_schema_extra={"pattern": NOT_BLANK}), AfterValidator(_validate_title)
]
_Remark = AfterValidator(_flatten_text)
_PARTS = {"type": "array", "minItems": 1, "maxItems": ITEMS_MAX, "items": {"anyOf": [TEXT, TEXT_PART, IMAGE_PART]}}
_Said = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [{**TEXT, "pattern": NOT_BLANK}, _PARTS],
            "description": "What the user says: a text, or parts with words or an image in them.",
        }
    ),
]
"""A message's content. Checked by ``api.messages``."""
_Model = Annotated[str, WithJsonSchema({"type": "string", "pattern": MODEL_FORM})]
_IDS = "What its owner calls it. Default: an id of ours, which means the same to all callers."


# --- requests --------------------------------------------------------------------------------------------------------


class ListSessions(BaseModel, extra="forbid"):
    """Which sessions to list."""

    limit: int = Field(50, ge=1, le=PAGE_MAX)
    offset: int = Field(0, ge=0, le=_OFFSET_MAX, description="Moves when sessions are active; 'cursor' does not.")
    before: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        pattern=NO_NUL,
        description="A session: list those that were active before it.",
    )
    cursor: str | None = Field(None, pattern=CURSOR, description="'next_cursor' of the page before.")
    source: str | None = Field(
        None, min_length=1, max_length=100, pattern=NO_NUL, description="api, cli, cron or webhook."
    )
    include_children: bool = Field(False, description="Sessions of delegated work, too.")
    archived: bool = Field(False, description="Those that were put away, and no others.")
    title: str | None = Field(
        None,
        min_length=1,
        max_length=TITLE_CHARS_MAX,
        pattern=NO_NUL,
        description="Only those that are called so, or are forks of one ('title #2'). No other field counts then.",
    )


class SearchMessages(BaseModel, extra="forbid"):
    """The words to search for, and in which messages."""

    q: str = Field(
        min_length=1,
        max_length=QUERY_CHARS_MAX,
        pattern=NO_NUL,
        description='Words that must all be there; OR, NOT, "phrases" and begin*.',
    )
    limit: int = Field(20, ge=1, le=FOUND_MAX)
    sort: Literal["hits", "newest", "oldest"] = Field(
        "hits", description="Which come first: hits, and of several the newest; or by time."
    )
    role: Literal["user", "assistant", "tool"] | None = Field(
        None, description="Whose messages to look in. Default: those of users and assistants."
    )
    session_id: str | None = Field(
        None, min_length=1, max_length=256, pattern=NO_NUL, description="Look in this session only."
    )
    include_children: bool = Field(False, description="Sessions of delegated work, too.")

    def list_searched_roles(self) -> tuple[Role, ...]:
        return (Role.USER, Role.ASSISTANT) if self.role is None else (Role(self.role),)


class CreateSession(RequestBody):
    """A session to be opened."""

    id: _Name | None = Field(None, description=_IDS)
    session_id: _Name | None = Field(None, description="The same as 'id'.")
    model: _Model | None = Field(None, description="For its turns. Default: the configured one.")
    system_prompt: str | None = Field(
        None, max_length=_PROMPT_CHARS_MAX, description="Joins the system prompt of the installation."
    )
    title: _Title | None = None


class PatchSession(RequestBody):
    """The fields of a session to change."""

    title: Annotated[str, Field(max_length=TITLE_CHARS_MAX), _Remark] | None = Field(
        None, description="Empty for none."
    )
    end_reason: Annotated[str, Field(max_length=_REASON_CHARS_MAX), _Remark] | None = Field(
        None, description="A remark that the session is over, until its next turn; empty to take it back."
    )
    archived: bool | None = Field(None, description="Put it away, so that it is not listed, or bring it back.")


_Imported = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                "id": {"type": "string", "minLength": 1},
                "messages": {"type": "array", "maxItems": IMPORTED_MESSAGES_MAX, "items": {}},
            },
            "required": ["id", "messages"],
        }
    ),
]
"""Checked by ``core.session_imports``."""


class ImportSession(RequestBody):
    """A conversation from elsewhere: a line of an export, ours or the original's."""

    session: _Imported = Field(
        description="It has an 'id' and 'messages', and may have 'title', 'model', 'parent_session_id', 'ended_at' and "
        "'end_reason'; all else is left out."
    )


class ForkSession(RequestBody):
    """A session that begins as another did."""

    id: _Name | None = Field(None, description=_IDS)
    title: _Title | None = Field(None, description="Default: that of the source, and a number.")
    message_id: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="The last message to take over, 0 for none. Default: the last of what is over.",
    )


class ListMessages(BaseModel, extra="forbid"):
    """Which messages to list."""

    limit: int = Field(MESSAGES_MAX, ge=1, le=MESSAGES_MAX)
    after: int = Field(0, ge=0, le=2**31 - 1, description="A message's id: list those that follow it.")


class ChatTurn(
    BaseModel,
    extra="forbid",
    strict=True,
    json_schema_extra={
        "oneOf": [{"required": ["message"]}, {"required": ["input"]}],
        "not": {"required": ["system_message", "instructions"]},
    },
):
    """A user's message in a session."""

    message: _Said = Field(None)
    input: _Said = Field(None, description="The same as 'message'.")
    system_message: str | None = Field(
        None, max_length=_PROMPT_CHARS_MAX, description="Instructions; they stand in front of this message."
    )
    instructions: str | None = Field(None, max_length=_PROMPT_CHARS_MAX, description="The same as 'system_message'.")


class CompressSession(RequestBody):
    """The topic that a session's summary should keep."""

    focus: str = Field("", max_length=2_000, description="The topic that matters most. Default: none.")


# --- responses -------------------------------------------------------------------------------------------------------


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str


class ChatCompletion(BaseModel):
    """A turn that is over."""

    object: Literal["hermes.session.chat.completion"] = "hermes.session.chat.completion"
    session_id: str
    run_id: str
    message: AssistantMessage
    usage: UsageObject
    completed: bool
    partial: bool
    interrupted: bool


def build_session_object(view: SessionView, source: str = "api") -> SessionObject:
    """Build a session's object, named as a caller from ``source`` names it."""
    known_as = view.label.choose_reference(source)
    return SessionObject.from_record(
        view,
        id=known_as,
        started_at=view.created_at,
        tool_call_count=view.totals.tool_calls,
        input_tokens=view.totals.input,
        output_tokens=view.totals.output,
        cache_read_tokens=view.totals.cache_read,
        cache_write_tokens=view.totals.cache_write,
        reasoning_tokens=view.totals.reasoning,
        estimated_cost_usd=view.totals.nano_usd / NANO,
        has_unknown_cost=bool(view.totals.unpriced_runs),
        api_call_count=view.totals.iterations,
        parent_session_id=view.parent.choose_reference(source) if view.parent else None,
        lineage_root_id=known_as,
        has_model_config=view.asks_model is not None,
    )


def build_found_object(found: FoundMessage, source: str = "api") -> FoundObject:
    """Build a found message's object; its session is named as a caller from ``source`` names it."""
    return FoundObject.from_record(
        found,
        session_id=found.session.choose_reference(source),
        message_id=found.seq,
        role=found.role.value,
        timestamp=found.at,
    )


def build_message_object(view: MessageView, session_id: str) -> MessageObject:
    row = json.loads(view.body)
    called = [each["function"] for each in row.get("tool_calls") or ()]
    reasoning = row.get("reasoning") if isinstance(row.get("reasoning"), str) else None
    return MessageObject(
        id=view.seq,
        session_id=session_id,
        role=view.role.value,
        content=row.get("content"),
        tool_call_id=row.get("tool_call_id"),
        tool_calls=row.get("tool_calls"),
        calls_about=[redact_code(describe_call(each["name"], each["arguments"]))[:ABOUT_CHARS_MAX] for each in called],
        tool_name=view.tool_name,
        timestamp=view.created_at,
        finish_reason="tool_calls" if row.get("tool_calls") else None,
        reasoning=reasoning,
        reasoning_content=reasoning,
    )
