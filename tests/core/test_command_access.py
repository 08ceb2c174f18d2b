"""Which commands there are for whom, and where the last turn of a transcript begins."""

from __future__ import annotations

import re

import pytest

from hermes_worker.core.chat_commands import (
    COMMAND_RULE,
    ChatCommand,
    ChatRole,
    CommandAccess,
    CommandUser,
    TurnRow,
    find_last_turn,
)
from hermes_worker.core.messages import Role

USER, ASSISTANT, TOOL = Role.USER, Role.ASSISTANT, Role.TOOL


@pytest.mark.parametrize(
    ("command", "may"),
    [
        (ChatCommand.STOP, {"owner", "member", "guest"}),
        (ChatCommand.UNDO, {"owner", "member", "guest"}),
        (ChatCommand.APPROVE, {"owner", "member"}),
        (ChatCommand.MODEL, {"owner", "member"}),
        (ChatCommand.JOBS, {"owner"}),
        (ChatCommand.SETHOME, {"owner"}),
    ],
)
def test_what_allows_something_or_shows_a_tenants_rows_is_no_guests(command, may):
    assert {role.value for role in ChatRole if CommandAccess().allows(CommandUser(role=role), command)} == may


def test_a_rule_gives_a_command_to_others_and_the_last_one_counts():
    access = CommandAccess(["jobs=member", "undo=owner", "usage=guest", "usage=nobody"])
    assert access.allows(CommandUser(role=ChatRole.MEMBER), ChatCommand.JOBS)
    assert not access.allows(CommandUser(role=ChatRole.GUEST), ChatCommand.JOBS)
    assert not access.allows(CommandUser(role=ChatRole.MEMBER), ChatCommand.UNDO)
    assert not access.allows(CommandUser(role=ChatRole.OWNER), ChatCommand.USAGE)


@pytest.mark.parametrize("rule", ["jobs=guest", "approve=guest", "sethome=guest", "help=owner", "x=owner"])
def test_no_rule_gives_a_guest_what_is_never_theirs_and_help_is_everybodys(rule):
    assert not re.fullmatch(COMMAND_RULE, rule)
    assert re.fullmatch(COMMAND_RULE, "jobs=member")


def test_help_lists_what_somebody_may_do_and_nothing_else():
    access = CommandAccess(["stop=nobody"])
    told = access.format_help(CommandUser(role=ChatRole.GUEST))
    assert "/new" in told
    assert not any(word in told for word in ("/approve", "/jobs", "/model", "/stop"))
    assert "/jobs" in access.format_help(CommandUser(role=ChatRole.OWNER))
    listed = {
        line.split()[0][1:] for line in CommandAccess().format_help(CommandUser(role=ChatRole.OWNER)).splitlines()
    }
    assert listed == {command.value for command in ChatCommand} - {"start", "help", "reset"}


OPS, GROUP = "telegram:ops", "-100/a"
RULES = [
    "undo=owner",
    f"{OPS}/*/undo=member",
    f"{OPS}/{GROUP}/undo=nobody",
    f"{OPS}/*/new=owner",
    f"{OPS}/@4242/undo=yes",
    f"{OPS}/@Ada/new=yes",
    f"{OPS}/@4242/stop=no",
    f"{OPS}/@50/jobs=yes",
]


def member(chat: str = "7", account: str = OPS, **more: str) -> CommandUser:
    return CommandUser(role=ChatRole.MEMBER, account=account, chat=chat, **more)


def test_a_rule_for_a_chat_comes_before_one_for_its_account_and_that_before_one_for_all():
    access = CommandAccess(RULES)
    assert all(re.fullmatch(COMMAND_RULE, rule) for rule in RULES)
    assert access.allows(member(), ChatCommand.UNDO)
    assert not access.allows(member(GROUP), ChatCommand.UNDO)
    assert not access.allows(member(account="telegram:default"), ChatCommand.UNDO)
    owner = CommandUser(role=ChatRole.OWNER, account=OPS, chat=GROUP)
    assert not access.allows(owner, ChatCommand.UNDO)
    assert access.find_least_role(OPS, GROUP, ChatCommand.UNDO) is None
    assert access.find_least_role("", "", ChatCommand.UNDO) is ChatRole.OWNER


def test_a_rule_for_a_person_comes_before_their_role_on_that_account_only():
    access = CommandAccess(RULES)
    assert access.allows(member(GROUP, person="4242"), ChatCommand.UNDO)
    assert not access.allows(member(person="4242"), ChatCommand.STOP)
    assert access.allows(member(account="telegram:default", person="4242"), ChatCommand.STOP)
    assert access.allows(member(person="9", alt_id="@ada"), ChatCommand.NEW)
    assert not access.allows(member(person="9"), ChatCommand.NEW)
    assert access.find_person_rules(OPS, ChatCommand.NEW) == {"ada": True}
    assert "/stop" not in access.format_help(member(person="4242"))


def test_no_rule_makes_a_guest_more_than_a_guest():
    guest = CommandUser(role=ChatRole.GUEST, account=OPS, chat="7", person="50")
    assert not CommandAccess(RULES).allows(guest, ChatCommand.JOBS)
    assert CommandAccess(RULES).allows(member(person="50"), ChatCommand.JOBS)


@pytest.mark.parametrize(
    "rule",
    [f"{OPS}/7/jobs=guest", f"{OPS}/@7/help=no", f"{OPS}/@7/stop=owner", f"{OPS}/7/stop=no", "ops/7/stop=nobody"],
)
def test_what_is_no_rule_is_refused(rule):
    assert not re.fullmatch(COMMAND_RULE, rule)


def rows(*said: tuple[Role, int], first: int = 1) -> list[TurnRow]:
    return [TurnRow(seq=first + number, role=role, run_pk=run) for number, (role, run) in enumerate(said)]


@pytest.mark.parametrize(
    ("transcript", "begins"),
    [
        ([], None),
        (rows((USER, 7), (ASSISTANT, 7)), 1),
        (rows((USER, 7), (ASSISTANT, 7), (USER, 8), (ASSISTANT, 8), (TOOL, 8), (USER, 8), (ASSISTANT, 8)), 3),
        (rows((USER, 0), (ASSISTANT, 0), (USER, 0), (USER, 0), (ASSISTANT, 0), (TOOL, 0), (ASSISTANT, 0)), 3),
        (rows((USER, 0), (ASSISTANT, 0), (USER, 9)), 3),
        (rows((ASSISTANT, 9), (TOOL, 9), first=40), None),
        (rows((USER, 8), (USER, 9), (ASSISTANT, 9), first=40), 41),
        (rows((ASSISTANT, 0)), None),
    ],
)
def test_the_last_turn_is_what_its_run_wrote_or_of_a_copy_what_was_said_last(transcript, begins):
    assert find_last_turn(transcript) == begins
