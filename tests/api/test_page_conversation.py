"""Conversations on the page in Debian's Chromium: words are Markdown, calls are cards, and the keyboard answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from page_scenes import ask_calls, ask_to_deploy, repair_orders
from serving import Served, until
from support.questions import open_wait
from support.store import Store, asks
from test_control import waiting
from test_deliveries_api import settled
from test_page_browser import CHROMIUM, PageVisitor, chromium, visit  # noqa: F401  (fixtures)

from hermes_worker.client import HermesClient
from hermes_worker.core.messages import ModelReply
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.tables import runs

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(CHROMIUM is None, reason="no browser here: install Debian's package chromium"),
]
Visit = Callable[..., PageVisitor]
MARKDOWN = {
    "# One": "h3=One",
    "### Three ###": "h3=Three",
    "## A\n### B\n## C\n##### D": "h3=A h4=B h3=C h4=D",
    "### A\n# B\n> ### D": "h3=A h3=B blockquote=D h4=D",
    "a **bold** and *it* and ~~gone~~ `code`": "strong=bold em=it del=gone code=code",
    "snake_case_name and 2 * 3 * 4": "",
    "**unclosed and *also": "",
    "> quoted": "blockquote=quoted",
    "- one\n- two\n  - three": "li=one li=twothree li=three",
    "1. one\n\n2. two": "li=one li=two",
    "- [x] done\n- [ ] open": "li=☑ done li=☐ open",
    "```py\nreturn 1\n```": "code=return 1 .c-word=return .c-number=1",
    "````\n```\ninner\n```\n````": "code=```inner```",
    "| a | b |\n|---|--:|\n| 1 | 2\\|3 |": "th=a th=b td=1 td=2|3",
    "---": "hr=",
    "[here](https://example.org/x) and https://example.org/y.": ("a=here .host= (example.org) a=https://example.org/y"),
    "[x](javascript:alert(1)) [y](//evil) [z](data:text/html,x) [w](#/inbox)": "",
    "[bank](https://bank.example@evil.example/)": "",
    "[https://bank.example](https://evil.example/)": "a=https://bank.example .host= (evil.example)",
    "<https://example.org/>": "a=https://example.org/",
    "![seen](https://evil.example/p.png)": "a=image: seen .host= (evil.example)",
    r"\*not\* \[a link\](https://example.org)": "a=https://example.org",
    "<b>bold</b> <script>1</script> &lt;": "",
}
"""What is written, and the elements that become of it with their texts; paragraphs and plain spans are left out."""
_SHOWN = "h3, h4, h5, strong, em, del, blockquote, li, code, th, td, hr, a, .host, .c-word, .c-number"
_ELEMENTS = """(box, shown) => [...box.querySelectorAll(shown)].map((each) =>
  (each.localName === "span" ? "." + each.className : each.localName) + "=" + each.textContent.replaceAll("\\n", ""))"""
_DRAW = """async (texts) => {
  const { html, render } = await import("./web/core.js"), { Markdown } = await import("./web/markdown.js");
  const place = document.body.appendChild(Object.assign(document.createElement("main"), { id: "drawn" }));
  render(html`${texts.map((text) => html`<section><${Markdown} of=${text} /></section>`)}`, place);
}"""
LONG = {
    "marks": "*_" * 9_000, "brackets": "[" * 18_000, "ticks": "`" * 9_000 + " `` " * 3_000, "quotes": "> " * 9_000,
    "items": "1. a\n" * 4_000, "cells": "|" * 9_000 + "\n|-|", "bold": "**a " * 5_000,
    "remarks": "```js\n" + "/*" * 5_000, "links": "[a](https://a(" * 1_400,
}  # fmt: skip


def test_markdown_becomes_elements_and_nothing_else_does(visit: Visit) -> None:  # noqa: F811
    page = visit().page
    page.evaluate(_DRAW, list(MARKDOWN))
    drawn = page.locator("#drawn section")
    for number, (text, wanted) in enumerate(MARKDOWN.items()):
        assert " ".join(drawn.nth(number).evaluate(_ELEMENTS, _SHOWN)) == wanted, text
    assert "snake_case_name and 2 * 3 * 4" in drawn.nth(5).inner_text()
    assert "<b>bold</b> <script>1</script> &lt;" in drawn.last.inner_text()
    for link in page.locator("#drawn a").all():
        assert (link.get_attribute("target"), link.get_attribute("rel")) == ("_blank", "noopener noreferrer nofollow")


@pytest.mark.parametrize("kind", LONG)
def test_no_text_takes_markdown_long(visit: Visit, kind: str) -> None:  # noqa: F811
    """Of 20,000 characters, which is what is shown at once: some readers take minutes for such."""
    page = visit().page
    page.evaluate(_DRAW, [LONG[kind]])
    assert page.locator("#drawn .md").count() == 1


def test_a_session_reads_as_a_conversation(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    first = repair_orders(api, store)
    with store.database.write() as connection:
        connection.execute(sa.update(runs).where(runs.c.run_id == first).values(cost_status=CostStatus.UNKNOWN.value))
    page = visit().page
    page.goto(f"{api.url}/#/sessions/{first}")
    talk = page.get_by_label("The conversation")
    talk.get_by_role("heading", name="What was wrong").wait_for()
    page.get_by_text("calls, no price known").wait_for()
    assert talk.locator(".person").inner_text().count("The total of an order is wrong") == 1
    calls = talk.locator(".call > summary")
    words = [" ".join(text.split()) for text in calls.all_inner_texts()]
    assert [text.split()[:2] for text in words] == [
        [name, "succeeded"] for name in ("todo", "terminal", "patch", "terminal")
    ]
    assert "2 items, 1 in progress" in words[0]
    assert "pytest -q tests/test_orders.py" in words[1]
    assert "src/orders.py +1 -1" in words[2]
    calls.nth(1).click()
    talk.get_by_text("exit code 1").wait_for()
    assert "1 failed, 1 passed" in talk.locator("pre").first.inner_text() + talk.locator(".call").nth(1).inner_text()
    calls.nth(2).click()
    assert "line.count" in talk.locator(".d-in").inner_text()
    assert talk.locator(".d-out").count() == 1
    second = api.submit(input="Deploy it.", session_id=first)
    ask_to_deploy(store, second)
    page.reload()  # for whoever has scrolled up stays where they read
    asked = talk.locator(".ask", has_text="git push --force")
    asked.get_by_text("recursive delete", exact=True).wait_for()
    asked.get_by_role("button", name="Deny").click()
    talk.locator(".asked", has_text="chose").wait_for()
    talk.locator(".call > summary", has_text="denied").wait_for()
    until(lambda: store.status(second).value != "waiting_for_approval", "the answer")


def test_what_is_said_in_a_session_is_seen_there(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    first = repair_orders(api, store)
    page = visit().page
    page.goto(f"{api.url}/#/sessions/{first}")
    page.get_by_label("Go on with this conversation").fill("And **now**?")
    page.keyboard.press("Control+Enter")
    [fresh] = until(lambda: api.http.get("/v1/runs", params={"status": "queued"}).json()["data"], "the run")
    store.ask_tools(fresh["run_id"], ask_calls(("terminal", {"command": "git status"})))
    talk = page.get_by_label("The conversation")
    talk.locator(".person", has_text="And **now**?").wait_for()
    talk.locator(".call", has_text="git status").wait_for()
    store.settle(fresh["run_id"], 0, "clean")
    store.answer(fresh["run_id"], ModelReply(text="Nothing is left to do."))
    talk.get_by_text("Nothing is left to do.").wait_for()
    assert page.url.endswith(f"/sessions/{first}"), "one stays where one is"


def test_a_call_that_waits_for_children_stands_once_in_its_session_and_its_run_is_stopped_there(
    api: Served,
    store: Store,
    visit: Visit,  # noqa: F811
) -> None:
    run_id = api.submit(input="Ask two others.")
    store.ask_tools(run_id, ask_calls(("delegate_task", {"goal": "look"})))
    store.delegate(run_id, 2)
    page = visit().page
    page.goto(f"{api.url}/#/sessions/{run_id}")
    calls = page.get_by_label("The conversation").locator(".call", has_text="delegate_task")
    calls.filter(has_text="running").wait_for()  # by its events, and not by its row alone
    assert calls.count() == 1
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Do it").click()
    until(lambda: store.status(run_id).value == "cancelled", "the end")
    page.get_by_role("button", name="Stop").wait_for(state="detached")


def test_a_timeline_shows_who_was_waited_for_and_opens_it(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    run_id = waiting(store)
    Waits(store.database).approve(run_id, ApprovalChoice.ONCE, by="ann")
    store.settle(run_id, 0, "it is gone")
    visitor = visit()
    page = visitor.page
    visitor.open(f"runs/{run_id}", run_id)
    spans = page.get_by_label("What took the time")
    for kind in ("waits for a worker", "model", "waits for a person", "tool"):
        spans.get_by_role("row", name=kind).first.wait_for()
    assert "ann once" in spans.inner_text()
    page.get_by_label("What happened").locator(".call[open]").wait_for(state="detached")
    spans.get_by_role("button", name="tool").click()
    page.get_by_label("What happened").locator(".call[open]").get_by_text("it is gone").wait_for()


def test_a_run_is_forked_behind_a_step_and_compared(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    run_id = repair_orders(api, store)
    visitor = visit()
    page = visitor.page
    visitor.open(f"runs/{run_id}", run_id)
    page.locator("li.agent", has_text="The count is missing.").get_by_role("button", name="Fork from here").click()
    dialog = page.get_by_role("dialog", name="Fork behind step 2")
    dialog.get_by_label("Model").fill("other-model")
    dialog.get_by_role("button", name="Fork", exact=True).click()
    page.get_by_role("heading", level=1, name="Compare").wait_for()
    table = page.get_by_label("Two runs compared")
    table.get_by_role("cell", name="other-model").wait_for()
    fork = page.url.rpartition("/")[2]
    assert api.http.get(f"/v1/runs/{fork}").json()["model"] == "other-model"
    table.get_by_role("row", name="First difference").get_by_text("does nothing more").wait_for()
    visitor.open(f"runs/{fork}", fork)
    page.get_by_text("behind step 2").get_by_role("link", name="compare").click()
    page.get_by_role("heading", level=1, name="Compare").wait_for()
    assert page.url.endswith(f"/{run_id}/{fork}")


def test_a_job_is_written_with_its_next_slots_in_sight(api: Served, visit: Visit) -> None:  # noqa: F811
    visitor = visit()
    page = visitor.page
    visitor.open("schedule", "Schedule")
    page.get_by_role("button", name="New job").click()
    dialog = page.get_by_role("dialog", name="New job")
    dialog.get_by_label("Name").fill("Nightly")
    dialog.get_by_label("When").fill("at tea")
    dialog.locator(".slots .bad").wait_for()
    dialog.get_by_label("When").fill("0 3 * * *")
    dialog.locator(".slots li").nth(4).wait_for()
    dialog.get_by_label("What the agent shall do").fill("Sweep up.")
    dialog.get_by_role("button", name="Make it").click()
    row = page.get_by_role("row").filter(has_text="Sweep up.")
    row.wait_for()
    row.get_by_role("button", name="Change").click()
    page.get_by_role("dialog").get_by_label("What the agent shall do").fill("Sweep the attic.")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("row").filter(has_text="Sweep the attic.").wait_for()
    [job] = api.http.get("/api/jobs").json()["jobs"]
    assert (job["name"], job["prompt"], job["schedule_display"]) == ("Nightly", "Sweep the attic.", "0 3 * * *")


def test_lists_and_questions_are_worked_with_the_keyboard(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    runs = [api.submit(input=f"Task {number}") for number in range(3)]
    asked = [waiting(store), waiting(store)]
    visitor = visit()
    page = visitor.page
    visitor.open("runs?status=queued", "Runs")
    page.locator("tbody tr[data-n]").nth(2).wait_for()
    focused = "() => document.activeElement.title"
    for key, wanted in (("j", runs[2]), ("j", runs[1]), ("k", runs[2]), ("j", runs[1])):
        page.keyboard.press(key)
        assert page.evaluate(focused) == wanted
    page.keyboard.press("x")
    assert page.get_by_label(f"Choose {runs[1]}").is_checked()
    api.submit(input="Another one")
    page.locator("tbody tr[data-n]").nth(3).wait_for()
    page.keyboard.press("k")
    page.keyboard.press("j")
    assert page.evaluate(focused) == runs[1], "a live update moves nobody"
    page.keyboard.press("Enter")
    page.get_by_role("heading", level=1, name=runs[1]).wait_for()
    page.keyboard.press("g")
    page.keyboard.press("i")
    page.locator(".ask").nth(1).wait_for()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("d")
    page.get_by_text("tool0: you chose deny").wait_for()
    page.locator(".ask").nth(1).wait_for(state="detached")
    page.keyboard.press("k")
    page.keyboard.press("a")
    page.get_by_text("tool0: you chose once").wait_for()
    told = {row["run_id"]: row["outcome"] for row in api.http.get("/v1/approvals/history").json()["data"]}
    assert told == {asked[0]: "once", asked[1]: "deny"}


def test_a_button_that_comes_under_the_pointer_is_not_pressed_by_the_same_hand(
    api: Served,
    store: Store,
    visit: Visit,  # noqa: F811
) -> None:
    for _ in range(3):
        waiting(store)
    visitor = visit()
    page = visitor.page
    visitor.open("inbox", "Inbox")
    sent: list[str] = []
    page.on("request", lambda asked: asked.method == "POST" and sent.append(asked.url))
    page.locator(".ask").nth(2).wait_for()
    page.evaluate("() => { window.first = document.querySelector('.ask'); }")
    box = page.locator(".ask").first.get_by_role("button", name="Deny").bounding_box()
    place = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.click(*place)
    page.wait_for_function(
        """([x, y]) => { const at = document.elementFromPoint(x, y);
          return at?.matches(".danger") && !at.disabled && !window.first.contains(at); }""",
        arg=place,
    )
    page.mouse.click(*place)
    page.evaluate("() => new Promise(requestAnimationFrame)")
    assert len(sent) == len(api.http.get("/v1/approvals/history").json()["data"]) == 1, "nobody aimed at the second"
    page.mouse.click(*place)
    until(lambda: len(api.http.get("/v1/approvals/history").json()["data"]) == 2, "the answer to the second question")


@pytest.mark.parametrize("width", [390, 900, 1280])
def test_pausing_a_job_moves_nothing_that_would_forget_one(api: Served, visit: Visit, width: int) -> None:  # noqa: F811
    for name in ("News of the whole world, every morning", "Report"):
        job = {"name": name, "schedule": "every 30m", "prompt": "Look around and say what is new since yesterday"}
        api.http.post("/api/jobs", json=job).raise_for_status()
    visitor = visit(viewport={"width": width, "height": 900})
    page = visitor.page
    visitor.open("schedule", "Schedule")
    page.get_by_label("Calendar").get_by_text("Report").first.wait_for()

    def places() -> list[Any]:
        return [each.bounding_box() for each in page.get_by_role("button", name="Forget").all()]

    page.get_by_role("button", name="Forget").nth(1).wait_for()
    before = places()
    page.get_by_role("button", name="Pause", exact=True).first.click()
    page.get_by_role("button", name="Go on", exact=True).wait_for()
    page.get_by_label("Calendar").get_by_text("News").first.wait_for(state="detached")
    assert places() == before


def test_the_history_and_the_card_of_a_call_name_what_ran(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    run_id = waiting(store)
    body = {"choice": "once", "wait_id": open_wait(store.database, run_id), "arguments": {"command": "ls build"}}
    api.http.post(f"/v1/runs/{run_id}/approval", json=body).raise_for_status()
    visitor = visit()
    page = visitor.page
    visitor.open("inbox", "Inbox")
    page.get_by_label("Closed questions").get_by_text("ls build").wait_for()
    visitor.open(f"sessions/{run_id}", run_id)
    page.get_by_label("The conversation").locator("summary", has_text="ls build").wait_for()
    page.get_by_label("The conversation").get_by_text("It ran with these instead").wait_for()


def test_the_palette_finds_views_and_runs(api: Served, visit: Visit) -> None:  # noqa: F811
    run_id = api.submit(input="Polish the lighthouse")
    page = visit().page
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="What to find").fill("web")
    page.keyboard.press("Enter")
    page.get_by_role("heading", level=1, name="Webhooks").wait_for()
    page.keyboard.press("p")
    page.get_by_role("combobox", name="What to find").fill(run_id)
    page.get_by_role("option", name="Polish the lighthouse").first.wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("heading", level=1, name=run_id).wait_for()


def test_what_an_agent_remembers_is_changed_by_hand(api: Served, visit: Visit) -> None:  # noqa: F811
    visitor = visit()
    page = visitor.page
    visitor.open("memory", "Memory")
    page.get_by_label("Add to: What it knows of the user").fill("Likes **tea**.")
    page.keyboard.press("Enter")
    user = page.get_by_label("What it knows of the user", exact=True)
    user.locator("strong", has_text="tea").wait_for()
    user.get_by_role("button", name="Change", exact=True).click()
    user.get_by_label("What is remembered").fill("Likes coffee.")
    user.get_by_role("button", name="Save").click()
    user.get_by_text("Likes coffee.").wait_for()
    user.get_by_role("button", name="Forget").click()
    page.get_by_role("dialog").get_by_role("button", name="Do it").click()
    user.get_by_text("Nothing is remembered.").wait_for()
    assert api.http.get("/v1/memory").json()["user"]["entries"] == []


def test_a_page_without_servers_of_tenants_says_which_setting_gives_them(visit: Visit) -> None:  # noqa: F811
    visitor = visit()
    visitor.open("mcp", "MCP servers")
    visitor.page.get_by_text("mcp.rows: true").wait_for()
    assert visitor.page.get_by_role("button", name="Add it").count() == 0


def test_who_had_a_delivery_sent_again_is_read_beside_it(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    delivery_id = settled(store, "telegram:1")
    api.http.post(f"/v1/deliveries/{delivery_id}/retry").raise_for_status()
    visitor = visit()
    visitor.open("deliveries", "Deliveries")
    visitor.page.get_by_text("sent again").click()
    visitor.page.get_by_text("when it was abandoned after 1 attempt").wait_for()


def test_a_batch_is_looked_at_before_it_is_accepted(api: Served, visit: Visit) -> None:  # noqa: F811
    visitor = visit()
    page = visitor.page
    visitor.open("batches", "Batches")
    page.get_by_label("A request on each line").fill('First\n{"input": "Second", "model": 5}\nThird')
    page.get_by_label("Tag").fill("spring")
    page.get_by_role("button", name="Only look").click()
    page.get_by_text("2 can be accepted, 1 refused").wait_for()
    assert api.http.get("/v1/runs").json()["data"] == []
    page.get_by_label("A request on each line").fill("First\nThird")
    page.get_by_role("button", name="Accept them").click()
    page.get_by_text("2 accepted.").wait_for()
    made = api.http.get("/v1/runs", params={"tag": "spring"}).json()["data"]
    assert {run["title"] for run in made} == {"First", "Third"}


def test_a_phone_gets_cards_and_answers_with_one_thumb(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    run_id = waiting(store)
    waiting(store, WaitKind.INPUT)
    repair_orders(api, store)
    visitor = visit(viewport={"width": 390, "height": 844}, has_touch=True)
    page = visitor.page
    visitor.open("runs", "Runs")
    cells = page.locator("tbody tr[data-n]").first.locator("td[data-label]")
    cells.nth(3).wait_for(state="attached")
    told = page.evaluate(
        "() => getComputedStyle(document.querySelector('td[data-label=\"Status\"]'), '::before').content"
    )
    assert "Status" in told
    assert page.get_by_label("Text", exact=True).is_hidden(), "filters are folded"
    assert page.get_by_role("link", name="Fleet").is_hidden()
    page.get_by_role("button", name="More").tap()
    page.get_by_role("link", name="Fleet").wait_for()
    page.get_by_role("link", name="Inbox").tap()
    deny = page.locator(".ask", has_text="rm -r x").first.get_by_role("button", name="Deny")
    box = deny.bounding_box()
    assert box["height"] >= 40
    assert box["width"] >= 140
    deny.tap()
    until(lambda: store.status(run_id).value != "waiting_for_approval", "the answer")
    for route in ("runs", "inbox", f"runs/{run_id}", "sessions", "schedule", "money", "memory"):
        page.goto(f"{api.url}/#/{route}")
        page.locator("main table, main .empty, main .ask").first.wait_for()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390, route


def test_children_are_folded_below_their_run(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    run_id = api.submit(input="Compare three releases")
    store.ask_tools(run_id, asks(Replay.ONCE))
    store.delegate(run_id, 3)
    visitor = visit()
    page = visitor.page
    visitor.open("runs", "Runs")
    rows = page.locator("tbody tr[data-n]")
    rows.get_by_role("button", name="3 children").click()
    rows.nth(3).wait_for()
    assert rows.locator("a.one").all_inner_texts()[1:] == ["└ task 0", "└ task 1", "└ task 2"]
    page.get_by_label("What", exact=True).select_option("children")
    rows.nth(2).wait_for()
    assert "Compare three releases" not in page.locator("tbody").inner_text()


def test_no_word_of_the_console_is_an_error(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    run_id = repair_orders(api, store)
    visitor = visit()
    page = visitor.page
    said: list[str] = []
    page.on("console", lambda word: said.append(word.text) if word.type == "error" else None)
    views = "inbox sessions runs schedule batches replays memory skills mcp deliveries webhooks gateway money fleet"
    runs = [f"sessions/{run_id}", f"runs/{run_id}", f"compare/{run_id}/{run_id}"]
    for route in ("", *views.split(), "tenants", "access", "settings", "audit", *runs):
        page.goto(f"{api.url}/#/{route}")
        page.locator("main table, main .empty, main .ask, main .talk li, main form").first.wait_for()
    assert said == []


def test_a_replay_shows_its_runs_beside_their_originals(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    original = api.submit(input="Count the orders")
    store.answer(original)
    with HermesClient(api.url, api_key=api.key) as client:
        made = client.fork_run(original, 0, tools="offline", replay="nightly.1").run_id
        store.answer(made)
        client.grade_replay("nightly.1", {made: {"exact": True}})
    visitor = visit()
    page = visitor.page
    visitor.open("replays", "Replays")
    page.get_by_role("link", name="nightly.1").click()
    found = page.get_by_label("A replay", exact=True)
    found.get_by_text("1 run, 0 differ").wait_for()
    assert "exact: good" in found.inner_text()
    found.get_by_role("link", name="Count the orders").click()
    page.get_by_role("heading", name="Compare").wait_for()


def test_a_question_is_read_in_the_order_in_which_one_decides(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    run_id = api.submit(input="Push it and deploy it.")
    ask_to_deploy(store, run_id)
    visitor = visit()
    page = visitor.page
    places = {"": "Now", "inbox": "Inbox", f"runs/{run_id}": run_id, f"sessions/{run_id}": run_id}
    for route, heading in places.items():
        visitor.open(route, heading)
        asked = page.locator(".ask", has_text="git push --force")
        asked.get_by_role("button", name="Deny").wait_for()
        text = page.locator("main").inner_text()
        order = [
            "Push it and deploy it.", "Allow this?", "Why it is asked: force push", "In: /srv/shop",
            "git push --force origin main", "2 dangers", "recursive delete", "On no, it does not run",
            "Allow once", "Deny",
        ]  # fmt: skip
        begin = text.index(order[0])
        found = [begin]
        for each in order[1:]:
            found.append(text.find(each, found[-1] + 1))
        assert min(found) >= 0, (route, dict(zip(order, found, strict=True)))


def test_a_question_offers_what_the_server_accepts(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    """Such as one after a conversation was taken back, which no lasting permission answers."""
    remark = "a turn that was taken back had used terminal already, and what that did stays done"
    request = {
        "command": "./deploy.sh", "pattern_key": "again after a rewind: terminal",
        "pattern_keys": ["again after a rewind: terminal"], "arguments": "{}",
        "description": f"again after a rewind: terminal; {remark}",
    }  # fmt: skip
    choices = ["once", "session", "deny"]
    visitor = visit()
    page = visitor.page
    for choice in choices:
        run_id = api.submit(input="Deploy it.")
        store.ask_tools(run_id, ask_calls(("terminal", {"command": "./deploy.sh"}), replay=Replay.ONCE))
        question = Question(kind=WaitKind.APPROVAL, request=request, choices=choices)
        Waits(store.database).ask(store.call(run_id), question)
        visitor.open("inbox", "Inbox")
        asked = page.locator(".ask", has_text="./deploy.sh")
        asked.get_by_text(f"Why it is asked: {remark}", exact=True).wait_for()
        asked.get_by_text(
            "“Allow in this session” holds for this session: nobody is asked about this again."
        ).wait_for()
        buttons = [name for name in asked.get_by_role("button").all_inner_texts() if name != "Change arguments"]
        assert buttons == ["Allow once", "Allow in this session", "Deny"]
        asked.get_by_role("button", name=buttons[choices.index(choice)]).click()
        page.get_by_text(f"terminal: you chose {choice}").wait_for()
        [last, *_] = api.http.get("/v1/approvals/history").json()["data"]
        assert (last["run_id"], last["outcome"]) == (run_id, choice)
    waiting(store)
    key = api.http.post("/v1/keys", json={"holder": "ann", "scopes": ["runs:read", "approve"]}).json()["key"]
    approver = visit(key)
    approver.open("inbox", "Inbox")
    approver.page.get_by_role("button", name="Allow once").wait_for()
    assert approver.page.get_by_role("button", name="Change arguments").count() == 0, "that needs 'runs:write'"


def test_a_fork_is_offered_where_there_can_be_one_and_says_of_what(
    api: Served,
    store: Store,
    visit: Visit,  # noqa: F811
) -> None:
    run_id = repair_orders(api, store)
    visitor = visit()
    page = visitor.page
    visitor.open(f"runs/{run_id}", run_id)
    talk = page.get_by_label("What happened")
    talk.get_by_role("heading", name="What was wrong").wait_for()
    last = talk.locator("li.agent", has_text="What was wrong")
    assert last.get_by_role("button", name="Fork from here").count() == 0
    buttons = talk.get_by_role("button", name="Fork from here")
    assert buttons.count() == 3
    for number in range(3):
        buttons.nth(number).click()
        page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()
        page.get_by_role("heading", level=1, name="Compare").wait_for()
        visitor.open(f"runs/{run_id}", run_id)
        buttons.nth(2).wait_for()
    last.get_by_role("link", name="Go on from here").click()
    page.get_by_label("Go on with this conversation").wait_for()
    [fork, *_] = api.http.get("/v1/runs").json()["data"]
    visitor.open(f"runs/{fork['run_id']}", fork["run_id"])
    origin = page.locator("aside dt:has-text('Fork of') + dd")
    origin.get_by_role("link", name="The total of an order is wrong").click()
    page.get_by_role("heading", level=1, name=run_id).wait_for()


def test_two_runs_show_what_differs_side_by_side(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    made = []
    for command, output in (("ls src", "4 files"), ("ls -a src", "6 files")):
        run_id = api.submit(input="Count the files")
        store.ask_tools(run_id, ask_calls(("terminal", {"command": "pwd"})))
        store.settle(run_id, 0, "/work")
        store.ask_tools(run_id, ask_calls(("terminal", {"command": command}), text="I count."))
        store.settle(run_id, 0, output)
        store.answer(run_id, ModelReply(text=f"There are **{output}**."))
        made.append(run_id)
    visitor = visit()
    page = visitor.page
    visitor.open(f"compare/{made[0]}/{made[1]}", "Compare")
    differs = page.get_by_label("What differs")
    differs.get_by_text("1 of 3 steps are alike").wait_for()
    second, third = differs.locator(".step").all()
    assert "Step 2" in second.inner_text()
    for half, texts in zip(
        second.locator(".halves > div").all(), (("ls src", "4 files"), ("ls -a src", "6 files")), strict=True
    ):
        assert all(text in half.inner_text() for text in texts)
        assert half.locator(".tag").all_inner_texts() == ["other arguments", "other output"]
        assert "Says the same." in half.inner_text()
    assert third.locator("strong").all_inner_texts() == ["4 files", "6 files"]
    left, right = (each.bounding_box() for each in second.locator(".halves > div").all())
    assert left["y"] == right["y"], "side by side"
    phone = visit(viewport={"width": 390, "height": 844})
    phone.open(f"compare/{made[0]}/{made[1]}", "Compare")
    # Cards name their columns, also where a title came later than the table.
    labels = "() => new Set([...document.querySelectorAll('td')].map((cell) => cell.dataset.label)).size === 1"
    phone.page.locator("td[data-label='Count the files']").first.wait_for(state="attached")
    phone.page.wait_for_function(labels)


def test_a_run_of_a_later_turn_and_its_fork_are_counted_as_the_terminal_counts_them(
    api: Served,
    store: Store,
    visit: Visit,  # noqa: F811
) -> None:
    earlier = api.submit(input="Hello")
    store.answer(earlier, ModelReply(text="Good morning."))
    run_id = api.submit(input="Count the files", session_id=earlier)
    store.ask_tools(run_id, ask_calls(("terminal", {"command": "pwd"})))
    store.settle(run_id, 0, "/work")
    store.answer(run_id, ModelReply(text="four"))
    fork = api.http.post(f"/v1/runs/{run_id}/fork", json={"at": 1}).json()["run_id"]
    store.answer(fork, ModelReply(text="six"))
    told = api.http.get(f"/v1/runs/{run_id}/comparison", params={"with": fork}).json()
    assert (told["differs_at"], told["steps"], told["other_steps"]) == (2, 2, 2)
    visitor = visit()
    page = visitor.page
    visitor.open(f"compare/{run_id}/{fork}", "Compare")
    page.get_by_label("What differs").get_by_text("1 of 2 steps are alike").wait_for()
    assert "Step 2" in page.get_by_label("What differs").locator(".step").inner_text()
    assert page.get_by_role("row", name="Steps").locator("td").all_inner_texts() == ["2", "2"]


def test_what_people_type_is_shown_as_they_typed_it(api: Served, store: Store, visit: Visit) -> None:  # noqa: F811
    typed = "# Not a heading\n* not *a* list, __init__ and `x`\n    see https://example.org/a_b_(c)."
    visitor = visit()
    page = visitor.page
    visitor.open("sessions", "Sessions")
    page.get_by_label("Ask an agent something").fill(typed)
    page.keyboard.press("Control+Enter")
    talk = page.get_by_label("The conversation")
    said = talk.locator(".said")
    said.get_by_text("waits for a worker").wait_for()
    [run] = api.http.get("/v1/runs").json()["data"]
    run_id = run["run_id"]
    assert page.url.endswith(f"/sessions/{run_id}"), "one stays in the conversation"
    assert said.locator(".text").text_content() == typed
    store.answer(run_id, ModelReply(text="# A heading"))
    talk.get_by_role("heading", name="A heading").wait_for()
    talk.get_by_text("waits for a worker").wait_for(state="detached")
    for route, label in ((f"sessions/{run_id}", "The conversation"), (f"runs/{run_id}", "What happened")):
        visitor.open(route, run_id)
        text = page.get_by_label(label, exact=True).locator(".said .text")
        text.wait_for()
        assert (text.count(), text.text_content()) == (1, typed)
        assert text.locator("*").count() == 1, "nothing but the link"
        assert text.get_by_role("link").get_attribute("href") == "https://example.org/a_b_(c)"


def test_files_that_were_sent_open_below_what_was_said(api: Served, visit: Visit) -> None:  # noqa: F811
    visitor = visit()
    page = visitor.page
    visitor.open("sessions", "Sessions")
    page.get_by_label("Ask an agent something").fill("Read this.")
    page.locator("input[type=file]").set_input_files([{"name": "a.csv", "mimeType": "text/csv", "buffer": b"a,b\n1,2"}])
    page.get_by_role("button", name="Send").click()
    said = page.get_by_label("The conversation").locator(".said")
    said.get_by_text("Read this.").wait_for()
    assert not said.get_by_text("1,2").is_visible()
    said.locator("summary", has_text="a.csv").click()
    said.get_by_text("1,2").wait_for()
