"""An operator's list means people by ids or by names, and nobody is let in by calling themselves like an id."""

import pytest

from hermes_worker.core.chat_accounts import is_meant
from hermes_worker.core.chat_commands import ChatCommand, ChatRole, CommandAccess, CommandUser
from hermes_worker.core.gateway import Speakers
from hermes_worker.core.inbound import ChatKind, InboundChat, InboundSender

DIRECT = InboundChat(id="1", kind=ChatKind.DIRECT)
TELEGRAM = {"ids": ("42", ""), "name": "ada"}
MATTERMOST = {"ids": ("a" * 26,), "name": "ada"}
SIGNAL = {"ids": ("0e5c", "+4912345")}
MATRIX = {"ids": ("@ada:example.org",)}
IRC = {"ids": ("ada",)}


@pytest.mark.parametrize(
    ("entry", "person"),
    [
        ("42", TELEGRAM),
        ("@ada", TELEGRAM),
        ("@Ada", TELEGRAM),
        ("ada", TELEGRAM),
        ("a" * 26, MATTERMOST),
        ("@ada", MATTERMOST),
        ("ada", MATTERMOST),
        ("+4912345", SIGNAL),
        ("0E5C", SIGNAL),
        ("@ada:example.org", MATRIX),
        ("ada:example.org", MATRIX),
        ("ada", IRC),
        ("@ada", IRC),
        ("@42", {"ids": ("7",), "name": "42"}),
    ],
)
def test_an_entry_means_a_person_by_id_or_by_name(entry, person):
    assert is_meant(entry, **person)


@pytest.mark.parametrize(
    ("entry", "person"),
    [
        ("42", {"ids": ("7",), "name": "42"}),
        ("42", {"ids": ("7",), "name": "@42"}),
        ("-100123", {"ids": ("7",), "name": "-100123"}),
        ("@42", TELEGRAM),
        ("b" * 26, {"ids": ("a" * 26,), "name": "b" * 26}),
        ("@0e5c", {"ids": ("77",), "name": ""}),
        ("@4912345", {"ids": ("4912345",)}),
        ("", TELEGRAM),
        ("@", {"ids": ("7",), "name": ""}),
        ("@", {"ids": ("",), "name": ""}),
        ("ada", {"ids": ("7", "")}),
    ],
)
def test_nobody_is_meant_who_calls_themselves_by_the_id_of_another(entry, person):
    assert not is_meant(entry, **person)


def test_a_list_lets_nobody_in_whose_name_reads_like_an_id_on_it():
    speakers = Speakers(allowed=["42"], guests=["43"])
    assert speakers.decide_role(InboundSender(id="42"), DIRECT, None) is ChatRole.OWNER
    assert speakers.decide_role(InboundSender(id="7", other_id="42"), DIRECT, None) is ChatRole.OWNER
    assert speakers.decide_role(InboundSender(id="7", alt_id="42"), DIRECT, None) is None
    assert speakers.decide_role(InboundSender(id="7", alt_id="43", name="42"), DIRECT, None) is None


def test_a_rule_about_commands_tells_ids_from_names_as_well():
    access = CommandAccess(["discord:default/@4242/undo=no", "discord:default/@ada/usage=no"])
    for command, who, may in (
        (ChatCommand.UNDO, {"person": "4242"}, False),
        (ChatCommand.UNDO, {"person": "7", "other_id": "4242"}, False),
        (ChatCommand.UNDO, {"person": "7", "alt_id": "4242"}, True),
        (ChatCommand.USAGE, {"person": "7", "alt_id": "ada"}, False),
    ):
        user = CommandUser(role=ChatRole.MEMBER, account="discord:default", chat="7", **who)
        assert access.allows(user, command) is may, who
