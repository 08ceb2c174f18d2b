"""One key for one conversation of a chat."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.api.schema import SESSION_FORM
from hermes_worker.core.session_keys import (
    ChatOrigin,
    build_session_key,
    is_shared_by_members,
    strip_whatsapp_id,
)
from hermes_worker.core.sources import is_session_id


def _chat(platform: str = "telegram", **ids: str) -> ChatOrigin:
    return ChatOrigin(platform=platform, **ids)


def _group(**ids: str) -> ChatOrigin:
    return _chat(chat_type="group", chat="-1", **ids)


@pytest.mark.parametrize(
    ("origin", "key"),
    [
        # The original's, version 0.19.0.
        (_chat(chat="42"), "agent:main:telegram:dm:42"),
        (_chat(chat="42", thread="7"), "agent:main:telegram:dm:42:7"),
        (_group(user="u1"), "agent:main:telegram:group:-1:u1"),
        (_group(user="u1", thread="7"), "agent:main:telegram:group:-1:7"),
        (_chat(user="u1"), "agent:main:telegram:dm:u1"),
        # By its rules.
        (_chat(thread="7"), "agent:main:telegram:dm:7"),
        (_chat(), "agent:main:telegram:dm"),
        (_group(), "agent:main:telegram:group:-1"),
        (_chat(chat="42", profile="default"), "agent:main:telegram:dm:42"),
        (_chat(chat="42", profile="coder"), "agent:coder:telegram:dm:42"),
        (_chat(chat="42", profile="main"), "agent:main~:telegram:dm:42"),
        (
            _chat("slack", chat_type="channel", scope="T1", chat="C1", user="U1"),
            "agent:main:slack:channel:T1:C1:U1",
        ),
        (
            _chat("discord", chat_type="channel", scope="G1", chat="C1", user="U1"),
            "agent:main:discord:channel:C1:U1",
        ),
        (_chat("whatsapp", chat="15551234567:3@s.whatsapp.net"), "agent:main:whatsapp:dm:15551234567"),
        (
            _chat("whatsapp", chat_type="group", chat="1@g.us", user="+15551234567@s.whatsapp.net"),
            "agent:main:whatsapp:group:1@g.us:15551234567",
        ),
        # Ours: what parts a key, or may not stand in a session's name, is written otherwise.
        (_chat("matrix", chat="!r:example.org"), "agent:main:matrix:dm:!r%3Aexample.org"),
        (_chat("google_chat", chat="spaces/A"), "agent:main:google_chat:dm:spaces%2FA"),
        (_chat(chat="../x y"), "agent:main:telegram:dm:%2E%2E%2Fx%20y"),
    ],
)
def test_a_chat_has_the_key_of_its_conversation(origin: ChatOrigin, key: str) -> None:
    assert build_session_key(origin) == key


@pytest.mark.parametrize(
    ("origin", "is_shared"),
    [(_chat(chat="42"), False), (_group(user="u1"), False), (_group(user="u1", thread="7"), True)],
)
def test_where_several_people_write_is_known(origin: ChatOrigin, is_shared: bool) -> None:
    assert is_shared_by_members(origin) is is_shared


def test_nobody_gets_into_another_conversation_by_an_id_with_a_colon() -> None:
    assert build_session_key(_group(user="7:u1")) != build_session_key(_group(user="u1", thread="7"))
    assert build_session_key(_chat(chat="42:7")) != build_session_key(_chat(chat="42", thread="7"))


_IDS = st.text(max_size=300)
_ORIGINS = st.builds(
    ChatOrigin,
    platform=st.sampled_from(["telegram", "slack", "whatsapp", "matrix"]),
    chat_type=st.sampled_from(["dm", "group", "thread"]),
    chat=_IDS,
    thread=_IDS,
    user=_IDS,
    scope=_IDS,
    profile=_IDS,
)


@given(_ORIGINS)
def test_a_key_is_always_the_name_of_a_session(origin: ChatOrigin) -> None:
    key = build_session_key(origin)

    assert re.fullmatch(SESSION_FORM[1:-1], key)
    assert not is_session_id(key)
    assert key == build_session_key(origin)


def test_long_ids_stay_apart() -> None:
    first, second = (build_session_key(_chat(chat="9" * 400 + end)) for end in "ab")

    assert len(first) == len(second) == 256
    assert first != second


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("60123456789@s.whatsapp.net", "60123456789"),
        ("60123456789:47@s.whatsapp.net", "60123456789"),
        ("+60123456789", "60123456789"),
        (" @lid", ""),
    ],
)
def test_a_person_on_whatsapp_has_one_id(name: str, found: str) -> None:
    assert strip_whatsapp_id(name) == found
