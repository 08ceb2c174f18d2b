"""Inbound comments on GitHub's issues and pull requests (docs.github.com/webhooks, ``issue_comment``, 2026-11).

The headers that name the event are not signed, so only the body says what happened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hermes_worker.channels.inbound.hub_signature import check_hub_signature
from hermes_worker.channels.inbound.proofs import event_key, json_of
from hermes_worker.channels.inbound.receiving import WebhookRequest
from hermes_worker.core.inbound import ChatKind, Inbound, InboundChat, InboundEdit, InboundMessage, InboundSender
from hermes_worker.core.json_values import id_of, mapping_of, text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    webhook_secret: str = field(default="", repr=False)
    bot_name: str = ""
    """The login that writes our comments: it is never answered, and a comment that names it is addressed to it."""


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read an event that GitHub signed with the webhook's secret."""
    check_hub_signature(request, credentials.webhook_secret, "GITHUB_COMMENT_WEBHOOK_SECRET")
    return read(json_of(request.body), credentials)


def read(payload: Mapping[str, Any], credentials: Credentials) -> tuple[Inbound, ...]:
    """Read an event: a comment that was written or changed; empty for anything else. Total."""
    issue, comment = mapping_of(payload.get("issue")), mapping_of(payload.get("comment"))
    repository = text_of(mapping_of(payload.get("repository")).get("full_name"))
    action, comment_id, number = payload.get("action"), id_of(comment.get("id")), id_of(issue.get("number"))
    if action not in ("created", "edited") or not (comment_id and number and repository):
        return ()
    writer = mapping_of(comment.get("user"))
    login, text = text_of(writer.get("login")), text_of(comment.get("body"))
    is_ours = login.casefold() == credentials.bot_name.removeprefix("@").casefold()
    common: dict[str, Any] = {
        "chat": InboundChat(id=f"{repository}#{number}", kind=ChatKind.GROUP, name=text_of(issue.get("title"))),
        "sender": InboundSender(
            id=id_of(writer.get("id")),
            alt_id=login,
            name=login,
            is_bot=is_ours or writer.get("type") == "Bot" or bool(comment.get("performed_via_github_app")),
        ),
        "message_id": comment_id,
    }
    if action == "edited":
        key = event_key("comment", comment_id, "edit", text_of(comment.get("updated_at")))
        return (InboundEdit(event_key=key, text=text, **common),)
    spoken = _without_name(text, credentials.bot_name)
    return (
        InboundMessage(
            event_key=event_key("comment", comment_id), text=spoken, is_addressed=spoken != text.strip(), **common
        ),
    )


def _without_name(text: str, bot_name: str) -> str:
    """Remove the name of the account from a comment, wherever it stands."""
    name = re.escape(bot_name.removeprefix("@"))
    if not name:
        return text.strip()
    return re.sub(rf"(?<![\w/-])@{name}(?![\w-])[,:]?\s*", "", text, flags=re.IGNORECASE).strip()
