"""A real Chromium behind a real host, pages that a test serves, and workers that are processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa

from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.browser.chromium import (
    Chromium,
    NoBrowserHere,
    find_chromium,
    require_confinement,
)
from hermes_worker.browser.declarations import build_browser_extension
from hermes_worker.browser.host import build_browser_host
from hermes_worker.browser.relay import BrowserRelay
from hermes_worker.browser.visits import SessionBrowsers
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.extension import explain_missing_extra, load_reference
from hermes_worker.hosting.host import HostOptions
from hermes_worker.net.urls import HttpUrl, UrlPolicy, check_addresses
from hermes_worker.store.resources import Resources
from hermes_worker.store.tables import runs, sessions
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.network import EgressRules
from hermes_worker.workspaces.sandbox.policy import SandboxMode, SandboxPolicy
from hermes_worker.workspaces.sandbox.proxy import EgressProxy
from support.store import Store, opened


def lacking() -> str | None:
    """Why this machine cannot have a browser."""
    try:
        find_chromium(None)
        require_confinement(Sandbox(SandboxMode.AUTO, SandboxPolicy()))
    except NoBrowserHere as error:
        return str(error)
    return explain_missing_extra("browser")


class Site:
    """Pages on this machine. What was asked for is noted."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.asked: list[str] = []
        self.cookies: dict[str, str] = {}
        """The cookies that came with the last request of each path."""
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                site.asked.append(self.path)
                site.cookies[path] = self.headers.get("Cookie", "")
                if path in site.answers:
                    site.answers[path](self)
                    return
                body = site.pages.get(path, "").encode()
                self.send_response(200 if path in site.pages else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.address = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def judging(port: int) -> Callable[[HttpUrl, Sequence[str], UrlPolicy], tuple[str, ...]]:
    """As addresses are judged, but for one port of this machine."""

    def check(target: HttpUrl, addresses: Sequence[str], policy: UrlPolicy) -> tuple[str, ...]:
        if target.port == port and tuple(addresses) == ("127.0.0.1",):
            return ("127.0.0.1",)
        return check_addresses(target, addresses, policy)

    return check


class Surfer:
    """A session's tools, in this process."""

    def __init__(self, browsers: SessionBrowsers, session_id: str, folder: Path) -> None:
        self._tools = {
            tool.spec.name: load_reference(tool.implementation)(browsers=browsers)
            for tool in build_browser_extension(has_cdp=True).tools
        }
        self._context = ToolContext(
            run_id="run_1",
            session_id=session_id,
            idempotency_key="k",
            attempt=1,
            workspace=LocalWorkspace(str(folder), base_env={}),
            session={},
            cancelled=threading.Event(),
        )
        self.session_id = session_id
        self.text = ""
        """The last result as the model sees it."""

    def do(self, tool: str, **arguments: object) -> dict[str, Any]:
        """The result's document, out of its wrapper."""
        result = run_tool(self._tools[f"browser_{tool}"], dump_canonical_json(arguments), self._context)
        self.text = result.text
        if result.consultation is not None:
            return {"consultation": result.consultation}
        return document(result.text)


def document(text: str) -> dict[str, Any]:
    """The JSON in a result, whatever is around it."""
    begins = text.find("{")
    if begins == -1:
        return {"text": text}
    found, _ = json.JSONDecoder().raw_decode(text[begins:])
    return dict(found)


def ref_of(snapshot: str, line: str) -> str:
    """The ref of the first line of a snapshot that has ``line`` in it."""
    found = next(each for each in snapshot.splitlines() if line in each)
    return found.partition("[ref=")[2].partition("]")[0]


def new_session(store: Store) -> str:
    run_id = store.submit().run_id
    with store.database.read() as connection:
        of_run = sa.select(sessions.c.session_id).join(runs, runs.c.session_pk == sessions.c.pk)
        return str(connection.execute(of_run.where(runs.c.run_id == run_id)).scalar_one())


class Stand:
    """A store, a host in this process, and sessions that surf."""

    def __init__(self, store: Store, site: Site, folder: Path, **options: Any) -> None:
        self.store = store
        self.site = site
        self.folder = folder
        self.rows = Resources(store.database)
        policy = SandboxPolicy(egress=EgressRules(ports=frozenset({80, 443, site.port})))
        self._sandbox = Sandbox(SandboxMode.AUTO, policy, proxy=EgressProxy(check=judging(site.port)))
        self._program = find_chromium(None)
        self._options = options
        self.begin_host()

    def begin_host(self, **options: Any) -> None:
        given = HostOptions(**{"name": "stand", "folder": self.folder / "browsers", **self._options, **options})
        self.host = build_browser_host(
            self.rows,
            lambda folder: Chromium(self._program, folder, self._sandbox),
            given,
            lambda may_use: BrowserRelay("127.0.0.1", "127.0.0.1", may_use),
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self.host.run, args=(self._stopping,))
        self._thread.start()

    def end_host(self) -> None:
        self._stopping.set()
        self._thread.join()

    def surfer(self, session_id: str | None = None) -> Surfer:
        """Of a session, new unless one is named, on a worker of its own."""
        browsers = SessionBrowsers(self.rows, UrlPolicy(allows_private=True))
        return Surfer(browsers, session_id or new_session(self.store), self.folder)


@contextmanager
def stand(folder: Path, **options: Any) -> Iterator[Stand]:
    site = Site()
    with opened(f"sqlite:///{folder / 'stand.db'}") as store:
        made = Stand(store, site, folder, **options)
        try:
            yield made
        finally:
            made.end_host()
            site.close()


# --- processes -------------------------------------------------------------------------------------------------------


class WorkerProcess:
    """A worker that does calls of sessions, and that may be killed or frozen."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self.begin()

    def begin(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.browsing", self._url, str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )

    def send(self, session_id: str, tool: str, arguments: Mapping[str, object]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([session_id, tool, arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """``None`` when there is none in time, or the worker died."""
        assert self.process.stdout is not None
        if not wait([self.process.stdout], timeout_s):
            return None
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else None

    def kill(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


BEGINS_WITHIN_S = 300.0
"""Of a host: a second, and as long as the machine's other work takes."""


class HostProcess:
    """The role ``browser`` as a command."""

    def __init__(self, home: Path, port: int, **settings: str) -> None:
        self.home = home
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "HERMES_HOME": str(home),
            "HERMES_BROWSER": "true",
            "HERMES_ALLOW_PRIVATE_URLS": "true",
            "HERMES_SANDBOX_NETWORK_PORTS": str(port),
            **settings,
        }
        self.begin()

    def begin(self) -> None:
        alive = self.home / "browser.alive"
        alive.unlink(missing_ok=True)
        log = (self.home / "browser.log").open("ab")
        argv = [sys.executable, "-m", "hermes_worker.cli", "browser", "--name", "host", "--alive-file", str(alive)]
        with log:
            self.process = subprocess.Popen(argv, env=self._environ, stdout=log, stderr=log)
        deadline = time.monotonic() + BEGINS_WITHIN_S
        while not alive.exists():
            assert self.process.poll() is None, (self.home / "browser.log").read_text()
            assert time.monotonic() < deadline, "the host does not begin"
            time.sleep(0.05)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(120)


def chromiums(folder: Path) -> list[int]:
    """The living processes of browsers whose profiles are below ``folder``."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        words = process.info["cmdline"] or ()
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(
            f"--user-data-dir={folder}" in each for each in words
        ):
            found.append(int(process.info["pid"]))
    return found


def gone_within(seconds: float, folder: Path, *, with_profiles: bool = True) -> bool:
    """Whether browsers and their profiles are gone in time. Profiles of a host that was killed stay until the next one
    of its home begins."""
    deadline = time.monotonic() + seconds
    while chromiums(folder) or (with_profiles and any((folder / "browsers").rglob("profile"))):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def main() -> None:
    url, folder = sys.argv[1], Path(sys.argv[2])
    with opened(url, is_migrated=True) as store:
        browsers = SessionBrowsers(Resources(store.database), UrlPolicy(allows_private=True))
        for line in sys.stdin:
            session_id, tool, arguments = json.loads(line)
            said = Surfer(browsers, session_id, folder).do(tool, **arguments)
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
