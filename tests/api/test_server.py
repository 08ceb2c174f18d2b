"""The process: its sockets, its signals, its end."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from serving import PATIENCE_S, until
from support.migrated import bring_up

from hermes_worker.api.server import open_sockets, serve
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings import ServerSettings, Settings, load_settings, render_environ
from hermes_worker.settings.server_key import find_server_key
from hermes_worker.system.open_files import raise_open_file_limit

PROGRAM = """
from hermes_worker.api.server import serve
from hermes_worker.observe import configure_logging
from hermes_worker.settings import load_settings
settings = load_settings()
configure_logging(settings.log, "api", secrets=settings.secrets)
serve(settings, on_ready=lambda url: print(url, flush=True))
"""


@pytest.fixture
def installed(tmp_path: Path, broker_url: str) -> Settings:
    home = tmp_path / "home"
    home.mkdir()
    environ = {"HERMES_BROKER_URL": broker_url, "HERMES_SERVER_PORT": "0", "HERMES_HOME": str(home)}
    settings = load_settings({**environ, "HOME": str(tmp_path), "PATH": os.environ["PATH"]})
    bring_up(settings.database_url)
    return settings


@pytest.fixture
def process(installed: Settings, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A server; its parameter is what the environment says besides."""
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=render_environ(installed) | {"PYTHONPATH": str(Path.cwd())} | getattr(request, "param", {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield running
    running.kill()
    running.communicate()


def lets_in(installed: Settings) -> dict[str, str]:
    """The header with the key that a server made which was given none."""
    key = find_server_key(installed)
    assert key is not None
    return {"Authorization": f"Bearer {key.reveal()}"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_streams_and_the_process_with_0(
    process: subprocess.Popen[str], installed: Settings, number: signal.Signals
) -> None:
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
    headers = lets_in(installed)
    run_id = httpx.post(
        f"{url}/v1/runs", json={"input": "x"}, headers=headers, verify=False, timeout=PATIENCE_S
    ).json()["run_id"]
    events = f"{url}/v1/runs/{run_id}/events"
    with httpx.stream("GET", events, headers=headers, timeout=PATIENCE_S, verify=False) as stream:
        process.send_signal(number)
        assert b"".join(stream.iter_raw()) == b": server is going away, reconnect with Last-Event-ID\n\n"
    assert process.wait(timeout=PATIENCE_S) == 0
    _, stderr = process.communicate()
    assert "Traceback" not in stderr
    assert "worker.stopped" in stderr


@pytest.mark.parametrize("process", [{"HERMES_SERVER_DRAIN_S": "600"}], indirect=True)
def test_readiness_goes_before_the_sockets_close(process: subprocess.Popen[str], installed: Settings) -> None:
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    headers = lets_in(installed)
    with httpx.Client(timeout=PATIENCE_S, verify=False) as http:
        assert http.get(f"{url}/health/ready").json() == {"status": "ready"}
        process.send_signal(signal.SIGTERM)
        leaving = until(lambda: _refused(http.get(f"{url}/health/ready")), "it says that it leaves")
        assert leaving.json() == {"status": "leaving"}
    # A connection of somebody who has not heard of it yet is taken, and so is the request.
    assert (
        httpx.post(f"{url}/v1/runs", json={"input": "x"}, headers=headers, verify=False, timeout=PATIENCE_S).status_code
        == 202
    )
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_S) == 0


def _refused(answer: httpx.Response) -> httpx.Response | None:
    return answer if answer.status_code == 503 else None


@pytest.mark.parametrize("process", [{"HERMES_BROKER_URL": "redis://127.0.0.1:9/0"}], indirect=True)
def test_a_broker_that_is_away_is_said_and_the_server_serves(
    process: subprocess.Popen[str], installed: Settings
) -> None:
    assert process.stdout is not None and process.stderr is not None
    assert "broker.unreachable" in process.stderr.readline()
    url = process.stdout.readline().strip()
    accepted = httpx.post(f"{url}/v1/runs", json={"input": "hello"}, headers=lets_in(installed), timeout=PATIENCE_S)
    assert accepted.status_code == 202


def test_a_port_that_is_taken_is_a_sentence(installed: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"port {port} on 127\.0\.0\.1 is in use.*HERMES_SERVER_PORT"):
            serve(replace(installed, server=ServerSettings(port=port)))


def test_an_address_that_is_not_ours_is_a_sentence() -> None:
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(ConfigurationError, match="HERMES_SERVER_HOST"):
            open_sockets(ServerSettings(host=host, port=0))


def test_without_a_key_no_public_address_is_served(installed: Settings) -> None:
    with pytest.raises(ConfigurationError, match="HERMES_SERVER_KEY"):
        serve(replace(installed, server=ServerSettings(host="0.0.0.0", port=0)))


def test_localhost_is_served_on_every_address_it_has() -> None:
    sockets = open_sockets(ServerSettings(host="localhost", port=0))
    try:
        assert sockets[0].family == socket.AF_INET
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
        # asyncio looks at this before it sets TCP_NODELAY; without it every answer takes 40 ms.
        assert all(sock.proto == socket.IPPROTO_TCP for sock in sockets)
    finally:
        for sock in sockets:
            sock.close()


def test_the_limit_on_open_files_is_raised_as_far_as_allowed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        raise_open_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 65_536) if hard > 0 else 65_536
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_a_client_says_is_not_logged_and_one_that_leaves_within_its_request_leaves_no_traceback(
    process: subprocess.Popen[str], installed: Settings
) -> None:
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    headers = lets_in(installed)
    said = {"input": "my deepest secret", "metadata": {"a": "another"}}
    answer = httpx.post(f"{url}/v1/runs", json=said, headers=headers, verify=False, timeout=PATIENCE_S)
    assert answer.status_code == 202
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as raw:
        lines = f"Host: {host}\r\nAuthorization: {headers['Authorization']}\r\nContent-Length: 100"
        raw.sendall(f"POST /v1/runs HTTP/1.1\r\n{lines}\r\n\r\nhalf".encode())
    assert httpx.get(f"{url}/health", verify=False, timeout=PATIENCE_S).status_code == 200
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert answer.json()["run_id"] in stderr
    assert "secret" not in stderr
    assert headers["Authorization"].removeprefix("Bearer ") not in stderr
    assert "another" not in stderr
    assert "Traceback" not in stderr
