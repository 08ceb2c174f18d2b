"""Several accounts of a platform, and chats of one account that belong to different tenants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.migrated import bring_up
from support.telegram_server import TOKEN, TelegramServer
from test_listening import bodies, outcomes, rows_of, until

from hermes_worker import settings as settings_module
from hermes_worker.channels.build import build_dispatcher
from hermes_worker.channels.exchange import Part
from hermes_worker.channels.targets import TargetError, parse_chat, parse_targets, require_open_to
from hermes_worker.core.chat_commands import ChatRole
from hermes_worker.core.chat_replies import find_reply_target
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.inbound import ChatKind, InboundChat, InboundMessage, InboundSender
from hermes_worker.gateway.inbound import InboundHandler
from hermes_worker.gateway.listening import GatewayListener, list_listened_accounts
from hermes_worker.gateway.received import ReceivedEvent
from hermes_worker.settings import build_handover
from hermes_worker.settings.role_secrets import ProcessRole
from hermes_worker.store.gateway import GatewayRows
from hermes_worker.store.runs.inputs import require_spec
from hermes_worker.store.tables import deliveries, inbound, runs, sessions
from hermes_worker.wiring import Client, open_client

ACCOUNT = "telegram:ops"
Opening = Callable[..., Client]


@pytest.fixture
def opened(tmp_path: Path, broker_url: str) -> Iterator[Opening]:
    url = f"sqlite:///{tmp_path / 'test.db'}"
    (tmp_path / "home").mkdir()
    bring_up(url)
    clients = []

    def opening(**environ: str) -> Client:
        usual = {
            "HOME": str(tmp_path),
            "HERMES_HOME": str(tmp_path / "home"),
            "HERMES_DATABASE_URL": url,
            "HERMES_BROKER_URL": broker_url,
            "HERMES_PROVIDER": "scripted",
            "HERMES_GATEWAY": "true",
            "HERMES_GATEWAY_LEASE_S": "3",
            "HERMES_GATEWAY_ACCOUNTS": ACCOUNT,
            "TELEGRAM_BOT_TOKEN__OPS": TOKEN,
        }
        clients.append(open_client(settings_module.load_settings(usual | environ)))
        return clients[-1]

    yield opening
    for client in clients:
        client.close()


def says(
    client: Client, text: str, *, chat: str = "42", sender: str = "42", key: str | None = None, message_id: str = ""
) -> str | None:
    kind = ChatKind.GROUP if chat.startswith("-") else ChatKind.DIRECT
    event = InboundMessage(
        event_key=key or text,
        chat=InboundChat(id=chat, kind=kind),
        sender=InboundSender(id=sender),
        text=text,
        is_addressed=True,
        message_id=message_id,
    )
    return InboundHandler(client).handle(ReceivedEvent(platform="telegram", account_name="ops", event=event))


def test_an_account_with_a_name_is_listened_to_and_answers_as_itself(opened: Opening) -> None:
    with TelegramServer() as telegram:
        client = opened(TELEGRAM_BASE_URL=telegram.url, TELEGRAM_ALLOWED_USERS__OPS="42")
        accounts = list_listened_accounts(client.settings)
        assert [one.account for one in accounts] == [ACCOUNT], "the platform's usual account has no token"
        stopping = threading.Event()
        thread = threading.Thread(
            target=GatewayListener(client, accounts, name="gw", alive_file=None).run, args=(stopping,)
        )
        thread.start()
        telegram.write(42, "hello")
        until(lambda: outcomes(client) == ["run"])
        stopping.set()
        thread.join()
        assert rows_of(client, runs.c.deliver) == [('["telegram@ops:42"]',)]
        assert rows_of(client, sessions.c.name) == [("agent:main:telegram@ops:dm:42",)]
        target = parse_chat("telegram@ops", "42")
        build_dispatcher(client.settings).send(Part(text="hi", idempotency_key="1"), target, at=None, file_name="")  # type: ignore[arg-type]
        assert telegram.texts(42) == ["hi"]


@pytest.mark.parametrize(("mode", "message"), [("first", "7"), ("off", None)])
def test_a_run_knows_the_message_that_its_answer_replies_to(opened: Opening, mode: str, message: str | None) -> None:
    client = opened(TELEGRAM_ALLOWED_USERS__OPS="42", HERMES_GATEWAY_REPLY_TO=mode)
    says(client, "hello", message_id="7")
    with client.database.read() as connection:
        spec = require_spec(connection, connection.execute(sa.select(runs.c.pk)).scalar_one())
    assert spec is not None
    there = {"sender": "telegram@ops", "chat": "42"}
    assert find_reply_target(spec.metadata, spec.source, part=0, **there) == (message or "")


def test_lists_of_the_usual_account_let_nobody_speak_to_another(opened: Opening) -> None:
    client = opened(TELEGRAM_ALLOWED_USERS="42", TELEGRAM_ALLOWED_USERS__OPS="43")
    assert says(client, "a") == "paired"
    assert bodies(client)[0].endswith(f"hermes-worker gateway pair {ACCOUNT} {bodies(client)[0].split()[-1]}")
    assert says(client, "b", sender="43", chat="43") == "run"


def test_chats_of_one_account_belong_to_tenants_that_do_not_see_each_other(opened: Opening) -> None:
    client = opened(
        HERMES_GATEWAY_CHATS=f"{ACCOUNT}/*=acme,{ACCOUNT}/-100=globex,{ACCOUNT}/-200=default",
        HERMES_GATEWAY_ALLOWED_USERS="42",
        TELEGRAM_ALLOWED_USERS__OPS="43",
    )
    assert says(client, "acme's own list", chat="43", sender="43") == "run"
    assert says(client, "the operator's list is not acme's") == "paired"
    assert says(client, "and acme's not globex's", chat="-100", sender="43") == "stranger"
    assert says(client, "nor the operator's", chat="-200", sender="43") == "stranger"
    code = bodies(client)[0].split()[-1]
    assert GatewayRows(client.database).pair(ACCOUNT, code, ChatRole.MEMBER) == "42"
    assert says(client, "let in by acme") == "run"
    assert says(client, "which is not globex", chat="-100") == "stranger"
    assert GatewayRows(client.database, "globex").find_role(ACCOUNT, "42") is None
    assert {tenant for (tenant,) in rows_of(client, runs.c.tenant)} == {"acme"}
    assert {tenant for (tenant,) in rows_of(client, deliveries.c.tenant)} == {"acme"}
    with client.database.read() as connection:
        assert connection.execute(sa.select(inbound.c.tenant).where(inbound.c.outcome == "stranger")).all() == [
            ("globex",),
            ("default",),
            ("globex",),
        ]
    said = [person.tenant for person in GatewayRows(client.database).list_people(ACCOUNT)]
    assert said == ["acme"]


def test_a_burst_is_one_turn_in_the_tenants_own_session(opened: Opening) -> None:
    client = opened(
        HERMES_GATEWAY_CHATS=f"{ACCOUNT}/*=acme",
        TELEGRAM_ALLOWED_USERS__OPS="42",
        HERMES_GATEWAY_BUSY_INPUT_MODE="queue",
    )
    assert [says(client, text) for text in ("at work", "first", "second")] == ["run", "run", "joined"]


def test_a_command_is_about_the_tenants_own_session(opened: Opening) -> None:
    client = opened(HERMES_GATEWAY_CHATS=f"{ACCOUNT}/*=acme", TELEGRAM_ALLOWED_USERS__OPS="42")
    assert says(client, "begin") == "run"
    assert says(client, "/status") == "command"
    assert "is at work" in bodies(client)[-1]
    assert says(client, "/usage") == "command"
    assert "tokens in" in bodies(client)[-1]
    assert says(client, "/stop") == "command"
    assert rows_of(client, runs.c.status)[0][0] in ("cancelled", "stopping")


def test_profiles_part_the_sessions_of_one_tenant(opened: Opening) -> None:
    client = opened(
        HERMES_GATEWAY_CHATS=f"{ACCOUNT}/42=default/red", TELEGRAM_ALLOWED_USERS__OPS="42", TELEGRAM_GUESTS__OPS="*"
    )
    says(client, "a")
    assert rows_of(client, sessions.c.name) == [("agent:red:telegram@ops:dm:42",)]


def test_a_tenant_sends_to_its_own_chats_and_to_no_others(opened: Opening) -> None:
    rules = opened(HERMES_GATEWAY_CHATS=f"{ACCOUNT}/42=acme,telegram:default/43=globex").settings.gateway.rules
    require_open_to("acme", parse_targets("telegram@ops:42"), rules)
    require_open_to("globex", parse_targets("telegram:43:7"), rules)
    for target in ("telegram:42", "telegram@ops:43", "telegram:43", "telegram", "telegram@ops:#ops", "all"):
        with pytest.raises(TargetError):
            require_open_to("acme", parse_targets(target), rules)


def test_groups_that_are_named_are_open_to_their_members(opened: Opening) -> None:
    client = opened(TELEGRAM_GROUP_ALLOWED_CHATS__OPS="-100,42")
    assert says(client, "in it", chat="-100") == "run"
    assert says(client, "elsewhere", chat="-101") == "stranger"
    assert says(client, "directly") == "paired", "a list of groups is none of people"


def test_an_account_that_cannot_be_listened_to_is_a_sentence(opened: Opening) -> None:
    client = opened(TELEGRAM_BOT_TOKEN__OPS="", TELEGRAM_BOT_TOKEN=TOKEN)
    with pytest.raises(ConfigurationError, match="TELEGRAM_BOT_TOKEN__OPS"):
        list_listened_accounts(client.settings)


def test_the_token_of_an_account_is_a_secret_of_the_roles_that_need_it(opened: Opening) -> None:
    token = "77:a-token-that-is-long-enough"
    settings = opened(TELEGRAM_BOT_TOKEN__OPS=token).settings
    assert token in {secret.reveal() for secret in settings.secrets}
    assert token in build_dispatcher(settings).secrets
    for role, gets in ((ProcessRole.GATEWAY, True), (ProcessRole.DELIVERY, True), (ProcessRole.TOOLS, False)):
        environ, handed = build_handover(settings, role)
        assert "TELEGRAM_BOT_TOKEN__OPS" not in environ
        assert ("TELEGRAM_BOT_TOKEN__OPS" in handed.variables) is gets
