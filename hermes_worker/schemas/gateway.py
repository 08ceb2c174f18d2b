"""Accounts of chat platforms and their people, as the API answers them, the client returns them and commands print
them."""

from __future__ import annotations

from typing import Literal

from hermes_worker.core.chat_commands import ChatRole
from hermes_worker.resource import ListOf, Resource


class ChatPersonObject(Resource):
    """A person who was let in with a code."""

    person: str
    """Their id on the platform."""
    tenant: str
    """The tenant into whose chats they were let."""
    role: ChatRole
    paired_at: float
    """Epoch seconds."""


class ChatAskerObject(Resource):
    """A stranger who has a code that is still valid. Only the stranger knows it."""

    person: str
    tenant: str
    """The tenant in whose chats they asked."""
    asked_at: float
    expires_at: float
    """Epoch seconds, as all times here."""


class GatewayAccountObject(Resource):
    """An account that a gateway listens to, or listened to. People whom settings allow are not listed here."""

    object: Literal["hermes.gateway_account"] = "hermes.gateway_account"
    account: str
    mode: str
    """How its events come: ``poll``, ``webhook`` or ``socket``."""
    holder: str | None
    """The gateway that listens now."""
    looked_at: float | None
    error: str | None
    """What was wrong with the last poll."""
    error_at: float | None
    codes_locked_until: float | None
    """When codes are accepted again, after too many wrong ones."""
    people: list[ChatPersonObject]
    asking: list[ChatAskerObject]


class GatewayAccountList(ListOf[GatewayAccountObject]):
    """All accounts that were ever listened to, by name."""


class PairedPerson(Resource):
    """A person who was let in."""

    object: Literal["hermes.paired_person"] = "hermes.paired_person"
    account: str
    person: str
    role: ChatRole


class RemovedCodes(Resource):
    """Codes that are no longer valid."""

    object: Literal["hermes.removed_codes"] = "hermes.removed_codes"
    account: str
    removed: int
