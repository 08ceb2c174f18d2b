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

from hermes_worker.channels.exchange import Unsendable, service_url
from hermes_worker.channels.inbound.proofs import event_key
from hermes_worker.channels.inbound.receiving import Addressing, HeardFrame, SilentBeats, SocketAddress, SocketTalk
from hermes_worker.channels.platforms.ntfy import OWN_TAG, authorization
from hermes_worker.core.inbound import InboundChat, InboundMessage, InboundSender, MediaRef
from hermes_worker.core.json_values import id_of, list_of, mapping_of, number_of, object_in, size_of, text_of

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

    def address(self, cursor: str, at: datetime) -> Addressing:
        yield from ()
        said = self._credentials
        topics = [topic.strip() for topic in said.topics.split(",") if topic.strip()]
        if not 0 < len(topics) <= TOPICS_MAX or not all(map(_TOPIC.fullmatch, topics)):
            raise Unsendable(f"NTFY_TOPICS is 1 to {TOPICS_MAX} names of topics with commas between them.")
        self._read_to = int(cursor) if re.fullmatch(r"[0-9]{1,12}", cursor) else 0
        since = f"?since={self._read_to}" if self._read_to else ""
        url = service_url(said.base_url, f"{','.join(topics)}/json{since}")
        return SocketAddress(url=url, headers=authorization(said.token, said.username, said.password))

    def hear(self, frame: str, at: datetime) -> HeardFrame:
        said = object_in(frame)
        self._silence.broken()
        time = size_of(said.get("time")) or 0
        match said.get("event"):
            case "open":
                # It comes before the missed messages, so it sets the cursor only where there is none yet.
                begins = bool(time) and not self._read_to
                self._read_to = time if begins else self._read_to
                return HeardFrame(cursor=str(time) if begins else None, beat_s=SILENCE_S)
            case "message":
                return self._message(said, time)
        return HeardFrame()

    def beat(self, at: datetime) -> HeardFrame:
        return self._silence.beat() or HeardFrame()

    def _message(self, said: Any, time: int) -> HeardFrame:
        number, topic = id_of(said.get("id")), text_of(said.get("topic"))
        if not number or not topic:
            return HeardFrame()
        self._read_to = max(self._read_to, time)
        title, text = text_of(said.get("title")), text_of(said.get("message"))
        message = InboundMessage(
            event_key=event_key(topic, number),
            chat=InboundChat(id=topic, name=topic),
            sender=InboundSender(id=topic, name=topic, is_bot=OWN_TAG in list_of(said.get("tags"))),
            message_id=number,
            sent_at=number_of(said.get("time")),
            text=f"{title}\n{text}" if title else text,
            media=_files(mapping_of(said.get("attachment"))),
        )
        return HeardFrame(inbound=(message,), cursor=str(self._read_to) if self._read_to else None)


def _files(file: Mapping[str, Any]) -> tuple[MediaRef, ...]:
    url = text_of(file.get("url"))
    said = {"media_type": file.get("type"), "name": file.get("name"), "size": file.get("size")}
    return (MediaRef.told(url, **said),) if url else ()
