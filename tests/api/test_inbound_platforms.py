"""POST /inbound/{platform} for all platforms that sign what they send: genuine and forged requests, and handshakes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import sqlalchemy as sa
from serving import Served
from support.forging import forgeries
from support.inbound_cases import (
    CASES,
    discord_interaction,
    github_event,
    public_keys,
    slack_event,
    wecom_query,
    wecom_sealed,
    without,
)
from support.patience import PATIENCE_S

from hermes_worker.channels.inbound.receiving import WebhookRequest
from hermes_worker.settings import Settings, load_settings
from hermes_worker.store.tables import channels, deliveries, inbound, runs

SIGNED = {name: case for name, case in CASES.items() if case.sign is not None}


class KeyServer(ThreadingHTTPServer):
    """Where Microsoft and Google publish what they sign tokens with; ``moves`` sends whoever asks somewhere else."""

    moves = False
    asked = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _KeyHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"


class _KeyHandler(BaseHTTPRequestHandler):
    server: KeyServer

    def do_GET(self) -> None:
        self.server.asked += 1
        if self.server.moves and self.path == "/keys":
            self.send_response(302)
            self.send_header("Location", f"{self.server.url}/inward")
            self.end_headers()
            return
        named = {"jwks_uri": f"{self.server.url}/keys"}
        body = json.dumps(named if self.path == "/metadata" else {"keys": list(public_keys().values())}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def keys() -> Iterator[KeyServer]:
    with KeyServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def api(settings: Settings, keys: KeyServer, serve: Callable[..., Served]) -> Served:
    """One server that listens to an account of each platform."""
    environ = {
        "HOME": str(settings.home),
        "HERMES_HOME": str(settings.home),
        "HERMES_DATABASE_URL": settings.database_url,
        "HERMES_BROKER_URL": str(settings.broker.url),
        "HERMES_PROVIDER": "scripted",
        "HERMES_SERVER_PORT": "0",
        "HERMES_GATEWAY": "true",
        "GATEWAY_ALLOWED_USERS": "*",
    }
    for case in SIGNED.values():
        environ |= case.values
    environ |= {"TEAMS_METADATA_URL": f"{keys.url}/metadata", "GOOGLE_CHAT_KEYS_URL": f"{keys.url}/keys"}
    return serve(load_settings(environ))


def bring(http: httpx.Client, name: str, request: WebhookRequest) -> httpx.Response:
    headers = [(key.encode(), value.encode("latin-1")) for key, value in request.headers]
    query = urlsplit(request.url).query
    path = f"/inbound/{name}" + (f"?{query}" if query else "")
    return http.request(request.method, path, content=request.body, headers=headers)


def now_signed(name: str, body: Any) -> WebhookRequest:
    return CASES[name].webhook(body if isinstance(body, bytes) else json.dumps(body).encode(), datetime.now(UTC))


def rows(api: Served, column: Any) -> list[Any]:
    with api.client.database.read() as connection:
        return list(connection.execute(sa.select(column).order_by(column.table.c.pk)).scalars())


def test_a_message_of_each_platform_begins_a_run_that_answers_in_its_chat(api: Served, keys: KeyServer) -> None:
    with httpx.Client(base_url=api.url, timeout=PATIENCE_S) as http:
        for name, case in SIGNED.items():
            for _ in range(2):
                answer = bring(http, name, case.webhook(case.body, datetime.now(UTC)))
                assert answer.status_code == 200, (name, answer.text)
    assert rows(api, runs.c.deliver) == [json.dumps([f"{name}:{case.chat}"]) for name, case in SIGNED.items()]
    assert rows(api, inbound.c.account) == [f"{name}:default" for name in SIGNED]
    assert keys.asked == 3  # once for each platform: metadata and keys, and keys


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_forged_requests_of_each_platform_are_refused_and_leave_no_row(api: Served, count: int) -> None:
    random = Random(21)
    with httpx.Client(base_url=api.url, timeout=PATIENCE_S) as http:
        for name, case in SIGNED.items():
            forged = forgeries(case, lambda: datetime.now(UTC), random, on_the_way_s=90)
            for kind, request in islice(forged, count):
                answer = bring(http, name, request)
                assert (answer.status_code, answer.json()) == (401, {"error": "Invalid signature"}), (name, kind)
    with api.client.database.read() as connection:
        for table in (inbound, channels, runs, deliveries):
            assert connection.execute(sa.select(sa.func.count()).select_from(table)).scalar() == 0


def test_keys_that_are_said_to_be_elsewhere_are_not_taken_from_there(api: Served, keys: KeyServer) -> None:
    keys.moves = True
    with httpx.Client(base_url=api.url, timeout=PATIENCE_S) as http:
        for name in ("teams", "google_chat"):
            for _ in range(2):
                assert bring(http, name, CASES[name].webhook(CASES[name].body, datetime.now(UTC))).status_code == 503
    assert keys.asked == 3
    assert rows(api, inbound.c.pk) == []


def test_platforms_that_ask_whether_the_address_is_ours_are_told(api: Served) -> None:
    with httpx.Client(base_url=api.url, timeout=PATIENCE_S) as http:
        asked = {
            "type": "url_verification",
            "token": "x",
            "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P",
        }
        assert bring(http, "slack", now_signed("slack", asked)).json() == {"challenge": asked["challenge"]}
        assert bring(http, "discord", now_signed("discord", {"id": "1", "type": 1})).json() == {"type": 1}
        asked = {"type": "url_verification", "token": "verify-me", "challenge": "ajls384kdjx98XX"}
        unsigned = without(now_signed("feishu", asked), "x-lark-signature")
        assert bring(http, "feishu", unsigned).json() == {"challenge": "ajls384kdjx98XX"}
        wrong = without(now_signed("feishu", asked | {"token": "verify-mf"}), "x-lark-signature")
        assert bring(http, "feishu", wrong).status_code == 401
        query = {"hub.mode": "subscribe", "hub.challenge": "1158201444", "hub.verify_token": "verify-me"}
        told = http.get("/inbound/whatsapp_cloud", params=query)
        assert (told.status_code, told.text) == (200, "1158201444")
        assert told.headers["content-type"].startswith("text/plain")
        for wrong in ("", "verify-mf", "verify-me "):
            refused = http.get("/inbound/whatsapp_cloud", params=query | {"hub.verify_token": wrong})
            assert (refused.status_code, refused.json()) == (401, {"error": "Invalid signature"})
        twice = [*query.items(), ("hub.verify_token", "verify-me")]
        assert http.get("/inbound/whatsapp_cloud", params=twice).status_code == 401
        assert http.get("/inbound/slack", params=query).status_code == 404
        sealed = wecom_sealed(b"1616140317555161061", CASES["wecom_callback"].secret)
        query = wecom_query(sealed, CASES["wecom_callback"].secret, datetime.now(UTC), echostr=sealed)
        told = http.get(f"/inbound/wecom_callback?{query}")
        assert (told.status_code, told.text) == (200, "1616140317555161061")
        assert http.get(f"/inbound/wecom_callback?{query}&echostr=x").status_code == 401
    assert rows(api, inbound.c.pk) == []


def test_what_people_would_be_shown_is_what_they_should_be(api: Served) -> None:
    with httpx.Client(base_url=api.url, timeout=PATIENCE_S) as http:
        command = b"command=%2Fstatus&trigger_id=1.2.abc&channel_id=D024BE91L&user_id=U1&team_id=T1&text="
        told = bring(http, "slack", now_signed("slack", command))
        assert (told.status_code, told.content) == (200, b"")
        asked = bring(http, "discord", now_signed("discord", discord_interaction("status")))
        assert asked.json()["data"] == {"content": "Taken.", "flags": 64}
        case = CASES["sms"]
        told = bring(http, "sms", case.webhook(case.body))
        assert (told.text, told.headers["content-type"]) == ("<Response/>", "text/xml; charset=utf-8")
    assert rows(api, inbound.c.outcome) == ["command", "command", "run"]


def test_our_own_messages_and_those_of_other_bots_begin_nothing(api: Served) -> None:
    with httpx.Client(base_url=api.url, timeout=PATIENCE_S) as http:
        for name, body in (
            ("slack", slack_event("hi", ts="1.1", bot_id="B1", subtype="bot_message")),
            ("slack", slack_event("hi", ts="1.2", user="U0BOT")),
            ("github_comment", github_event("/help", user={"id": 1, "login": "Hermes-Bot", "type": "User"})),
            ("github_comment", github_event("/help", id=2, user={"id": 2, "login": "x[bot]", "type": "Bot"})),
            ("discord", discord_interaction("help", user={"id": "5", "username": "x", "bot": True})),
        ):
            assert bring(http, name, now_signed(name, body)).status_code == 200
    assert rows(api, inbound.c.outcome) == ["bot"] * 5
    assert rows(api, deliveries.c.pk) == []
