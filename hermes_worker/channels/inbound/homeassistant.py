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
from hermes_worker.channels.exchange import flatten_text, join_service_url
from hermes_worker.channels.inbound.proofs import make_event_key
from hermes_worker.channels.inbound.receiving import Addressing, FrameOutcome, SilentBeats, SocketAddress, SocketTalk
from hermes_worker.channels.platforms.homeassistant import PERSISTENT, Credentials
from hermes_worker.core.inbound import ChatKind, Inbound, InboundChat, InboundMessage, InboundSender, MediaRef
from hermes_worker.core.json_values import parse_object, read_id, read_mapping, read_size, read_text
from hermes_worker.core.media_kinds import guess_type_of_name

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

    def find_address(self, cursor: str, at: datetime) -> Addressing:
        yield from ()
        url = join_service_url(self._credentials.base_url, "api/websocket")
        return SocketAddress(url=re.sub("^http", "ws", url))

    def on_frame(self, frame: str, at: datetime) -> FrameOutcome:
        self._silence.reset()
        said = parse_object(frame)
        match said.get("type"):
            case "auth_required":
                return _send_frame({"type": "auth", "access_token": self._credentials.token})
            case "auth_invalid":
                return _end_connection(
                    SendErrorKind.AUTH, f"Home Assistant refused HASS_TOKEN: {read_text(said.get('message'))}"
                )
            case "auth_ok":
                return _send_frame({"id": _SUBSCRIPTION, "type": "subscribe_events", "event_type": EVENT})
            case "result" if read_size(said.get("id")) == _SUBSCRIPTION:
                return self._on_subscription(said)
            case "event":
                return FrameOutcome(inbound=read(read_mapping(said.get("event"))))
        return FrameOutcome()

    def on_beat(self, at: datetime) -> FrameOutcome:
        if (end := self._silence.count_beat()) is not None:
            return end
        self._asked += 1
        return _send_frame({"id": self._asked, "type": "ping"})

    def _on_subscription(self, said: Mapping[str, Any]) -> FrameOutcome:
        if said.get("success") is True:
            return FrameOutcome(beat_s=BEAT_S)
        why = read_text(read_mapping(said.get("error")).get("message"))
        # Only administrators may subscribe to such events.
        return _end_connection(SendErrorKind.FORBIDDEN, f"HASS_TOKEN may not hear the event {EVENT}: {why}")


def read(event: Mapping[str, Any]) -> tuple[Inbound, ...]:
    """Read an event. Total. Empty without a text or a person; ``chat`` is where the answer is shown, as deliveries name
    it, and ``file`` the path of a file."""
    data, context = read_mapping(event.get("data")), read_mapping(event.get("context"))
    person = read_id(data.get("user")) or read_id(context.get("user_id"))
    chat = read_id(data.get("chat")) or PERSISTENT
    number, fired = read_id(context.get("id")), read_id(event.get("time_fired"))
    is_ours = event.get("event_type") == EVENT and bool(number or fired)
    if not is_ours or not person or not _SERVICE.fullmatch(chat):
        return ()
    return (
        InboundMessage(
            event_key=make_event_key(number, fired),
            chat=InboundChat(id=chat, kind=ChatKind.DIRECT),
            sender=InboundSender(id=person, name=read_text(data.get("name"))),
            text=read_text(data.get("text")),
            media=_list_files(read_text(data.get("file"))),
        ),
    )


def _list_files(place: str) -> tuple[MediaRef, ...]:
    """List the file at a path of Home Assistant's, such as ``/api/camera_proxy/camera.door``, or ``/local/`` and a
    name."""
    name = place.partition("?")[0].rpartition("/")[2]
    return (MediaRef.from_platform(place, media_type=guess_type_of_name(name), name=name, size=None),) if place else ()


def _send_frame(message: Mapping[str, object]) -> FrameOutcome:
    return FrameOutcome(replies=(json.dumps(message),))


def _end_connection(kind: SendErrorKind, message: str) -> FrameOutcome:
    return FrameOutcome(is_over=True, error=DeliveryError(kind=kind, message=flatten_text(message)))
