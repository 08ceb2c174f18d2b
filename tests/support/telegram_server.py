"""A stand-in for Telegram's Bot API, as core.telegram.org/bots/api describes it: getUpdates with offset and hold, a
conflict when two ask at once, sendMessage, editMessageText and deleteMessage, flood limits. It counts what must never
happen."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import Any

from support.fault_server import FaultServer, Received, Reply
from support.inbound_cases import telegram_update
from support.sent_files import SentFiles

TOKEN = "77:abc"


@dataclass
class TelegramServer:
    """Updates wait until an offset leaves them behind."""

    token: str = TOKEN
    """Of its only bot."""
    updates: deque[dict[str, Any]] = field(default_factory=deque)
    sent: list[dict[str, Any]] = field(default_factory=list)
    conflicts_due: int = 0
    """So many of the next looks are answered with 409."""
    conflict_odds: float = 0.0
    """How likely another look is answered so."""
    conflicts: int = 0
    """Looks that were."""
    looked_max: int = 100
    """Updates that a look brings at most."""
    random: Random = field(default_factory=lambda: Random(7))
    overlaps: int = 0
    """Looks that came while another was held."""
    looks: int = 0
    holds_looks: bool = True
    """Whether a look without updates is answered only when its time is over."""
    asked_hold_s: int = 0
    """For how long the last look was to be held."""
    messages: dict[int, str] = field(default_factory=dict)
    """What stands in all chats, by the number of the message, in order."""
    buttons: dict[int, list[str]] = field(default_factory=dict)
    """What those say that stand below a message."""
    edits: int = 0
    actions: list[dict[str, Any]] = field(default_factory=list)
    """What was shown in chats for some seconds."""
    takes_actions: bool = True
    acknowledged: list[str] = field(default_factory=list)
    """Presses that were."""
    flood: Callable[[], float | None] = lambda: None
    """Asked before a chat is changed: for how many seconds nothing may be changed, or ``None``."""
    files: SentFiles = field(default_factory=SentFiles)
    """What people sent."""
    hangs_up: int = 0
    """So many of the next changes happen, and are not answered."""

    def __post_init__(self) -> None:
        self._lock = threading.Condition()
        self._held: Reply | None = None
        self._number = 100
        self._server = FaultServer(self._answer)

    def __enter__(self) -> TelegramServer:
        self._server.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.__exit__(*error)

    @property
    def url(self) -> str:
        return self._server.base_url.removesuffix("/v1")

    def write(self, person: int, text: str, **more: Any) -> int:
        """Somebody writes; the update's number."""
        with self._lock:
            self._number += 1
            who = {
                "chat": {"id": person, "type": "private"},
                "from": {"id": person, "is_bot": False, "first_name": "Ada"},
            }
            self.updates.append(telegram_update(self._number, text, **(who | more)))
            self._lock.notify_all()
            return self._number

    def press(self, person: int, value: str) -> int:
        """Somebody presses a button of a message in their direct chat; the update's number."""
        with self._lock:
            self._number += 1
            message = {"message_id": 5, "date": 1_795_600_000, "chat": {"id": person, "type": "private"}}
            who = {"id": person, "is_bot": False, "first_name": "Ada"}
            pressed = {"id": f"press{self._number}", "from": who, "message": message, "data": value}
            self.updates.append({"update_id": self._number, "callback_query": pressed})
            self._lock.notify_all()
            return self._number

    def texts(self, chat: int) -> list[str]:
        return [one["text"] for one in self.sent if int(one["chat_id"]) == chat]

    def _answer(self, request: Received, reply: Reply) -> None:
        path = request.head.split(" ")[1]
        if path == f"/bot{self.token}/getUpdates":
            self._updates(request.document, reply)
        elif path == f"/bot{self.token}/getMe":
            me = {"id": 77, "is_bot": True, "first_name": "Bot", "username": "ops_bot"}
            reply.document(200, {"ok": True, "result": me})
        elif path == f"/bot{self.token}/sendChatAction":
            self.actions.append(request.document)
            status = 200 if self.takes_actions else 400
            reply.document(status, {"ok": self.takes_actions, "result": True, "description": "Bad Request: no"})
        elif path == f"/bot{self.token}/answerCallbackQuery":
            self.acknowledged.append(request.document["callback_query_id"])
            reply.document(200, {"ok": True, "result": True})
        elif path.removeprefix(f"/bot{self.token}/") in ("sendMessage", "editMessageText", "deleteMessage"):
            self._change(path.rpartition("/")[2], request.document, reply)
        elif not self.files.answer(request, reply):
            reply.document(404, {"ok": False, "error_code": 404, "description": "Not Found"})

    def _change(self, method: str, asked: dict[str, Any], reply: Reply) -> None:
        retry_after_s = self.flood()
        if retry_after_s is not None:
            said = f"Too Many Requests: retry after {retry_after_s:.0f}"
            wait = {"retry_after": retry_after_s}
            reply.document(429, {"ok": False, "error_code": 429, "description": said, "parameters": wait})
            return
        with self._lock:
            number, refusal = self._changed(method, asked)
            if self.hangs_up:
                self.hangs_up -= 1
                reply.close()
                return
        if refusal:
            reply.document(400, {"ok": False, "error_code": 400, "description": f"Bad Request: {refusal}"})
            return
        reply.document(200, {"ok": True, "result": True if method == "deleteMessage" else {"message_id": number}})

    def _changed(self, method: str, asked: dict[str, Any]) -> tuple[int, str]:
        """The number of the message, and why it was not changed."""
        below = [
            one["callback_data"] for row in asked.get("reply_markup", {}).get("inline_keyboard", []) for one in row
        ]
        if method == "sendMessage":
            self.sent.append(asked)
            self.messages[len(self.sent)] = asked["text"]
            self.buttons[len(self.sent)] = below
            return len(self.sent), ""
        number = asked["message_id"]
        if number not in self.messages:
            return number, f"message to {'edit' if method == 'editMessageText' else 'delete'} not found"
        if method == "deleteMessage":
            del self.messages[number]
            return number, ""
        if (self.messages[number], self.buttons.get(number, [])) == (asked["text"], below):
            return number, "message is not modified: specified new message content and reply markup are the same"
        self.messages[number], self.buttons[number] = asked["text"], below
        self.edits += 1
        return number, ""

    def _updates(self, asked: dict[str, Any], reply: Reply) -> None:
        ends_at = time.monotonic() + (asked["timeout"] if self.holds_looks else 0)
        with self._lock:
            self.looks += 1
            self.asked_hold_s = asked["timeout"]
            if self.conflicts_due or self.random.random() < self.conflict_odds:
                self.conflicts_due -= bool(self.conflicts_due)
                self.conflicts += 1
                said = (
                    "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
                )
                reply.document(409, {"ok": False, "error_code": 409, "description": said})
                return
            if self._held is not None and not _is_gone(self._held):
                self.overlaps += 1
            self._held = reply
            while self.updates and self.updates[0]["update_id"] < asked.get("offset", 0):
                self.updates.popleft()
            while not self.updates and time.monotonic() < ends_at and not _is_gone(reply):
                self._lock.wait(0.05)
            found = list(islice(self.updates, min(asked["limit"], self.looked_max)))
            if self._held is reply:
                self._held = None
        reply.document(200, {"ok": True, "result": found})


def _is_gone(reply: Reply) -> bool:
    """Whether the other end closed the connection."""
    try:
        return reply.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
