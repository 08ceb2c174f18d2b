"""POST /inbound/{platform}: what platforms bring, to several servers at once."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random
from typing import Any, NoReturn

import httpx
import pytest
import sqlalchemy as sa
from serving import Served, served
from support import api_replica
from support.inbound_cases import telegram_update
from support.migrated import bring_up
from support.patience import PATIENCE_S

from hermes_worker.channels.inbound.receiving import WEBHOOK_BYTES_MAX
from hermes_worker.core.errors import UnavailableError
from hermes_worker.gateway import inbound as inbound_module
from hermes_worker.settings import GatewaySettings, Settings, load_settings
from hermes_worker.store.gateway import GatewayRows
from hermes_worker.store.tables import channels, deliveries, inbound, runs

SECRET = "s3cret_of-webhook"
HEADER = "x-telegram-bot-api-secret-token"
PROOF = {HEADER: SECRET}
PATH = "/inbound/telegram"
GENUINE = telegram_update(7, "hello")


@pytest.fixture
def environ(settings: Settings) -> dict[str, str]:
    """What a replica of the API is started with."""
    return {
        "HOME": str(settings.home),
        "HERMES_HOME": str(settings.home),
        "HERMES_DATABASE_URL": settings.database_url,
        "HERMES_BROKER_URL": str(settings.broker.url),
        "HERMES_PROVIDER": "scripted",
        "HERMES_SERVER_PORT": "0",
        "HERMES_GATEWAY": "true",
        "GATEWAY_ALLOWED_USERS": "4242",
        "TELEGRAM_WEBHOOK_SECRET": SECRET,
    }


@pytest.fixture
def listened(environ: dict[str, str]) -> Settings:
    return load_settings(environ)


def rows(api: Served, column: Any) -> list[Any]:
    with api.client.database.read() as connection:
        return list(connection.execute(sa.select(column)).scalars())


def bring(url: str, update: dict[str, Any] = GENUINE) -> httpx.Response:
    return httpx.post(f"{url}{PATH}", json=update, headers=PROOF, timeout=PATIENCE_S)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_one_event_that_comes_to_several_servers_at_once_begins_one_run(
    kind: str, environ: dict[str, str], request: pytest.FixtureRequest
) -> None:
    if kind == "postgresql":
        environ["HERMES_DATABASE_URL"] = request.getfixturevalue("postgres_url")
        bring_up(environ["HERMES_DATABASE_URL"])
    with ExitStack() as stack:
        servers = [stack.enter_context(served(load_settings(environ))) for _ in range(4)]
        with ThreadPoolExecutor(5) as pool:
            answers = list(pool.map(lambda number: bring(servers[number % 4].url), range(5)))
        assert [(answer.status_code, answer.json()) for answer in answers] == [(200, {"status": "ok"})] * 5
        [run_id] = rows(servers[0], runs.c.run_id)
        assert rows(servers[0], inbound.c.run_id) == [run_id]
        assert rows(servers[0], runs.c.deliver) == ['["telegram:4242"]']
        assert rows(servers[0], channels.c.mode) == ["webhook"]


def test_an_account_with_a_name_has_an_address_and_a_secret_of_its_own(
    serve: Callable[..., Served], environ: dict[str, str]
) -> None:
    named = {"HERMES_GATEWAY_ACCOUNTS": "telegram:ops", "TELEGRAM_WEBHOOK_SECRET__OPS": "another_secret"}
    api = serve(load_settings(environ | named | {"TELEGRAM_ALLOWED_USERS__OPS": "4242"}))

    def status(path: str, secret: str) -> int:
        return httpx.post(f"{api.url}{path}", json=GENUINE, headers={HEADER: secret}, timeout=PATIENCE_S).status_code

    assert status("/inbound/telegram@ops", SECRET) == 401
    assert status(PATH, "another_secret") == 401
    assert status("/inbound/telegram@sales", SECRET) == 404
    assert status("/inbound/telegram@", SECRET) == 404
    assert status("/inbound/telegram@ops", "another_secret") == 200
    assert rows(api, inbound.c.account) == ["telegram:ops"]
    assert rows(api, runs.c.deliver) == ['["telegram@ops:4242"]']


def test_a_server_that_is_killed_between_commit_and_answer_leaves_nothing_to_do_again(
    environ: dict[str, str], serve: Callable[..., Served], listened: Settings
) -> None:
    process, url = api_replica.start(environ, plan="submit.after_commit=kill")
    with pytest.raises(httpx.TransportError):
        bring(url)
    process.join(PATIENCE_S)
    assert process.exitcode == -9
    api = serve(listened)
    [run_id] = rows(api, runs.c.run_id)
    assert bring(api.url).status_code == 200
    assert rows(api, runs.c.run_id) == rows(api, inbound.c.run_id) == [run_id]


def test_nothing_is_confirmed_that_could_not_be_written(
    serve: Callable[..., Served], listened: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away(*_: object) -> NoReturn:
        raise UnavailableError("the database went away")

    api = serve(listened)
    with monkeypatch.context() as broken:
        broken.setattr(GatewayRows, "insert_event", is_away)
        assert bring(api.url).status_code == 503
    assert rows(api, runs.c.pk) == rows(api, inbound.c.pk) == []
    assert bring(api.url).status_code == 200
    assert rows(api, inbound.c.outcome) == ["run"]


def test_an_event_that_breaks_our_code_is_left_behind_at_the_third_try_on_any_server(
    serve: Callable[..., Served], listened: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> NoReturn:
        raise RuntimeError("a defect of ours")

    monkeypatch.setattr(inbound_module, "decide", breaks)
    servers = [serve(listened), serve(listened)]
    tried = [bring(servers[number % 2].url).status_code for number in range(4)]
    assert tried == [500, 500, 200, 200]
    assert rows(servers[0], inbound.c.outcome) == ["given_up"]
    monkeypatch.undo()
    assert bring(servers[0].url, telegram_update(8, "still there?")).status_code == 200
    assert rows(servers[0], inbound.c.outcome) == ["given_up", "run"]


def test_an_event_that_broke_our_code_once_is_taken_at_the_second_try(
    serve: Callable[..., Served], listened: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> NoReturn:
        raise RuntimeError("a defect of ours")

    api = serve(listened)
    with monkeypatch.context() as broken:
        broken.setattr(inbound_module, "decide", breaks)
        assert bring(api.url).status_code == 500
    assert (rows(api, inbound.c.outcome), rows(api, inbound.c.tries)) == (["broken"], [1])
    assert [bring(api.url).status_code for _ in range(2)] == [200, 200]
    assert rows(api, runs.c.run_id) == rows(api, inbound.c.run_id) != []
    assert rows(api, inbound.c.outcome) == ["run"]


def test_a_stranger_is_given_a_code_by_a_webhook_too(serve: Callable[..., Served], listened: Settings) -> None:
    api = serve(listened)
    stranger = {"from": {"id": 7, "is_bot": False, "first_name": "Eve"}, "chat": {"id": 7, "type": "private"}}
    for number in (1, 2):
        assert bring(api.url, telegram_update(number, "hi", **stranger)).status_code == 200
    [said] = rows(api, deliveries.c.body)
    assert "Your code is" in said
    assert rows(api, runs.c.pk) == []


# --- forged requests -------------------------------------------------------------------------------------------------


def forged_headers(random: Random) -> list[tuple[bytes, bytes]]:
    """The headers of a request that does not prove that Telegram sent it."""
    secret, header = SECRET.encode(), HEADER.encode()
    place = random.randrange(len(secret))
    flipped = bytes([*secret[:place], secret[place] ^ (1 << random.randrange(5)), *secret[place + 1 :]])
    longer = secret + random.choice([b"x", b"\xff", b"=", secret])
    other = bytes(random.choice(b"abcdefghijklmnopqrstuvwxyz0123456789_-") for _ in range(random.choice([1, 17, 256])))
    kinds: list[list[tuple[bytes, bytes]]] = [
        [],
        [(header, b"")],
        [(header, flipped)],
        [(header, longer)],
        [(header, secret[:place])],
        [(header, secret.swapcase())],
        [(header, other)],
        [(header, secret), (header, secret)],
        [(header, secret), (header, other)],
        [(header, other), (header, secret)],
        [(header, secret + b", " + secret)],
        [(header, b'"' + secret + b'"')],
        [(b"x-telegram-bot-api-secret", secret)],
        [(b"x_telegram_bot_api_secret_token", secret)],
        [(b"authorization", b"Bearer " + secret)],
        [(b"cookie", header + b"=" + secret)],
    ]
    return random.choice(kinds)


def test_200_forged_requests_are_refused_before_they_are_parsed_and_leave_no_row(
    serve: Callable[..., Served], listened: Settings
) -> None:
    api, random = serve(listened), Random(21)
    genuine = httpx.Request("POST", "http://h", json=GENUINE).content
    with httpx.Client(base_url=api.url, timeout=PATIENCE_S) as telegram:
        for number in range(200):
            # One that is not JSON would be 400 if it was parsed.
            body = random.choice([genuine, b"not JSON", b"[" * 5_000, b"\xff\x00"])
            query = random.choice(["", f"?{HEADER}={SECRET}", f"?secret_token={SECRET}"])
            headers = [(b"content-type", b"application/json"), *forged_headers(random)]
            answer = telegram.post(f"{PATH}{query}", content=body, headers=headers)
            assert (answer.status_code, answer.json()) == (401, {"error": "Invalid signature"}), (number, headers)
    assert [rows(api, table.c.tenant) for table in (inbound, channels, runs, deliveries)] == [[], [], [], []]
    assert bring(api.url).status_code == 200


# --- what is sent ----------------------------------------------------------------------------------------------------


READ: list[tuple[bytes, int]] = [
    (b"not JSON", 400),
    (b"[]", 400),
    (b"[" * 100_000, 400),
    (b"{}", 200),
    (b'{"update_id": 1, "message": 7}', 200),
    (b'{"update_id": 1, "text": "' + b"x" * WEBHOOK_BYTES_MAX + b'"}', 413),
]


def test_what_cannot_be_read_is_said_so_and_leaves_no_row(serve: Callable[..., Served], listened: Settings) -> None:
    api = serve(listened)
    given = {"content-type": "application/json", **PROOF}
    for body, status in READ:
        answer = httpx.post(f"{api.url}{PATH}", content=body, headers=given, timeout=PATIENCE_S)
        assert answer.status_code == status, body[:40]
    assert rows(api, inbound.c.pk) == []


@contextmanager
def sending(api: Served, header: str) -> Iterator[socket.socket]:
    """A connection on which the head of a request was sent."""
    url = httpx.URL(api.url)
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: h\r\n{HEADER}: {SECRET}\r\ncontent-type: application/json\r\n{header}\r\n\r\n"
    )
    with socket.create_connection((url.host, url.port), timeout=60) as connection:
        connection.sendall(head.encode())
        yield connection


def test_a_body_is_refused_at_the_byte_that_is_one_too_many_or_by_its_length(
    serve: Callable[..., Served], listened: Settings
) -> None:
    api = serve(listened)
    with sending(api, "transfer-encoding: chunked") as connection:
        for _ in range(WEBHOOK_BYTES_MAX // 65_536):
            connection.sendall(b"10000\r\n" + b" " * 65_536 + b"\r\n")
        connection.sendall(b"1\r\n \r\n")
        assert connection.recv(12) == b"HTTP/1.1 413"
    for length, status in ((WEBHOOK_BYTES_MAX + 1, 413), (10**9, 413), (-1, 400)):
        with sending(api, f"content-length: {length}") as connection:
            assert connection.recv(12) == f"HTTP/1.1 {status}".encode()
    assert rows(api, inbound.c.pk) == []


@pytest.mark.parametrize(
    "changed", [{"gateway": GatewaySettings()}, {"environ": {"TELEGRAM_BOT_TOKEN": "77:abc"}}], ids=["off", "polled"]
)
def test_where_nobody_listens_there_is_nothing(
    changed: dict[str, Any], serve: Callable[..., Served], listened: Settings
) -> None:
    api = serve(replace(listened, **changed))
    for path in (PATH, "/inbound/nowhere"):
        answer = httpx.post(f"{api.url}{path}", json=GENUINE, headers=PROOF, timeout=PATIENCE_S)
        assert (answer.status_code, answer.json()) == (404, {"error": "Unknown platform"})
