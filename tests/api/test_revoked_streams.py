"""What is being answered ends when its key is revoked or its tenant is disabled, and not only what is asked later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from serving import PATIENCE_S, Served, until
from support.store import Store

from hermes_worker.api import auth, key_watch
from hermes_worker.core.principals import KeyScope
from hermes_worker.features.retention import erasure_routes as erasures
from hermes_worker.store.access.principals import NewKey, Tenants

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
RESPONSE = {"model": "scripted", "input": "hello"}
STREAMS = {
    "events": ("GET", "/v1/runs/{run_id}/events", None),
    "tree": ("GET", "/v1/runs/{run_id}/tree/events", None),
    "changes": ("GET", "/v1/changes", None),
    "turn": ("POST", "/api/sessions/{session_id}/chat/stream", {"input": "hello"}),
    "chat": ("POST", "/v1/chat/completions", {**CHAT, "stream": True}),
    "response": ("POST", "/v1/responses", {**RESPONSE, "stream": True}),
}
WAITS = {"chat": ("/v1/chat/completions", CHAT), "response": ("/v1/responses", RESPONSE)}


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "REMEMBERED_S", 0.0)
    monkeypatch.setattr(key_watch, "LOOK_AGAIN_S", 0.01)


@pytest.fixture
def tenants(api: Served) -> Tenants:
    made = Tenants(api.client.database)
    made.create_tenant("acme")
    return made


@pytest.fixture
def key(tenants: Tenants) -> NewKey:
    return tenants.create_key("acme", "ann", [KeyScope.RUNS_READ, KeyScope.RUNS_WRITE])


def revoke(tenants: Tenants, key: NewKey) -> None:
    tenants.revoke_key("acme", key.view.key_id)


def disable(tenants: Tenants, _key: NewKey) -> None:
    tenants.disable_tenant("acme")


class Asking:
    """Sends a request in a thread, and keeps what comes."""

    def __init__(self, api: Served, key: NewKey, method: str, path: str, body: Any) -> None:
        self.status = 0
        self.lines: list[str] = []
        self.is_over = False
        self.error: Exception | None = None
        self._asked = (api.url + path, method, body, {"Authorization": f"Bearer {key.token}"})
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        url, method, body, headers = self._asked
        try:
            with httpx.stream(method, url, json=body, headers=headers, timeout=PATIENCE_S * 2) as answer:
                self.status = answer.status_code
                for line in answer.iter_lines():
                    self.lines.append(line)
        except httpx.HTTPError as error:
            self.error = error
        self.is_over = True


@pytest.mark.parametrize("ends", [revoke, disable])
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_ends_when_its_key_does(
    api: Served, tenants: Tenants, key: NewKey, name: str, ends: Callable[[Tenants, NewKey], None]
) -> None:
    method, path, body = STREAMS[name]
    headers = {"Authorization": f"Bearer {key.token}"}
    made = httpx.post(f"{api.url}/v1/runs", json={"input": "hello"}, headers=headers).json()
    session = made["run_id"]
    if name == "turn":
        session = httpx.post(f"{api.url}/api/sessions", json={"id": "s", "model": "m"}, headers=headers).json()[
            "session"
        ]["id"]
    asking = Asking(api, key, method, path.format(run_id=made["run_id"], session_id=session), body)
    until(lambda: asking.status or asking.is_over, "the beginning of the stream")
    assert asking.status == 200, (asking.status, asking.lines)
    ends(tenants, key)
    until(lambda: asking.is_over, "the end of the stream")
    assert asking.error is None
    assert ": the key of this stream is no longer valid" in asking.lines
    again = httpx.request(method, api.url + path.format(run_id=made["run_id"], session_id=session), headers=headers)
    assert again.status_code == (401 if ends is revoke else 403)


@pytest.mark.parametrize("name", WAITS)
def test_a_request_that_waits_for_its_run_is_refused_when_its_key_ends(
    api: Served, tenants: Tenants, key: NewKey, name: str
) -> None:
    path, body = WAITS[name]
    asking = Asking(api, key, "POST", path, body)
    until(lambda: api.client.views.list_open_run_ids("acme"), "the run of the request")
    revoke(tenants, key)
    until(lambda: asking.is_over, "the answer")
    assert (asking.status, "invalid_api_key" in "".join(asking.lines)) == (401, True)


def test_an_export_breaks_off_and_does_not_look_complete(
    api: Served, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = tenants.create_key("acme", "root", [KeyScope.ADMIN])
    Store.over(api.client.database).submit(tenant="acme", session_id="exported", source="api")
    ended, may_go_on = threading.Event(), threading.Event()

    def endless(*_: Any, **__: Any) -> Any:
        while not ended.is_set():
            yield "x" * 70_000
            may_go_on.wait(0.01)

    monkeypatch.setattr(erasures, "_export_rows", endless)
    try:
        asking = Asking(api, admin, "POST", "/v1/exports", {"sessions": ["exported"]})
        until(lambda: asking.lines or asking.is_over, "the first line")
        revoke(tenants, admin)
        until(lambda: asking.is_over, "the end of the export")
    finally:
        ended.set()
    assert isinstance(asking.error, httpx.RemoteProtocolError), (asking.status, asking.lines[-1:])


def test_a_key_that_stays_valid_is_looked_at_and_serves_on(
    api: Served, key: NewKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    find = Tenants(api.client.database).find_principal
    monkeypatch.setattr(api.server.config.app.state.holders, "_find", lambda token: looks.append(token) or find(token))
    asking = Asking(api, key, "GET", "/v1/changes", None)
    until(lambda: len(looks) > 5, "several looks")
    assert (asking.status, asking.is_over) == (200, False)
