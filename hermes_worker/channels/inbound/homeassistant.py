"""Inbound messages of Home Assistant: events over its websocket (developers.home-assistant.io/docs/api/websocket,
2026-11).

No event of a house is a message by itself, so an automation decides: it fires the event ``hermes_worker_message`` with
what a person said, and where the answer is shown. Only administrators and automations fire events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import one_line, service_url
from hermes_worker.channels.inbound.proofs import event_key
from hermes_worker.channels.inbound.receiving import Addressing, HeardFrame, SilentBeats, SocketAddress, SocketTalk
from hermes_worker.channels.platforms.homeassistant import PERSISTENT, Credentials
from hermes_worker.core.inbound import ChatKind, Inbound, InboundChat, InboundMessage, InboundSender, MediaRef
from hermes_worker.core.json_values import id_of, mapping_of, object_in, size_of, text_of
from hermes_worker.core.media_kinds import type_of_name

EVENT = "hermes_worker_message"
BEAT_S = 30.0
_SILENT_BEATS_MAX = 2
_SUBSCRIPTION = 1
_SERVICE = re.compile(r"(?:notify\.)?[a-z][a-z0-9_]{0,63}")


class Socket(SocketTalk):
    """One connection."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._silence = SilentBeats("Home Assistant", _SILENT_BEATS_MAX)
        self._asked = _SUBSCRIPTION

    def address(self, cursor: str, at: datetime) -> Addressing:
        yield from ()
        url = service_url(self._credentials.base_url, "api/websocket")
        return SocketAddress(url=re.sub("^http", "ws", url))

    def hear(self, frame: str, at: datetime) -> HeardFrame:
        self._silence.broken()
        said = object_in(frame)
        match said.get("type"):
            case "auth_required":
                return _sent({"type": "auth", "access_token": self._credentials.token})
            case "auth_invalid":
                return _ended(SendErrorKind.AUTH, f"Home Assistant refused HASS_TOKEN: {text_of(said.get('message'))}")
            case "auth_ok":
                return _sent({"id": _SUBSCRIPTION, "type": "subscribe_events", "event_type": EVENT})
            case "result" if size_of(said.get("id")) == _SUBSCRIPTION:
                return self._subscribed(said)
            case "event":
                return HeardFrame(inbound=read(mapping_of(said.get("event"))))
        return HeardFrame()

    def beat(self, at: datetime) -> HeardFrame:
        if (end := self._silence.beat()) is not None:
            return end
        self._asked += 1
        return _sent({"id": self._asked, "type": "ping"})

    def _subscribed(self, said: Mapping[str, Any]) -> HeardFrame:
        if said.get("success") is True:
            return HeardFrame(beat_s=BEAT_S)
        why = text_of(mapping_of(said.get("error")).get("message"))
        # Only administrators may subscribe to such events.
        return _ended(SendErrorKind.FORBIDDEN, f"HASS_TOKEN may not hear the event {EVENT}: {why}")


def read(event: Mapping[str, Any]) -> tuple[Inbound, ...]:
    """Read an event. Total. Empty without a text or a person; ``chat`` is where the answer is shown, as deliveries name
    it, and ``file`` the path of a file."""
    data, context = mapping_of(event.get("data")), mapping_of(event.get("context"))
    person = id_of(data.get("user")) or id_of(context.get("user_id"))
    chat = id_of(data.get("chat")) or PERSISTENT
    number, fired = id_of(context.get("id")), id_of(event.get("time_fired"))
    is_ours = event.get("event_type") == EVENT and bool(number or fired)
    if not is_ours or not person or not _SERVICE.fullmatch(chat):
        return ()
    return (
        InboundMessage(
            event_key=event_key(number, fired),
            chat=InboundChat(id=chat, kind=ChatKind.DIRECT),
            sender=InboundSender(id=person, name=text_of(data.get("name"))),
            text=text_of(data.get("text")),
            media=_files(text_of(data.get("file"))),
        ),
    )


def _files(place: str) -> tuple[MediaRef, ...]:
    """List the file at a path of Home Assistant's, such as ``/api/camera_proxy/camera.door``, or ``/local/`` and a
    name."""
    name = place.partition("?")[0].rpartition("/")[2]
    return (MediaRef.told(place, media_type=type_of_name(name), name=name, size=None),) if place else ()


def _sent(message: Mapping[str, object]) -> HeardFrame:
    return HeardFrame(replies=(json.dumps(message),))


def _ended(kind: SendErrorKind, message: str) -> HeardFrame:
    return HeardFrame(is_over=True, error=DeliveryError(kind=kind, message=one_line(message)))
