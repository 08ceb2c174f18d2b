"""The stream that says which lists changed: once for each change, to whoever may read the list, and after a cut too."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from serving import PATIENCE_S, Served, until
from support.migrated import bring_up
from support.questions import open_wait
from support.store import Store
from test_control import waiting

from hermes_worker.api.recent_answers import RecentAnswers
from hermes_worker.core.list_kinds import ListKind
from hermes_worker.core.principals import KeyScope
from hermes_worker.settings import DatabaseSettings, Settings
from hermes_worker.store.access.principals import Tenants
from hermes_worker.stream import changes
from hermes_worker.stream.changes import format_id, parse_marks

EVERY = {kind.value for kind in ListKind}


@dataclass
class Watcher:
    """Reads the stream in a thread, and keeps what came."""

    api: Served
    after: str = ""
    key: str | None = None
    query: str = ""
    told: list[set[str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    is_closed: bool = False

    def __post_init__(self) -> None:
        self._connection = http.client.HTTPConnection(self.api.url.removeprefix("http://"), timeout=PATIENCE_S * 2)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        headers = {"Authorization": f"Bearer {self.key or self.api.key}", "Last-Event-ID": self.after}
        try:
            self._connection.request("GET", f"/v1/changes{self.query}", headers=headers)
            answer = self._connection.getresponse()
            assert answer.status == 200, answer.read()
            while line := answer.readline().decode():
                if line.startswith("id: "):
                    self.ids.append(line[4:].strip())
                elif line.startswith("data: "):
                    self.told.append(set(json.loads(line[6:])["lists"]))
                elif line.startswith(":"):
                    self.comments.append(line)
            self.is_closed = True
        except (http.client.HTTPException, OSError, ValueError):
            pass  # ``leave`` closed the connection

    def leave(self) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(2)

    def wait_for(self, *lists: str, after: int = 1) -> None:
        """Until each of them was told of behind the first ``after`` events."""
        until(lambda: set(lists) <= set().union(*self.told[after:]), f"{lists}; came {self.told}")

    def wait_until_told(self) -> Watcher:
        until(lambda: self.told, "the first event")
        return self


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(settings: Settings, request: pytest.FixtureRequest) -> Settings:
    """An installation on each database."""
    if request.param == "sqlite":
        return settings
    url = request.getfixturevalue("postgres_url")
    bring_up(url)
    return replace(settings, database=DatabaseSettings(url=url))


def key_of_acme(api: Served, scope: KeyScope) -> str:
    tenants = Tenants(api.client.database)
    tenants.create_tenant("acme")
    return tenants.create_key("acme", "ann", [scope]).token


def test_each_change_is_told_to_its_tenant_and_what_was_missed_by_another_server(serve: Callable[..., Served]) -> None:
    first, second = serve(), serve()
    store = Store.over(first.client.database)
    other = key_of_acme(first, KeyScope.RUNS_READ)
    watcher, stranger = Watcher(first).wait_until_told(), Watcher(first, key=other).wait_until_told()
    assert watcher.told[0] == EVERY
    assert stranger.told[0] == {"runs", "approvals", "sessions", "deliveries"}, "what the key may read"
    run_id = waiting(store)
    watcher.wait_for("runs", "approvals", "sessions")
    watcher.leave()
    # Nothing is lost that happens while nobody listens, and nothing is told twice.
    same = Watcher(second, after=watcher.ids[-1])
    first.http.post(
        f"/v1/runs/{run_id}/approval", json={"choice": "deny", "wait_id": open_wait(store.database, run_id)}
    ).raise_for_status()
    same.wait_for("approvals", after=0)
    again = Watcher(first, after=format_id({**parse_marks(same.ids[-1]), ListKind.JOBS: "0" * 12})).wait_until_told()
    assert "jobs" in again.told[0]
    assert again.told[0] != EVERY
    assert len(stranger.told) == 1, "of others nothing is told"
    first.server.should_exit = True
    until(lambda: again.is_closed, "the end of the server")
    assert "going away" in again.comments[-1]


def test_one_look_serves_all_and_ends_with_the_last_of_them(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []
    read = api.server._context.changes._read
    monkeypatch.setattr(api.server._context.changes, "_read", lambda *of: looks.append(of) or read(*of))
    watchers = [Watcher(api) for _ in range(6)]
    for each in watchers:
        each.wait_until_told()
    ids = {each.ids[0] for each in watchers}
    api.submit()
    for each in watchers:
        each.wait_for("runs")
    assert len(ids) == 1
    assert {tenant for tenant, _ in looks} == {"default"}
    assert api.server._context.changes.count == 6
    seconds = {kinds for _, kinds in looks[1::2]}
    assert seconds <= {(ListKind.APPROVALS,)}, "every other look is at what people wait for"
    for each in watchers:
        each.leave()
    until(lambda: api.server._context.changes.count == 0, "nobody watches")
    assert api.server._context.changes._watched == {}


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
def test_who_asks_for_too_much_or_nonsense_is_told(
    api: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ("runs", "runs-123", "walks-0123456789ab", "runs-0123456789ab.", "0"):
        for asked in ({"params": {"after": wrong}}, {"headers": {"Last-Event-ID": wrong}}):
            assert http.get("/v1/changes", **asked).status_code == 400, wrong
    foreign = {"Authorization": f"Bearer {key_of_acme(api, KeyScope.ADMIN)}"}
    assert http.get("/v1/changes?all_tenants=true", headers=foreign).status_code == 403
    monkeypatch.setattr(changes, "READERS_OF_TENANT_MAX", 1)
    watcher = Watcher(api).wait_until_told()
    refused = http.get("/v1/changes")
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
    monkeypatch.setattr(changes, "READERS_MAX", 1)
    assert http.get("/v1/changes", headers=foreign).status_code == 503
    watcher.leave()


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
def test_an_operator_hears_of_all_tenants_and_a_stream_ends_after_its_time(
    api: Served, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = Watcher(api, query="?all_tenants=true").wait_until_told()
    store.submit(tenant="acme")
    watcher.wait_for("runs")
    monkeypatch.setattr(changes, "LIFE_S", 0.0)
    api.submit()
    short = Watcher(api)
    until(lambda: short.is_closed, "the end of a stream whose time is over")
    watcher.leave()


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
def test_sums_of_some_seconds_ago_are_good_enough_for_who_says_so(
    api: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs_of(**params: Any) -> Sequence[int]:
        return [row["runs"] for row in http.get("/v1/spend", params=params).json()["data"]]

    api.submit()
    assert runs_of(max_age_s=300) == [1]
    api.submit()
    assert runs_of(max_age_s=300) == [1], "found a moment ago"
    assert runs_of() == [2], "exact for everybody else"
    assert runs_of(max_age_s=300, by="model") == [2], "another question"
    spent: RecentAnswers[Any] = api.server._context.spent
    spent._kept = {key: (began_at - 301, task) for key, (began_at, task) in spent._kept.items()}
    assert runs_of(max_age_s=300) == [2]
    assert http.get("/v1/spend", params={"max_age_s": 301}).status_code == 400
