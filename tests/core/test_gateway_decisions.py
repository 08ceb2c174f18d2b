"""Who may speak, and what a text asks for."""

from __future__ import annotations

import pytest

from hermes_worker.core.chat_commands import ChatCommand, ChatRole
from hermes_worker.core.gateway import (
    CODE_CHARS,
    CODE_SIGNS,
    LOOK_AGAIN_S_MAX,
    CommandSaid,
    EventIgnored,
    GroupPolicy,
    MessageSaid,
    OfferCode,
    Silence,
    Speakers,
    compute_poll_wait_s,
    compute_standby_s,
    create_code,
    decide_event,
    may_be_called_for,
)
from hermes_worker.core.inbound import ChatKind, InboundChat, InboundCommand, InboundEdit, InboundMessage, InboundSender
from hermes_worker.core.replay import Replay
from hermes_worker.core.sources import CHAT_SOURCE, GUEST_SOURCE

NOBODY = Speakers()
ADA = InboundSender(id="42", alt_id="ada", name="Ada")


def message(text="hello", *, kind=ChatKind.DIRECT, sender=ADA, is_addressed=False):
    chat = InboundChat(id="-1", kind=kind)
    return InboundMessage(event_key="1", chat=chat, sender=sender, text=text, is_addressed=is_addressed)


def test_by_default_nobody_may_speak_and_a_stranger_is_offered_a_code():
    assert decide_event(message(), NOBODY, None) == OfferCode()


def test_a_group_is_told_nothing():
    asked = message("/status", kind=ChatKind.GROUP, is_addressed=True)
    assert decide_event(asked, NOBODY, None) == EventIgnored(reason=Silence.STRANGER)


def test_nobody_is_offered_a_code_where_that_is_switched_off():
    assert decide_event(message(), Speakers(pairs=False), None) == EventIgnored(reason=Silence.STRANGER)


@pytest.mark.parametrize(
    ("allowed", "role"),
    [("42", ChatRole.OWNER), ("ada", ChatRole.OWNER), ("@Ada", ChatRole.OWNER), ("*", ChatRole.MEMBER)],
)
def test_whom_a_list_names_may_speak(allowed, role):
    assert decide_event(message(), Speakers(allowed=[allowed]), None) == MessageSaid(text="hello", role=role)


GROUPS = {"kind": ChatKind.GROUP, "is_addressed": True}


@pytest.mark.parametrize(
    ("said", "speakers", "paired", "role"),
    [
        ({}, Speakers(guests=["ada"]), None, ChatRole.GUEST),
        ({}, Speakers(guests=["*"]), None, ChatRole.GUEST),
        ({}, Speakers(guests=["*"]), ChatRole.MEMBER, ChatRole.MEMBER),
        ({}, Speakers(guests=["42"], allowed=["42"]), ChatRole.GUEST, ChatRole.OWNER),
        ({}, Speakers(allowed=["*"]), ChatRole.GUEST, ChatRole.MEMBER),
        ({}, NOBODY, ChatRole.GUEST, ChatRole.GUEST),
        (GROUPS, Speakers(groups=GroupPolicy.GUESTS), None, ChatRole.GUEST),
        (GROUPS, Speakers(groups=GroupPolicy.GUESTS), ChatRole.OWNER, ChatRole.OWNER),
    ],
)
def test_somebody_has_the_most_that_anything_gives_them(said, speakers, paired, role):
    assert decide_event(message(**said), speakers, paired) == MessageSaid(text="hello", role=role)


def test_groups_open_to_guests_let_nobody_in_elsewhere():
    assert decide_event(message(), Speakers(groups=GroupPolicy.GUESTS), None) == OfferCode()


def test_where_groups_are_off_not_even_an_owner_is_heard_there():
    off = Speakers(groups=GroupPolicy.OFF)
    assert decide_event(message(**GROUPS), off, ChatRole.OWNER) == EventIgnored(reason=Silence.GROUPS_OFF)
    assert decide_event(message(), off, ChatRole.OWNER) == MessageSaid(text="hello", role=ChatRole.OWNER)


@pytest.mark.parametrize("replay", Replay)
def test_for_a_guest_nothing_begins_that_has_an_effect(replay):
    assert may_be_called_for(GUEST_SOURCE, replay) is (replay is Replay.PURE)
    assert may_be_called_for(CHAT_SOURCE, replay)
    assert may_be_called_for(None, replay)


@pytest.mark.parametrize("allowed", ["4", "420", "ad", ""])
def test_part_of_a_name_names_nobody(allowed):
    assert decide_event(message(), Speakers(allowed=[allowed]), None) == OfferCode()


def test_a_display_name_lets_nobody_in():
    sender = InboundSender(id="7", name="42")
    assert decide_event(message(sender=sender), Speakers(allowed=["42"]), None) == OfferCode()


def test_two_bots_never_talk_even_when_everybody_may_speak():
    bot = InboundSender(id="42", is_bot=True)
    assert decide_event(message(sender=bot), Speakers(allowed=["*"]), ChatRole.OWNER) == EventIgnored(
        reason=Silence.BOT
    )


def test_who_has_no_id_is_nobody():
    sender = InboundSender(id="", alt_id="ada")
    assert decide_event(message(sender=sender), Speakers(allowed=["*"]), None) == EventIgnored(reason=Silence.NAMELESS)


def test_in_a_group_only_what_is_addressed_is_taken():
    said = message(kind=ChatKind.GROUP)
    assert decide_event(said, NOBODY, ChatRole.MEMBER) == EventIgnored(reason=Silence.NOT_ADDRESSED)
    addressed = message(kind=ChatKind.GROUP, is_addressed=True)
    assert decide_event(addressed, NOBODY, ChatRole.MEMBER) == MessageSaid(text="hello", role=ChatRole.MEMBER)


@pytest.mark.parametrize(
    ("text", "command", "arguments"),
    [
        ("/stop", ChatCommand.STOP, ""),
        ("/STOP@HermesBot now", ChatCommand.STOP, "now"),
        ("  /queue  do this ", ChatCommand.QUEUE, "do this"),
        ("/frobnicate", None, ""),
        ("/", None, ""),
    ],
)
def test_a_text_with_a_slash_is_a_command(text, command, arguments):
    found = decide_event(message(text), NOBODY, ChatRole.OWNER)
    assert isinstance(found, CommandSaid)
    assert (found.command, found.arguments) == (command, arguments)


def test_a_command_in_the_platforms_own_form_is_the_same():
    asked = InboundCommand(event_key="1", chat=InboundChat(id="1"), sender=ADA, name="New", arguments=" x ")
    said = CommandSaid(command=ChatCommand.NEW, name="new", arguments="x", role=ChatRole.OWNER)
    assert decide_event(asked, NOBODY, ChatRole.OWNER) == said


def test_nothing_follows_from_an_edit_or_an_empty_text():
    edit = InboundEdit(event_key="1", chat=InboundChat(id="1"), sender=ADA, text="x")
    assert decide_event(edit, NOBODY, ChatRole.OWNER) == EventIgnored(reason=Silence.UNKNOWN_KIND)
    assert decide_event(message("  "), NOBODY, ChatRole.OWNER) == EventIgnored(reason=Silence.EMPTY)


def test_a_code_is_known_again_and_no_other():
    code, hashed = create_code()
    assert len(code) == CODE_CHARS
    assert set(code) <= set(CODE_SIGNS)
    assert code not in hashed.hash
    assert hashed.matches(code)
    assert hashed.matches(f" {code.lower()} ")
    assert not hashed.matches(code[:-1])
    assert create_code()[1].salt != hashed.salt


def test_an_account_is_asked_again_however_often_it_failed():
    waits = [compute_poll_wait_s(failures, None) for failures in range(1, 2_001)]
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits == sorted(waits)
    assert waits[-1] == LOOK_AGAIN_S_MAX
    assert compute_poll_wait_s(7, 3.0) == 3.0
    assert compute_poll_wait_s(7, 1e9) == 600.0


@pytest.mark.parametrize(("left_s", "wait_s"), [(None, 2.0), (-1.0, 2.0), (0.5, 0.5), (29.0, 29.0), (45.0, 30.0)])
def test_who_stands_by_asks_when_the_lease_ends_and_twice_a_minute_at_most(left_s, wait_s):
    assert compute_standby_s(left_s) == wait_s
