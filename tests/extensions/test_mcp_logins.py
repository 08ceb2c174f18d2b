"""Signing in at an MCP server: what is believed of it, what is kept, and who renews its tokens."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from support.migrated import bring_up
from support.patience import PATIENCE_S
from support.sign_in_server import SignInServer, approve

from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.cli.entry import main
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.mcp.logins import LoginBearers, parse_login, render_login
from hermes_worker.mcp.oauth import SignInRequest, list_issuer_addresses, list_resource_addresses, parse_challenge
from hermes_worker.mcp.protocol import McpError
from hermes_worker.mcp.servers import McpServer
from hermes_worker.mcp.sign_in import SignInClient, SignInResult, sign_in
from hermes_worker.mcp.source import McpSource
from hermes_worker.models.build import build_grants_at
from hermes_worker.settings import load_settings
from hermes_worker.settings.dotenv import write_secret
from hermes_worker.store.engine.database import Database

OWN = SignInClient(redirect_url="http://127.0.0.1:9/callback")


@pytest.fixture
def desk() -> Iterator[SignInServer]:
    with SignInServer() as serving:
        yield serving


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path / 'test.db'}"
    bring_up(url)
    opened = Database(url)
    yield opened
    opened.close()


def signed(desk: SignInServer) -> SignInResult:
    return sign_in(desk.url, OWN, lambda asked: approve(asked.address))


def source_of(desk: SignInServer, done: SignInResult, database: Database) -> McpSource:
    found = parse_login("desk", render_login(done) or "")
    bearers = LoginBearers("desk", found, partial(build_grants_at, database))
    return McpSource("desk", McpServer(url=desk.url, timeout_s=20, tools={"sell": "x"}), None, logins=bearers)


def test_a_person_approves_and_the_code_is_exchanged(desk: SignInServer) -> None:
    seen: list[SignInRequest] = []

    def person(asked: SignInRequest) -> str:
        seen.append(asked)
        return approve(asked.address)

    done = sign_in(desk.url, OWN, person)
    assert done.granted.access_token in desk.access
    assert seen[0].scope == "sell offline_access", "what the refusal names, and to be renewed"
    assert seen[0].client.client_id == "client-1"
    assert desk.asked[0]["resource"] == desk.url
    assert done.policy.allows_private, "the server is on this machine"
    kept = json.loads(render_login(done) or "")
    assert kept["refresh_token"] in desk.refresh
    assert done.granted.access_token not in kept.values()


LIES: list[tuple[str, Mapping[str, Any], Mapping[str, Any], str]] = [
    ("another resource", {"resource": "https://bank.example/mcp"}, {}, "about another address"),
    ("a path beside it", {"resource": "{origin}/mcp-other"}, {}, "about another address"),
    ("a longer path", {"resource": "{origin}/mcp/inner"}, {}, "about another address"),
    ("no resource", {"resource": 7}, {}, "about another address"),
    ("no issuer", {"authorization_servers": []}, {}, "names no authorization server"),
    ("issuers as text", {"authorization_servers": "{origin}"}, {}, "names no authorization server"),
    ("metadata service", {"authorization_servers": ["http://169.254.169.254"]}, {}, "cannot be used"),
    ("no web address", {"authorization_servers": ["file:///etc/passwd"]}, {}, "cannot be used"),
    ("no address", {"authorization_servers": ["http://[::1"]}, {}, "names no authorization server"),
    ("another issuer", {}, {"issuer": "https://bank.example"}, "answers as somebody else"),
    ("no PKCE", {}, {"code_challenge_methods_supported": None}, "PKCE"),
    ("plain PKCE", {}, {"code_challenge_methods_supported": ["plain"]}, "PKCE"),
    ("token endpoint", {}, {"token_endpoint": "file:///etc/passwd"}, "token_endpoint is no address"),
    ("spaces", {}, {"token_endpoint": "http://a b/"}, "token_endpoint is no address"),
    ("password", {}, {"authorization_endpoint": "http://u:p@h/"}, "authorization_endpoint is no address"),
    ("script", {}, {"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint is no address"),
    ("nothing", {}, {"authorization_endpoint": None}, "authorization_endpoint is no address"),
    ("metadata tokens", {}, {"token_endpoint": "http://169.254.169.254/token"}, "cannot be used"),
    ("closed port", {}, {"token_endpoint": "http://127.0.0.1:9999/token"}, "no connection"),
    ("no registration", {}, {"registration_endpoint": None}, "registers nobody"),
    ("a registration that refuses", {}, {"registration_endpoint": "{origin}/mcp"}, "did not register us"),
]


@pytest.mark.parametrize(("resource", "issuer", "said"), [row[1:] for row in LIES], ids=[row[0] for row in LIES])
def test_a_server_that_lies_gets_no_code(
    desk: SignInServer, resource: Mapping[str, Any], issuer: Mapping[str, Any], said: str
) -> None:
    def at_home(changes: Mapping[str, Any]) -> dict[str, Any]:
        return json.loads(json.dumps(changes).replace("{origin}", desk.origin))

    desk.resource |= at_home(resource)
    desk.issuer |= at_home(issuer)
    with pytest.raises(McpError) as refused:
        signed(desk)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 600
    assert desk.access == set()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("state", "other"), "does not belong"),
        (("state", ""), "does not belong"),
        (("iss", "https://bank.example"), "another authorization server"),
        (("iss", ""), "another authorization server"),
        (("code", ""), "no code"),
        (("code", "x" * 3_000), "no code"),
        (("code", "code-9"), "invalid_grant"),
        (("error", "access_denied"), "access_denied"),
    ],
)
def test_an_answer_that_is_not_ours_is_refused(desk: SignInServer, change: tuple[str, str], said: str) -> None:
    name, value = change

    def changed(asked: SignInRequest) -> str:
        where, _, query = approve(asked.address).partition("?")
        said = dict(pair.split("=", 1) for pair in query.split("&")) | {name: value}
        return f"{where}?{'&'.join(f'{key}={text}' for key, text in said.items() if text)}"

    with pytest.raises(McpError, match=said):
        sign_in(desk.url, OWN, changed)
    assert desk.access == set()


def test_tokens_are_renewed_once_for_all_workers(desk: SignInServer, database: Database, context: ToolContext) -> None:
    done = signed(desk)
    workers = [source_of(desk, done, database) for _ in range(4)]
    results: list[str] = []
    calls = [
        threading.Thread(target=lambda one=one: results.append(one.call("mcp_desk_sell", {}, context).text))
        for one in workers
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join(PATIENCE_S)
    assert results == ["x"] * 4
    assert [said["grant_type"] for said in desk.asked] == ["authorization_code", "refresh_token"]


def test_a_refused_token_is_renewed_and_the_call_made_once(
    desk: SignInServer, database: Database, context: ToolContext
) -> None:
    source = source_of(desk, signed(desk), database)
    assert source.call("mcp_desk_sell", {}, context).text == "x"
    desk.access = set()
    assert source.call("mcp_desk_sell", {}, context).text == "x"
    assert desk.calls.count("tools/call") == 2
    desk.access = desk.refresh = set()
    dead = source.call("mcp_desk_sell", {}, context)
    assert dead.is_error
    assert not dead.is_unknown, "the server did nothing"
    assert "hermes-worker mcp login desk" in dead.text
    asked = len(desk.asked)
    assert "hermes-worker mcp login desk" in source.call("mcp_desk_sell", {}, context).text
    assert len(desk.asked) == asked, "a dead login is not tried again"


def test_a_login_that_may_too_little_is_widened_by_the_person(
    desk: SignInServer, database: Database, context: ToolContext
) -> None:
    desk.needs = "refund"
    source = source_of(desk, signed(desk), database)
    refused = source.call("mcp_desk_sell", {}, context)
    assert refused.is_error and not refused.is_unknown
    assert refused.text.count("hermes-worker mcp login desk --scope refund") == 1
    assert [said["grant_type"] for said in desk.asked] == ["authorization_code", "refresh_token"], "no use to renew it"
    asked: list[SignInRequest] = []

    def person(one: SignInRequest) -> str:
        asked.append(one)
        return approve(one.address)

    wider = sign_in(desk.url, replace(OWN, scopes="refund sell"), person)
    assert asked[0].scope == "sell refund offline_access"
    assert source_of(desk, wider, database).call("mcp_desk_sell", {}, context).text == "x"


@pytest.mark.parametrize("says", [{"code_challenge_methods_supported": None}, None], ids=["document", "none"])
def test_a_server_of_the_first_revision_with_logins_is_its_own_authorization_server(
    desk: SignInServer, says: Mapping[str, Any] | None
) -> None:
    """Revision 2025-03-26: no document names it, and its own need not speak of PKCE, or is not there."""
    desk.resource = {}
    desk.issuer = {} if says is None else {name: said for name, said in desk.issuer.items() if name not in says}
    assert signed(desk).granted.access_token in desk.access
    assert desk.asked[0]["code_verifier"], "it is used all the same"


@pytest.mark.parametrize("issuer", ["https://bank.example", "http://127.0.0.1:1", ""])
def test_an_old_server_names_nobody_else(desk: SignInServer, issuer: str) -> None:
    desk.resource = {}
    desk.issuer |= {"issuer": issuer}
    with pytest.raises(McpError, match="answers as somebody else"):
        signed(desk)


def test_stored_tokens_cannot_be_read(desk: SignInServer, database: Database, context: ToolContext) -> None:
    source = source_of(desk, signed(desk), database)
    source.call("mcp_desk_sell", {}, context)
    [path] = [Path(each[2]) for each in database_files(database)]
    stored = b"".join(each.read_bytes() for each in path.parent.glob(f"{path.name}*"))
    assert all(token.encode() not in stored for token in (*desk.access, *desk.refresh))


def database_files(database: Database) -> list[tuple[Any, ...]]:
    import sqlalchemy as sa

    with database.read() as connection:
        return [tuple(row) for row in connection.execute(sa.text("PRAGMA database_list"))]


def test_a_server_is_added_with_a_login(
    desk: SignInServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / ".env").write_text("HERMES_PROVIDER=scripted\nHERMES_MCP_SHOP_CREDENTIALS='{}'\n")
    monkeypatch.setenv("HERMES_HOME", str(home))

    def person() -> None:
        address = ""
        until = time.monotonic() + PATIENCE_S
        while not address and time.monotonic() < until:
            address = next((line for line in shown if line.startswith(desk.origin)), "")
            time.sleep(0.02)
        back = approve(address)
        urllib.request.urlopen(back.replace("state=", "state=wrong"), timeout=10).read()
        urllib.request.urlopen(back, timeout=10).read()

    shown: list[str] = []
    echo = click.echo
    monkeypatch.setattr("hermes_worker.cli.mcp_logins.click.echo", lambda text="", **_: shown.append(str(text).strip()))
    browser = threading.Thread(target=person)
    browser.start()
    with pytest.raises(SystemExit) as ended:
        main(("mcp", "add", "shop", desk.url, "--login", "--yes"))
    browser.join(PATIENCE_S)
    monkeypatch.setattr("hermes_worker.cli.mcp_logins.click.echo", echo)
    assert ended.value.code == 0, capsys.readouterr().err
    assert (home / ".env").stat().st_mode & 0o777 == 0o600
    settings = load_settings({}, home=home)
    assert settings.environ["HERMES_PROVIDER"] == "scripted", "other lines stay"
    kept = parse_login("shop", settings.environ["HERMES_MCP_SHOP_CREDENTIALS"])
    assert kept.refresh_token in desk.refresh
    assert all(token not in (home / "mcp.json").read_text() for token in (*desk.access, *desk.refresh))
    with pytest.raises(SystemExit):
        main(("mcp", "list"))
    assert "login" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(("mcp", "test", "shop"))
    assert ended.value.code != 0
    assert "no" in capsys.readouterr().err, "there is no database yet"


def test_a_server_that_gives_nothing_to_renew_leaves_a_token(tmp_path: Path) -> None:
    with SignInServer(gives_refresh=False) as desk:
        assert render_login(signed(desk)) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"token_url": "file:///x", "refresh_token": "s3cret"}', "s3cret"])
def test_a_login_that_cannot_be_used_is_one_sentence_without_it(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_login("desk", text)
    assert "hermes-worker mcp login desk" in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_secret_that_would_end_its_line_is_not_written(tmp_path: Path) -> None:
    for value in ("a\nHERMES_SERVER_KEY=mine", "a'b", "\x1b[2J"):
        with pytest.raises(ConfigurationError):
            write_secret(tmp_path, "HERMES_MCP_X_TOKEN", value)
    assert not (tmp_path / ".env").exists()


def test_documents_are_looked_for_where_the_standards_say() -> None:
    none = parse_challenge("Basic realm=x")
    assert list(list_resource_addresses("https://h/a/mcp", none)) == [
        "https://h/.well-known/oauth-protected-resource/a/mcp",
        "https://h/.well-known/oauth-protected-resource",
    ]
    said = parse_challenge('Bearer error="x", resource_metadata="https://h/m", scope="a b"')
    assert list(list_resource_addresses("https://h/mcp", said)) == ["https://h/m"]
    assert said.scope == "a b"
    assert parse_challenge('Bearer scope="a\tb"').scope is None
    assert list(list_issuer_addresses("https://h/t")) == [
        "https://h/.well-known/oauth-authorization-server/t",
        "https://h/.well-known/openid-configuration/t",
        "https://h/t/.well-known/openid-configuration",
    ]
