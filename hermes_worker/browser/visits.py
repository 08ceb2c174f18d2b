"""Do what a call does with the browser of its session, from whichever worker it runs on. Needs the extra ``browser``.

Theory of operation. A call takes the use of the session's row, connects to the browser, acts, leaves in the row what
the next call needs and disconnects. The worker remembers nothing but the library's driver. Before a call acts on an
element it looks at the page itself and finds the element that the model meant (``core.page_snapshots``): a ref is worth
nothing on another connection, and the page may have changed.

A browser that was lost is reported as lost: its cookies are given to a new one, and the call that finds out does
nothing but open a page that was asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from hermes_worker.agent.tools.base import Cancellation
from hermes_worker.agent.tools.interruptible import ToolInterrupted
from hermes_worker.browser.relay import may_show
from hermes_worker.core.page_snapshots import PageSnapshot, mask_secrets, shorten_snapshot
from hermes_worker.extension import explain_missing_extra
from hermes_worker.net.urls import UrlPolicy
from hermes_worker.observe import log
from hermes_worker.store.resources import (
    LAPSE_PATIENCE_S,
    ResourceChanges,
    ResourceKind,
    Resources,
    ResourceState,
    ResourceUse,
    ResourceView,
)
from hermes_worker.system.background_loop import BackgroundLoop
from hermes_worker.workspaces.base import HostLost
from hermes_worker.workspaces.sandbox.network import Network, NetworkRules, RunOrigin, decide_access

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page, Playwright

_T = TypeVar("_T")
START_S: Final = 45.0
"""How many seconds a call waits for a host: a lost lease lapses in that time, and a cold Chromium starts."""
STARTING_S: Final = 60.0
"""How many seconds longer it waits while a host that renews its lease is at it: on a busy machine a Chromium takes long
to start.
"""
CONNECT_S: Final = 15.0
ACT_S: Final = 60.0
SETTLE_S: Final = 3.0
"""How many seconds to wait after an action for a page that goes elsewhere."""
SNAPSHOT_S: Final = 20.0
COOKIES_CHARS_MAX: Final = 400_000
_PAGES_MAX: Final = 8
_LOOK_S: Final = 0.1
_ROUNDS: Final = 5
"""A page that shows so many documents during one look is not looked at."""
_RESTLESS: Final = "the page goes from one address to the next and does not stand still"
_PASSWORDS: Final = """() => {
  const found = [], look = root => {
    for (const each of root.querySelectorAll('*')) {
      if (each.tagName === 'INPUT' && each.type === 'password' && each.value && found.length < 50)
        found.push(String(each.value).slice(0, 1000));
      if (each.shadowRoot) look(each.shadowRoot);
    }
  };
  look(document);
  return found;
}"""


class BrowserFailed(Exception):
    """A call cannot be done; the sentence is for the model, and nothing was done unless it says so."""


class BrowserGone(BrowserFailed):
    """The session's browser was lost, and a new one is open in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLook:
    """A page as the model was shown it, or as it is now."""

    page: PageSnapshot
    target: str
    """The tab, as the browser calls it."""

    @classmethod
    def from_text(cls, text: str | None) -> PageLook | None:
        if not text:
            return None
        facts = json.loads(text)
        return cls(page=PageSnapshot(url=facts["url"], text=facts["text"]), target=facts["target"])

    def to_noted(self) -> ResourceChanges:
        text = json.dumps({"url": self.page.url, "text": self.page.text, "target": self.target})
        return ResourceChanges(
            url=self.page.url, snapshot=text, snapshot_hash=hashlib.sha256(self.page.text.encode()).hexdigest()
        )


class BrowserVisit:
    """A session's browser while one call uses it."""

    def __init__(
        self, context: BrowserContext, page: Page, target: str, *, seen: PageLook | None, lost: str | None
    ) -> None:
        self.context = context
        self.page = page
        self.target = target
        self.seen = seen
        """The page as the model was shown it last; ``None`` before that, and for a browser that is gone."""
        self.lost = lost
        """The sentence that the browser before this one was lost; ``None`` when it was not."""
        self.shown: PageLook | None = None
        """The page that this call shows the model."""

    async def take_snapshot(self) -> PageLook:
        """A snapshot of the page as it is now. Raises ``BrowserFailed``."""
        for _ in range(_ROUNDS):
            url = self.page.url
            try:
                text, secrets = await self._read_page()
            except BrowserFailed:
                raise
            except Exception as error:
                if _is_gone(error):
                    raise
                await self.wait_until_settled()  # it went elsewhere meanwhile
                continue
            if self.page.url == url:
                return PageLook(
                    page=PageSnapshot(url=url, text=shorten_snapshot(mask_secrets(text, secrets))), target=self.target
                )
        raise BrowserFailed(_RESTLESS)

    async def _read_page(self) -> tuple[str, list[str]]:
        """The text of the page, and its passwords. Raises ``BrowserFailed``, and what the library raises."""
        opened = 0

        def count_document(_: object) -> None:
            nonlocal opened
            opened += 1
            if opened == _ROUNDS:  # the library would begin anew with each document, for the whole time
                limit.reschedule(asyncio.get_running_loop().time())

        try:
            async with asyncio.timeout(SNAPSHOT_S) as limit:
                self.page.on("domcontentloaded", count_document)
                try:
                    text = await self.page.aria_snapshot(mode="ai", timeout=SNAPSHOT_S * 1000)
                    return text, [each for frame in self.page.frames for each in await _read_passwords(frame)]
                finally:
                    self.page.remove_listener("domcontentloaded", count_document)
        except TimeoutError:
            is_restless = opened >= _ROUNDS
            raise BrowserFailed(
                _RESTLESS if is_restless else "the page is too large or too busy to be looked at"
            ) from None

    async def wait_until_settled(self) -> None:
        """Give the page a moment to go where an action sent it."""
        with suppress(Exception):
            await self.page.wait_for_load_state("domcontentloaded", timeout=SETTLE_S * 1000)

    async def require_shown(self) -> None:
        """Leave an address that no page may be at. Raises ``BrowserFailed``."""
        if not may_show(self.page.url):
            scheme = self.page.url.partition(":")[0][:20]
            with suppress(Exception):
                await self.page.goto("about:blank", timeout=5_000)
            raise BrowserFailed(f"the page went to a {scheme!r} address, which is refused; it is at about:blank now")


Action = Callable[[BrowserVisit], Awaitable[_T]]


class SessionBrowsers:
    """The browsers of sessions, for the calls of this process. Thread-safe."""

    def __init__(self, rows: Resources, policy: UrlPolicy | None = None, rules: NetworkRules | None = None) -> None:
        """``rules`` says which runs have a network at all."""
        self.policy = policy or UrlPolicy()
        self._rules = rules or NetworkRules()
        self._rows = rows
        self._driver = _BrowserDriver()

    def require_network(self, origin: RunOrigin) -> None:
        """Raise ``BrowserFailed`` for a run whose commands have no network, and where the extra is missing."""
        if decide_access(self._rules, origin).network is Network.NONE:
            raise BrowserFailed("runs from there have no network, so they have no browser")
        if (lacking := explain_missing_extra("browser")) is not None:
            raise BrowserFailed(f"this worker cannot use browsers: {lacking}")

    def run_action(self, session_id: str, action: Action[_T], cancelled: Cancellation, *, opens: bool = False) -> _T:
        """Do ``action`` with the session's browser; with ``opens`` also if there is none, or it was lost.

        Raises ``BrowserFailed`` when nothing was done, ``HostLost`` when the browser was lost meanwhile,
        ``ToolInterrupted``, ``UnavailableError``.
        """
        if not opens:
            found = self._rows.find(session_id, ResourceKind.BROWSER)
            if found is None or (found.url is None and found.state is ResourceState.ENDED):
                raise BrowserFailed("there is no page yet; open one with browser_navigate")
        deadline = time.monotonic() + START_S
        while True:
            use = self._take_browser(session_id, cancelled, deadline)
            try:
                return self._driver.run(self._visit(use, action, opens=opens), cancelled)
            except _NotConnected as error:
                # Its host is gone or frozen, and its lease has not lapsed yet.
                if time.monotonic() >= deadline:
                    raise BrowserFailed(f"the browser cannot be reached ({error}); nothing was done") from error
                if cancelled.wait(_LOOK_S * 5):
                    raise ToolInterrupted("the call was interrupted; nothing was done") from None

    def _take_browser(self, session_id: str, cancelled: Cancellation, deadline: float) -> ResourceUse:
        began = time.monotonic()
        while True:
            is_patient = time.monotonic() - began < LAPSE_PATIENCE_S
            row = self._rows.request_resource(session_id, ResourceKind.BROWSER, spares_lapsed=is_patient)
            if row.state is ResourceState.LIVE and (use := self._rows.acquire_use(row.resource_id)) is not None:
                return use
            is_starting = row.state is ResourceState.STARTING  # a host has it, and says so again and again
            if time.monotonic() >= deadline + (STARTING_S if is_starting else 0.0):
                raise BrowserFailed(_format_no_host(row))
            if cancelled.wait(_LOOK_S):
                raise ToolInterrupted("the call was interrupted; nothing was done")

    async def _visit(self, use: ResourceUse, action: Action[_T], *, opens: bool) -> _T:
        row = use.resource
        lost = _format_lost(row)
        async with self._driver.connect(use) as context:
            visit = await _begin_visit(context, row, lost)
            if lost is not None and not opens:
                self._write_noted(use, ResourceChanges(url="about:blank", snapshot=""))
                raise BrowserGone(f"{lost} Nothing was done; open a page with browser_navigate to go on.")
            if not opens and visit.page.url == "about:blank" and row.url is None:
                raise BrowserFailed("there is no page yet; open one with browser_navigate")
            try:
                async with asyncio.timeout(ACT_S):
                    result = await action(visit)
                    await visit.require_shown()
            except TimeoutError:
                raise HostLost("the page did not react in time; what was done is not known") from None
            except Exception as error:
                if _is_gone(error):
                    raise HostLost(f"the browser was lost at {visit.page.url}") from error
                raise
            finally:
                await self._note_visit(use, visit)
            return result

    async def _note_visit(self, use: ResourceUse, visit: BrowserVisit) -> None:
        """Write down what the next call needs, also when this one failed."""
        with suppress(Exception):
            async with asyncio.timeout(5):
                noted = visit.shown.to_noted() if visit.shown is not None else ResourceChanges(url=visit.page.url)
                cookies = json.dumps(await visit.context.cookies())
                storage = cookies if len(cookies) <= COOKIES_CHARS_MAX else None
                noted = ResourceChanges(
                    url=visit.page.url, snapshot=noted.snapshot, snapshot_hash=noted.snapshot_hash, storage=storage
                )
                await asyncio.get_running_loop().run_in_executor(None, self._write_noted, use, noted)

    def _write_noted(self, use: ResourceUse, noted: ResourceChanges) -> None:
        if not self._rows.update_state(use, noted):
            log.info("browser.use_lost", resource_id=use.resource.resource_id)


def _format_no_host(row: ResourceView) -> str:
    if row.state is ResourceState.WANTED:
        return (
            "no host started a browser in time; nothing was done. Hosts are processes of "
            "'hermes-worker start browser': is one running, and has it a browser left to give?"
        )
    return "the browser did not become ready in time; nothing was done"


def _format_lost(row: ResourceView) -> str | None:
    if row.reason is None or row.url is None:
        return None
    kept = "its cookies are kept, and " if row.storage else ""
    return (
        f"The browser was lost at URL {row.url} ({row.reason}). A new one is open at about:blank: {kept}what was typed "
        "and not sent is gone."
    )


async def _begin_visit(context: BrowserContext, row: ResourceView, lost: str | None) -> BrowserVisit:
    """The visit, before anything is done. Raises ``_NotConnected`` for a browser that does not answer in time: without
    a limit here, a browser that froze after the connection held its call for ever."""
    try:
        async with asyncio.timeout(CONNECT_S):
            if lost is not None:
                await _restore_storage(context, row.storage)
            return await _find_visited_tab(
                context, None if lost is not None else PageLook.from_text(row.snapshot), lost
            )
    except Exception as error:
        reason = str(error).splitlines()[0][:200] if str(error) else "its pages do not answer"
        raise _NotConnected(reason) from error


async def _restore_storage(context: BrowserContext, storage: str | None) -> None:
    for cookie in json.loads(storage) if storage else ():
        # One by one: what a site set may be something that the library does not set.
        with suppress(Exception):
            await context.add_cookies([cookie])


async def _find_visited_tab(context: BrowserContext, seen: PageLook | None, lost: str | None) -> BrowserVisit:
    """The tab that the model saw, or the newest one that it opened."""
    pages = list(context.pages) or [await context.new_page()]
    for extra in pages[:-_PAGES_MAX]:
        with suppress(Exception):
            await extra.close()
    pages = pages[-_PAGES_MAX:]
    targets = [await _find_target(context, page) for page in pages]
    at = targets.index(seen.target) if seen is not None and seen.target in targets else len(pages) - 1
    page = pages[at]
    page.set_default_timeout(10_000)
    return BrowserVisit(context, page, targets[at], seen=seen, lost=lost)


async def _find_target(context: BrowserContext, page: Page) -> str:
    session = await context.new_cdp_session(page)
    try:
        return str((await session.send("Target.getTargetInfo"))["targetInfo"]["targetId"])
    finally:
        with suppress(Exception):
            await session.detach()


async def _read_passwords(frame: Any) -> Sequence[str]:
    with suppress(Exception):
        async with asyncio.timeout(2):
            found = await frame.evaluate(_PASSWORDS)
            return [str(each) for each in found] if isinstance(found, list) else []
    return []


def _is_gone(error: BaseException) -> bool:
    """Whether an error says that the connection or the browser is gone."""
    text = str(error)
    return "Target page, context or browser has been closed" in text or "Connection closed" in text


class _NotConnected(Exception):
    """There was no connection, so nothing was done."""


class _BrowserDriver:
    """The library's own process, and the thread that speaks to it; begun with the first call, and again if it died."""

    def __init__(self) -> None:
        self._playwright: Playwright | None = None
        self._loop = BackgroundLoop("browser-driver", self._forget_playwright)

    def run(self, work: Awaitable[_T], cancelled: Cancellation) -> _T:
        """Run ``work`` on the driver's thread and return its result. Raises ``ToolInterrupted`` when the call is
        cancelled; what the page does then is not waited for.
        """
        future = self._loop.submit(work)
        while not future.done():
            if cancelled.wait(0.05) and not future.done():
                future.cancel()
                raise ToolInterrupted("the call was interrupted; what the page did is not known")
        return future.result()

    def _forget_playwright(self) -> None:
        self._playwright = None

    @asynccontextmanager
    async def connect(self, use: ResourceUse) -> AsyncIterator[BrowserContext]:
        """Connect to the browser while the block runs. Raises ``_NotConnected``."""
        endpoint = use.resource.endpoint or ""
        headers = {"Authorization": f"Bearer {use.token}"}
        try:
            playwright = await self._start_playwright()
            browser = await playwright.chromium.connect_over_cdp(
                endpoint, headers=headers, timeout=CONNECT_S * 1000, is_local=False
            )
        except Exception as error:
            if "Connection closed" in str(error):
                self._playwright = None  # the driver died; the next call begins another one
            raise _NotConnected(str(error).splitlines()[0][:200] if str(error) else type(error).__name__) from error
        try:
            yield browser.contexts[0]
        finally:
            with suppress(Exception):
                async with asyncio.timeout(5):
                    await browser.close()

    async def _start_playwright(self) -> Playwright:
        if self._playwright is None:
            from playwright.async_api import async_playwright

            self._playwright = await async_playwright().start()
        return self._playwright
