"""The role that listens to people is started on purpose, and says who may speak."""

from __future__ import annotations

import os
import socket
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.migrated import bring_up
from support.telegram_server import TOKEN as OPS_TOKEN
from support.telegram_server import TelegramServer

from hermes_worker import settings as settings_module
from hermes_worker.cli.entry import main
from hermes_worker.cli.stack import _has_accounts
from hermes_worker.core.chat_commands import ChatRole
from hermes_worker.gateway.listening import list_listened_accounts
from hermes_worker.metrics import serving
from hermes_worker.observe import count, reset_counters
from hermes_worker.store.access.audit import Act, AuditLog
from hermes_worker.store.build import build_database
from hermes_worker.store.gateway import GatewayRows

TOKEN = {"TELEGRAM_BOT_TOKEN": "77:abc"}
ACCOUNT = "telegram:default"


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatewayRows:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    monkeypatch.setenv("HERMES_DATABASE_URL", url := f"sqlite:///{tmp_path / 'test.db'}")
    bring_up(url)
    found = GatewayRows(
        build_database(settings_module.load_settings({"HERMES_DATABASE_URL": url, "HERMES_HOME": str(tmp_path)}))
    )
    found.acquire_lease(ACCOUNT, mode="poll", token_hash="t", holder="host:1", lease_s=60)
    return found


@pytest.mark.parametrize(
    ("environ", "listens"),
    [
        (TOKEN, False),
        ({"HERMES_GATEWAY": "true"}, False),
        (TOKEN | {"HERMES_GATEWAY": "false"}, False),
        (TOKEN | {"HERMES_GATEWAY": "true"}, True),
    ],
)
def test_a_token_alone_begins_no_listening(environ: dict[str, str], listens: bool, tmp_path: Path) -> None:
    settings = settings_module.load_settings({"HERMES_HOME": str(tmp_path), **environ})
    assert _has_accounts(settings) is listens
    assert bool(list_listened_accounts(settings)) is listens


def test_the_role_refuses_to_start_where_nobody_is_to_be_listened_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    monkeypatch.setenv("TELEGRAM_BOT_TOKEN", "77:abc")
    assert call("start", "gateway") != 0
    assert "HERMES_GATEWAY=true" in capsys.readouterr().err


def test_status_names_the_holder_and_whoever_was_paired_is_revoked(
    rows: GatewayRows, capsys: pytest.CaptureFixture[str]
) -> None:
    with rows.database.write() as connection:
        code = rows.create_code(connection, ACCOUNT, "42")
    assert code is not None
    assert call("gateway", "pair", "telegram", "WRONGONE") != 0
    assert "no open request" in capsys.readouterr().err
    assert call("gateway", "pair", "telegram", code, "--role", "member") == 0
    assert [(one.person, one.role) for one in rows.list_people(ACCOUNT)] == [("42", ChatRole.MEMBER)]
    assert call("gateway", "status") == 0
    assert "host:1" in capsys.readouterr().out
    assert call("gateway", "revoke", "telegram", "42") == 0
    assert rows.list_people(ACCOUNT) == []
    assert call("gateway", "revoke", "telegram", "42") != 0
    deeds = [(row.act, row.subject) for row in AuditLog(rows.database).list_actions("default", limit=50)]
    assert deeds == [(Act.CHAT_PAIR, ACCOUNT), (Act.CHAT_REVOKE, ACCOUNT)], "each that changed something, once"


def test_an_account_is_free_as_soon_as_its_gateway_is_known_to_have_ended(rows: GatewayRows) -> None:
    rows.release_leases_of("host:2")
    assert rows.acquire_lease(ACCOUNT, mode="poll", token_hash="t", holder="host:2", lease_s=60) is None
    rows.release_leases_of("host:1")
    assert rows.acquire_lease(ACCOUNT, mode="poll", token_hash="t", holder="host:2", lease_s=60) is not None


def test_accounts_are_listed_with_whose_their_chats_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    assert call("gateway", "accounts") == 0
    assert "no account" in capsys.readouterr().out
    monkeypatch.setenv("TELEGRAM_BOT_TOKEN__OPS", OPS_TOKEN)
    monkeypatch.setenv("SLACK_SIGNING_SECRET", "secret")
    monkeypatch.setenv("HERMES_GATEWAY_ACCOUNTS", "telegram:ops")
    monkeypatch.setenv("HERMES_GATEWAY_CHATS", "telegram:ops/*=acme")
    assert call("gateway", "accounts") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [
        ["slack:default", "webhook", "default", "-"],
        ["telegram:ops", "poll", "acme", "telegram:ops/*=acme"],
    ]
    monkeypatch.delenv("TELEGRAM_BOT_TOKEN__OPS")
    assert call("gateway", "accounts") != 0
    assert "TELEGRAM_BOT_TOKEN__OPS" in capsys.readouterr().err


def test_who_may_use_a_command_is_shown_for_an_account_and_a_chat(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    rules = "undo=member,telegram:default/*/undo=owner,telegram:default/-100/undo=nobody,telegram:default/@42/undo=yes"
    monkeypatch.setenv("HERMES_GATEWAY_COMMANDS", rules)

    def shown(*words: str) -> list[str]:
        assert call("gateway", "commands", *words) == 0
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        return next(line[1:] for line in lines if line[0] == "/undo")

    assert shown() == ["member", "-"]
    assert shown("telegram") == ["owner", "42=yes"]
    assert shown("telegram", "--chat=-100") == ["nobody", "42=yes"]
    assert shown("telegram:ops") == ["member", "-"]
    assert call("gateway", "commands", "--chat=-100") != 0
    monkeypatch.setenv("HERMES_GATEWAY_COMMANDS", "telegram:default/-100/jobs=guest")
    assert call("gateway", "commands") != 0


def test_a_platform_is_asked_whose_credentials_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    monkeypatch.setenv("SLACK_SIGNING_SECRET", "secret")
    monkeypatch.setenv("HERMES_GATEWAY_ACCOUNTS", "telegram:ops")
    monkeypatch.setenv("TELEGRAM_BOT_TOKEN__OPS", OPS_TOKEN)
    with TelegramServer() as telegram:
        monkeypatch.setenv("TELEGRAM_BASE_URL", telegram.url)
        assert call("gateway", "test", "telegram:ops") == 0
        assert "telegram:ops (poll): it is @ops_bot (77)" in capsys.readouterr().out
        assert telegram.looks == 0
        monkeypatch.setenv("TELEGRAM_BOT_TOKEN__OPS", "78:other")
        assert call("gateway", "test", "telegram:ops") != 0
        assert "telegram:ops: " in capsys.readouterr().err
    assert call("gateway", "test", "slack") == 0
    assert "cannot be asked" in capsys.readouterr().out
    assert call("gateway", "test", "matrix") != 0


def test_who_asks_is_listed_until_their_codes_are_taken_back(
    rows: GatewayRows, capsys: pytest.CaptureFixture[str]
) -> None:
    acme = GatewayRows(rows.database, "acme")
    with rows.database.write() as connection:
        mine = rows.create_code(connection, ACCOUNT, "42")
        assert acme.create_code(connection, ACCOUNT, "42") is not None
    assert mine is not None
    rows.pair(ACCOUNT, mine, ChatRole.MEMBER)
    assert call("gateway", "people", "telegram") == 0
    lines = [line.split()[:4] for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == [[ACCOUNT, "acme", "42", "asks"], [ACCOUNT, "default", "42", "member"]]
    assert call("gateway", "clear-pending", "telegram") == 0
    assert "taken back: 1" in capsys.readouterr().out
    assert [(one.tenant, one.role) for one in rows.list_people()] == [("default", ChatRole.MEMBER)]
    assert call("gateway", "clear-pending", "telegram") == 0
    assert call("gateway", "people", "telegram:ops") == 0
    assert "Nobody" in capsys.readouterr().out
    forgotten = [
        row.subject for row in AuditLog(rows.database).list_actions("default", limit=50) if row.act == Act.CHAT_FORGET
    ]
    assert forgotten == [ACCOUNT]


def test_a_gateway_serves_what_it_counted(rows: GatewayRows, monkeypatch: pytest.MonkeyPatch, broker_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    wanted = {"HERMES_GATEWAY": "true", "HERMES_METRICS_PORT": str(port), "HERMES_BROKER_URL": broker_url, **TOKEN}
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(serving, "_served_by", None)
    reset_counters()
    read: list[str] = []

    def begin(home: Path | None, role: Any, name: str | None, runner_of: Callable[..., Any], *_: Any) -> int:
        with ExitStack() as stack:
            runner_of(settings_module.load_settings(dict(os.environ)), "gw", stack)
            count("inbound.taken", 3)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                read.append(answer.read().decode())
        return 0

    monkeypatch.setattr("hermes_worker.cli.gateway.run_role", begin)
    assert call("start", "gateway") == 0
    (text,) = read
    assert 'hermes_process_events_total{event="inbound.taken",kind=""} 3.0' in text
    assert 'role="gateway"' in text
    reset_counters()
