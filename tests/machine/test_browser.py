"""A real Chromium on real pages: what the tools do, what a page cannot do, and what is left when somebody dies."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from random import Random

import pytest
import yaml
from support.browsing import (
    HostProcess,
    Site,
    Stand,
    Surfer,
    WorkerProcess,
    chromiums,
    gone_within,
    lacking,
    new_session,
    ref_of,
    stand,
)
from support.hosted import only_pid
from support.store import opened

from hermes_worker.browser.declarations import build_browser_extension
from hermes_worker.store.resources import ResourceKind, Resources

pytestmark = [
    pytest.mark.skipif(lacking() is not None, reason=f"no browser here: {lacking()}"),
]

SHOP = """<title>Shop</title><h1>Shop</h1><p id=clock>0</p><div id=ad>An advertisement</div>
<form action=/bought><input aria-label=Name name=n><input type=password aria-label=Password name=p><button>Buy</button>
</form><ul><li>apples <button onclick="gone('apples')">Delete</button></li><li>pears
<button onclick="gone('pears')">Delete</button></li></ul><a href=/other>Other page</a>
<script>let n = 0; setInterval(() => clock.textContent = ++n, 20); console.log('shop', 'opened');
const gone = what => fetch('/gone?' + what);</script>"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with stand(tmp_path_factory.mktemp("browser"), hosted_max=6) as made:
        yield made


@pytest.fixture(scope="module")
def surfer(shared: Stand) -> Surfer:
    """One session for all tests that do not need one of their own: a browser takes seconds to start."""
    return shared.surfer()


@pytest.fixture
def site(shared: Stand) -> Site:
    shared.site.pages = {"/": SHOP, "/other": "<title>Other</title><h1>Other</h1>", "/bought": "<h1>Thanks</h1>"}
    shared.site.answers.clear()
    shared.site.asked.clear()
    return shared.site


# --- the tools -------------------------------------------------------------------------------------------------------


@pytest.mark.machine
def test_a_page_is_opened_filled_in_and_sent_by_different_workers(shared: Stand, site: Site) -> None:
    first = shared.surfer()
    opened = first.do("navigate", url=f"{site.address}/")
    assert (opened["success"], opened["title"], opened["status"]) == (True, "Shop", 200)
    assert "untrusted" in first.text.lower(), "what a page says is marked"

    second, third = shared.surfer(first.session_id), shared.surfer(first.session_id)
    assert second.do("type", ref=ref_of(opened["snapshot"], '"Name"'), text="Anna")["success"]
    assert third.do("type", ref=ref_of(opened["snapshot"], '"Password"'), text="hunter22")["success"]
    seen = second.do("snapshot", full=True)["snapshot"]
    assert "Anna" in seen and "hunter22" not in seen
    assert third.do("click", ref="@" + ref_of(seen, '"Buy"'))["url"].startswith(f"{site.address}/bought?n=Anna")
    assert "/bought?n=Anna&p=hunter22" in site.asked
    assert second.do("back")["title"] == "Shop"
    assert second.do("back")["url"] == "about:blank"
    assert not second.do("back")["success"]


@pytest.mark.machine
def test_a_clock_and_an_advertisement_keep_nobody_from_clicking_but_another_row_does(
    surfer: Surfer, site: Site
) -> None:
    seen = surfer.do("navigate", url=f"{site.address}/")["snapshot"]
    pears = seen.splitlines().index(next(line for line in seen.splitlines()[::-1] if '"Delete"' in line))
    ref = ref_of(seen.splitlines()[pears], "Delete")
    surfer.do("console", expression="ad.outerHTML = '<div><a href=/x>Buy this</a><h2>News</h2></div>'")
    assert surfer.do("click", ref=ref)["success"]
    assert "/gone?pears" in site.asked

    # A row more above it and one less below: the place is the same, and the row is not.
    surfer.do("console", expression="{const ul = document.querySelector('ul'); ul.prepend(ul.lastElementChild); 1}")
    assert surfer.do("click", ref=ref)["success"]
    assert site.asked.count("/gone?pears") == 2 and "/gone?apples" not in site.asked

    surfer.do("console", expression="document.querySelector('li').firstChild.data = 'plums'")
    changed = surfer.do("click", ref=ref)
    assert not changed["success"] and "the page changed" in changed["error"] and "Delete" in changed["snapshot"]
    assert not surfer.do("press", key="Enter").get("error", "").startswith("the page changed")
    surfer.do("console", expression="history.pushState(0, '', '/elsewhere')")
    assert "another address" in surfer.do("click", ref=ref_of(changed["snapshot"], '"Buy"'))["error"]
    assert "no such ref" in surfer.do("click", ref="e99999")["error"]


@pytest.mark.machine
def test_keys_scrolling_images_console_pictures_and_protocol(surfer: Surfer, site: Site) -> None:
    site.pages["/tall"] = (
        '<title>Tall</title><img src=/a.png alt=Cat><input aria-label=Find onkeydown="document.title=event.key">'
        "<div style='height:5000px'></div><script>console.warn('careful'); setTimeout(() => { throw Error('oh') })"
        "</script>"
    )
    seen = surfer.do("navigate", url=f"{site.address}/tall")["snapshot"]
    assert surfer.do("click", ref=ref_of(seen, '"Find"'))["success"]
    assert surfer.do("press", key="Escape")["success"]
    assert surfer.do("snapshot")["title"] == "Escape"
    assert "pressed" in surfer.do("press", key="NoSuchKey")["error"]
    assert surfer.do("scroll", direction="down")["position"]["y"] > 300
    assert surfer.do("scroll", direction="up")["position"]["y"] == 0
    [image] = surfer.do("get_images")["images"]
    assert (image["alt"], image["src"]) == ("Cat", f"{site.address}/a.png")
    messages = surfer.do("console", clear=True)["messages"]
    assert {"careful"} <= {each["text"] for each in messages} and any("oh" in each["text"] for each in messages)
    assert surfer.do("console")["messages"] == []
    assert surfer.do("console", expression="6 * 7")["value"] == 42
    asked = surfer.do("vision", question="What is it?", annotate=True)["consultation"]
    assert "data:image/" in json.dumps(asked.questions[0].messages)
    answer = surfer.do("cdp", method="Runtime.evaluate", params={"expression": "1 + 1"})
    assert answer["result"]["result"]["value"] == 2
    for method in ("Browser.close", "Browser.crash", "Page.crash", "DOM.setFileInputFiles"):
        assert "error" in surfer.do("cdp", method=method)
    assert surfer.do("cdp", method="Page.navigate", params={"url": "file:///etc/passwd"}).get("error")
    assert surfer.do("snapshot")["title"] == "Escape"


@pytest.mark.machine
def test_without_a_page_nothing_is_done(shared: Stand, site: Site) -> None:
    fresh = shared.surfer()
    for tool, arguments in {"click": {"ref": "e1"}, "snapshot": {}, "press": {"key": "Enter"}}.items():
        assert "browser_navigate" in fresh.do(tool, **arguments)["error"]
    assert shared.rows.find(fresh.session_id, ResourceKind.BROWSER) is None, "none was started for it"


# --- addresses -------------------------------------------------------------------------------------------------------

REFUSED = [
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "view-source:file:///etc/passwd",
    "chrome://version",
    "chrome://settings",
    "devtools://devtools/bundled/inspector.html",
    "about:config",
    "javascript:alert(1)",
    "data:text/html,<h1>x",
    "blob:http://127.0.0.1/x",
    "filesystem:http://127.0.0.1/temporary/x",
    "ftp://127.0.0.1/x",
    "ws://127.0.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[fd00:ec2::254]/",
    "http://metadata.google.internal/",
    "http://2852039166/",
    "http://0xa9fea9fe/",
    "http://0251.0376.0251.0376/",
    "http://127.0.0.1:22/",
    "http://127.0.0.1:6379/",
    "http://10.0.0.1/",
    "http://192.168.1.1/",
    "http://[::1]/",
    "http://[::ffff:169.254.169.254]/",
    "http://localhost/",
    "http://user:password@127.0.0.1/",
    "http://",
    "//127.0.0.1/",
    " ",
    "http://127.0.0.1\\@example.org/",
    "http://exa mple.org/",
]


@pytest.mark.parametrize("url", REFUSED)
@pytest.mark.machine
def test_an_address_that_is_refused_is_not_opened(surfer: Surfer, site: Site, url: str) -> None:
    surfer.do("navigate", url=f"{site.address}/other")
    said = surfer.do("navigate", url=url)
    assert said.get("error") or said.get("status") == 403, said
    assert "root:" not in surfer.text and "ami-id" not in surfer.text
    assert surfer.do("console", expression="document.body ? document.body.innerText : ''")["value"].count("root:") == 0


def redirect(to: str, status: int = 302) -> object:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Location", to)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def served(kind: str, body: bytes, **headers: str) -> object:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


BAD = "http://169.254.169.254/secret"
_PAGES = Path(__file__).parents[1] / "cases" / "hostile_pages.yaml"
HOSTILE = {
    name: page.replace("LONG", "n" * 200_000)
    for name, page in yaml.safe_load(_PAGES.read_text(encoding="utf-8")).items()
}


def harmless(handler_text: str) -> None:
    assert "root:x" not in handler_text and "ami-id" not in handler_text and "got " not in handler_text


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.machine
def test_a_hostile_page_costs_one_answer(surfer: Surfer, site: Site, name: str) -> None:
    site.pages["/hostile"] = HOSTILE[name]
    site.answers["/sw.js"] = served("text/javascript", f"fetch('{BAD}')".encode())  # type: ignore[assignment]
    began = time.monotonic()
    surfer.do("navigate", url=f"{site.address}/hostile")
    harmless(surfer.text)
    for tool, arguments in {
        "snapshot": {"full": True},
        "get_images": {},
        "console": {},
        "scroll": {"direction": "down"},
    }.items():
        surfer.do(tool, **arguments)
        harmless(surfer.text)
        assert len(surfer.text) < 130_000
        assert "sk-proj-abcdefghijklm" not in surfer.text
    surfer.do("press", key="Tab")
    after = surfer.do("navigate", url=f"{site.address}/other")
    assert after.get("title") == "Other", after
    assert time.monotonic() - began < 180
    assert not [each for each in site.asked if "secret" in each]


ANSWERS = {
    "to metadata": redirect(BAD),
    "to metadata for good": redirect(BAD, 308),
    "to a file": redirect("file:///etc/passwd"),
    "to settings": redirect("chrome://version"),
    "to data": redirect("data:text/html,<h1>got </h1>"),
    "round and round": redirect("/answer"),
    "a refresh in a header": served("text/html", b"<h1>x</h1>", Refresh=f"0;url={BAD}"),
    "a download": served("application/octet-stream", b"x" * 100_000, Content_Disposition="attachment; filename=x.exe"),
    "a download with a path": served("text/html", b"x", Content_Disposition='attachment; filename="../../x"'),
    "a zip": served("application/zip", b"PK\x05\x06" + b"\0" * 18),
    "half an answer": served("text/html", b"<h1>x", Content_Encoding="gzip"),
    "a picture that is none": served("image/png", b"nothing"),
    "a PDF that is none": served("application/pdf", b"%PDF-1.4 nothing"),
    "a link header": served("text/html", b"<h1>x</h1>", Link=f"<{BAD}>; rel=preload; as=script"),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.machine
def test_a_hostile_answer_costs_one_answer(shared: Stand, surfer: Surfer, site: Site, name: str) -> None:
    site.answers["/answer"] = ANSWERS[name]  # type: ignore[assignment]
    surfer.do("navigate", url=f"{site.address}/answer")
    harmless(surfer.text)
    assert surfer.do("navigate", url=f"{site.address}/other").get("title") == "Other"
    assert list(shared.folder.rglob("x.exe")) == [] and list(shared.folder.rglob("*.crdownload")) == []


@pytest.mark.machine
def test_a_name_that_answers_otherwise_the_second_time_gains_nothing(shared: Stand, surfer: Surfer, site: Site) -> None:
    """Each connection goes to an address that was judged for it."""
    answers = iter([["127.0.0.1"], *([["169.254.169.254"]] * 100)])
    proxy = shared._sandbox._proxy
    before, proxy.resolving = proxy.resolving, lambda host, port: next(answers)
    try:
        assert surfer.do("navigate", url=f"http://rebinds.example:{site.port}/other")["title"] == "Other"
        again = surfer.do("navigate", url=f"http://rebinds.example:{site.port}/other?2")
        assert again.get("status") == 403 or "error" in again
    finally:
        proxy.resolving = before


# --- when somebody dies ----------------------------------------------------------------------------------------------


@pytest.mark.machine
def test_a_lost_browser_is_said_to_be_lost_and_its_cookies_stay(tmp_path: Path) -> None:
    with stand(tmp_path) as made:
        made.site.pages = {"/": "<title>In</title><h1>In</h1><button>Go</button>"}
        made.site.answers["/login"] = served("text/html", b"<h1>Hello</h1>", Set_Cookie="sid=abc; HttpOnly; Path=/")  # type: ignore[assignment]
        one = made.surfer()
        one.do("navigate", url=f"{made.site.address}/login")
        seen = one.do("navigate", url=f"{made.site.address}/")["snapshot"]
        os.kill(only_pid(made.host), signal.SIGUSR1)

        said = one.do("click", ref=ref_of(seen, '"Go"'))
        assert f"lost at URL {made.site.address}/" in said["error"] and "Nothing was done" in said["error"]
        assert "snapshot" not in said
        again = one.do("navigate", url=f"{made.site.address}/")
        assert again["title"] == "In"
        assert made.site.cookies["/"] == "sid=abc"

        # A page that was opened says it as well, when it is the call that finds out.
        os.kill(only_pid(made.host), signal.SIGUSR1)
        assert "lost at URL" in one.do("navigate", url=f"{made.site.address}/")["note"]
        assert "note" not in one.do("snapshot")


@pytest.mark.machine
def test_an_idle_browser_is_ended_and_a_deleted_row_ends_its_own(tmp_path: Path) -> None:
    with stand(tmp_path, idle_s=6.0, ttl_s=2.0) as made:
        made.site.pages = {"/": "<title>In</title>"}
        one, two = made.surfer(), made.surfer()
        one.do("navigate", url=f"{made.site.address}/")
        assert chromiums(tmp_path)
        assert gone_within(6.0 + 10.0, tmp_path)
        assert "nobody used it" in one.do("snapshot")["error"]
        two.do("navigate", url=f"{made.site.address}/")
        for surfer in (one, two):
            made.rows.delete_resource(surfer.session_id, ResourceKind.BROWSER)
        assert gone_within(10.0, tmp_path)


@pytest.mark.machine
def test_who_has_no_use_is_not_let_in(shared: Stand, site: Site) -> None:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import connect

    one = shared.surfer()
    one.do("navigate", url=f"{site.address}/")
    row = shared.rows.find(one.session_id, ResourceKind.BROWSER)
    assert row is not None and row.endpoint is not None
    use = shared.rows.acquire_use(row.resource_id)
    assert use is not None
    wrong = [(row.endpoint, "Bearer x"), (row.endpoint + "x", f"Bearer {use.token}"), (row.endpoint, "")]
    wrong.append((row.endpoint.rpartition("/")[0] + "/", f"Bearer {use.token}"))
    for endpoint, authorization in wrong:
        opened = connect(endpoint, additional_headers={"Authorization": authorization})
        with opened as socket, pytest.raises(ConnectionClosed):
            socket.recv(timeout=5)
    with connect(row.endpoint, additional_headers={"Authorization": f"Bearer {use.token}"}) as early:
        early.send('{"id": 1, "method": "Browser.getVersion"}')
        assert "Chrome" in str(early.recv(timeout=5))
        early.send('{"id": 2, "method": "Browser.close"}')
        assert "not for" in str(early.recv(timeout=5))
        assert one.do("snapshot")["title"] == "Shop"
        with pytest.raises(ConnectionClosed):
            early.recv(timeout=5)


CALL_MAX_S = max(tool.spec.timeout_s for tool in build_browser_extension(has_cdp=False).tools)
"""A worker gives a call as long as this; the limits inside of it sum up to less."""


def fleet(folder: Path, url: str, *, sessions: int, calls: int, workers: int, seed: int) -> None:
    """Sessions fill in a form field by field, on whatever worker, while workers are killed and frozen."""
    random, site = Random(seed), Site()
    site.pages["/"] = (
        "<title>Form</title><h1 id=who></h1><input aria-label=Field><button>Add</button><script>"
        "who.textContent = location.search; document.querySelector('button').onclick = () => {"
        "const all = JSON.parse(localStorage.all || '[]'); all.push(document.querySelector('input').value);"
        "localStorage.all = JSON.stringify(all); document.cookie = 'n=' + all.length }</script>"
    )
    with opened(url) as store:
        host = HostProcess(
            folder,
            site.port,
            HERMES_DATABASE_URL=url,
            HERMES_BROWSERS_MAX=str(sessions),
            HERMES_BROWSER_IDLE_S="3600",
        )
        people = [new_session(store) for _ in range(sessions)]
        fleet = [WorkerProcess(url, folder) for _ in range(workers)]
        forms = {who: Form() for who in people}
        refused = Counter[str]()
        try:
            for number in range(calls):
                for who in people:
                    worker = random.choice(fleet)
                    name, arguments = step(worker, who, number, site)
                    fault, said = random.random(), None
                    if fault < 0.08:
                        worker.kill()
                        worker.begin()
                    elif fault < 0.16:
                        worker.process.send_signal(signal.SIGSTOP)
                        others = [each for each in fleet if each is not worker]
                        check(ask(random.choice(others), who, "snapshot", {}), who)
                        worker.process.send_signal(signal.SIGCONT)
                        assert worker.answer(CALL_MAX_S) is not None, name
                    else:
                        said = worker.answer(CALL_MAX_S)
                        assert said is not None, (name, (folder / "browser.log").read_text()[-2000:])
                        check(said, who)
                    assert "was lost" not in json.dumps(said), "no browser was lost, only workers"
                    forms[who].note(name, arguments, was_done=said is not None and said.get("success") is True)
                    if said is not None and said.get("success") is not True:
                        refused[f"{name}: {said.get('error')}"] += 1
                print(f"call {number + 1} of {calls} of {sessions} sessions is over", flush=True)
            for said_of, count in refused.most_common():
                print(f"{count} x {said_of[:300]}", flush=True)
            for who in people:
                check(read(fleet[0], who, "snapshot", {"full": True}), who)
                said = read(fleet[0], who, "console", {"expression": "localStorage.all"})
                kept = json.loads(str(said["value"] or "[]"))
                assert set(forms[who].added) <= set(kept), (who, forms[who].added, kept)
            assert any(form.added for form in forms.values()) or calls < 7
            rows = Resources(store.database).list_hosted(ResourceKind.BROWSER)
            assert len(rows) == sessions
        finally:
            for worker in fleet:
                worker.kill()
            host.stop()
            site.close()
    assert gone_within(10, folder)


class Form:
    """What a session knows that it has added: what was typed by a call that said so, and added by another one."""

    def __init__(self) -> None:
        self.added: list[str] = []
        self._typed: str | None = None

    def note(self, tool: str, arguments: Mapping[str, object], *, was_done: bool) -> None:
        if tool == "type":
            self._typed = str(arguments["text"]) if was_done else None
        elif tool == "click" and was_done and self._typed is not None:
            self.added.append(self._typed)


def ask(worker: WorkerProcess, who: str, tool: str, arguments: dict[str, object]) -> dict[str, object]:
    worker.send(who, tool, arguments)
    said = worker.answer(CALL_MAX_S)
    assert said is not None
    return said


def read(worker: WorkerProcess, who: str, tool: str, arguments: dict[str, object]) -> dict[str, object]:
    """What changes nothing is asked again where the machine was too busy for the page to answer in its seconds."""
    for _ in range(5):
        said = ask(worker, who, tool, arguments)
        assert "lost" not in json.dumps(said), "no browser was lost, only workers"
        if said.get("success") is True:
            return said
        print(f"{tool}: {said.get('error')}", flush=True)
    raise AssertionError(said)


def step(worker: WorkerProcess, who: str, number: int, site: Site) -> tuple[str, dict[str, object]]:
    """The next call of a session, sent and not waited for."""
    if number == 0:
        name, arguments = "navigate", {"url": f"{site.address}/?{who}"}
        ask(worker, who, name, arguments)
        name, arguments = "snapshot", {}
    else:
        name, arguments = random_call(number)
    worker.send(who, name, arguments)
    return name, arguments


def random_call(number: int) -> tuple[str, dict[str, object]]:
    every: list[tuple[str, dict[str, object]]] = [
        ("type", {"ref": "e3", "text": f"n{number}"}),
        ("click", {"ref": "e4"}),
        ("snapshot", {}),
        ("scroll", {"direction": "down"}),
        ("console", {"expression": "localStorage.all"}),
    ]
    return every[number % len(every)]


def check(said: dict[str, object], who: str) -> None:
    """That it is this session's page and no other's."""
    text = json.dumps(said)
    assert "run_" not in text or who in text, (who, text)


@pytest.mark.machine
def test_calls_of_sessions_go_on_while_workers_die_and_freeze(tmp_path: Path, postgres_url: str) -> None:
    """On one kind of database: what uses of a browser need of their rows is shown in tests/store, on both."""
    fleet(tmp_path, postgres_url, sessions=4, calls=8, workers=2, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_calls_of_fifty_sessions_go_on_while_workers_die_and_freeze(tmp_path: Path, database_url: str) -> None:
    fleet(tmp_path, database_url, sessions=50, calls=40, workers=4, seed=2)


def churn(folder: Path, *, rounds: int, workers: int, idle_s: float, seed: int) -> None:
    """In each round every worker opens a page for a session of its own; then the host, a worker or a browser is killed,
    or nobody."""
    random, site = Random(seed), Site()
    kills = ["host", "worker", "browser", "nobody"] * -(-rounds // 4)
    random.shuffle(kills)
    seen_at: dict[int, float] = {}
    """When the processes of browsers were first seen; each had one call, which was over."""
    site.pages["/"] = "<title>In</title>"
    url = f"sqlite:///{folder / 'hermes-worker.db'}"
    with opened(url) as store:
        host = HostProcess(folder, site.port, HERMES_BROWSER_IDLE_S=str(idle_s), HERMES_LEASE_TTL_S="4")
        fleet = [WorkerProcess(url, folder) for _ in range(workers)]
        opened_count = 0
        try:
            for number in range(1, rounds + 1):
                for worker in fleet:
                    worker.send(new_session(store), "navigate", {"url": site.address})
                for worker in fleet:
                    said = worker.answer(CALL_MAX_S)
                    assert said is not None
                    opened_count += said.get("success") is True
                now = time.monotonic()
                seen_at = {pid: seen_at.get(pid, now) for pid in chromiums(folder)}
                oldest_s = now - min(seen_at.values(), default=now)
                assert oldest_s <= idle_s + 10, f"after {number} rounds"
                print(f"round {number} of {rounds}: no browser was idle for more than {oldest_s:.0f} s", flush=True)
                match kills.pop():
                    case "host":
                        host.kill()
                        assert gone_within(idle_s + 10, folder, with_profiles=False)
                        host.begin()
                    case "worker":
                        worker = random.choice(fleet)
                        worker.kill()
                        worker.begin()
                    case "browser" if seen_at:
                        with suppress(ProcessLookupError):
                            os.kill(random.choice(list(seen_at)), signal.SIGKILL)
                    case _:
                        pass
            assert gone_within(idle_s + 10, folder)
            assert opened_count > rounds * workers * 0.9, "what never opened shows nothing"
        finally:
            for worker in fleet:
                worker.kill()
            host.stop()
            site.close()


@pytest.mark.machine
def test_after_fifty_sessions_with_kills_no_browser_is_older_than_its_idle_limit(tmp_path: Path) -> None:
    churn(tmp_path, rounds=13, workers=4, idle_s=5, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_after_a_thousand_sessions_with_kills_no_browser_is_older_than_its_idle_limit(tmp_path: Path) -> None:
    churn(tmp_path, rounds=250, workers=4, idle_s=5, seed=4)


@pytest.mark.machine
def test_a_frozen_host_keeps_no_browser(tmp_path: Path) -> None:
    site = Site()
    site.pages["/"] = "<title>In</title>"
    url = f"sqlite:///{tmp_path / 'hermes-worker.db'}"
    with opened(url) as store:
        host = HostProcess(tmp_path, site.port)
        worker = WorkerProcess(url, tmp_path)
        try:
            ask(worker, new_session(store), "navigate", {"url": site.address})
            host.process.send_signal(signal.SIGSTOP)
            assert gone_within(40, tmp_path, with_profiles=False), "it ends itself when its host says nothing"
        finally:
            worker.kill()
            host.stop()
            site.close()
