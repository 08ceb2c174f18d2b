"""Names of chats as delivery targets."""

from __future__ import annotations

import pytest

from hermes_worker.channels.learnt_chats import LearntChats
from hermes_worker.channels.targets import TargetError
from hermes_worker.core.chat_commands import ChatRole
from hermes_worker.core.chat_names import KnownChat, choose_learnable_name, normalize_name
from hermes_worker.core.inbound import ChatKind, InboundChat


@pytest.mark.parametrize(
    ("text", "name"), [("#Ops", "ops"), ("  The\n Team ", "the team"), ("#", ""), ("", ""), ("x" * 101, "")]
)
def test_a_name_is_compared_without_case_sign_and_spaces(text, name):
    assert normalize_name(text) == name


def group(**more):
    return InboundChat(**{"id": "-1", "kind": ChatKind.GROUP, "name": "Ops", **more})


def test_no_guest_and_no_direct_chat_gives_a_name():
    assert choose_learnable_name(group(), ChatRole.OWNER) == choose_learnable_name(group(), ChatRole.MEMBER) == "ops"
    assert choose_learnable_name(group(), ChatRole.GUEST) == ""
    assert choose_learnable_name(group(kind=ChatKind.DIRECT), ChatRole.OWNER) == ""
    assert choose_learnable_name(group(id="x" * 201), ChatRole.OWNER) == ""


def test_a_name_that_two_chats_have_means_neither_and_the_sentence_names_them():
    two = LearntChats(named_known=lambda platform, name: [KnownChat("telegram:default", c) for c in ("-2", "-1")])
    with pytest.raises(TargetError, match=r"2 chats are called '#ops'; write the id of one: -1, -2"):
        two.find_chat("telegram", "#ops")
    one = LearntChats(named_known=lambda platform, name: [KnownChat("telegram:ops", "-1")] if name == "ops" else [])
    found = one.find_chat("telegram", "#OPS")
    assert found is not None
    assert (found.sender, found.chat) == ("telegram@ops", "-1")
    assert one.find_chat("telegram", "#other") is None


def test_a_home_that_cannot_be_read_counts_as_none():
    homes = LearntChats(
        homes_known=lambda: [KnownChat("telegram:default", "-1", "7"), KnownChat("discord:default", "?")]
    )
    assert {name: (home.chat, home.thread) for name, home in homes.list_homes().items()} == {"telegram": ("-1", "7")}
