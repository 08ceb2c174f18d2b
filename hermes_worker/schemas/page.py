"""Logins of the page and saved filters, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from typing import Literal

from hermes_worker.core.principals import KeyScope
from hermes_worker.resource import ListOf, Resource


class PageLoginObject(Resource):
    """The user of the page, and what the key allows."""

    object: str = "hermes.page_login"
    tenant: str
    name: str
    """The name that is recorded beside what they do."""
    scopes: list[KeyScope]
    is_operator: bool
    """Whether they may see the whole installation, as far as the scopes go."""
    expires_at: float | None = None
    """When the login is over, in epoch seconds; ``null`` for a caller that sent a key."""


class SavedFilterObject(Resource):
    """A filter that the caller saved."""

    object: Literal["hermes.saved_filter"] = "hermes.saved_filter"
    name: str
    query: str
    changed_at: float
    """Epoch seconds."""


class SavedFilterList(ListOf[SavedFilterObject]):
    """All filters of the caller, by name."""
