"""Buttons as each platform draws them, and what each brings when one is pressed: the value that we gave it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.inbound_cases import AT, CASES, posted
from test_adapter_contract import CHATS, NAMES, credentials

from hermes_worker.channels.adapters import load_adapters
from hermes_worker.channels.catalog import WEBHOOK
from hermes_worker.channels.exchange import Part, Receipt, perform
from hermes_worker.channels.inbound.slack import read as read_slack
from hermes_worker.channels.receivers import load_receivers
from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_buttons import ChatButton
from hermes_worker.core.inbound import InboundButton
from hermes_worker.net.http import HttpRequest, HttpResponse

SERVICE = "http://service.example"
ANSWERED = (
    b'{"ok":true,"code":0,"tenant_access_token":"t","access_token":"t","id":"7","name":"spaces/AAA/messages/B.C",'
    b'"messages":[{"id":"wamid.1"}],"data":{"message_id":"om_1"},"ts":"1.2","result":{"message_id":7}}'
)
APPROVAL = tuple(
    ChatButton(label=label, value=f"7:{value}")
    for label, value in (("Allow", "once"), ("Allow in this conversation", "session"), ("Deny", "deny"))
)
MESSAGES = {"telegram": "7", "google_chat": "spaces/AAA/messages/B.C"}
Found = tuple[str, str]
"""A label and what is brought when it is pressed."""


def _telegram(sent: Any) -> Iterator[Found]:
    for row in sent.get("reply_markup", {}).get("inline_keyboard", []):
        yield from ((one["text"], one["callback_data"]) for one in row)


def _slack(sent: Any) -> Iterator[Found]:
    for block in sent.get("blocks", []):
        if block["type"] == "actions":
            assert len({one["action_id"] for one in block["elements"]}) == len(block["elements"])
            yield from ((one["text"]["text"], one["value"]) for one in block["elements"])


def _discord(sent: Any) -> Iterator[Found]:
    for row in sent.get("components", []):
        assert (row["type"], len(row["components"]) <= 5) == (1, True)
        yield from ((one["label"], one["custom_id"]) for one in row["components"])


def _mattermost(sent: Any) -> Iterator[Found]:
    for attachment in sent.get("props", {}).get("attachments", []):
        for one in attachment["actions"]:
            assert one["id"].isalnum()
            yield one["name"], json.dumps(one["integration"]["context"])


def _whatsapp(sent: Any) -> Iterator[Found]:
    action = sent.get("interactive", {}).get("action", {})
    yield from ((one["reply"]["title"], one["reply"]["id"]) for one in action.get("buttons", []))
    yield from ((row["title"], row["id"]) for part in action.get("sections", []) for row in part["rows"])


def _line(sent: Any) -> Iterator[Found]:
    for one in sent["messages"][0].get("quickReply", {}).get("items", []):
        yield one["action"]["label"], one["action"]["data"]


def _teams(sent: Any) -> Iterator[Found]:
    for attachment in sent.get("attachments", []):
        for one in attachment["content"]["actions"]:
            yield one["title"], one["data"]["hermes_answer"]


def _google_chat(sent: Any) -> Iterator[Found]:
    for card in sent.get("cardsV2", []):
        for section in card["card"]["sections"]:
            for one in section["widgets"][0]["buttonList"]["buttons"]:
                action = one["onClick"]["action"]
                assert action["function"] == "answer"
                yield one["text"], action["parameters"][0]["value"]


def _feishu(sent: Any) -> Iterator[Found]:
    if "content" not in sent or "elements" not in (content := json.loads(sent["content"])):
        return
    for element in content["elements"]:
        yield from ((one["text"]["content"], one["value"]["hermes_answer"]) for one in element.get("actions", []))


DRAWN: Mapping[str, Callable[[Any], Iterator[Found]]] = {
    "telegram": _telegram,
    "slack": _slack,
    "discord": _discord,
    "mattermost": _mattermost,
    "whatsapp_cloud": _whatsapp,
    "line": _line,
    "teams": _teams,
    "google_chat": _google_chat,
    "feishu": _feishu,
}
LABEL_CHARS_MAX = {"whatsapp_cloud": 24, "line": 20, "slack": 75, "discord": 80}


def asked(name: str, buttons: tuple[ChatButton, ...], text: str = "May I? <a> & *b*", *, edits: bool = False) -> Any:
    """The last request of an exchange, as JSON, and what it came to."""
    target = Target(platform=name, chat=f"{SERVICE}/hook" if name == WEBHOOK else CHATS.get(name, "C0123ABCD"))
    known, adapter = credentials(name, SERVICE), load_adapters()[name]
    part = Part(text=text, idempotency_key="d1:1", buttons=buttons)
    at = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
    requests: list[HttpRequest] = []

    def send(request: HttpRequest) -> HttpResponse:
        requests.append(request)
        return HttpResponse(status=200, body=ANSWERED)

    number = MESSAGES.get(name, "m1")
    exchange = adapter.edit(part, number, target, known) if edits else adapter.send(part, target, known, at)
    outcome = perform(exchange, send)
    if name in DRAWN:
        assert isinstance(outcome, Receipt), outcome
    return json.loads(requests[-1].body or b"{}") if name in DRAWN else requests[-1]


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_each_choice_is_a_button_that_brings_its_value(name: str) -> None:
    found = list(DRAWN[name](asked(name, APPROVAL)))
    assert [label.partition(" ")[0] for label, _ in found] == ["Allow", "Allow", "Deny"]
    assert len({label for label, _ in found}) == 3
    assert all(len(label) <= LABEL_CHARS_MAX.get(name, 60) for label, _ in found)
    assert [json.loads(value)["value"] if name == "mattermost" else value for _, value in found] == [
        "7:once",
        "7:session",
        "7:deny",
    ]


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_a_press_of_what_was_drawn_is_read_as_that_value(name: str) -> None:
    receiver, case = load_receivers()[name], CASES[name]
    _, value = list(DRAWN[name](asked(name, APPROVAL)))[1]
    if name == "mattermost":
        target = CHATS.get(name, "C0123ABCD")
        body = {"channel_id": target, "user_id": "u", "trigger_id": "t", "context": json.loads(value)}
        values = {**case.values, "MATTERMOST_ACTIONS_SECRET": "SECRET"}
        request = posted(name, json.dumps(body).encode())
    else:
        values, request = case.values, case.pressed(value)
    [press] = receiver.receive(request, receiver.build_credentials(values), AT)
    assert isinstance(press, InboundButton)
    assert press.value == "7:session"


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_the_words_stand_above_the_buttons_and_alone_without_them(name: str) -> None:
    assert list(DRAWN[name](asked(name, ()))) == []
    assert "May I?" in json.dumps(asked(name, APPROVAL))
    assert "May I?" in json.dumps(asked(name, ()))


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(DRAWN)))
def test_a_platform_without_buttons_keeps_the_words(name: str) -> None:
    bare, drawn = asked(name, ()), asked(name, APPROVAL)
    assert (bare.url, bare.body) == (drawn.url, drawn.body)


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_more_choices_than_there_is_room_for_are_words(name: str) -> None:
    many = tuple(ChatButton(label=str(number), value=f"7:{number}") for number in range(200))
    assert list(DRAWN[name](asked(name, many))) == []


@pytest.mark.parametrize("name", sorted(set(DRAWN) - {"whatsapp_cloud", "line"}))
def test_a_message_loses_its_buttons_and_keeps_its_words(name: str) -> None:
    assert load_adapters()[name].loses_buttons
    bare = asked(name, (), edits=True)
    assert list(DRAWN[name](bare)) == []
    assert "May I?" in json.dumps(bare)
    emptied = {"slack": "blocks", "discord": "components", "mattermost": "props", "google_chat": "cardsV2"}
    assert name not in emptied or not bare[emptied[name]]


@pytest.mark.parametrize("name", ["whatsapp_cloud", "line"])
def test_where_no_message_can_be_changed_the_buttons_stay(name: str) -> None:
    assert not load_adapters()[name].loses_buttons


def test_whatsapp_shows_a_list_where_reply_buttons_have_no_room() -> None:
    four = (*APPROVAL, ChatButton(label="Always allow", value="7:always"))
    assert asked("whatsapp_cloud", four)["interactive"]["type"] == "list"
    assert asked("whatsapp_cloud", APPROVAL)["interactive"]["type"] == "button"
    long = asked("whatsapp_cloud", APPROVAL, "x" * 1_025)
    assert (long["interactive"]["type"], long["interactive"]["body"]["text"]) == ("list", "x" * 1_025)


def test_slack_shows_a_long_question_whole_or_without_buttons() -> None:
    text = " ".join(f"word{number}" for number in range(700))
    sent = asked("slack", APPROVAL, text)
    sections = [block["text"]["text"] for block in sent["blocks"] if block["type"] == "section"]
    assert all(len(section) <= 3_000 for section in sections)
    assert " ".join(sections).split() == text.split()
    assert "blocks" not in asked("slack", APPROVAL, "&" * 1_500)


def test_a_command_stays_code_in_every_section_of_a_message_of_slack() -> None:
    text = f"May I do this?\n\n```\n{'cp *a* _b_ ' * 250}\n```\n\nAnswer /approve or /deny."
    sent = asked("slack", APPROVAL, text)
    sections = [block["text"]["text"] for block in sent["blocks"] if block["type"] == "section"]
    assert len(sections) > 1
    assert "".join(sections).count("*a*") == 250
    assert all(section.count("```") == 2 for section in sections)


def test_mattermost_has_no_buttons_without_an_address_and_a_secret() -> None:
    from hermes_worker.channels.platforms import mattermost

    part = Part(text="May I?", idempotency_key="d", buttons=APPROVAL)
    target = Target(platform="mattermost", chat="c" * 26)
    for more in ({}, {"actions_url": "https://h.example/inbound/mattermost"}, {"actions_secret": "s"}):
        known = mattermost.Credentials(base_url=SERVICE, token="t", **more)
        assert b"props" not in (mattermost.build(part, target, known).body or b"")
    url = "https://h.example/inbound/mattermost"
    known = mattermost.Credentials(base_url=SERVICE, token="t", actions_url=url, actions_secret="s")
    drawn = json.loads(mattermost.build(part, target, known).body or b"")
    assert {one["integration"]["url"] for one in drawn["props"]["attachments"][0]["actions"]} == {url}
    assert urlsplit(url).query == ""


def test_slack_reads_a_press_in_a_private_channel_as_one_of_either_kind() -> None:
    channel = {"id": "C1", "name": "privategroup"}
    action = {"type": "button", "value": "7:once", "action_ts": "1.1"}
    [press] = read_slack({"type": "block_actions", "channel": channel, "trigger_id": "1", "actions": [action]})
    assert isinstance(press, InboundButton)
    assert press.chat.kind in press.may_be
    assert len(press.may_be) == 2
