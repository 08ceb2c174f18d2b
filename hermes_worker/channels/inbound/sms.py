"""Inbound SMS over Twilio (twilio.com/docs/usage/webhooks/webhooks-security, 2026-11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hermes_worker.channels.inbound.proofs import (
    check_same,
    compute_base64_hmac,
    encode_secret,
    make_event_key,
    parse_form,
)
from hermes_worker.channels.inbound.receiving import Forged, UnreadableInbound, WebhookAnswer, WebhookRequest
from hermes_worker.core.inbound import ChatKind, Inbound, InboundChat, InboundMessage, InboundSender, MediaRef
from hermes_worker.core.media_kinds import find_kind

_MEDIA_MAX = 10
"""Twilio puts at most ten files into a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    auth_token: str = field(default="", repr=False)
    webhook_url: str = ""
    """The address that Twilio was given, exactly: it is signed."""


def receive(request: WebhookRequest, credentials: Credentials, at: datetime) -> tuple[Inbound, ...]:
    """Verify and read a message that Twilio signed with the account's token: the signature covers the fields of the
    form."""
    given = request.require_header("x-twilio-signature")
    token = encode_secret(credentials.auth_token, "TWILIO_AUTH_TOKEN")
    if not credentials.webhook_url:
        raise Forged("SMS_WEBHOOK_URL is not set")
    try:
        fields = parse_form(request.body)
    except UnreadableInbound:
        raise Forged("what was signed is no form") from None
    named = dict(fields)
    if len(named) != len(fields):
        raise Forged("a field of the form is there twice")
    signed = credentials.webhook_url + "".join(name + named[name] for name in sorted(named))
    check_same(given, compute_base64_hmac(token, signed.encode("utf-8", "replace"), "sha1"))
    return read(named)


def answer(request: WebhookRequest, credentials: Credentials, at: datetime) -> WebhookAnswer | None:
    """Answer with an empty list of instructions, which Twilio wants: the reply is a message of ours."""
    return WebhookAnswer(body=b"<Response/>", media_type="text/xml")


def read(fields: Mapping[str, str]) -> tuple[Inbound, ...]:
    """Read a message. Total."""
    sid, writer = fields.get("MessageSid") or fields.get("SmsSid", ""), fields.get("From", "")
    if not sid or not writer:
        return ()
    return (
        InboundMessage(
            event_key=make_event_key(sid),
            chat=InboundChat(id=writer, kind=ChatKind.DIRECT),
            sender=InboundSender(id=writer, name=fields.get("ProfileName", "")),
            message_id=sid,
            text=fields.get("Body", ""),
            media=_list_media(fields),
        ),
    )


def _list_media(fields: Mapping[str, str]) -> tuple[MediaRef, ...]:
    found = ((fields.get(f"MediaUrl{n}", ""), fields.get(f"MediaContentType{n}", "")) for n in range(_MEDIA_MAX))
    return tuple(MediaRef(kind=find_kind(kind), id=url, media_type=kind) for url, kind in found if url)
