"""Sessions and messages, as the API answers them, the client returns them and commands print them. The names are the
original's."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AliasChoices, Field

from hermes_worker.resource import ListOf, Resource


class CompressionAccepted(Resource):
    """A run that summarises its session. Its output is the summary, or why there is none."""

    run_id: str
    session_id: str
    status: Literal["started"] = "started"


class SessionObject(Resource):
    """A session. Times are epoch seconds. Counts are of the runs that are kept."""

    id: str
    source: str | None
    user_id: None = None
    model: str | None
    title: str | None
    started_at: float
    ended_at: float | None
    end_reason: str | None
    message_count: int
    tool_call_count: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    estimated_cost_usd: float
    has_unknown_cost: bool = False
    """Whether a run cost more than is known: then ``estimated_cost_usd`` is a lower bound."""
    actual_cost_usd: None = None
    api_call_count: int
    parent_session_id: str | None
    last_active: float
    preview: str
    lineage_root_id: str = Field(
        validation_alias=AliasChoices("lineage_root_id", "_lineage_root_id"), serialization_alias="_lineage_root_id"
    )
    has_system_prompt: bool = True
    has_model_config: bool
    is_at_work: bool
    """A run is at work in it."""
    archived_at: float | None
    """When it was archived."""


class OneSession(Resource):
    object: Literal["hermes.session"] = "hermes.session"
    session: SessionObject


class SessionList(ListOf[SessionObject]):
    """A page of sessions, the one with the newest activity first."""

    limit: int
    offset: int
    has_more: bool
    next_cursor: str | None = None
    """For the next page, if there is one."""


class SessionFamily(Resource):
    """A session and its relations, oldest first."""

    object: Literal["list"] = "list"
    session_id: str
    data: list[SessionObject]


class MessageObject(Resource):
    """A row of a transcript."""

    id: int
    session_id: str
    role: Literal["system", "user", "assistant", "tool"]
    content: Any
    """A text, or parts."""
    tool_call_id: str | None
    tool_calls: list[dict[str, Any]] | None
    calls_about: list[str] = Field([])
    """What each of ``tool_calls`` is asked to do, in words."""
    tool_name: str | None
    timestamp: float
    token_count: None = None
    finish_reason: str | None
    """``tool_calls``; of other replies it stands in their run's events."""
    reasoning: str | None
    reasoning_content: str | None


class MessageList(Resource):
    """A page of a transcript, oldest first."""

    object: Literal["list"] = "list"
    session_id: str
    data: list[MessageObject]
    has_more: bool


class SessionDeleted(Resource):
    object: Literal["hermes.session.deleted"] = "hermes.session.deleted"
    id: str
    deleted: Literal[True] = True
