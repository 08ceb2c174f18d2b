"""The example package, as an operator uses it: installed by pip, enabled by name, used by a run and by a delivery."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.commandline import CommandLine, wait_for
from support.environments import environment_with
from support.fault_server import USAGE_CHUNK, FaultServer, Received, Reply, finish_chunk, text_chunk
from support.patience import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
ROOT = Path(__file__).resolve().parent.parent.parent


class Pager(ThreadingHTTPServer):
    """A service that takes pages, and a workshop with machines."""

    def __init__(self) -> None:
        self.machines = ["press"]
        self.started: list[str] = []
        self.pages: list[tuple[str | None, Any]] = []
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert isinstance(self.server, Pager)
        self.server.pages.append((self.headers["Authorization"], body))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"id":"page-7"}')

    def do_GET(self) -> None:
        assert isinstance(self.server, Pager)
        _, _, name, *_ = f"{self.path}//".split("/")
        if name and name not in self.server.machines:
            self.send_error(404)
            return
        if name:
            self.server.started.append(self.path)
            told = f"the {name} runs".encode()
        else:
            told = json.dumps([{"name": each, "does": f"Start the {each}."} for each in self.server.machines]).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def pager() -> Iterator[Pager]:
    server = Pager()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that sees this one's packages, with the example installed by pip; its interpreter."""
    folder = tmp_path_factory.mktemp("fresh")
    source = folder / "hermes-acme"
    subprocess.run(["cp", "-r", str(ROOT / "examples" / "hermes-acme"), str(source)], check=True)
    return environment_with(source, folder, ROOT)


def test_the_example_is_installed_enabled_and_used(environment: Path, tmp_path: Path, pager: Pager) -> None:
    secrets = {"ACME_WAREHOUSE_TOKEN": "warehouse-token-1", "PAGER_URL": pager.url, "PAGER_TOKEN": "pager-token-12"}
    secrets |= {"ACME_SITE": "south", "ACME_WORKSHOP_URL": pager.url, "HERMES_WORKSPACE": "crate"}
    secrets["HERMES_COMPACTOR"] = "short"
    hermes = CommandLine(tmp_path / "home", secrets, program=(str(environment), "-m", "hermes_worker"))

    listed = hermes("extensions", "list", "--json")
    [shown] = [each for each in map(json.loads, listed.out.splitlines()) if each["name"] == "acme"]
    assert (shown["name"], shown["state"], shown["from"]) == ("acme", "disabled", "hermes-acme 1.0")
    assert shown["brings"]["tools"] == ["stock_level"]
    assert hermes("extensions", "enable", "acme").code == 0

    with hermes.up() as up:
        url = up.wait_for_line(r"curl (http://\S+)/v1/runs ")[1]
        key = (tmp_path / "home" / "api.key").read_text().strip()
        write = {"name": "write_file", "arguments": {"path": "note.txt", "content": "counted"}}
        steps = [{"calls": [{"name": "stock_level", "arguments": {"item": "bolt"}}]}, {"calls": [write]}]
        script = {"steps": steps, "final": "There are 1200 bolts."}
        asked = {"input": f"scripted: {json.dumps(script)}", "deliver": "pager:night-shift"}
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S) as api:
            run_id = api.post("/v1/runs", json=asked).raise_for_status().json()["run_id"]
            [(authorization, page)] = wait_for(lambda: pager.pages or None, saying=up.output)
            wait_for(lambda: api.get(f"/v1/runs/{run_id}").json()["status"] == "completed" or None)
            messages = api.get(f"/v1/runs/{run_id}/result").json()
            machines = uses_machines(api, pager)
            stock = [api.get(f"/acme/v1/stock/{item}") for item in ("nut", "screw")]
            without_key = httpx.get(f"{url}/acme/v1/stock/nut", timeout=PATIENCE_S)
    assert authorization == "Bearer pager-token-12"
    assert page["to"] == "night-shift"
    assert "There are 1200 bolts." in page["text"]
    assert "Counted by Acme south." in page["text"], "the hook changed the answer"
    assert '\\"pieces\\":1200' in json.dumps(messages)
    assert '\\"site\\":\\"south\\"' in json.dumps(messages)
    assert '\\"authorised\\":true' in json.dumps(messages)
    assert "warehouse-token-1" not in up.output
    assert [(one.status_code, one.json().get("pieces")) for one in stock] == [(200, 900), (404, None)]
    assert without_key.status_code == 401
    [note] = (tmp_path / "home" / "workspaces").glob("*/crate/note.txt")
    assert note.read_text() == "counted"
    with closing(sqlite3.connect(tmp_path / "home" / "hermes-worker.db")) as database:
        prompts = [row[0] for row in database.execute("select system_prompt from sessions")]
    assert all("# acme\nYou work for Acme's site south." in prompt for prompt in prompts)
    assert machines == ["the press runs", "press is not there any more", "the drill runs"]
    assert [path.partition("&key=")[0] for path in pager.started] == [
        "/machines/press/start?pieces=7",
        "/machines/drill/start?pieces=7",
    ]


def test_a_run_asks_the_provider_that_the_example_brings(environment: Path, tmp_path: Path) -> None:
    asked: list[Received] = []

    def answer(request: Received, reply: Reply) -> None:
        asked.append(request)
        reply.sse(text_chunk("Hello from Acme."), finish_chunk(), USAGE_CHUNK, "[DONE]")

    (project := tmp_path / "project").mkdir()
    with FaultServer(answer) as server:
        settings = {
            "HERMES_PROVIDER": "acme-models",
            "ACME_API_KEY": "acme-key-12345",
            "HERMES_BASE_URL": server.base_url,
        }
        settings |= {"ACME_WAREHOUSE_TOKEN": "warehouse-token-1"}
        hermes = CommandLine(tmp_path / "home", settings, program=(str(environment), "-m", "hermes_worker"))
        assert hermes("extensions", "enable", "acme").code == 0

        done = hermes("run", "Say hello", cwd=project)

    assert done.code == 0, done.said
    assert "Hello from Acme." in done.out
    assert asked[0].document["model"] == "acme-large"
    assert "acme-key-12345" not in asked[0].head, "a provider's key goes to the provider's hosts only"


def uses_machines(api: httpx.Client, pager: Pager) -> list[str]:
    """What calls of tools answer that only a worker could learn of: one that is there, the same one when it is gone, in
    the session that began with it, and another one in a new session."""

    def start(machine: str, **more: Any) -> str | None:
        """What the call answers; ``None`` where no worker has listed the machine yet."""
        steps = [{"calls": [{"name": machine, "arguments": {"pieces": 7}}]}]
        script = f"scripted: {json.dumps({'steps': steps, 'final': 'done'})}"
        made = api.post("/v1/runs", json={"input": script, "toolsets": ["workshop"], **more})
        if made.status_code == 422:
            return None
        run_id = made.raise_for_status().json()["run_id"]
        wait_for(lambda: api.get(f"/v1/runs/{run_id}").json()["status"] == "completed" or None)
        told = json.dumps(api.get(f"/v1/runs/{run_id}/result").json())
        known = ("the press runs", "press is not there any more", "the drill runs")
        return next((text for text in known if text in told.rpartition("scripted:")[2]), None)

    first = wait_for(lambda: start("press", session_id="shift"))
    pager.machines = ["drill"]
    return [first, start("press", session_id="shift") or "", wait_for(lambda: start("drill"))]
