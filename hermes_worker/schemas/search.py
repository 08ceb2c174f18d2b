"""Messages that a search found, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from typing import Literal

from hermes_worker.resource import Resource


class FoundObject(Resource):
    """A message that matches a search."""

    session_id: str
    message_id: int
    role: Literal["system", "user", "assistant", "tool"]
    timestamp: float
    title: str | None
    """The title of its session."""
    source: str | None
    model: str | None
    hits: int
    snippet: str
    """The text around the first hit; hits stand between ``>>>`` and ``<<<``."""


class FoundMessages(Resource):
    """The messages that a search found, in the order that was asked for."""

    object: Literal["list"] = "list"
    query: str
    data: list[FoundObject]
    is_complete: bool
    """Whether the search was exhaustive: it left out neither older matches of a very common word, nor messages that are
    not indexed yet."""
