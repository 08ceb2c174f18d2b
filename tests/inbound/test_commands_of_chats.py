"""Commands of chats that choose a model, take back a turn and list jobs, and who may use them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from support.plans import statements
from support.store import Store, asks
from test_accounts import ACCOUNT, Opening, opened, says
from test_listening import approval, asked_by, bodies, choices, rows_of

from hermes_worker.channels.build import build_dispatcher, build_learnt_chats
from hermes_worker.channels.targets import TargetError
from hermes_worker.core.inbound import ChatKind, InboundChat, InboundMessage, InboundSender
from hermes_worker.core.replay import Replay
from hermes_worker.core.run_writers import MemoryWriter
from hermes_worker.gateway.inbound import InboundHandler
from hermes_worker.gateway.received import ReceivedEvent
from hermes_worker.store.access.audit import AuditLog
from hermes_worker.store.gateway import KnownChats
from hermes_worker.store.jobs.job_rows import JobProgress
from hermes_worker.store.jobs.jobs import Jobs
from hermes_worker.store.runs.writers import RunWriters
from hermes_worker.store.tables import messages, runs, sessions
from hermes_worker.tasks.iteration.planning import read_tool_names
from hermes_worker.wiring import Client

__all__ = ["opened"]
PROVIDER = {
    "HERMES_PROVIDER": "openrouter",
    "OPENROUTER_API_KEY": "k",
    "HERMES_MODEL": "acme/large",
    "HERMES_FALLBACK_PROVIDERS": "openrouter:acme/small,anthropic:claude-x",
}


def told(client: Client, text: str, **more: Any) -> str:
    """What somebody is answered at once."""
    assert says(client, text, **more) == "command"
    return bodies(client)[-1]


def models(client: Client) -> list[str]:
    return [model for (model,) in rows_of(client, runs.c.model)]


def said_in(client: Client, name: str) -> list[str]:
    """The texts of a session, by its name."""
    with client.database.read() as connection:
        its = sa.select(messages.c.body).join(sessions, sessions.c.pk == messages.c.session_pk)
        found = connection.execute(its.where(sessions.c.name == name).order_by(messages.c.seq)).scalars()
        return [json.loads(body).get("content") or "" for body in found]


def test_a_model_is_chosen_for_the_conversation_and_ends_with_it(opened: Opening) -> None:
    client = opened(TELEGRAM_ALLOWED_USERS__OPS="42,43", HERMES_GATEWAY_BUSY_INPUT_MODE="queue", **PROVIDER)
    shown = told(client, "/model").splitlines()
    assert shown[:3] == ["This conversation asks acme/large.", "/model acme/large", "/model acme/small"]
    assert "claude-x" not in " ".join(shown), "another provider's is not asked by its name"
    assert told(client, "/model acme/small") == "This conversation asks acme/small from now on."
    assert told(client, "/model  no model!").startswith("This cannot be chosen: model must be")
    says(client, "a")
    says(client, "b", sender="43", chat="43")
    assert models(client) == ["acme/small", "acme/large"], "another chat is asked nothing"
    told(client, "/new")
    says(client, "c")
    assert models(client)[-1] == "acme/large"
    told(client, "/model acme/small", key="again")
    assert told(client, "/model default") == "This conversation asks the usual model: acme/large"


def test_the_prompt_of_a_chat_says_what_the_chat_shows_and_how_files_are_sent(opened: Opening) -> None:
    client = opened(TELEGRAM_ALLOWED_USERS__OPS="42")
    says(client, "first")
    ((prompt,),) = rows_of(client, sessions.c.system_prompt)
    assert "What you write is shown as Markdown: bold, italic, strikethrough" in prompt
    assert "A table is shown as a block of code with aligned columns." in prompt
    assert "A line MEDIA:path/of/a/file in an answer sends that file" in prompt


def test_undo_goes_on_before_the_last_turn_and_names_what_was_done(opened: Opening) -> None:
    client = opened(TELEGRAM_ALLOWED_USERS__OPS="42")
    store, name = Store.over(client.database), "agent:main:telegram@ops:dm:42"
    assert told(client, "/undo") == "Nothing can be taken back here now. /stop ends what is being done."
    says(client, "first")
    store.answer(rows_of(client, runs.c.run_id)[0][0])
    says(client, "second")
    second = rows_of(client, runs.c.run_id)[1][0]
    store.ask_tools(second, asks(Replay.ONCE, Replay.ONCE, Replay.PURE))
    for position in range(3):
        store.settle(second, position)
    assert told(client, "/undo", key="while at work").startswith("Nothing can be taken back here now.")
    store.answer(second)
    before = said_in(client, name)
    undone = told(client, "/undo", key="undo")
    assert undone.startswith("What was said last, and the answer to it, is taken back.")
    assert undone.endswith("What was done for it stays done: tool0, tool1.")
    assert said_in(client, name) == before, "nothing that was said is changed"
    assert said_in(client, f"{name}~1") == before[:2]
    assert says(client, "third") == "run"
    assert [row for (row,) in rows_of(client, sessions.c.name)] == [name, f"{name}~1"]
    assert said_in(client, f"{name}~1")[-1] == "third"


def test_a_turn_of_a_copy_is_taken_back_and_the_first_one_as_well(opened: Opening) -> None:
    client = opened(TELEGRAM_ALLOWED_USERS__OPS="42", **PROVIDER)
    store, name = Store.over(client.database), "agent:main:telegram@ops:dm:42"
    told(client, "/model acme/small")
    for number, text in enumerate(("first", "second", "third")):
        says(client, text)
        store.answer(rows_of(client, runs.c.run_id)[number][0])
    for number in range(3):
        undone = told(client, "/undo", key=f"undo {number}")
    assert [len(said_in(client, f"{name}~{number}")) for number in (1, 2, 3)] == [4, 2, 0]
    assert undone.endswith("Nothing was said before it, so this is a new conversation.")
    assert says(client, "anew") == "run"
    assert models(client)[-1] == "acme/small", "what people chose is not taken back"


def test_an_undo_that_comes_again_takes_nothing_more_back(opened: Opening) -> None:
    client = opened(TELEGRAM_ALLOWED_USERS__OPS="42")
    store = Store.over(client.database)
    for number, text in enumerate(("first", "second")):
        says(client, text)
        store.answer(rows_of(client, runs.c.run_id)[number][0])
    assert [says(client, "/undo", key="one") for _ in range(2)] == ["command", None]
    assert len(rows_of(client, sessions.c.name)) == 2


def test_jobs_are_an_owners_and_a_tenants_own(opened: Opening) -> None:
    client = opened(
        HERMES_GATEWAY_CHATS=f"{ACCOUNT}/*=acme,{ACCOUNT}/-1=globex",
        TELEGRAM_ALLOWED_USERS__OPS="42",
        TELEGRAM_GUESTS__OPS="7",
    )
    assert told(client, "/jobs") == "Nothing is done by schedule."
    its = {"schedule": {"kind": "interval"}, "prompt": "look"}
    for tenant, name, at in (
        ("acme", "news\n of  today", 90_000.0),
        ("acme", "rent", 5_000.0),
        ("globex", "other", 1.0),
    ):
        place = JobProgress(state="scheduled", next_slot=at, next_fire_at=at)
        Jobs(client.database, tenant).create(name, json.dumps(its), lambda _, __, place=place: place)
    first, second = told(client, "/jobs", key="again").splitlines()
    assert first.startswith("rent (") and first.endswith("): next at 1970-01-01 01:23 UTC")
    assert second.startswith("news of today (") and second.endswith("): next at 1970-01-02 01:00 UTC")
    assert told(client, "/jobs", key="guest", sender="7", chat="7") == "/jobs is not for you here."


def test_commands_are_for_whom_the_operator_says(opened: Opening) -> None:
    client = opened(
        TELEGRAM_GROUP_ALLOWED_CHATS__OPS="-1",
        TELEGRAM_GUESTS__OPS="7",
        HERMES_GATEWAY_COMMANDS="jobs=member,usage=nobody,stop=owner",
    )
    assert told(client, "/jobs", chat="-1") == "Nothing is done by schedule."
    assert told(client, "/usage", chat="-1") == "/usage is not for you here."
    shown = told(client, "/help", chat="-1")
    assert "/jobs" in shown
    assert "/usage" not in shown
    unknown = told(client, "/nonsense", sender="7", chat="7", key="guest")
    assert unknown.startswith("There is no such command.\n/new")
    assert not any(word in unknown for word in ("/jobs", "/stop", "/approve"))


def test_a_word_and_a_command_allow_no_more_than_one_another(opened: Opening) -> None:
    client = opened(
        TELEGRAM_ALLOWED_USERS__OPS="*",
        HERMES_GATEWAY_BUSY_INPUT_MODE="queue",
        HERMES_GATEWAY_COMMANDS="approve=owner,deny=owner",
    )
    says(client, "clean up")
    asked_by(client, Store.over(client.database), approval())
    assert told(client, "/approve") == "/approve is not for you here."
    assert says(client, "yes") == "run", "it is a message like any other"
    assert choices(client) == [None]


def test_people_are_asked_and_remembered_by_agents_of_chats_and_guests_are_not_remembered(opened: Opening) -> None:
    client = opened(TELEGRAM_ALLOWED_USERS__OPS="42", TELEGRAM_GUESTS__OPS="7")
    says(client, "hello")
    says(client, "hello", sender="7", chat="7", key="guest")
    persons, guests = [
        read_tool_names(client.runs.load_session_context(pk).tools) for (pk,) in rows_of(client, sessions.c.pk)
    ]
    assert {"clarify", "memory"} <= persons
    assert "memory" not in guests
    ours, theirs = [run_id for (run_id,) in rows_of(client, runs.c.run_id)]
    writers = RunWriters(client.database).load_writers
    assert (writers(ours), writers(theirs)) == ({MemoryWriter.PERSON}, {MemoryWriter.GUEST})


def in_group(client: Client, text: str, *, chat: str, name: str, sender: str = "42") -> str | None:
    event = InboundMessage(
        event_key=f"{chat} {name} {text} {sender}",
        chat=InboundChat(id=chat, kind=ChatKind.GROUP, name=name),
        sender=InboundSender(id=sender),
        text=text,
        is_addressed=True,
    )
    return InboundHandler(client).handle(ReceivedEvent(platform="telegram", account_name="ops", event=event))


def test_a_chat_is_known_by_its_name_and_one_that_is_not_alone_is_refused(opened: Opening) -> None:
    client = opened(
        TELEGRAM_ALLOWED_USERS__OPS="42", TELEGRAM_GUESTS__OPS="7", HERMES_GATEWAY_CHATS=f"{ACCOUNT}/-9=acme"
    )
    learnt = build_learnt_chats(client.database)
    assert in_group(client, "/status", chat="-1", name="#Ops") == "command"
    assert in_group(client, "/status", chat="-2", name="Ops", sender="7") == "command"
    in_group(client, "/status", chat="-9", name="secret")
    found = learnt.find_chat("telegram", "#ops")
    assert found is not None
    assert (found.sender, found.chat) == ("telegram@ops", "-1"), "a guest's chat of the same name does not count"
    assert learnt.find_chat("telegram", "secret") is None, "another tenant's"
    in_group(client, "/status", chat="-3", name="ops")
    with pytest.raises(TargetError, match="2 chats are called"):
        learnt.find_chat("telegram", "ops")
    in_group(client, "/status", chat="-3", name="other")
    assert learnt.find_chat("telegram", "ops") == found, "a chat that is called otherwise now"


def test_a_chat_that_is_known_by_its_name_costs_one_look(opened: Opening) -> None:
    client = opened(TELEGRAM_ALLOWED_USERS__OPS="42")
    known = KnownChats(client.database)
    known.record_name(ACCOUNT, "-1", "ops")
    with statements(client.database) as asked:
        known.record_name(ACCOUNT, "-1", "ops")
    assert len([one for one, _ in asked if one.lower().startswith(("select", "insert", "update"))]) == 1


def test_an_owner_makes_a_chat_the_home_channel_in_place_of_another(opened: Opening) -> None:
    client = opened(
        TELEGRAM_ALLOWED_USERS__OPS="42",
        TELEGRAM_GROUP_ALLOWED_CHATS__OPS="-5",
        HERMES_GATEWAY_CHATS=f"{ACCOUNT}/-9=acme",
        TELEGRAM_HOME_CHANNEL="1",
    )
    dispatcher = replace(build_dispatcher(client.settings), learnt=build_learnt_chats(client.database))
    assert dispatcher.find_homes()["telegram"].chat == "1"
    told(client, "/sethome", key="one")
    assert told(client, "/sethome", chat="-5", key="two") == "What is sent to 'telegram' comes here from now on."
    assert told(client, "/sethome", chat="-5", sender="43", key="member") == "/sethome is not for you here."
    home = dispatcher.find_homes()["telegram"]
    assert (home.sender, home.chat) == ("telegram@ops", "-5")
    [done] = [row for row in AuditLog(client.database).list_actions("default", limit=20) if row.act == "chat.home"][:1]
    assert done.subject == ACCOUNT


def test_a_chat_of_another_tenant_is_no_home_channel_of_the_installation(opened: Opening) -> None:
    client = opened(TELEGRAM_ALLOWED_USERS__OPS="42", HERMES_GATEWAY_CHATS=f"{ACCOUNT}/*=acme")
    assert told(client, "/sethome") == "Only chats of the installation's own tenant can be home channels."
    assert build_learnt_chats(client.database).list_homes() == {}
