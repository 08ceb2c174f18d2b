"""Texts with a grammar of their own. The document names each grammar as a ``format``, because none is a regular
expression that people could read. A text that does not follow its grammar is answered with 400 and a sentence that says
what does."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import WithJsonSchema


class TextFormat(StrEnum):
    """The ``format`` names of texts in the document."""

    SCHEDULE = "hermes-schedule"
    """``every 5m``, ``every monday 08:30``, ``0 9 * * mon-fri``, ``@daily``, ``2027-01-01T09:00``, ``in 2 hours``."""
    TIMEZONE = "iana-timezone"
    """``Europe/Vienna``, ``UTC``."""
    TIMESTAMP = "iso-8601"
    """``2027-01-01T09:00`` on the job's clock, or with an offset; an empty text removes the value."""
    TARGETS = "delivery-targets"
    """One target, or several with commas between them."""
    CHAT = "chat"
    """A target that is a single chat: ``telegram:123``."""
    CHAT_PART = "chat-part"
    """An id of a chat or a thread, as its platform writes it: no comma, no control characters."""
    PLATFORM = "platform"
    """A platform that this installation can name in a target: ``telegram``, ``email``."""
    HTTP_URL = "http-url"
    """An address of http or https, without a user, to a port that is not another protocol's."""
    TOOLSET = "toolset"
    """A toolset that this installation has: ``hermes-worker extensions tools`` lists them."""
    JOB_PROMPT = "job-prompt"
    """Text without invisible characters, and without what looks like an attack on the agent or on this service."""


NOT_BLANK = r"[^\s\x1c-\x1f\x85]"
"""A character that is no space to Python either, which counts more characters as spaces than other regular expressions.
"""
NO_NUL = r"^[^\x00]*$"
"""A text that a database can look for: PostgreSQL refuses NUL."""
TENANT_FORM = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"


def build_text_schema(kind: TextFormat, **more: Any) -> dict[str, Any]:
    """Build the JSON schema of a text of this kind."""
    return {"type": "string", "format": kind.value, **more}


def text_or_nothing(kind: TextFormat, **more: Any) -> WithJsonSchema:
    """Annotate a field that holds a text of this kind, or an empty text for no value."""
    return WithJsonSchema({"anyOf": [build_text_schema(kind, **more), {"enum": [""]}]})


def text(kind: TextFormat, **more: Any) -> WithJsonSchema:
    """Annotate a field that holds a text of this kind. It only describes: the code that takes the text checks it."""
    return WithJsonSchema(build_text_schema(kind, **more))
