"""The page in Debian's Chromium: what a person sees and does there, with a real server behind it.

The pictures of ``docs/page.md`` are made here: set HERMES_PAGE_PICTURES to the folder that gets them.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from page_scenes import ask_to_deploy, repair_orders
from serving import PATIENCE_S, Served, until
from support.store import Store, asks
from test_artifacts_api import left
from test_control import waiting

from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store.gateway import GatewayRows
from hermes_worker.store.jobs.jobs import Jobs
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.search.indexing import Indexer
from hermes_worker.store.statistics import count_ended_rows
from scheduler.ticking import tick

_TELL_VIOLATIONS = """addEventListener("securitypolicyviolation",
  (event) => console.error("Content Security Policy: " + event.violatedDirective + " " + event.blockedURI));"""
_NOTE_TOLD = """() => new MutationObserver(() => {
  if (document.body.innerText.includes("was first")) window.toldAt ??= Date.now();
}).observe(document.body, { subtree: true, childList: true, characterData: true })"""
_NOTE_SETTLED = """() => {
  const look = () => {
    const text = document.body.innerText.replace(/\\s+/g, " ");
    if (text.includes("tool0 succeeded")) window.settledAt ??= Date.now();
  };
  look();
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""
TAKEN_OVER_S_MAX = 2.0
"""On an idle machine: from the end of the tab that read for all until every other tab shows what came after it."""
TOLD_MS_MAX = 1_000
"""On an idle machine: from a click that answers until whoever looks on reads who was first."""
BROWSER_PATIENCE_S = PATIENCE_S
"""For what a browser shows: it is the heaviest program here."""
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(CHROMIUM is None, reason="no browser here: install Debian's package chromium"),
]


def busyness() -> float:
    """How much longer than on an idle machine things may take here: others want so many times what there is."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@dataclass
class PageVisitor:
    """A browser of one person, logged in, that notes what must not happen."""

    page: Any
    url: str
    wrong: list[str] = field(default_factory=list)
    """Foreign requests, violations of the policy, exceptions."""

    def __post_init__(self) -> None:
        self.page.add_init_script(_TELL_VIOLATIONS)
        self.page.on("request", lambda asked: asked.url.startswith((self.url, "blob:")) or self.wrong.append(asked.url))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._heard)

    def _heard(self, said: Any) -> None:
        if "Content Security Policy" in said.text or "TrustedHTML" in said.text:
            self.wrong.append(said.text)

    def log_in(self, key: str) -> PageVisitor:
        self.page.goto(self.url)
        self.page.get_by_label("API key").fill(key)
        self.page.keyboard.press("Enter")
        self.page.get_by_role("navigation").wait_for()
        return self

    def open(self, route: str, heading: str) -> None:
        self.page.goto(f"{self.url}/#/{route}")
        self.page.get_by_role("heading", level=1, name=heading).wait_for()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="the extra 'browser' is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any, api: Served) -> Iterator[Callable[..., PageVisitor]]:
    """``visit()`` is another person's browser. At the end nothing must have gone wrong in any."""
    visitors: list[PageVisitor] = []

    def come(key: str | None = None, *, url: str | None = None, **options: Any) -> PageVisitor:
        context = chromium.new_context(**options)
        context.set_default_timeout(BROWSER_PATIENCE_S * 1000)
        visitors.append(PageVisitor(context.new_page(), url or api.url))
        return visitors[-1].log_in(key or api.key)

    yield come
    for visitor in visitors:
        visitor.page.context.close()
    assert [wrong for visitor in visitors for wrong in visitor.wrong] == []


def test_a_key_becomes_a_cookie_that_no_script_reads(api: Served, visit: Callable[..., PageVisitor]) -> None:
    page = visit().page
    [cookie] = page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("hermes_page", True, "Strict")
    seen = page.evaluate("() => document.cookie + location.href + JSON.stringify({...localStorage, ...sessionStorage})")
    assert api.key not in seen + page.content()
    assert "hermes_page" not in seen
    page.reload()
    page.get_by_role("navigation").wait_for()
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("API key").wait_for()
    assert page.context.cookies() == []
    page.reload()
    page.get_by_label("API key").wait_for()


def test_who_acts_after_the_cookie_is_gone_is_asked_to_log_in(visit: Callable[..., PageVisitor]) -> None:
    visitor = visit()
    visitor.open("sessions", "Sessions")
    page = visitor.page
    # What the page asks by itself must not be what tells it.
    page.route(
        "**/*",
        lambda route: (
            route.abort()
            if "/page/login" not in route.request.url and route.request.method == "GET"
            else route.continue_()
        ),
    )
    page.get_by_label("Ask an agent something").fill("hello")
    page.context.clear_cookies()
    page.get_by_role("button", name="Send").click()
    page.get_by_label("API key").wait_for()


def test_a_run_is_followed_live_and_steered_and_stopped(
    api: Served, store: Store, visit: Callable[..., PageVisitor]
) -> None:
    run_id = api.submit(input="Count to three")
    visitor = visit()
    page = visitor.page
    visitor.open(f"runs/{run_id}", run_id)
    page.get_by_role("list").get_by_text("Count to three").wait_for()
    store.ask_tools(run_id, asks(Replay.PURE))
    page.get_by_text("(calls tools)").wait_for()
    page.get_by_label("Say something to the run").fill("faster")
    page.get_by_role("button", name="Steer").click()
    page.get_by_text("faster", exact=False).first.wait_for()
    store.settle(run_id, 0, "one two three")
    page.get_by_text("tool0 succeeded").click()
    page.get_by_text("one two three").wait_for()
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Do it").click()
    until(lambda: store.status(run_id).value in ("cancelled", "stopping"), "the stop")
    page.locator("h1 + .state", has_text="cancelled").wait_for()


def test_two_people_answer_and_one_learns_who_was_first(
    api: Served, store: Store, visit: Callable[..., PageVisitor]
) -> None:
    first, second, third = visit(), visit(), visit()
    for visitor in (first, second, third):
        visitor.open("inbox", "Inbox")
    run_id = waiting(store)
    for visitor in (first, second, third):
        visitor.page.get_by_text("rm -r x").wait_for()
        visitor.page.locator("[aria-live]", has_text="asks for an answer").wait_for(state="attached")
    # The second one's list must not change before the click, as when two click at the same time.
    second.page.route("**/v1/approvals?*", lambda route: route.abort())
    third.page.evaluate(_NOTE_TOLD)
    deny_at = time.time() * 1000
    first.page.get_by_role("button", name="Deny").click()
    first.page.get_by_text("tool0: you chose deny").wait_for()
    second.page.get_by_role("button", name="Allow once").click()
    second.page.get_by_text("was first: deny").first.wait_for()
    third.page.get_by_text("was first: deny").wait_for()  # who only looks on is told as well
    told_ms = third.page.evaluate("() => window.toldAt") - deny_at
    print(f"told {told_ms:.0f} ms after the answer at a load of {os.getloadavg()[0]:.1f}")
    assert told_ms <= TOLD_MS_MAX * busyness()
    assert first.page.get_by_text("was first").count() == 0
    assert store.status(run_id).value != "waiting_for_approval"


def test_what_was_answered_stays_to_be_read_with_who_and_why(
    api: Served, store: Store, visit: Callable[..., PageVisitor]
) -> None:
    waits = Waits(store.database)

    def answered(number: int) -> None:
        waits.approve(waiting(store), ApprovalChoice.DENY, by="ann", reason=f"reason {number}.")

    for number in range(60):
        answered(number)
    waits.approve(waiting(store), ApprovalChoice.SESSION, by="bob")
    visitor = visit()
    page = visitor.page
    visitor.open("inbox", "Inbox")
    rows = page.get_by_label("Closed questions").locator("tbody tr")
    rows.nth(49).wait_for()
    assert "bob" in rows.nth(0).inner_text()
    assert "recursive delete in its session" in rows.nth(0).inner_text()
    assert ["ann" in text and "reason 59." in text for text in rows.all_inner_texts()[:3]] == [False, True, False]
    page.get_by_role("button", name="Show older ones").click()
    rows.nth(60).wait_for()
    assert page.get_by_role("button", name="Show older ones").count() == 0
    answered(60)
    rows.nth(0).get_by_text("reason 60.").wait_for()
    told = [text for text in rows.all_inner_texts() if "reason" in text]
    assert [text.count(f"reason {60 - n}.") for n, text in enumerate(told)] == [1] * 61, "none is lost, none is double"


def test_a_conversation_is_forked_where_a_turn_ended(
    api: Served, store: Store, visit: Callable[..., PageVisitor]
) -> None:
    run_id = api.submit(input="Which tests are flaky?")
    store.answer(run_id, ModelReply(text="Two of them."))
    store.answer(api.submit(input="Which ones?", session_id=run_id), ModelReply(text="The slow ones."))
    visitor = visit()
    page = visitor.page
    visitor.open(f"sessions/{run_id}", "")
    page.get_by_text("The slow ones.").wait_for()
    assert page.get_by_role("button", name="Fork here").count() == 2
    page.get_by_role("button", name="Fork here").first.click()
    page.locator("header", has_text="from").get_by_role("link", name="Which tests are flaky?").wait_for()
    page.get_by_text("Two of them.").wait_for()
    assert page.get_by_text("The slow ones.").count() == 0
    visitor.open(f"runs/{run_id}", run_id)
    page.get_by_role("button", name="Fork its session").click()
    page.locator("header", has_text="from").get_by_role("link", name="Which tests are flaky?").wait_for()
    page.get_by_text("The slow ones.").wait_for()


def test_sessions_are_found_by_what_was_said(api: Served, store: Store, visit: Callable[..., PageVisitor]) -> None:
    run_id = api.submit(input="Where does the quokka live?")
    store.answer(run_id, ModelReply(text="On Rottnest Island."))
    api.submit(input="Something else")
    while count_ended_rows(store.database):
        pass
    Indexer(store.database).index_due(60.0, pause_s=0.0)
    visitor = visit()
    page = visitor.page
    visitor.open("sessions", "Sessions")
    page.get_by_label("Words that were said").fill("quokka")
    found = page.get_by_label("Messages that fit")
    found.locator("mark", has_text="quokka").wait_for()
    assert found.get_by_role("listitem").count() == 1
    assert "q=quokka" in page.url
    found.get_by_role("link").click()
    page.get_by_text("On Rottnest Island.").wait_for()
    page.goto(f"{api.url}/#/sessions?q=wombat")
    page.get_by_text("Nobody said that.").wait_for()


def test_jobs_stand_in_a_calendar_and_each_has_its_ledger(api: Served, visit: Callable[..., PageVisitor]) -> None:
    job = {"name": "News", "schedule": "every 30m", "prompt": "Look around"}
    job_id = api.http.post("/api/jobs", json=job).json()["job"]["id"]
    api.http.post("/api/jobs", json=job | {"name": "Report", "schedule": "0 9 * * *"})
    visitor = visit()
    page = visitor.page
    visitor.open("schedule", "Schedule")
    calendar = page.get_by_label("Calendar")
    calendar.get_by_text("Report").nth(6).wait_for()
    assert calendar.get_by_text("48 times").count() >= 5, "a job that comes often is one line of its day"
    api.http.post(f"/api/jobs/{job_id}/run")
    assert len(tick(Jobs(api.client.database), api.client.settings).settled.hints) == 1
    calendar.get_by_role("link", name="News").first.click()
    ledger = page.get_by_label("What became of its slots")
    ledger.locator(".state", has_text="fired").wait_for()
    assert ledger.get_by_role("link").count() == 1


def test_an_operator_sees_what_other_tenants_are_asked_and_leaves_the_answer_to_them(
    api: Served, store: Store, visit: Callable[..., PageVisitor]
) -> None:
    api.http.post("/v1/tenants", json={"name": "acme"})
    waiting(store, tenant="acme")
    visitor = visit()
    page = visitor.page
    visitor.open("inbox", "Inbox")
    asked = page.locator("article", has_text="rm -r x")
    asked.get_by_text("A key of the tenant acme answers this.").wait_for()
    assert asked.get_by_role("button").count() == 0
    alone = api.http.post("/v1/keys", json={"holder": "ann", "scopes": ["runs:read", "approve"]}).json()["key"]
    other = visit(alone)
    other.open("inbox", "Inbox")
    other.page.get_by_text("Nobody is asked anything.").wait_for()


def test_why_a_run_waits_is_told_where_it_stands(api: Served, visit: Callable[..., PageVisitor]) -> None:
    run_id = api.submit()
    visitor = visit()
    visitor.open("", "Now")
    said = api.http.get(f"/v1/runs/{run_id}/explain").json()["text"]
    visitor.page.locator("tbody summary", has_text="why").click()
    visitor.page.get_by_text(said[:20]).wait_for()


def test_an_update_does_not_disturb_what_is_typed(api: Served, visit: Callable[..., PageVisitor]) -> None:
    visitor = visit()
    page = visitor.page
    visitor.open("runs", "Runs")
    page.get_by_label("Tag").click()
    for letter in "night":
        page.keyboard.type(letter)
        api.submit(tags=["nightly"])
        with page.expect_response("**/v1/runs?*"):
            pass
    assert page.get_by_label("Tag").input_value() == "night"
    assert page.evaluate("() => document.activeElement.id") == "filter-tag"
    page.keyboard.type("ly")
    page.get_by_role("row").nth(5).wait_for()
    page.wait_for_url("**tag=nightly*")
    page.reload()
    assert page.get_by_label("Tag").input_value() == "nightly"


def test_many_runs_are_stopped_after_they_were_named(
    api: Served, store: Store, visit: Callable[..., PageVisitor]
) -> None:
    ids = [api.submit() for _ in range(3)]
    visitor = visit()
    page = visitor.page
    visitor.open("runs?status=open", "Runs")
    for run_id in ids[:2]:
        page.get_by_label(f"Choose {run_id}").check()
    page.get_by_role("button", name="Stop 2").click()
    plan = page.get_by_role("dialog")
    assert all(run_id in plan.inner_text() for run_id in ids[:2])
    assert store.status(ids[0]).value == "queued", "nothing was done yet"
    plan.get_by_role("button", name="Do it").click()
    page.get_by_text("2 done.").wait_for()
    assert [store.status(each).value for each in ids] == ["cancelled", "cancelled", "queued"]


def test_runs_that_fit_are_stopped_and_their_filters_kept(
    api: Served, store: Store, visit: Callable[..., PageVisitor]
) -> None:
    meant = [api.submit(input="Sweep the attic", tags=["nightly"]) for _ in range(2)]
    others = [api.submit(input="Sweep the cellar", tags=["nightly"]), api.submit(input="Sweep the attic")]
    visitor = visit()
    page = visitor.page
    visitor.open("runs", "Runs")
    page.get_by_label("Text", exact=True).fill("attic")
    page.get_by_label("Tag").fill("nightly")
    page.wait_for_function("() => document.querySelectorAll('tbody tr[data-n]').length === 2")
    page.get_by_label("Name for these filters").fill("Attics")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="Forget these").wait_for()
    page.get_by_role("button", name="Stop all that fit").click()
    plan = page.get_by_role("dialog", name="Stop 2 runs?")
    plan.locator(".id").nth(1).wait_for()
    assert sorted(plan.locator(".id").all_inner_texts()) == sorted(meant)
    plan.get_by_role("button", name="Do it").click()
    page.get_by_text("2 done.").wait_for()
    assert [store.status(each).value for each in (*meant, *others)] == [*["cancelled"] * 2, *["queued"] * 2]

    other = visit()  # the same holder, another browser
    other.open("runs", "Runs")
    other.page.get_by_label("Saved filters").select_option("Attics")
    other.page.wait_for_function("() => document.querySelectorAll('tbody tr[data-n]').length === 2")
    assert other.page.get_by_label("Text", exact=True).input_value() == "attic"
    other.page.get_by_role("button", name="Forget these").click()
    other.page.get_by_role("dialog").get_by_role("button", name="Do it").click()
    other.page.get_by_label("Name for these filters").wait_for()


def test_a_prompt_is_shown_as_the_model_saw_it(api: Served, store: Store, visit: Callable[..., PageVisitor]) -> None:
    run_id = api.submit(input="Count the files", instructions="Be brief.")
    store.ask_tools(run_id, asks(Replay.PURE))
    store.settle(run_id, 0, "12 files")
    visitor = visit()
    page = visitor.page
    visitor.open(f"runs/{run_id}", run_id)
    page.get_by_role("heading", name="Prompt as the model saw it").click()
    messages = page.get_by_label("Messages of the prompt").locator("tbody tr[data-n]")
    messages.nth(2).wait_for()
    assert "12 files" in messages.nth(2).inner_text()
    page.locator("summary", has_text="System prompt").click()
    page.get_by_text("Be brief.").wait_for()
    page.get_by_label("Before reply").fill("1")
    page.keyboard.press("Enter")
    messages.nth(2).wait_for(state="detached")
    assert messages.count() == 1


def test_a_reader_sees_no_buttons(api: Served, visit: Callable[..., PageVisitor]) -> None:
    from hermes_worker.core.principals import KeyScope
    from hermes_worker.store.access.principals import Tenants

    api.submit()
    made = Tenants(api.client.database).create_key("default", "reader", [KeyScope.RUNS_READ])
    visitor = visit(made.token)
    visitor.open("runs", "Runs")
    visitor.page.locator("tbody .state").wait_for()
    assert visitor.page.get_by_role("button", name="Stop").count() == 0
    assert visitor.page.get_by_role("link", name="Audit").count() == 0


def test_ten_tabs_of_one_browser_are_live_through_one_stream(
    api: Served, store: Store, visit: Callable[..., PageVisitor]
) -> None:
    """A browser opens six connections to one server; the seventh tab would hang with a stream for each."""
    run_id = api.submit()
    first = visit().page
    tabs = [first, *(first.context.new_page() for _ in range(9))]
    readers: list[Any] = []
    for tab in tabs:
        tab.set_default_timeout(BROWSER_PATIENCE_S * 1000)
        tab.on("request", lambda asked, tab=tab: readers.append(tab) if "/events?" in asked.url else None)
        tab.goto(f"{api.url}/#/runs/{run_id}")
        tab.get_by_text("live", exact=True).wait_for()
    assert api.followers.count == 1
    watching = api.server._context.changes
    until(lambda: watching.count == 1, "one stream of changes for all tabs", patience_s=BROWSER_PATIENCE_S)
    store.ask_tools(run_id, asks(Replay.PURE, Replay.PURE))
    for tab in tabs:
        tab.get_by_text("(calls tools)").wait_for()
    [reader] = set(readers)
    left = [tab for tab in tabs if tab is not reader]
    for tab in left:
        tab.evaluate(_NOTE_SETTLED)
    closed_at = time.time()
    reader.close()
    store.settle(run_id, 0, "one")
    left[0].get_by_text("tool0 succeeded").wait_for()
    for tab in left:
        tab.get_by_text("tool0 succeeded").wait_for()
        assert tab.get_by_text("(calls tools)").count() == 1
        assert tab.locator(".call", has_text="tool0").count() == 1
    took_s = max(tab.evaluate("() => window.settledAt") / 1000 for tab in left) - closed_at
    print(f"taken over in all tabs within {took_s:.2f} s at a load of {os.getloadavg()[0]:.1f}")
    assert took_s <= TAKEN_OVER_S_MAX * busyness()
    assert api.followers.count == 1
    until(lambda: watching.count == 1, "the stream of changes was taken over", patience_s=BROWSER_PATIENCE_S)
    left[-1].goto(f"{api.url}/#/runs")
    left[-1].locator(f"a[title='{run_id}']").wait_for()
    fresh = api.submit(input="after all that")
    left[-1].locator(f"a[title='{fresh}']").wait_for()


def test_lists_are_read_when_the_server_says_so_and_left_alone_otherwise(
    api: Served, store: Store, visit: Callable[..., PageVisitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = api.server._context.changes
    looks: list[object] = []
    read = watching._read
    monkeypatch.setattr(watching, "_read", lambda *of: looks.append(of) or read(*of))
    visitor = visit()
    page = visitor.page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    visitor.open("", "Now")
    page.get_by_text("No run fits.").wait_for()

    def quiet(count: int) -> list[str]:
        """What is asked for while the server looks so often, which without a stream were polls of all lists."""
        before, seen = len(asked), len(looks)
        while len(looks) < seen + count:
            page.wait_for_timeout(100)
        return asked[before:]

    for _ in range(20):
        if not quiet(8):
            break
    else:
        raise AssertionError(f"the page asks where nothing changes: {quiet(8)}")
    run_id = waiting(store)
    page.get_by_text("rm -r x").wait_for()
    page.locator(f"a[title='{run_id}']").first.wait_for()
    Waits(store.database).approve(run_id, ApprovalChoice.DENY, by="ann")
    page.get_by_text("rm -r x").wait_for(state="detached")
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("API key").wait_for()
    until(lambda: watching.count == 0, "no stream after the end of the login")


class Switch:
    """A way to one of several servers, such as a balancer is. ``lead_to`` cuts every connection where it stands."""

    def __init__(self, api: Served) -> None:
        self._target = urlsplit(api.url).port
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                sink.sendall(data)
        except OSError:
            pass  # cut
        for each in (source, sink):
            self._open.discard(each)
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # the other thread may wait in it: a close alone would tell nobody
            each.close()

    def lead_to(self, api: Served) -> None:
        self._target = urlsplit(api.url).port
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        for each in list(self._open):
            each.close()


def test_a_replica_that_dies_costs_no_event_and_no_run(
    serve: Callable[..., Served], api: Served, store: Store, visit: Callable[..., PageVisitor]
) -> None:
    """Two servers of one database behind one address; the page loses the one that it reads from."""
    other = serve()
    switch = Switch(api)
    visitor = visit(url=switch.url)
    page = visitor.page
    run_id = api.submit()
    visitor.open(f"runs/{run_id}", run_id)
    page.get_by_text("live", exact=True).wait_for()
    runs_ = page.context.new_page()
    runs_.goto(f"{switch.url}/#/runs")
    runs_.locator("tbody tr").first.wait_for()
    runs_.locator("#filter-tag").click()
    for number in range(6):
        runs_.keyboard.type("night"[number : number + 1])
        store.ask_tools(run_id, asks(Replay.PURE))
        other.submit(tags=["night"])
        if number % 2 == 0:
            switch.lead_to(other if number % 4 == 0 else api)
        store.settle(run_id, 0, f"result {number}")
        other.submit(tags=["night"])
    talk = page.get_by_label("What happened")
    talk.get_by_text("tool0 succeeded").nth(5).wait_for()
    wanted = [event for event in store.event_names(run_id) if event != "run.queued"]
    assert [talk.locator(kind).count() for kind in (".agent", ".call")] == [6, 6], "none is missing, and none is double"
    events = page.locator("summary", has=page.get_by_role("heading", name="Events", exact=True))
    assert events.inner_text().split() == ["Events", str(len(wanted))]
    ids = [run["run_id"] for run in other.http.get("/v1/runs?tag=night&limit=100").json()["data"]]
    runs_.wait_for_function("(count) => document.querySelectorAll('tbody tr').length === count", arg=len(ids))
    assert runs_.evaluate("() => [...document.querySelectorAll('tbody tr a')].map((each) => each.title)") == ids
    assert runs_.locator("#filter-tag").input_value() == "night"
    assert runs_.evaluate("() => document.activeElement.id") == "filter-tag"
    page.context.close()
    switch.close()


def test_more_runs_than_connections_are_all_live(api: Served, store: Store, visit: Callable[..., PageVisitor]) -> None:
    run_ids = [api.submit() for _ in range(5)]
    first = visit().page
    tabs = [first, *(first.context.new_page() for _ in range(4))]
    for tab, run_id in zip(tabs, run_ids, strict=True):
        tab.set_default_timeout(BROWSER_PATIENCE_S * 1000)
        tab.goto(f"{api.url}/#/runs/{run_id}")
        tab.locator("h1", has_text=run_id).wait_for()
    for number in range(2):
        for run_id in run_ids:
            if number == 0:
                store.ask_tools(run_id, asks(Replay.PURE))
            else:
                store.settle(run_id, 0, "found")
        for tab in tabs:
            tab.get_by_text("tool0 succeeded" if number else "(calls tools)").wait_for()
            assert tab.get_by_text("(calls tools)").count() == 1
    assert api.followers.count <= 4


def test_what_was_delegated_is_a_tree_against_time(
    api: Served, store: Store, visit: Callable[..., PageVisitor]
) -> None:
    run_id = _delegated(api, store)
    children = [node["run"]["run_id"] for node in api.http.get(f"/v1/runs/{run_id}/tree").json()["data"]]
    visitor = visit()
    page = visitor.page
    visitor.open(f"runs/{run_id}", run_id)
    tree = page.get_by_label("The tree of this run")
    tree.get_by_role("row").nth(4).wait_for()
    assert tree.locator(".lane").count() == 4
    assert tree.locator(".lane .wait").count() == 2, "two children have not begun"
    assert all(child[:12] in tree.inner_text() for child in children)
    graph = page.get_by_role("group", name="The tree as a graph")
    assert graph.get_by_role("link").count() == 4
    assert graph.get_by_role("link", name="completed").count() == 1
    assert graph.locator("path").get_attribute("d").count("M") == 3, "a line to each child"
    # One of its dots is reached by Tab, the others by arrows along the lines.
    assert graph.locator("[tabindex='0']").count() == 1
    graph.locator("[tabindex='0']").focus()
    focused = "() => document.activeElement.dataset.run"
    assert page.evaluate(focused) == run_id
    for key, wanted in {"ArrowDown": 1, "ArrowRight": 2, "End": 3, "ArrowLeft": 2, "Home": 1, "ArrowUp": 0}.items():
        page.keyboard.press(key)
        assert page.evaluate(focused) == children[wanted], key
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_role("heading", level=1, name=children[1]).wait_for()
    page.go_back()
    tree.get_by_role("row").nth(4).wait_for()
    calls = page.locator("section", has=page.get_by_role("heading", name="Calls", exact=True))
    calls.locator("summary", has_text="tool1").click()
    calls.get_by_text("Arguments").wait_for()
    assert "once" in calls.inner_text()


def test_a_worker_is_seen_with_what_it_holds_and_drained(
    api: Served, store: Store, visit: Callable[..., PageVisitor]
) -> None:
    busy = store.worker("busy", ttl_s=1e9)
    run_id = store.with_tools(Replay.PURE)
    store.call(run_id, owner=busy.pk)
    visitor = visit()
    page = visitor.page
    visitor.open("fleet", "Fleet")
    row = page.get_by_role("row").filter(has=page.get_by_role("cell", name="busy", exact=True))
    row.get_by_role("link", name=run_id[:12]).wait_for()
    assert "tool0" in row.inner_text()
    row.get_by_role("button", name="Drain").click()
    assert api.http.get("/v1/workers").json()["data"][0]["draining_at"] is None, "nothing was done yet"
    page.get_by_role("dialog").get_by_role("button", name="Do it").click()
    row.locator(".state", has_text="draining").wait_for()
    assert row.get_by_role("button", name="Drain").count() == 0


def test_settings_are_shown_with_who_said_so_and_no_secret(api: Served, visit: Callable[..., PageVisitor]) -> None:
    visitor = visit()
    page = visitor.page
    visitor.open("settings", "Settings")
    table = page.get_by_label("Settings", exact=True)
    told = api.http.get("/v1/settings").json()["data"]
    table.locator("tbody tr").nth(len(told) - 1).wait_for(state="attached")
    assert [each["key"] for each in told] == table.locator("tbody td:first-child").all_inner_texts()
    assert api.key not in page.content()
    page.get_by_label("Words").fill("server.key")
    page.get_by_text(f"of {len(told)}").wait_for()
    row = table.get_by_role("row").filter(has=page.get_by_role("cell", name="server.key", exact=True))
    row.get_by_text("a secret").wait_for()
    page.wait_for_url("**words=server.key*")


def test_settings_of_a_session_and_of_a_run_are_told_apart_by_who_said_so(
    api: Served, visit: Callable[..., PageVisitor]
) -> None:
    before = api.submit()
    session = api.http.get(f"/v1/runs/{before}").json()["session_id"]
    said = api.http.put(f"/v1/sessions/{session}/settings", json={"settings": {"agent.max_turns": "7"}})
    assert said.status_code == 200, said.text
    visitor = visit()
    page = visitor.page
    visitor.open("settings", "Settings")
    table = page.get_by_label("Settings", exact=True)
    row = table.get_by_role("row").filter(has=page.get_by_role("cell", name="agent.max_turns", exact=True))
    page.get_by_label("Of a session").fill(session)
    row.locator(".tag", has_text="session").wait_for()
    row.get_by_text("7", exact=True).wait_for()
    page.get_by_label("Said by").select_option(label="session")
    page.get_by_text("1 of ").wait_for()
    page.get_by_label("Of a run").fill(before)
    page.get_by_text("Name one of").wait_for()
    assert table.count() == 0, "nothing is told of both"
    page.get_by_label("Of a session").fill("")
    page.get_by_label("Said by").select_option(label="anybody")
    page.get_by_text("as this run was accepted with").wait_for()
    assert row.locator(".tag", has_text="session").count() == 0, "it was accepted before"


def test_whoever_asks_in_a_chat_is_let_in_by_their_code_or_refused(
    api: Served, visit: Callable[..., PageVisitor]
) -> None:
    chats = _chats(api)
    codes = {person: _code_for(chats, person) for person in ("42", "43")}
    visitor = visit()
    page = visitor.page
    visitor.open("gateway", "Gateway")
    page.get_by_label("Accounts").get_by_text("it says Conflict").wait_for()
    asking = page.get_by_label("Asks to be let in")
    asking.get_by_role("row").nth(2).wait_for()
    assert codes["42"] not in page.content()
    _code_for(chats, "44")
    # Sooner than the page looks by itself.
    asking.get_by_role("row").filter(has_text="44").wait_for(timeout=15_000)
    asking.get_by_role("row").filter(has_text="44").get_by_role("button", name="Refuse").click()
    page.get_by_role("dialog").get_by_role("button", name="Do it").click()
    asking.get_by_role("row").filter(has_text="44").wait_for(state="detached")
    page.get_by_label("Code that they were given").fill("WRONGONE")
    page.keyboard.press("Enter")
    page.get_by_text("no open request has this code").wait_for()
    page.get_by_label("Code that they were given").fill(codes["42"])
    page.get_by_label("Role").select_option("member")
    page.get_by_role("button", name="Let in").click()
    let_in = page.get_by_label("Let in with a code").get_by_role("row").filter(has_text="42")
    let_in.get_by_text("member").wait_for()
    asking.get_by_role("button", name="Refuse").click()
    page.get_by_role("dialog").get_by_role("button", name="Do it").click()
    page.get_by_text("Nobody asks.").wait_for()
    let_in.get_by_role("button", name="Revoke").click()
    assert chats.list_people("telegram:default"), "nothing was done yet"
    page.get_by_role("dialog").get_by_role("button", name="Do it").click()
    page.get_by_text("Nobody was let in with a code.").wait_for()


def test_money_is_added_up_in_the_way_that_the_address_says(
    api: Served, store: Store, visit: Callable[..., PageVisitor]
) -> None:
    _fill(api, store)
    visitor = visit()
    page = visitor.page
    visitor.open("money?by=model", "Money")
    page.get_by_role("row", name="scripted").wait_for()
    page.get_by_label("By", exact=True).select_option("session")
    page.locator("thead", has_text="Session").wait_for()
    assert "by=session" in page.url


def test_an_operator_who_may_not_see_everybodys_money_sees_the_own(
    api: Served, store: Store, visit: Callable[..., PageVisitor]
) -> None:
    _fill(api, store)
    made = api.http.post("/v1/keys", json={"holder": "watcher", "scopes": ["runs:read", "ops:read"]})
    visitor = visit(made.json()["key"])
    visitor.open("money?by=model", "Money")
    visitor.page.get_by_role("row", name="scripted").wait_for()


def test_a_key_is_made_shown_once_and_revoked(api: Served, visit: Callable[..., PageVisitor]) -> None:
    visitor = visit()
    page = visitor.page
    visitor.open("access", "Access")
    page.get_by_label("A key for").fill("alice")
    page.get_by_role("button", name="Make it").click()
    key = page.get_by_role("dialog").locator("pre").inner_text()
    with httpx.Client(base_url=api.url, verify=False, timeout=BROWSER_PATIENCE_S) as alice:
        assert alice.get("/v1/runs", headers={"Authorization": f"Bearer {key}"}).status_code == 200
    page.get_by_role("button", name="I have it").click()
    page.get_by_role("button", name="Revoke").click()
    assert key not in page.content()
    page.get_by_role("button", name="Do it").click()
    page.locator("tbody .state", has_text="revoked").wait_for()


def test_the_keyboard_alone_gets_everywhere(api: Served, store: Store, visit: Callable[..., PageVisitor]) -> None:
    page = visit().page
    views = {
        "r": "Runs",
        "s": "Sessions",
        "j": "Schedule",
        "d": "Deliveries",
        "m": "Money",
        "f": "Fleet",
        "w": "Gateway",
        "e": "Settings",
        "k": "Access",
        "a": "Audit",
        "b": "Batches",
        "y": "Replays",
        "o": "Memory",
        "l": "Skills",
        "c": "MCP servers",
        "h": "Webhooks",
        "t": "Tenants",
    }
    for key, heading in {**views, "i": "Inbox"}.items():
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.get_by_role("heading", level=1, name=heading).wait_for()
    run_id = waiting(store)
    page.get_by_text("rm -r x").wait_for()
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.textContent") == "Deny":
            break
    page.keyboard.press("Enter")
    page.get_by_text("tool0: you chose deny").wait_for()
    assert store.status(run_id).value != "waiting_for_approval"
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.locator("#filter-text").wait_for()
    page.keyboard.press("/")
    assert page.evaluate("() => document.activeElement.id") == "filter-text"
    page.locator("h1").click()
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")


def test_a_key_answers_only_the_question_that_has_the_focus(
    api: Served, store: Store, visit: Callable[..., PageVisitor]
) -> None:
    page, run_id, sent = visit().page, waiting(store), list[str]()
    page.on("request", lambda request: sent.append(request.url) if request.url.endswith("/approval") else None)
    page.goto(f"{api.url}/#/inbox")
    page.get_by_text("rm -r x").wait_for()
    page.keyboard.press("a")
    page.keyboard.press("j")
    page.wait_for_function("() => document.activeElement.matches('.ask')")
    assert sent == []
    page.keyboard.press("a")
    page.get_by_text("tool0: you chose once").wait_for()
    assert len(sent) == 1
    assert store.status(run_id).value != "waiting_for_approval"


def test_a_run_that_is_not_there_is_asked_for_less_and_less_often(
    api: Served, visit: Callable[..., PageVisitor]
) -> None:
    page, asked_at = visit().page, list[float]()

    def note(request: Any) -> None:
        if "/events?" in request.url:
            asked_at.append(time.monotonic())

    page.on("request", note)
    page.goto(f"{api.url}/#/runs/run_{'0' * 32}")
    page.get_by_text("Run not found").wait_for()
    until(lambda: page.wait_for_timeout(50) or len(asked_at) >= 3, "three questions")
    assert asked_at[1] - asked_at[0] > 0.9
    assert asked_at[2] - asked_at[1] > 1.9


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_fits_every_width(
    api: Served, store: Store, visit: Callable[..., PageVisitor], scheme: str, tmp_path: Path
) -> None:
    """Nothing is wider than the window; and these are the pictures."""
    folder = Path(os.environ.get("HERMES_PAGE_PICTURES", tmp_path))
    _fill(api, store)
    talk = repair_orders(api, store)
    ask_to_deploy(store, api.submit(input="Good. Now push it and deploy it.", session_id=talk))
    store.call(store.with_tools(Replay.PURE), owner=store.worker("worker-1", ttl_s=1e9).pk)
    asking = waiting(store)
    waiting(store, WaitKind.INPUT)
    Waits(store.database).approve(waiting(store), ApprovalChoice.SESSION, by="ann")
    tree = _delegated(api, store)
    chats = _chats(api)
    for person in ("ann", "bob"):
        _code_for(chats, person)
    visitor = visit(color_scheme=scheme, viewport={"width": 1280, "height": 800})
    page = visitor.page
    views = {
        "": "Now", "runs": "Runs", "inbox": "Inbox", f"runs/{asking}": asking, f"runs/{tree}": tree,
        "sessions": "Sessions", "schedule": "Schedule", "deliveries": "Deliveries", "money": "Money",
        "memory": "Memory", "skills": "Skills", "mcp": "MCP servers", "webhooks": "Webhooks", "batches": "Batches",
        "replays": "Replays", "tenants": "Tenants", f"compare/{tree}/{asking}": "Compare", f"sessions/{talk}": talk,
        "fleet": "Fleet", "gateway": "Gateway", "settings": "Settings", "access": "Access", "audit": "Audit",
    }  # fmt: skip
    for route, heading in views.items():
        visitor.open(route, heading)
        page.locator("main table, main .empty, main .ask, main form").first.wait_for()
        name = {asking: "run", tree: "tree", talk: "session"}.get(heading, heading.lower().replace(" ", "-"))
        if heading == talk:
            page.get_by_role("button", name="Deny").wait_for()
        if heading == "Compare":
            page.get_by_text("Loading …").wait_for(state="detached")
        if heading == tree:
            page.get_by_label("The tree of this run").scroll_into_view_if_needed()
        page.screenshot(path=str(folder / f"page-{name}-{scheme}.png"))
        if heading == "Inbox":
            page.set_viewport_size({"width": 390, "height": 844})
            page.screenshot(path=str(folder / f"page-phone-{scheme}.png"))
        page.set_viewport_size({"width": 320, "height": 640})
        wide = page.evaluate("() => document.documentElement.scrollWidth")
        assert wide <= 320, f"{heading} is {wide} px wide"
        page.set_viewport_size({"width": 1280, "height": 800})


def _chats(api: Served) -> GatewayRows:
    """An account that is listened to, and whose last look failed."""
    chats = GatewayRows(api.client.database)
    hold = chats.acquire_lease("telegram:default", mode="poll", token_hash="t", holder="host:1", lease_s=600)
    assert hold is not None
    chats.renew(hold, 600, error="it says Conflict")
    return chats


def _code_for(chats: GatewayRows, person: str) -> str:
    with chats.database.write() as connection:
        code = chats.create_code(connection, "telegram:default", person)
    assert code is not None
    return code


def _delegated(api: Served, store: Store) -> str:
    """A run with children, one of which has ended."""
    run_id = api.submit(input="Compare three releases")
    store.ask_tools(run_id, asks(Replay.ONCE, Replay.PURE))
    children = store.delegate(run_id, 3)
    store.answer(children[0], ModelReply(text="no difference", usage=Usage(input=900, output=120)))
    return run_id


def _fill(api: Served, store: Store) -> None:
    """An ordinary afternoon."""
    questions = ["Summarise the release notes", "Find flaky tests", "Draft the weekly report", "Check the certificates"]
    for number, question in enumerate(questions * 3):
        run_id = api.submit(input=question, tags=["nightly"] if number % 3 == 0 else [])
        if number % 4 == 3:
            continue
        store.ask_tools(run_id, asks(Replay.PURE, Replay.KEYED))
        store.settle(run_id, 0, "12 files")
        if number % 4 == 2:
            continue
        store.settle(run_id, 1, "no findings")
        usage = Usage(input=1_200 + number, output=340)
        store.answer(run_id, ModelReply(text=f"{question}: nothing stands out.", usage=usage))


def test_a_file_that_a_run_left_is_saved(api: Served, visit: Callable[..., PageVisitor]) -> None:
    run_id = left(api, ("out/report.csv", b"a,b\n"))
    visitor = visit()
    visitor.open(f"runs/{run_id}", run_id)
    with visitor.page.expect_download() as saved:
        visitor.page.get_by_role("link", name="out/report.csv").click()
    assert saved.value.suggested_filename == "report.csv"
    assert Path(saved.value.path()).read_bytes() == b"a,b\n"


def test_filters_are_those_of_the_address(api: Served, visit: Callable[..., PageVisitor]) -> None:
    """What is stopped by a button is what the fields say."""
    api.submit()
    visitor = visit()
    page = visitor.page
    visitor.open("runs?status=failed&tag=night", "Runs")
    assert page.locator("#filter-tag").input_value() == "night"
    page.get_by_role("navigation").get_by_role("link", name="Runs", exact=True).click()
    page.locator("tbody tr").first.wait_for()
    assert [page.locator(f"#filter-{name}").input_value() for name in ("tag", "status")] == ["", ""]
