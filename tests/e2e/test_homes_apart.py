"""Roles that share the database and the broker, and no file: each has an empty home of its own, as in Kubernetes, where
tools workers alone mount the volume of workspaces."""

from __future__ import annotations

import socket
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.commandline import CommandLine, Running, call, script, wait_for

from hermes_worker.client import HermesClient

pytestmark = pytest.mark.e2e
KEY = "0123456789abcdef-server"
WORKERS = {"model": "model", "delivery": "delivery", "tools": "tools,system"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def files_below(home: Path) -> list[str]:
    return sorted(path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file())


def test_a_run_goes_its_way_though_no_role_sees_the_home_of_another(
    tmp_path: Path, postgres_url: str, broker_url: str
) -> None:
    servers = {"HERMES_DATABASE_URL": postgres_url, "HERMES_BROKER_URL": broker_url, "HERMES_DRAIN_S": "3"}
    assert CommandLine(tmp_path / "migrate", servers).inline("data", "migrate").code == 0

    with ExitStack() as stack:

        def begin(role: str, *words: str, **more: str) -> Running:
            (tmp_path / role).mkdir()
            hermes = CommandLine(tmp_path / role, {**servers, **more})
            return stack.enter_context(hermes.started(*words))

        scripted = begin("scripted", "dev", "scripted-model", "--port", "0")
        model = {"HERMES_BASE_URL": scripted.wait_for_line(r"(http://\S+/v1)")[1], "HERMES_MODEL": "scripted"}
        workers = [begin(role, "start", "worker", "--queues", queues, **model) for role, queues in WORKERS.items()]
        ports = {role: str(free_port()) for role in ("mcp", "gateway")}
        others = [
            begin("beat", "start", "beat", **model),
            begin("api", "start", "api", "--port", "0", **model, HERMES_SERVER_KEY=KEY),
            begin("gateway", "start", "gateway", **model, HERMES_GATEWAY="1", HERMES_METRICS_PORT=ports["gateway"]),
            begin("mcp", "start", "mcp-host", **model, HERMES_METRICS_PORT=ports["mcp"]),
        ]
        for process in (*workers, *others):
            process.wait_for_line("worker.started")

        address = others[1].wait_for_line(r"url=(http://\S+)")[1]
        with HermesClient(address, api_key=KEY) as client:
            steps = (call("write_file", path="note.txt", content="kept"), call("terminal", command="cat note.txt"))
            run_id = client.submit(script(*steps, final="Done."))
            assert client.wait(run_id) == "completed", client.result(run_id)
            ended = client.run(run_id)
            # A second turn begins with what the first left, wherever it was accepted.
            look = script(call("terminal", command="cat note.txt"), final="Again.")
            again = client.submit(look, session_id=ended.session_id)
            assert client.wait(again) == "completed", client.result(again)
            assert "kept" in str(list(client.messages(ended.session_id)))
        for port in ports.values():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                assert b"hermes_build_info" in answer.read()

        [note] = wait_for(lambda: [name for name in files_below(tmp_path / "tools") if name.endswith("note.txt")])
        assert note.startswith("workspaces/")
        for role in ("api", "beat", "delivery", "gateway", "model"):
            assert files_below(tmp_path / role) == [], role
        assert not any("Traceback" in process.output for process in (*workers, *others))
