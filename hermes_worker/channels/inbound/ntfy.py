"""Inbound messages of ntfy: a subscription to topics as a stream of JSON lines (docs.ntfy.sh/subscribe/api, 2026-11).

ntfy does not say who published, so a topic is both the chat and its only person: ntfy decides who may publish there.
What this product published carries a tag, by which it is recognised. The cursor is the time of the newest message, in
seconds of the server's clock; messages of that second come twice and have the same keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from hermes_worker.channels.exchange import Unsendable, join_service_url
from hermes_worker.channels.inbound.proofs import make_event_key
from hermes_worker.channels.inbound.receiving import Addressing, FrameOutcome, SilentBeats, SocketAddress, SocketTalk
from hermes_worker.channels.platforms.ntfy import OWN_TAG, build_authorization
from hermes_worker.core.inbound import InboundChat, InboundMessage, InboundSender, MediaRef
from hermes_worker.core.json_values import (
    parse_object,
    read_id,
    read_list,
    read_mapping,
    read_number,
    read_size,
    read_text,
)

TOPICS_MAX = 20
SILENCE_S = 150.0
"""Seconds of silence after which a connection is dead: a server sends a sign of life every 45 seconds."""
_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    topics: str
    """With commas between them."""
    base_url: str = "https://ntfy.sh"
    token: str | None = field(default=None, repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)


class Socket(SocketTalk):
    """One subscription."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._read_to = 0
        self._silence = SilentBeats("the ntfy server", 1)

    def find_address(self, cursor: str, at: datetime) -> Addressing:
        yield from ()
        said = self._credentials
        topics = [topic.strip() for topic in said.topics.split(",") if topic.strip()]
        if not 0 < len(topics) <= TOPICS_MAX or not all(map(_TOPIC.fullmatch, topics)):
            raise Unsendable(f"NTFY_TOPICS is 1 to {TOPICS_MAX} names of topics with commas between them.")
        self._read_to = int(cursor) if re.fullmatch(r"[0-9]{1,12}", cursor) else 0
        since = f"?since={self._read_to}" if self._read_to else ""
        url = join_service_url(said.base_url, f"{','.join(topics)}/json{since}")
        return SocketAddress(url=url, headers=build_authorization(said.token, said.username, said.password))

    def on_frame(self, frame: str, at: datetime) -> FrameOutcome:
        said = parse_object(frame)
        self._silence.reset()
        time = read_size(said.get("time")) or 0
        match said.get("event"):
            case "open":
                # It comes before the missed messages, so it sets the cursor only where there is none yet.
                begins = bool(time) and not self._read_to
                self._read_to = time if begins else self._read_to
                return FrameOutcome(cursor=str(time) if begins else None, beat_s=SILENCE_S)
            case "message":
                return self._take_message(said, time)
        return FrameOutcome()

    def on_beat(self, at: datetime) -> FrameOutcome:
        return self._silence.count_beat() or FrameOutcome()

    def _take_message(self, said: Any, time: int) -> FrameOutcome:
        number, topic = read_id(said.get("id")), read_text(said.get("topic"))
        if not number or not topic:
            return FrameOutcome()
        self._read_to = max(self._read_to, time)
        title, text = read_text(said.get("title")), read_text(said.get("message"))
        message = InboundMessage(
            event_key=make_event_key(topic, number),
            chat=InboundChat(id=topic, name=topic),
            sender=InboundSender(id=topic, name=topic, is_bot=OWN_TAG in read_list(said.get("tags"))),
            message_id=number,
            sent_at=read_number(said.get("time")),
            text=f"{title}\n{text}" if title else text,
            media=_list_files(read_mapping(said.get("attachment"))),
        )
        return FrameOutcome(inbound=(message,), cursor=str(self._read_to) if self._read_to else None)


def _list_files(file: Mapping[str, Any]) -> tuple[MediaRef, ...]:
    url = read_text(file.get("url"))
    said = {"media_type": file.get("type"), "name": file.get("name"), "size": file.get("size")}
    return (MediaRef.from_platform(url, **said),) if url else ()
