"""Deeds of the audit log, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hermes_worker.resource import PageOf, Resource


class DeedObject(Resource):
    """What somebody did. ``before`` and ``after`` hold no text of people or models."""

    object: Literal["hermes.deed"] = "hermes.deed"
    number: int
    at: float
    """Epoch seconds."""
    tenant: str
    actor: str
    address: str | None = None
    """Where the request came from; none for who works at the machine itself."""
    act: str
    subject: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]


class DeedList(PageOf[DeedObject]):
    """A page of deeds, in the order that was asked for."""
