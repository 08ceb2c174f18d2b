"""Lists of the page in Debian's Chromium: they fit, things are found in them, the keyboard moves in them, and what
takes something away asks first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from page_scenes import repair_orders
from serving import Served, until
from support.store import Store, asks
from test_control import waiting
from test_deliveries_api import settled
from test_page_browser import (  # noqa: F401  (fixtures)
    CHROMIUM,
    PageVisitor,
    _chats,
    _code_for,
    _delegated,
    _fill,
    chromium,
    visit,
)

from hermes_worker.core.messages import ModelReply
from hermes_worker.core.replay import Replay

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(CHROMIUM is None, reason="no browser here: install Debian's package chromium"),
]
Visit = Callable[..., PageVisitor]
_CUT_OFF = """() => [...document.querySelectorAll("main .scroll")]
  .filter((box) => box.scrollWidth > box.clientWidth + 1)
  .map((box) => `${box.querySelector("table")?.ariaLabel ?? box.className} ${box.scrollWidth} > ${box.clientWidth}`)"""
_AT = """() => { const row = document.activeElement.closest("tbody tr, .ask, .talk > li");
  return row && [...document.querySelectorAll("main tbody tr, main .ask, main .talk > li")].indexOf(row); }"""


def furnish(api: Served, store: Store) -> dict[str, str]:
    """Rows for every list. Returns routes and their headings."""
    _fill(api, store)
    talk = repair_orders(api, store)
    api.http.post(f"/v1/runs/{talk}/fork", json={"at": 0, "tools": "offline"}).raise_for_status()
    asking = waiting(store)
    tree = _delegated(api, store)
    store.call(store.with_tools(Replay.PURE), owner=store.worker("worker-1", ttl_s=1e9).pk)
    settled(store, "telegram:-1001234567890:42")
    chats = _chats(api)
    _code_for(chats, "ann")
    for name, schedule in {"News of the whole world, every morning": "every 30m", "Report": "0 9 * * 1-5"}.items():
        job = {"name": name, "schedule": schedule, "prompt": "Look around and say what is new since yesterday"}
        api.http.post("/api/jobs", json=job).raise_for_status()
    for target, text in {"memory": "The build takes nine minutes.", "user": "Likes **tea**."}.items():
        body = {"operations": [{"action": "add", "content": text}]}
        api.http.post(f"/v1/memory/{target}", json=body).raise_for_status()
    route = {"name": "issues", "prompt": "Sort this issue", "secret": "s" * 32}
    api.http.post("/v1/webhook-routes", json=route).raise_for_status()
    api.http.post("/v1/tenants", json={"name": "acme"}).raise_for_status()
    made = {"holder": "ann of the operations team", "scopes": ["runs:read", "runs:write", "approve", "jobs"]}
    api.http.post("/v1/keys", json=made).raise_for_status()
    return {
        "": "Now", "runs": "Runs", "runs?kind=every": "Runs", "inbox": "Inbox", "sessions": "Sessions",
        "schedule": "Schedule", "deliveries": "Deliveries", "money": "Money", "money?by=session": "Money",
        "memory": "Memory", "webhooks": "Webhooks", "replays": "Replays", "tenants": "Tenants", "fleet": "Fleet",
        "gateway": "Gateway", "settings": "Settings", "access": "Access", "audit": "Audit", f"runs/{tree}": tree,
        f"runs/{asking}": asking, f"sessions/{talk}": talk, f"compare/{talk}/{tree}": "Compare",
    }  # fmt: skip


def settle_down(page: Any) -> None:
    page.locator("main tbody tr, main .talk > li, main .ask").first.wait_for()


@pytest.mark.parametrize("width", [1024, 1280])
def test_no_table_is_cut_off(api: Served, store: Store, visit: Visit, width: int) -> None:  # noqa: F811
    views = furnish(api, store)
    visitor = visit(viewport={"width": width, "height": 900})
    wrong = {}
    for route, heading in views.items():
        visitor.open(route, heading)
        settle_down(visitor.page)
        wrong[route] = visitor.page.evaluate(_CUT_OFF)
    assert {route: what for route, what in wrong.items() if what} == {}


def test_keys_move_in_every_list_and_escape_leaves_a_field_for_it(
    api: Served,
    store: Store,
    visit: Visit,  # noqa: F811
) -> None:
    views = furnish(api, store)
    visitor = visit()
    page = visitor.page
    for route, heading in views.items():
        visitor.open(route, heading)
        settle_down(page)
        page.locator("h1").click()
        page.keyboard.press("j")
        first = page.evaluate(_AT)
        assert first is not None, f"j does nothing at {route or 'Now'}"
        field = page.locator("main .filters input:visible, main form input:visible").first
        if field.count():
            field.focus()
            page.keyboard.press("Escape")
            assert page.evaluate(_AT) == first, f"Escape does not lead to the list at {route or 'Now'}"
    visitor.open("memory", "Memory")
    page.get_by_text("Likes").wait_for()
    seen = []
    for key in "jjk":
        page.keyboard.press(key)
        seen.append(page.evaluate("() => document.activeElement.innerText"))
    assert "nine minutes" in seen[0] == seen[2]
    assert "tea" in seen[1]
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Change", "its buttons come next"


def test_what_takes_something_away_asks_first(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    views = furnish(api, store)
    visitor = visit()
    page = visitor.page
    sent: list[str] = []
    page.on("request", lambda asked: asked.method != "GET" and sent.append(f"{asked.method} {asked.url}"))
    found = []
    wanted = {
        "Schedule": "Forget", "Memory": "Forget", "Webhooks": "Forget", "Access": "Revoke", "Tenants": "Disable",
        "Gateway": "Refuse", "Fleet": "Drain",
    }  # fmt: skip
    for route, heading in views.items():
        visitor.open(route, heading)
        settle_down(page)
        if heading in wanted:
            page.get_by_role("button", name=wanted[heading]).first.wait_for()
        for button in page.locator("main button.danger:visible").all():
            if button.evaluate("(each) => Boolean(each.closest('.ask'))"):
                continue  # a question is answered, and nothing is taken away
            found.append(f"{heading}: {button.inner_text()}")
            button.click()
            page.get_by_role("dialog").get_by_role("button", name="Leave it").click()
            page.locator("dialog").wait_for(state="detached")
    assert sent == []
    assert {f"{heading}: {label}" for heading, label in wanted.items()} <= set(found)


def test_what_was_forgotten_is_brought_back(api: Served, visit: Visit) -> None:  # noqa: F811
    body = {"operations": [{"action": "add", "content": "Likes tea."}]}
    api.http.post("/v1/memory/user", json=body).raise_for_status()
    visitor = visit()
    page = visitor.page
    visitor.open("memory", "Memory")
    user = page.get_by_label("What it knows of the user", exact=True)
    user.get_by_role("button", name="Forget").click()
    page.get_by_role("dialog", name="Forget this?").get_by_role("button", name="Do it").click()
    user.get_by_text("Nothing is remembered.").wait_for()
    user.get_by_role("button", name="Undo", exact=True).click()
    user.get_by_text("Likes tea.").wait_for()
    assert [each["content"] for each in api.http.get("/v1/memory").json()["user"]["entries"]] == ["Likes tea."]
    assert user.get_by_role("button", name="Undo", exact=True).count() == 0


def test_all_that_fit_are_stopped_only_where_a_filter_says_what_fits(
    api: Served,
    store: Store,
    visit: Visit,  # noqa: F811
) -> None:
    run_id = api.submit(input="Sweep the attic", tags=["nightly"])
    visitor = visit()
    page = visitor.page
    visitor.open("runs", "Runs")
    page.locator("tbody tr[data-n]").wait_for()
    assert page.get_by_role("button", name="Stop all that fit").count() == 0
    page.get_by_label("Tag").fill("nightly")
    page.get_by_role("button", name="Stop all that fit").click()
    plan = page.get_by_role("dialog", name="Stop 1 run?")
    plan.get_by_text("Sweep the attic").wait_for()
    assert store.status(run_id).value == "queued", "nothing was done yet"
    page.goto(f"{api.url}/#/runs?status=completed")
    page.get_by_text("No run fits.").wait_for()
    assert page.get_by_role("button", name="Stop all that fit").count() == 0, "what has ended cannot be stopped"


def test_a_run_says_what_did_not_arrive_and_sends_it_again(
    api: Served,
    store: Store,
    visit: Visit,  # noqa: F811
) -> None:
    delivery_id = settled(store, "telegram:-1001234567890:42", "chat not found")
    run_id = api.http.get(f"/v1/deliveries/{delivery_id}").json()["run_id"]
    visitor = visit()
    page = visitor.page
    visitor.open("runs", "Runs")
    page.get_by_role("row").get_by_text("not delivered to telegram:-1001234567890:42").wait_for()
    page.locator(f"a[title='{run_id}']").click()
    page.get_by_role("heading", name="Not delivered").wait_for()
    page.get_by_text("chat not found").wait_for()
    page.get_by_role("button", name="Send again").click()
    page.get_by_role("heading", name="Not delivered").wait_for(state="detached")
    assert api.http.get(f"/v1/deliveries/{delivery_id}").json()["state"] == "pending"


def test_the_palette_finds_by_ids_of_either_kind_and_by_titles(
    api: Served,
    store: Store,
    visit: Visit,  # noqa: F811
) -> None:
    run_id = api.submit(input="Polish the lighthouse")
    store.answer(run_id, ModelReply(text="It shines."))
    named = "api_1700000000_0badcafe"  # as programs name sessions
    api.http.post("/api/sessions", json={"id": named, "title": "Harbour works"}).raise_for_status()
    job = {"name": "Tide table", "schedule": "every 30m", "prompt": "Look at the water"}
    job_id = api.http.post("/api/jobs", json=job).json()["job"]["id"]
    page = visit().page
    for words, kind, text in (
        (f"{run_id[:12]}…", "run", "Polish the lighthouse"),  # as lists show it
        (run_id[4:14], "run", "Polish the lighthouse"),
        (run_id, "conversation", "Polish the lighthouse"),
        ("lighthouse", "run", "Polish the lighthouse"),
        (named, "conversation", "Harbour works"),
        (named[:8], "conversation", "Harbour works"),
        ("harbour", "conversation", "Harbour works"),
        ("tide", "job", "Tide table"),
        (job_id, "job", "Tide table"),
    ):
        page.keyboard.press("Control+k")
        page.get_by_role("combobox", name="What to find").fill(words)
        page.get_by_role("option", name=f"{text} {kind}").first.wait_for()
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="detached")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="What to find").fill(job_id)
    page.get_by_role("option", name="Tide table").wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Slots of Tide table").wait_for()


def test_filters_take_titles_and_the_beginnings_of_ids(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    run_id = api.submit(input="Polish the lighthouse")
    store.ask_tools(run_id, asks(Replay.ONCE))
    [child] = store.delegate(run_id, 1)
    api.submit(input="Sweep the quay")
    visitor = visit()
    page = visitor.page
    rows = page.locator("tbody tr[data-n] a.one")
    for asked, wanted in (
        ("session=lighthouse", run_id),
        (f"session={run_id[:14]}", run_id),
        (f"parent={run_id[:14]}", child),
        (f"parent={run_id}", child),
    ):
        visitor.open(f"runs?{asked}", "Runs")
        page.locator(f"a[title='{wanted}']").wait_for()
        assert rows.count() == 1, asked
    visitor.open("runs?session=nobody", "Runs")
    page.get_by_text("No conversation is called “nobody”.").wait_for()
    visitor.open("runs?session=the", "Runs")
    page.get_by_text("Several fit “the”").wait_for()
    page.get_by_role("button", name="Sweep the quay").click()
    page.wait_for_function("() => document.querySelectorAll('tbody tr[data-n]').length === 1")
    assert "Sweep the quay" in rows.inner_text()
    visitor.open(f"sessions?q={run_id[:14]}", "Sessions")
    page.get_by_label("Called so").get_by_role("link", name="Polish the lighthouse").first.wait_for()


def test_an_address_that_is_no_page_says_so_and_offers_the_nearest(api: Served, visit: Visit) -> None:  # noqa: F811
    visitor = visit()
    page = visitor.page
    visitor.open("skils", "No such page")
    assert page.title().startswith("No such page")
    page.get_by_role("link", name="Did you mean Skills?").click()
    page.get_by_role("heading", level=1, name="Skills").wait_for()
    visitor.open("compare/one", "No such page")
    visitor.open("sessions/nowhere", "No such conversation")
    assert page.get_by_label("Go on with this conversation").count() == 0
    key = api.http.post("/v1/keys", json={"holder": "ann", "scopes": ["runs:read"]}).json()["key"]
    reader = visit(key)
    reader.open("audit", "Audit")
    reader.page.get_by_text("Your key does not allow this view.").wait_for()


@pytest.mark.parametrize("width", [320, 390])
def test_the_navigation_of_a_phone_is_one_line(api: Served, store: Store, visit: Visit, width: int) -> None:  # noqa: F811
    for _ in range(12):
        waiting(store)
    visitor = visit(viewport={"width": width, "height": 844})
    page = visitor.page
    for route, heading in {"": "Now", "mcp": "MCP servers", "deliveries": "Deliveries", "inbox": "Inbox"}.items():
        visitor.open(route, heading)
        page.locator("nav .count", has_text="12").wait_for()
        places = [page.get_by_role("link", name="Inbox"), page.get_by_role("button", name="More")]
        tops, heights = zip(
            *((box["y"], box["height"]) for box in (each.bounding_box() for each in places)), strict=True
        )
        assert max(tops) - min(tops) < 12, heading
        assert max(heights) < 44, heading
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_paper_gets_all_of_a_conversation_and_nothing_to_press(
    api: Served,
    store: Store,
    visit: Visit,  # noqa: F811
) -> None:
    run_id = api.submit(input="Count to eighty")
    for number in range(80):
        store.ask_tools(run_id, asks(Replay.PURE))
        store.settle(run_id, 0, f"number {number}")
    store.answer(run_id, ModelReply(text="Eighty."))
    visitor = visit(color_scheme="dark")
    page = visitor.page
    for route, label in ((f"runs/{run_id}", "What happened"), (f"sessions/{run_id}", "The conversation")):
        visitor.open(route, run_id)
        talk = page.get_by_label(label, exact=True)
        talk.get_by_text("Eighty.").wait_for()
        count = int(talk.get_attribute("data-count"))
        assert count > 80
        assert talk.locator("[data-n]").count() < count, "a screen gets what is in sight"
        page.emulate_media(media="print")
        until(lambda talk=talk, count=count: talk.locator("[data-n]").count() == count, "all of it on paper")
        assert not page.get_by_role("navigation").is_visible()
        assert page.locator("button:not(.link):visible, input:visible, textarea:visible").count() == 0
        box = talk.evaluate("(list) => [list.parentElement.scrollHeight, list.parentElement.clientHeight]")
        assert box[0] <= box[1] + 1, "nothing is scrolled away"
        assert page.evaluate("() => getComputedStyle(document.documentElement).getPropertyValue('--panel')") == "#fff"
        page.emulate_media(media="screen")
