"""The page in Debian's Chromium, given what nobody should send: every text stays a text on every view, no other page
gets in, and axe finds nothing serious."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hostile_texts import LONG, as_shown, hostile_texts
from page_answers import AnswerMaker
from serving import Served, until
from support.store import Store, asks
from test_control import waiting
from test_page_browser import CHROMIUM, PageVisitor, _delegated, chromium, visit  # noqa: F401  (fixtures)

from hermes_worker.core.messages import ModelReply, ToolRequest
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind

pytestmark = [
    pytest.mark.machine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(CHROMIUM is None, reason="no browser here: install Debian's package chromium"),
]
TEXTS = hostile_texts()
VIEWS = {
    "": "Now", "runs": "Runs", "inbox": "Inbox", "sessions": "Sessions", "sessions?q=x": "Sessions",
    "schedule": "Schedule",
    "schedule?job=x": "Schedule", "settings": "Settings", "gateway": "Gateway",
    "deliveries": "Deliveries", "money": "Money", "fleet": "Fleet", "access": "Access", "audit": "Audit",
    "memory": "Memory", "skills": "Skills", "skills?name=x": "Skills", "mcp": "MCP servers", "webhooks": "Webhooks",
    "tenants": "Tenants", "replays": "Replays", "replays?name=x": "Replays", "sessions/x": "x",
}  # fmt: skip
_OURS = (
    "a article aside b blockquote br button canvas code dd del details div dl dt em fieldset form h1 h2 h3 h4 h5 h6 "
    "header hr i input kbd label legend li mark ol option p pre section select small span strong summary table tbody "
    "td textarea th thead time tr ul"
)
_FOREIGN = """(ours) => [...document.querySelectorAll("main *")].flatMap((each) => [
  ...(ours.split(" ").includes(each.localName) ? [] : [each.localName]),
  ...[...each.attributes].map((one) => one.name).filter((name) => /^(on|src)/.test(name)),
  ...(each.hasAttribute("href") && !isJudged(each) ? [each.getAttribute("href")] : [])])"""
_JUDGED = r"""() => { window.isJudged = (link) => link.getAttribute("href").startsWith("#")
  || /^v1\/artifacts\/[\w.~!*'()%-]+\/content\?[\w.*%+=&-]*$/.test(link.getAttribute("href"))
  && link.hasAttribute("download")
  || (/^(https?|mailto):/.test(link.href) && link.closest(".md, .typed")
  && link.target === "_blank" && link.rel.includes("noopener noreferrer")
  && (link.textContent.includes(link.host) || link.nextElementSibling?.textContent.includes(link.host))); }"""
"""A link of a text leads to the web or a mail program, in a window of its own, and says where; one to a file of a
run saves it."""


_READ = """async (opens) => {
  const main = document.querySelector("main"), frame = () => new Promise((done) => requestAnimationFrame(done));
  let text = main.innerText;
  for (const box of main.querySelectorAll(".tall")) {
    for (let still = 0; still < 4; still++) {
      if (box.scrollTop) box.scrollTop = still = 0;
      await frame();
    }
    for (let was = -1; was !== box.scrollTop;) {
      await frame(); await frame();
      if (opens) for (const each of box.querySelectorAll("details")) each.open = true;
      for (let n = 0; n < 2000 && box.querySelector("details[open]:not(:has(pre))"); n++) await frame();
      text += box.innerText;
      was = box.scrollTop;
      box.scrollTop += box.clientHeight / 2;
    }
  }
  return text;
}"""


def shown(page: Any, *, opens: bool = False) -> str:
    """All text of the view, without spaces; long lists are scrolled through, and their calls opened where asked."""
    return "".join(str(page.evaluate(_READ, opens)).split())


def missing(page: Any, *, opens: bool = False) -> list[str]:
    seen = shown(page, opens=opens)
    return [text for text in TEXTS if as_shown(text) not in seen]


def nothing_came_to_life(page: Any) -> None:
    page.evaluate(_JUDGED)
    assert page.evaluate(_FOREIGN, _OURS) == []
    assert "owned" not in page.title()
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width, page.url


def test_a_server_full_of_hostile_texts_shows_them_as_text_on_every_view(
    api: Served,
    visit: Callable[..., PageVisitor],  # noqa: F811
) -> None:
    """Every text of every row of every answer is one of 300, whatever the API would have refused to keep."""
    maker = AnswerMaker(api.server.config.app.openapi(), TEXTS)  # type: ignore[union-attr]
    visitor = visit()
    page = visitor.page

    def answer(route: Any) -> None:
        if "/events" in route.request.url or "/v1/changes" in route.request.url:
            route.abort()
            return
        body = maker.answer(route.request.url)
        asked = parse_qs(urlsplit(route.request.url).query)
        if "session_id" in asked:  # the calls of each are asked for, and the events of one at work
            page_ = json.loads(body)
            body = json.dumps(page_ | {"data": [page_["data"][0] | {"run_id": "run_1", "status": "completed"}]})
        before = asked.get("before")
        if before and urlsplit(route.request.url).path == "/v1/runs":
            page_ = json.loads(body)
            ids = [run["run_id"] for run in page_["data"]]
            body = json.dumps(page_ | {"data": page_["data"][ids.index(before[0]) + 1 :]})
        route.fulfill(body=body, content_type="application/json")

    page.route(lambda url: "/page/login" not in url and ("/v1/" in url or "/api/" in url), answer)
    left = {}
    for route, heading in VIEWS.items():
        visitor.open(route, heading)
        count = len(TEXTS)
        rows = (
            f"main table[aria-rowcount='{count + 1}'], main :is(tbody tr, .ask, .talk li):nth-of-type({count}), "
            "main .story:not([data-count='0'])"
        )
        page.locator(rows).first.wait_for(state="attached")
        left[route] = missing(page)
        nothing_came_to_life(page)
    assert len(TEXTS) >= 300
    assert {route: texts for route, texts in left.items() if texts} == {}


def test_a_run_full_of_hostile_texts_shows_its_tree_and_its_calls_as_text(
    api: Served,
    visit: Callable[..., PageVisitor],  # noqa: F811
) -> None:
    maker = AnswerMaker(api.server.config.app.openapi(), TEXTS)  # type: ignore[union-attr]
    visitor = visit()
    page = visitor.page

    def answer(route: Any) -> None:
        if "/events" in route.request.url or "/v1/changes" in route.request.url:
            route.abort()
            return
        body = maker.answer(route.request.url)
        if route.request.url.endswith("/tree"):
            tree = json.loads(body)
            parents = {"parent_run_id": None}, *({"parent_run_id": TEXTS[0]} for _ in TEXTS[1:])
            data = [node | parent for node, parent in zip(tree["data"], parents, strict=True)]
            body = json.dumps(tree | {"data": data, "total": len(data)})
        route.fulfill(body=body, content_type="application/json")

    page.route(lambda url: "/page/login" not in url and ("/v1/" in url or "/api/" in url), answer)
    visitor.open("runs/x", "x")
    calls = page.locator("section", has=page.get_by_role("heading", name="Calls", exact=True))
    tree = page.locator("section", has=page.get_by_role("heading", name="Tree", exact=True))
    for section in (tree, calls):
        section.locator(f"table[aria-rowcount='{len(TEXTS) + 1}']").wait_for()
    assert missing(page) == []
    graph = tree.locator("summary", has_text="As a graph")
    graph.click()
    tree.locator(".graph .dot").nth(len(TEXTS) - 1).wait_for(state="attached")
    assert tree.locator(".graph :not(a, svg, path)").count() == 0
    graph.click()  # its lines are an ``svg``, of which there is none otherwise
    tree.locator(".graph").wait_for(state="detached")
    calls.locator(".tall").evaluate("(box) => { box.scrollTop = 0; }")
    calls.locator("summary").first.click()
    calls.get_by_text("It ran with these instead").wait_for()
    nothing_came_to_life(page)


def test_hostile_runs_are_text_from_their_prompt_to_their_reply(
    api: Served,
    store: Store,
    visit: Callable[..., PageVisitor],  # noqa: F811
) -> None:
    """All the way: written by a worker, kept by the database, sent by the API."""
    visitor = visit()
    page = visitor.page
    requests = tuple(
        ToolRequest(id=f"call_{n}", name=f"tool{n}", arguments=json.dumps({"command": text}))
        for n, text in enumerate(TEXTS[:40])
    )
    run_id = api.submit(input="\n".join(TEXTS))
    asked = asks(*[Replay.PURE] * len(requests))
    store.ask_tools(
        run_id, type(asked)(reply=ModelReply(tool_requests=requests, text="\n".join(TEXTS)), calls=asked.calls)
    )
    for n in range(len(requests)):
        store.settle(run_id, n, "\n".join(TEXTS[n * 8 : n * 8 + 9]))
    store.answer(run_id, ModelReply(text="\n".join(TEXTS)))
    visitor.open(f"runs/{run_id}", run_id)
    page.get_by_label("What happened").get_by_text("completed", exact=True).wait_for()
    assert missing(page, opens=True) == []
    page.get_by_role("heading", name="Prompt as the model saw it").click()
    page.get_by_label("Messages of the prompt").locator("tbody tr[data-n]").nth(1).wait_for()
    nothing_came_to_life(page)
    for text in LONG:
        long_run = api.submit(input=text)
        store.answer(long_run, ModelReply(text=text))
        visitor.open(f"runs/{long_run}", long_run)
        page.get_by_label("What happened").get_by_role("button", name="Show all").first.wait_for()
    for route in ("runs", "sessions", f"sessions/{run_id}"):
        page.goto(f"{api.url}/#/{route}")
        page.locator("main .talk li, main tbody tr").first.wait_for()
        nothing_came_to_life(page)


STRANGER = """<!doctype html><title>stranger</title><iframe src="{url}/"></iframe>
<form id=f method=post action="{url}/v1/runs" enctype="text/plain">
<input name='{{"input":"' value='from a stranger"}}'></form>
<script>
  const ask = (how) => fetch("{url}/v1/runs", {{ ...how, credentials: "include" }})
    .then((answer) => answer.type + answer.status, () => "refused");
  const body = JSON.stringify({{ input: "from a stranger" }});
  Promise.all([
    ask({{}}), ask({{ method: "POST", body, headers: {{ "Content-Type": "application/json" }} }}),
    ask({{ method: "POST", body, mode: "no-cors" }}), ask({{ mode: "no-cors" }}),
  ]).then((said) => {{ document.title = said.join(" "); }});
</script>"""


@contextmanager
def stranger(content: str) -> Iterator[str]:
    """Somebody else's site on this machine; its address."""

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *said: Any) -> None: ...

    site = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    Thread(target=site.serve_forever, daemon=True).start()
    try:
        yield f"http://localhost:{site.server_port}/"
    finally:
        site.shutdown()
        site.server_close()


def test_a_page_of_a_stranger_frames_nothing_and_sends_nothing(api: Served, visit: Callable[..., PageVisitor]) -> None:  # noqa: F811
    """In the browser of somebody who is let in."""
    page = visit().page
    tab = page.context.new_page()
    with stranger(STRANGER.format(url=api.url)) as address:
        tab.goto(address)
        until(lambda: tab.title() != "stranger", "the stranger's requests")
        assert tab.title() == "refused refused opaque0 opaque0"
        framed = [frame for frame in tab.frames if frame != tab.main_frame]
        assert all("Hermes" not in frame.content() for frame in framed)
        with tab.expect_navigation():
            tab.evaluate("() => document.getElementById('f').submit()")
        assert "origin_not_allowed" in tab.content()
    assert api.http.get("/v1/runs").json()["data"] == []
    rebound = page.context.new_page()
    answer = rebound.goto(api.url.replace("127.0.0.1", "localhost"))
    assert answer.status == 200, "a name of ours"
    answer = page.request.get(api.url, headers={"Host": "evil.example"})
    assert answer.status == 421


AXE = os.environ.get("HERMES_TEST_AXE", "")
AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
"""axe-core 4.14.1, as npm has it: package/axe.min.js."""


@pytest.mark.slow
@pytest.mark.skipif(not AXE, reason="no axe here: HERMES_TEST_AXE names axe.min.js of npm's axe-core")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_axe_finds_nothing_serious_on_any_view(
    api: Served,
    store: Store,
    visit: Callable[..., PageVisitor],  # noqa: F811
    scheme: str,
    width: int,
) -> None:
    source = Path(AXE).read_bytes()
    assert hashlib.sha256(source).hexdigest() == AXE_SHA256
    asking = waiting(store)
    waiting(store, WaitKind.INPUT)
    ended = api.submit(tags=["nightly"])
    store.ask_tools(ended, asks(Replay.PURE))
    store.settle(ended, 0, "found")
    store.answer(ended, ModelReply(text="done"))
    delegating = _delegated(api, store)
    store.call(store.with_tools(Replay.PURE), owner=store.worker("worker-1", ttl_s=1e9).pk)
    # Its own script is a stranger's to the page.
    visitor = visit(color_scheme=scheme, bypass_csp=True, viewport={"width": width, "height": 900})
    page = visitor.page
    found = {}
    for route, heading in {
        **VIEWS,
        "batches": "Batches",
        f"compare/{ended}/{delegating}": "Compare",
        f"runs/{asking}": asking,
        f"runs/{ended}": ended,
        f"runs/{delegating}": delegating,
        f"sessions/{ended}": ended,
    }.items():
        page.goto(f"{api.url}/#/{route}")
        page.get_by_role("heading", level=1, name=heading).wait_for()
        page.locator("main :is(table, .empty, .ask, .talk li, form):visible").first.wait_for()
        if heading == delegating:
            page.get_by_label("The tree of this run").get_by_role("link").first.wait_for()
        page.evaluate(source.decode())
        said = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        serious = [each for each in said["violations"] if each["impact"] in ("serious", "critical")]
        found[heading] = [(each["id"], [node["html"][:120] for node in each["nodes"][:3]]) for each in serious]
    assert {heading: what for heading, what in found.items() if what} == {}
