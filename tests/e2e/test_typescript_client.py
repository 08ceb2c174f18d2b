"""The TypeScript client, built from this tree, in Node and in Debian's Chromium, with a whole stack behind it.
``HERMES_TEST_OPENAPI`` is that of ``tests/api/test_document_tools.py``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.commandline import CommandLine, script, wait_for
from support.cutting import CuttingProxy
from support.patience import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("typescript_client.mjs")
MODULES = Path(os.environ.get("HERMES_TEST_OPENAPI", ".")) / "node_modules"
TEXT = "A reply in many pieces, ä → 🐍. " * 8
PREVIEWS = {"message.delta", "reasoning.available", "tool.generating", "tool.progress"}
TYPES = """
import { HermesClient, type RunEvent, type RunObject, unwrap } from "./package/dist/index.js";

const client = new HermesClient("http://127.0.0.1:1");
export async function use(): Promise<string | undefined> {
  const run: RunObject = await unwrap(client.api.getRun({ path: { run_id: "run_1" } }));
  for await (const event of client.events(run.run_id)) {
    if (event.event === "message.delta") return event.delta.toUpperCase();
    if (event.event === "approval.request") return event.wait_id.toFixed();
    // @ts-expect-error there is no such event
    if (event.event === "message.detla") return undefined;
  }
  // @ts-expect-error limits are numbers
  await client.submit("hello", { max_cost_usd: "much" });
  // @ts-expect-error a run is named
  await client.api.getRun({});
  const name: RunEvent["event"] = "run.completed";
  return name;
}
"""


class Pages(ThreadingHTTPServer):
    """Serves the package and a page that drives it, and takes what it found."""

    def __init__(self, folder: Path) -> None:
        self.found: list[Any] = []
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(SimpleHTTPRequestHandler):
    def do_POST(self) -> None:
        found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert isinstance(self.server, Pages)
        self.server.found.append(found)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (MODULES / ".bin" / "openapi-ts").exists():
        pytest.skip("HERMES_TEST_OPENAPI names no directory with the program openapi-ts")
    folder = tmp_path_factory.mktemp("npm") / "package"
    build = [sys.executable, str(ROOT / ".ci/typescript_client.py"), str(folder), "--modules", str(MODULES)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(package: Path) -> Iterator[Pages]:
    with Pages(package.parent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def stack(pages: Pages) -> Iterator[dict[str, str]]:
    """The address and the key of a stack whose API pages of ``pages`` may ask."""
    with tempfile.TemporaryDirectory(prefix="hermes-ts-") as folder:
        hermes = CommandLine(Path(folder) / "home", {"HERMES_SERVER_CORS_ORIGINS": pages.url})
        with hermes.up() as up:
            url = up.wait_for_line(r"curl (http://\S+)/v1/runs ")[1]
            yield {"url": url, "key": (hermes.home / "api.key").read_text().strip()}


def drive(stack: dict[str, str], platform: str, run: Callable[[dict[str, str]], Any]) -> Any:
    """Let a platform drive the client over connections of which the first ones are cut, and judge what it found."""
    asked = script({"calls": [{"name": "todo", "arguments": {}}]}, final=TEXT + platform, chunks=40, chunk_gap_s=0.05)
    with CuttingProxy(urlsplit(stack["url"]).port or 0, lambda n: 1_200 + 700 * n if n < 6 else None) as proxy:
        found = run({**stack, "cutUrl": proxy.url, "script": asked, "sameKey": f"key-{platform}"})
        assert proxy.cuts >= 3, "the stream was not cut"
    run_id, events, replayed = found["runId"], found["events"], found["replayed"]
    names = [told["event"]["event"] for told in events]
    deltas = "".join(told["event"].get("delta", "") for told in events)
    assert names[-1] == "run.completed"
    assert names.count("run.completed") == names.count("tool.completed") == 1
    assert deltas == TEXT + platform, "text is missing or came twice"
    ids = [told["id"] for told in events]
    assert len(set(ids)) == len(ids)
    assert list_rows(events) == list_rows(replayed)
    assert 0 < found["later"] < len(replayed)
    assert "tool.started" in found["tree"]
    assert found["sameRun"] == run_id
    assert (found["ended"]["ended"], found["ended"]["status"]) == (True, "completed")
    assert run_id in found["listed"]
    assert found["aborted"] == "lists.changed"
    assert found["refused"][-1] == 404
    assert found["thrown"] == [True, 404, "run_not_found"]
    assert found["streamRefused"] == ["RefusedError", 404]
    assert found["withoutKey"] == ["RefusedError", 401]
    assert found["unavailable"] == "UnavailableError"


def list_rows(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """List the events that are rows; the others are previews, which a replay leaves out. What is heard live has the
    moment at which it was told, its row the one at which it was written."""
    rows = [each["event"] for each in told if each["event"]["event"] not in PREVIEWS]
    return [{name: value for name, value in row.items() if name != "timestamp"} for row in rows]


def test_the_client_resumes_streams_in_node(package: Path, stack: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "main.mjs").write_text(
        f"import * as client from {json.dumps(str(package / 'dist/index.js'))};\n"
        f"import {{ drive }} from {json.dumps(str(DRIVER))};\n"
        "console.log(JSON.stringify(await drive(client, JSON.parse(process.argv[2]))));\n"
    )

    def run(given: dict[str, str]) -> Any:
        node = MODULES / ".bin" / "node"
        done = subprocess.run(
            [str(node) if node.exists() else "node", str(tmp_path / "main.mjs"), json.dumps(given)],
            capture_output=True, text=True, timeout=PATIENCE_S * 2,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    drive(stack, "node", run)


def test_the_client_resumes_streams_in_a_browser(pages: Pages, stack: dict[str, str], tmp_path: Path) -> None:
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("no browser here: install Debian's package chromium")
    folder = Path(pages.RequestHandlerClass.keywords["directory"])  # type: ignore[attr-defined]
    shutil.copy(DRIVER, folder)

    def run(given: dict[str, str]) -> Any:
        (folder / "page.html").write_text(
            "<script type=module>import * as client from '/package/dist/index.js';"
            f"import {{ drive }} from '/{DRIVER.name}';"
            f"const found = await drive(client, {json.dumps(given)}).catch((error) => ({{ error: error.stack }}));"
            "await fetch('/', { method: 'POST', body: JSON.stringify(found) });</script>"
        )
        options = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        with (tmp_path / "chromium.log").open("wb") as log, subprocess.Popen(
            [chromium, *options, f"--user-data-dir={tmp_path / 'profile'}", f"{pages.url}/page.html"],
            stdout=log, stderr=log,
        ) as browser:  # fmt: skip
            try:
                [found] = wait_for(lambda: pages.found or None, within_s=PATIENCE_S * 2)
            finally:
                browser.kill()
        assert "error" not in found, found["error"]
        return found

    drive(stack, "browser", run)


def test_types_name_events_and_fields(package: Path, tmp_path: Path) -> None:
    (tmp_path / "package").symlink_to(package)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "use.ts").write_text(TYPES)
    options = ["--strict", "--noEmit", "--module", "nodenext", "--target", "es2022", "--lib", "es2022,dom"]
    done = subprocess.run([str(MODULES / ".bin/tsc"), *options, "use.ts"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_package_holds_what_a_published_one_needs(package: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    packed = subprocess.run(
        [npm, "pack", "--dry-run", "--json", "--ignore-scripts"], cwd=package, capture_output=True, text=True
    )
    [said] = json.loads(packed.stdout)
    names = {each["path"] for each in said["files"]}
    assert {"package.json", "README.md", "LICENSE", "dist/index.js", "dist/index.d.ts"} <= names
    assert not any(name.startswith(("src", "openapi")) for name in names)
    assert said["size"] < 150_000
