"""``/mcp`` and our client, judged by the protocol's own suite: ``npm install @modelcontextprotocol/conformance``."""

from __future__ import annotations

import http.client
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from serving import KEY, served
from support.migrated import bring_up

from hermes_worker.settings import BrokerSettings, DatabaseSettings, ModelSettings, Secret, ServerSettings, Settings

pytestmark = pytest.mark.machine
SUITE = shutil.which("conformance")
OTHERS = """\
server:
  - completion-complete
  - logging-set-level
  - tools-call-simple-text
  - tools-call-image
  - tools-call-audio
  - tools-call-embedded-resource
  - tools-call-mixed-content
  - tools-call-with-logging
  - tools-call-error
  - tools-call-with-progress
  - tools-call-sampling
  - tools-call-elicitation
  - elicitation-sep1034-defaults
  - elicitation-sep1330-enums
  - json-schema-2020-12
  - server-sse-polling
  - server-sse-multiple-streams
  - resources-list
  - resources-read-text
  - resources-read-binary
  - resources-templates-read
  - resources-subscribe
  - resources-unsubscribe
  - prompts-list
  - prompts-get-simple
  - prompts-get-with-args
  - prompts-get-embedded-resource
  - prompts-get-with-image
"""
"""What asks for tools of the suite's own, or for streams, resources, prompts and logging: we have none."""
OF_US = ("server-initialize", "ping", "tools-list", "dns-rebinding-protection")


@pytest.fixture
def suite() -> str:
    if SUITE is None or (node := shutil.which("node")) is None:
        pytest.skip("needs the npm package @modelcontextprotocol/conformance, and its program in PATH")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version[1:].partition(".")[0]) < 22:
        pytest.skip(f"the suite needs Node.js 22; this machine has {version.strip()}")
    return SUITE


@contextmanager
def with_key() -> Iterator[tuple[str, list[str]]]:
    """An address that adds our key to what it passes on, because the suite knows of none. Whom it passes it to is put
    into the list."""
    targets: list[str] = []

    class Passing(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            target = urlsplit(targets[0])
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=60)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            connection.request(self.command, self.path, body, {**headers, "Authorization": f"Bearer {KEY}"})
            answer = connection.getresponse()
            data = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            connection.close()

        do_GET = do_POST = do_DELETE = do_OPTIONS = _pass

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Passing)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://localhost:{server.server_address[1]}", targets
    finally:
        server.shutdown()
        server.server_close()


def test_the_servers_suite_passes_what_concerns_us(suite: str, tmp_path: Path, broker_url: str) -> None:
    (tmp_path / "home").mkdir()
    database = f"sqlite:///{tmp_path / 'test.db'}"
    bring_up(database)
    baseline = tmp_path / "others.yml"
    baseline.write_text(OTHERS)
    with with_key() as (url, targets):
        settings = Settings(
            home=tmp_path / "home",
            database=DatabaseSettings(url=database),
            broker=BrokerSettings(url=broker_url),
            model=ModelSettings(provider="scripted"),
            server=ServerSettings(port=0, key=Secret(KEY), cors_origins=(url,)),
        )
        with served(settings) as api:
            targets.append(api.url)
            command = [suite, "server", "--url", f"{url}/mcp", "--suite", "all", "--expected-failures", str(baseline)]
            said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stdout[-6_000:] + said.stderr[-2_000:]
    for scenario in OF_US:
        assert re.search(rf"✓ {scenario}: [1-9]", said.stdout), said.stdout[-6_000:]
