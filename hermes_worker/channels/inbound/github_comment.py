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
from hermes_worker.channels.inbound.proofs import make_event_key, parse_json
from hermes_worker.channels.inbound.receiving import WebhookRequest
from hermes_worker.core.inbound import ChatKind, Inbound, InboundChat, InboundEdit, InboundMessage, InboundSender
from hermes_worker.core.json_values import read_id, read_mapping, read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    webhook_secret: str = field(default="", repr=False)
    bot_name: str = ""
    """The login that writes our comments: it is never answered, and a comment that names it is addressed to it."""


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read an event that GitHub signed with the webhook's secret."""
    check_hub_signature(request, credentials.webhook_secret, "GITHUB_COMMENT_WEBHOOK_SECRET")
    return read(parse_json(request.body), credentials)


def read(payload: Mapping[str, Any], credentials: Credentials) -> tuple[Inbound, ...]:
    """Read an event: a comment that was written or changed; empty for anything else. Total."""
    issue, comment = read_mapping(payload.get("issue")), read_mapping(payload.get("comment"))
    repository = read_text(read_mapping(payload.get("repository")).get("full_name"))
    action, comment_id, number = payload.get("action"), read_id(comment.get("id")), read_id(issue.get("number"))
    if action not in ("created", "edited") or not (comment_id and number and repository):
        return ()
    writer = read_mapping(comment.get("user"))
    login, text = read_text(writer.get("login")), read_text(comment.get("body"))
    is_ours = login.casefold() == credentials.bot_name.removeprefix("@").casefold()
    common: dict[str, Any] = {
        "chat": InboundChat(id=f"{repository}#{number}", kind=ChatKind.GROUP, name=read_text(issue.get("title"))),
        "sender": InboundSender(
            id=read_id(writer.get("id")),
            alt_id=login,
            name=login,
            is_bot=is_ours or writer.get("type") == "Bot" or bool(comment.get("performed_via_github_app")),
        ),
        "message_id": comment_id,
    }
    if action == "edited":
        key = make_event_key("comment", comment_id, "edit", read_text(comment.get("updated_at")))
        return (InboundEdit(event_key=key, text=text, **common),)
    spoken = _remove_name(text, credentials.bot_name)
    return (
        InboundMessage(
            event_key=make_event_key("comment", comment_id), text=spoken, is_addressed=spoken != text.strip(), **common
        ),
    )


def _remove_name(text: str, bot_name: str) -> str:
    """Remove the name of the account from a comment, wherever it stands."""
    name = re.escape(bot_name.removeprefix("@"))
    if not name:
        return text.strip()
    return re.sub(rf"(?<![\w/-])@{name}(?![\w-])[,:]?\s*", "", text, flags=re.IGNORECASE).strip()
