"""What a host of browsers does by its rows, what a worker may ask of one, and what is said where there is none."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.commandline import wait_for
from support.store import opened

from hermes_worker.browser import visits as pages
from hermes_worker.browser.chromium import Chromium, NoBrowserHere, find_chromium, require_confinement
from hermes_worker.browser.declarations import build_browser_extension
from hermes_worker.browser.host import build_browser_host
from hermes_worker.browser.relay import (
    BrowserRelay,
    DevTools,
    MessageRefused,
    judge_message,
    may_show,
    wait_keeping_alive,
)
from hermes_worker.browser.visits import BrowserFailed, SessionBrowsers
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.replay import Replay
from hermes_worker.hosting.host import HostOptions
from hermes_worker.store.resources import ResourceKind, ResourceLease, Resources, ResourceState
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.network import Network, NetworkRules, RunOrigin
from hermes_worker.workspaces.sandbox.policy import SandboxMode, SandboxPolicy

PAGES = [
    "http://a/",
    "https://a/",
    "about:blank",
    "data:text/html,x",
    "blob:http://a/x",
    "chrome-error://chromewebdata/",
]
NO_PAGES = [
    "file:///etc/passwd",
    "FILE:///x",
    " file:///x",
    "chrome://version",
    "devtools://x",
    "view-source:http://a/",
]
NO_PAGES += ["javascript:1", "filesystem:http://a/x", "chrome-extension://x", "ftp://a/", "http://["]


@pytest.mark.parametrize("url", PAGES)
def test_a_page_may_be_on_the_web(url: str) -> None:
    assert may_show(url)
    assert judge_message({"id": 1, "method": "Page.navigate", "params": {"url": url}})


@pytest.mark.parametrize("url", NO_PAGES)
def test_a_page_may_be_nowhere_else(url: str) -> None:
    assert not may_show(url)
    for method in ("Page.navigate", "Target.createTarget"):
        with pytest.raises(MessageRefused):
            judge_message({"id": 1, "method": method, "params": {"url": url}})


@pytest.mark.parametrize("method", ["Browser.close", "Browser.crash", "DOM.setFileInputFiles", "Browser.setPermission"])
def test_only_a_host_ends_browsers_and_gives_rights(method: str) -> None:
    with pytest.raises(MessageRefused):
        judge_message({"id": 1, "method": method})
    assert not judge_message({"id": 1, "method": "Browser.setDownloadBehavior"})
    with pytest.raises(MessageRefused):
        judge_message({"id": 1})


def test_what_acts_is_never_repeated() -> None:
    replays = {tool.name: tool.spec.replay for tool in build_browser_extension(has_cdp=True).tools}
    pure = {name for name, replay in replays.items() if replay is Replay.PURE}
    assert pure == {"browser_snapshot", "browser_get_images", "browser_vision"}
    assert {replay for name, replay in replays.items() if name not in pure} == {Replay.ONCE}
    assert all(tool.spec.is_untrusted for tool in build_browser_extension(has_cdp=True).tools)
    assert replays.keys() - {tool.name for tool in build_browser_extension(has_cdp=False).tools} == {"browser_cdp"}


def test_where_there_is_no_browser_a_sentence_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoBrowserHere, match="cannot be run"):
        find_chromium(tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoBrowserHere, match="apt-get install chromium"):
        find_chromium(None)
    with pytest.raises(NoBrowserHere, match="switched off"):
        require_confinement(Sandbox(SandboxMode.OFF, SandboxPolicy()))


def test_a_run_without_a_network_has_no_browser(rows: tuple[Resources, str]) -> None:
    browsers = SessionBrowsers(rows[0], rules=NetworkRules(unattended=Network.NONE))
    with pytest.raises(BrowserFailed, match="no network"):
        browsers.require_network(RunOrigin(source="webhook"))


# --- a host ----------------------------------------------------------------------------------------------------------


@dataclass
class PlayedChromium:
    folder: Path
    pid: int = 1
    commands: int = -1
    events: int = -1
    alive: int = 0
    is_ended: bool = False

    def keep_alive(self) -> None:
        self.alive += 1

    def end(self) -> None:
        self.is_ended = True


@dataclass
class PlayedTools:
    closed: threading.Event = field(default_factory=threading.Event)


class PlayedRelay:
    def __init__(self) -> None:
        self.opened: dict[str, PlayedTools] = {}

    def open(self, name: str, commands: int, events: int, keep_alive: Callable[[], None]) -> tuple[str, DevTools]:
        keep_alive()
        self.opened[name] = PlayedTools()
        return f"ws://127.0.0.1:1/{name}/secret", cast(DevTools, self.opened[name])

    def close(self, name: str) -> None:
        self.opened.pop(name, None)


class PlayedHost:
    def __init__(self, rows: Resources, folder: Path, **options: Any) -> None:
        self.started: list[PlayedChromium] = []
        self.relay = PlayedRelay()
        self.host = build_browser_host(
            rows,
            self._start,
            HostOptions(**{"name": "h", "folder": folder, "ttl_s": 0.4, "idle_s": 600.0, **options}),
            lambda may_use: cast(BrowserRelay, self.relay),
        )

    def _start(self, folder: Path) -> Chromium:
        if folder.parent.name == "none":
            raise NoBrowserHere("none here")
        self.started.append(PlayedChromium(folder))
        return cast(Chromium, self.started[-1])

    def look_until(self, holds: Any) -> None:
        for _ in range(2_000):
            self.host.poll_once()
            if holds():
                return
            threading.Event().wait(0.005)
        raise AssertionError("it did not come to that")


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[tuple[Resources, str]]:
    with opened(f"sqlite:///{tmp_path / 'x.db'}") as store:
        yield Resources(store.database), store.submit().run_id


def state(rows: Resources, session_id: str) -> ResourceState | None:
    found = rows.find(session_id, ResourceKind.BROWSER)
    return found.state if found is not None else None


def test_a_wanted_browser_is_started_and_ends_with_its_row(rows: tuple[Resources, str], tmp_path: Path) -> None:
    table, session_id = rows
    played = PlayedHost(table, tmp_path / "browsers")
    table.request_resource(session_id, ResourceKind.BROWSER)
    played.look_until(lambda: played.host.pids)
    [chromium] = played.started
    assert state(table, session_id) is ResourceState.LIVE
    played.host.keep_alive()
    assert chromium.alive
    table.delete_resource(session_id, ResourceKind.BROWSER)
    played.look_until(lambda: chromium.is_ended)
    assert (played.host.pids, played.relay.opened) == ({}, {})
    played.host.close()


def test_a_browser_that_starts_slowly_is_kept_alive_until_it_can_be_used() -> None:
    """Its host says nothing for twenty seconds, and it would end itself."""
    opening: Future[str] = Future()
    told: list[int] = []

    def keep_alive() -> None:
        told.append(len(told))
        if len(told) == 3:
            opening.set_result("ws://here")

    assert wait_keeping_alive(opening, keep_alive, every_s=0.001) == "ws://here" and len(told) == 3
    failed: Future[str] = Future()
    failed.set_exception(TimeoutError("it says nothing"))
    with pytest.raises(TimeoutError, match="it says nothing"):
        wait_keeping_alive(failed, keep_alive, every_s=0.001)
    assert len(told) == 3


def test_a_call_waits_longer_for_a_browser_that_a_host_is_starting(rows: tuple[Resources, str]) -> None:
    table, session_id = rows
    browsers = SessionBrowsers(table)

    @dataclass
    class Starting:
        """Every look of the call, it is what it says."""

        lease: ResourceLease | None = None

        def is_set(self) -> bool:
            return False

        def wait(self, _timeout: float | None = None) -> bool:
            assert self.lease is not None and table.publish(self.lease, "ws://here")
            return False

    with pytest.raises(BrowserFailed, match="no host started a browser in time"):
        browsers._take_browser(session_id, Starting(), time.monotonic())
    lease = table.claim(ResourceKind.BROWSER, host="h", ttl_s=60, wants_within_s=60)
    assert browsers._take_browser(session_id, Starting(lease), time.monotonic()).resource.endpoint == "ws://here"


def test_an_idle_or_crashed_browser_is_ended_and_its_row_says_so(rows: tuple[Resources, str], tmp_path: Path) -> None:
    table, session_id = rows
    played = PlayedHost(table, tmp_path / "browsers", idle_s=0.0)
    table.request_resource(session_id, ResourceKind.BROWSER)
    played.look_until(lambda: played.started and played.started[0].is_ended)
    found = table.find(session_id, ResourceKind.BROWSER)
    assert found is not None and found.reason is not None and "nobody used it" in found.reason
    played.host.close()

    played = PlayedHost(table, tmp_path / "browsers")
    row = table.request_resource(session_id, ResourceKind.BROWSER)
    played.look_until(lambda: played.host.pids)
    played.relay.opened[row.resource_id].closed.set()
    played.look_until(lambda: played.started[0].is_ended)
    found = table.find(session_id, ResourceKind.BROWSER)
    assert found is not None and found.reason == "it crashed"
    played.host.close()


@pytest.mark.parametrize("idle_s", [600.0, 2.0])
def test_what_runs_is_kept_while_the_database_is_away_until_it_was_idle_for_too_long(
    rows: tuple[Resources, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle_s: float
) -> None:
    def away(*_: object, **__: object) -> None:
        raise UnavailableError("the database did not answer")

    table, session_id = rows
    played = PlayedHost(table, tmp_path / "browsers", idle_s=idle_s)
    table.request_resource(session_id, ResourceKind.BROWSER)
    played.look_until(lambda: played.host.pids)
    [chromium] = played.started
    stopping = threading.Event()
    running = threading.Thread(target=played.host.run, args=(stopping,))
    with monkeypatch.context() as outage:
        for name in ("renew", "claim", "release"):
            outage.setattr(table, name, away)
        running.start()
        if idle_s < 600.0:
            wait_for(lambda: chromium.is_ended)
        else:
            wait_for(lambda: _is_lapsed(table, session_id))
    if not chromium.is_ended:
        # It is renewed before anybody may say that it is lost.
        wait_for(lambda: not _is_lapsed(table, session_id))
        assert state(table, session_id) is ResourceState.LIVE and not chromium.is_ended
    stopping.set()
    running.join()


def _is_lapsed(table: Resources, session_id: str) -> bool:
    found = table.find(session_id, ResourceKind.BROWSER)
    return found is not None and table.acquire_use(found.resource_id) is None


def test_a_host_takes_no_more_than_it_may_and_removes_what_dead_ones_left(
    rows: tuple[Resources, str], tmp_path: Path
) -> None:
    table, session_id = rows
    left = tmp_path / "browsers" / "1-dead"
    left.mkdir(parents=True)
    (left / "lock").touch()
    played = PlayedHost(table, tmp_path / "browsers", hosted_max=1)
    assert not left.exists()
    one = table.request_resource(session_id, ResourceKind.BROWSER)
    played.look_until(lambda: played.host.pids)
    table.request_resource(session_id, ResourceKind.BROWSER, "other")
    played.host.poll_once()
    assert set(played.host.pids) == {one.resource_id}
    assert len(list((tmp_path / "browsers").iterdir())) == 1
    played.host.close()
    assert played.started[0].is_ended and list((tmp_path / "browsers").iterdir()) == []
    assert state(table, session_id) is ResourceState.ENDED


def test_a_browser_that_freezes_after_the_connection_holds_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    class Frozen:
        def __init__(self) -> None:
            self.pages = [object()]

        async def new_cdp_session(self, page: object) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(pages, "CONNECT_S", 0.05)
    row = SimpleNamespace(snapshot=None, storage=None)
    entering = pages._begin_visit(cast(Any, Frozen()), cast(Any, row), None)
    with pytest.raises(pages._NotConnected, match="do not answer"):
        asyncio.run(asyncio.wait_for(entering, 20))
