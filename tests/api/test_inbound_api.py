"""POST /inbound/{platform}: what platforms bring, to several servers at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from serving import Served
from support.inbound_cases import telegram_update

from hermes_worker.channels.inbound.receiving import WEBHOOK_BYTES_MAX
from hermes_worker.settings import GatewaySettings, Settings
from hermes_worker.store.tables import channels, deliveries, inbound, runs

SECRET = "s3cret_of-webhook"
PROOF = {"x-telegram-bot-api-secret-token": SECRET}
PATH = "/inbound/telegram"


@pytest.fixture
def listened(settings: Settings) -> Settings:
    return replace(
        settings,
        gateway=GatewaySettings(is_enabled=True, allowed_users=("4242",)),
        variables={"TELEGRAM_WEBHOOK_SECRET": SECRET},
    )


def rows(api: Served, column: Any) -> list[Any]:
    with api.client.database.read() as connection:
        return list(connection.execute(sa.select(column)).scalars())


def test_one_event_that_comes_to_several_servers_at_once_begins_one_run(
    serve: Callable[..., Served], listened: Settings
) -> None:
    servers = [serve(listened) for _ in range(4)]

    def bring(number: int) -> httpx.Response:
        url = servers[number % len(servers)].url
        return httpx.post(f"{url}{PATH}", json=telegram_update(7, "hello"), headers=PROOF, timeout=60)

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(bring, range(5)))
    assert [(answer.status_code, answer.json()) for answer in answers] == [(200, {"status": "ok"})] * 5
    [run_id] = rows(servers[0], runs.c.run_id)
    assert rows(servers[0], inbound.c.run_id) == [run_id]
    assert rows(servers[0], runs.c.deliver) == ['["telegram:4242"]']
    assert rows(servers[0], channels.c.mode) == ["webhook"]


def test_a_stranger_is_given_a_code_by_a_webhook_too(serve: Callable[..., Served], listened: Settings) -> None:
    api = serve(listened)
    stranger = {"from": {"id": 7, "is_bot": False, "first_name": "Eve"}, "chat": {"id": 7, "type": "private"}}
    for number in (1, 2):
        asked = httpx.post(f"{api.url}{PATH}", json=telegram_update(number, "hi", **stranger), headers=PROOF)
        assert asked.status_code == 200
    [said] = rows(api, deliveries.c.body)
    assert "Your code is" in said
    assert rows(api, runs.c.pk) == []


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, b"not JSON", 401),
        ({"x-telegram-bot-api-secret-token": f"{SECRET}x"}, b"not JSON", 401),
        ({"x-telegram-bot-api-secret-token": SECRET[:-1]}, b"{}", 401),
        (PROOF, b"not JSON", 400),
        (PROOF, b"[]", 400),
        (PROOF, b"{}", 200),
        (PROOF, b'{"update_id": 1, "text": "' + b"x" * WEBHOOK_BYTES_MAX + b'"}', 413),
    ],
)
def test_what_does_not_prove_itself_is_refused_before_it_is_read(
    headers: dict[str, str], body: bytes, status: int, serve: Callable[..., Served], listened: Settings
) -> None:
    api = serve(listened)
    given = {"content-type": "application/json", **headers}
    assert httpx.post(f"{api.url}{PATH}", content=body, headers=given).status_code == status
    assert rows(api, inbound.c.pk) == []


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"gateway": GatewaySettings()}, PATH),
        ({"variables": {}}, PATH),
        ({"variables": {"TELEGRAM_BOT_TOKEN": "77:abc"}}, PATH),
        ({}, "/inbound/nowhere"),
    ],
)
def test_where_nobody_listens_there_is_nothing(
    changed: dict[str, Any], path: str, serve: Callable[..., Served], listened: Settings
) -> None:
    api = serve(replace(listened, **changed))
    answer = httpx.post(f"{api.url}{path}", json=telegram_update(7, "hello"), headers=PROOF)
    assert (answer.status_code, answer.json()) == (404, {"error": "Unknown platform"})
