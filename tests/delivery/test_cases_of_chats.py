"""What the original's own tests say of commands, files and pictures in texts, and of Telegram's markup."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any

from support.outside_cases import original_cases
from test_media import facts, nothing

from hermes_worker.channels.markup import render_telegram_html
from hermes_worker.channels.media import FileFacts, extract_media
from hermes_worker.core.chat_commands import ChatCommand
from hermes_worker.core.gateway import CommandSaid, Speakers, decide_event
from hermes_worker.core.inbound import ChatKind, InboundChat, InboundMessage, InboundSender

ELEMENTS = {
    "b": "bold",
    "i": "italic",
    "s": "struck",
    "code": "code",
    "pre": "block",
    "a": "link",
    "tg-spoiler": "spoiler",
    "blockquote": "quote",
}


@original_cases("chat-commands")
def test_a_text_is_a_command_as_in_the_original(case: Mapping[str, Any]) -> None:
    chat, sender = InboundChat(id="1", kind=ChatKind.DIRECT), InboundSender(id="42")
    event = InboundMessage(event_key="1", chat=chat, sender=sender, text=case["input"]["text"])
    reading = decide_event(event, Speakers(allowed=["42"]), None)
    expected = case["expected"]
    if expected["command"] is None:
        assert not isinstance(reading, CommandSaid)
        return
    assert isinstance(reading, CommandSaid)
    assert (reading.name, reading.arguments) == (expected["command"], expected["arguments"])
    assert reading.command == ChatCommand(expected["command"])


@original_cases("media")
def test_a_text_asks_for_files_as_in_the_original(case: Mapping[str, Any]) -> None:
    def look(path: str) -> FileFacts | None:
        return facts(path) if path.startswith(("/", "~")) else None

    expected, media = case["expected"], extract_media(case["input"]["text"], look)
    assert list(media.paths) == expected["paths"]
    assert (media.audio_as_voice, media.as_document) == (expected["voice"], expected["document"])
    require_words(media.text, expected)


@original_cases("images")
def test_a_text_asks_for_pictures_as_in_the_original(case: Mapping[str, Any]) -> None:
    expected, media = case["expected"], extract_media(case["input"]["text"], nothing)
    assert [picture.url for picture in media.pictures] == expected["urls"]
    require_words(media.text, expected)


def require_words(text: str, expected: Mapping[str, Any]) -> None:
    assert [word for word in expected["has"] if word not in text] == []
    assert [word for word in expected["hasnot"] if word in text] == []


class Shown(HTMLParser):
    """What a person sees of a message in Telegram's HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.visible = ""
        self.elements: dict[str, list[Any]] = {name: [] for name in ELEMENTS.values()}
        self._open: list[tuple[str, int, str]] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS
        self._open.append((tag, len(self.visible), dict(attrs).get("href") or ""))

    def handle_endtag(self, tag: str) -> None:
        opened, start, url = self._open.pop()
        assert opened == tag
        said = self.visible[start:]
        if tag == "code" and any(one == "pre" for one, _, _ in self._open):
            return
        self.elements[ELEMENTS[tag]].append([said, url] if tag == "a" else said.strip("\n") if tag == "pre" else said)

    def handle_data(self, data: str) -> None:
        self.visible += data


@original_cases("telegram-markup")
def test_a_text_is_marked_up_as_in_the_original(case: Mapping[str, Any]) -> None:
    shown = Shown(render_telegram_html(case["input"]["text"]))
    for name, said in case["expected"].items():
        if name == "shows":
            assert [word for word in said if word not in shown.visible] == []
        elif name == "hides":
            assert [word for word in said if word in shown.visible] == []
        else:
            assert shown.elements[name] == said, json.dumps(shown.elements)
