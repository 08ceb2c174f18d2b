"""``/mcp`` and our client, judged by the protocol's own suite: ``npm install @modelcontextprotocol/conformance``."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from serving import KEY, served, until
from support import mcp_client_driver
from support.migrated import bring_up

from hermes_worker.mcp.protocol import InputWanted, McpAnswer, McpError
from hermes_worker.mcp.requests import McpExchange, call_tool, negotiate_protocol
from hermes_worker.mcp.servers import WITH_EVENT_STREAM, WITH_SESSIONS, McpServer
from hermes_worker.mcp.sessions import McpSession
from hermes_worker.settings import BrokerSettings, DatabaseSettings, ModelSettings, Secret, ServerSettings, Settings

pytestmark = pytest.mark.slow
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
  - resources-read-text
  - resources-read-binary
  - resources-templates-read
  - resources-subscribe
  - resources-unsubscribe
  - prompts-get-simple
  - prompts-get-with-args
  - prompts-get-embedded-resource
  - prompts-get-with-image
"""
"""What asks for tools, resources and prompts of the suite's own, or for streams and logging."""
OF_US = ("server-initialize", "ping", "tools-list", "resources-list", "prompts-list", "dns-rebinding-protection")


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


SIGNING_IN = (
    *("metadata-default", "metadata-var1", "metadata-var2", "metadata-var3", "basic-cimd", "pre-registration"),
    *("scope-from-www-authenticate", "scope-from-scopes-supported", "scope-omitted-when-undefined"),
    *("scope-retry-limit", "token-endpoint-auth-basic", "token-endpoint-auth-post", "token-endpoint-auth-none"),
    *("resource-mismatch", "offline-access-scope", "offline-access-not-supported", "scope-step-up"),
    *("2025-03-26-oauth-metadata-backcompat", "2025-03-26-oauth-endpoint-fallback"),
)


@pytest.mark.parametrize(
    "scenario", ["initialize", "tools_call", "sse-retry", *(f"auth/{name}" for name in SIGNING_IN)]
)
def test_our_client_passes_the_clients_suite(suite: str, tmp_path: Path, scenario: str) -> None:
    driver = Path(mcp_client_driver.__file__)
    command = [suite, "client", "--command", f"{sys.executable} {driver}", "--scenario", scenario]
    environ = {**os.environ, "PYTHONPATH": str(driver.parent.parent)}
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environ)
    assert said.returncode == 0, said.stdout[-4_000:] + said.stderr[-4_000:]


def test_tools_of_the_reference_server_are_called_in_one_session(tmp_path: Path) -> None:
    program = shutil.which("mcp-server-everything")
    if program is None:
        pytest.skip("needs the npm package @modelcontextprotocol/server-everything, and its program in PATH")
    with everything(program, "streamableHttp", tmp_path) as url:
        server, tools = negotiate_protocol(McpServer(url=f"{url}/mcp"), None)
        assert server.protocol == WITH_SESSIONS
        assert "echo" in {tool["name"] for tool in tools}
        session = McpSession(url=server.url)
        said = [_echoed(server, session, words) for words in ("one", "two")]
        assert [text.endswith(words) for text, words in zip(said, ("one", "two"), strict=True)] == [True, True]
        was = session.session_id
        assert was is not None
        session.session_id = "11111111-1111-4111-8111-111111111111"
        with pytest.raises(McpError) as refused:
            _echoed(server, session, "three")
        assert "HTTP 400" in str(refused.value), "it refuses an unknown session otherwise than the protocol says"


def test_the_reference_server_asks_a_person_in_the_middle_of_a_call(tmp_path: Path) -> None:
    program = shutil.which("mcp-server-everything")
    if program is None:
        pytest.skip("needs the npm package @modelcontextprotocol/server-everything, and its program in PATH")
    with everything(program, "streamableHttp", tmp_path) as url:
        server, tools = negotiate_protocol(McpServer(url=f"{url}/mcp"), None)
        assert "trigger-elicitation-request" in {tool["name"] for tool in tools}, "it is told that one can be asked"
        asking = McpExchange(
            server=server, token=None, ends_at=time.monotonic() + 20, session=McpSession(url=server.url)
        )
        wanted = call_tool(asking, "trigger-elicitation-request", {}, "key", threading.Event())
        assert isinstance(wanted, InputWanted)
        again = {"requestState": wanted.server_state, "inputResponses": {"question": {"action": "decline"}}}
        elsewhere = McpExchange(server=server, token=None, ends_at=time.monotonic() + 20)
        answered = call_tool(elsewhere, "trigger-elicitation-request", {}, "key", threading.Event(), again)
        assert isinstance(answered, McpAnswer) and "declined" in answered.text


def test_the_reference_server_of_the_first_revision_is_called(tmp_path: Path) -> None:
    program = shutil.which("mcp-server-everything")
    if program is None:
        pytest.skip("needs the npm package @modelcontextprotocol/server-everything, and its program in PATH")
    with everything(program, "sse", tmp_path) as url:
        server, tools = negotiate_protocol(McpServer(url=f"{url}/sse"), None)
        assert server.protocol == WITH_EVENT_STREAM
        assert {"echo", "get-sum"} <= {tool["name"] for tool in tools}
        assert [_echoed(server, McpSession(url=url), words).endswith(words) for words in ("one", "two")] == [True, True]


@contextmanager
def everything(program: str, transport: str, folder: Path) -> Iterator[str]:
    """The address of a server that listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {**os.environ, "PORT": str(port)}
    with subprocess.Popen(
        [program, transport], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
    ) as process:
        try:
            until(lambda: _listens(port), "the server listens")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _echoed(server: McpServer, session: McpSession, words: str) -> str:
    asking = McpExchange(server=server, token=None, ends_at=time.monotonic() + 20, session=session)
    return call_tool(asking, "echo", {"message": words}, "key", threading.Event()).text


def _listens(port: int) -> bool:
    with socket.socket() as probing:
        return probing.connect_ex(("127.0.0.1", port)) == 0
