"""MCP servers that are processes: a real one of the reference SDK in a real host, and ones that misbehave."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.commandline import wait_for
from support.hosted import only_pid
from support.mcp_stand import McpStand, sandbox, standing

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.remote_tasks import RemoteTask
from hermes_worker.hosting.program import NotStarted
from hermes_worker.mcp import stdio_calls as reaching
from hermes_worker.mcp.protocol import McpError
from hermes_worker.mcp.servers import McpServer, approve_tools, load_servers, make_server, write_servers
from hermes_worker.mcp.source import McpSource
from hermes_worker.mcp.stdio import StdioServer, list_tools_of_process
from hermes_worker.net.http import HttpRequest
from hermes_worker.net.urls import UrlPolicy
from hermes_worker.net.wire import send
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.resources import ResourceKind
from hermes_worker.store.tables import resources
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.policy import SandboxMode, SandboxPolicy

SUPPORT = Path(__file__).parents[1] / "support"
TOOL = {"name": "t0", "inputSchema": {"type": "object"}}


def desk(**more: Any) -> McpServer:
    command = (sys.executable, str(SUPPORT / "mcp_desk.py"))
    return McpServer(command=command, reads=(str(SUPPORT),), timeout_s=20, token_as="DESK_KEY", **more)


def odd(how: str, **more: Any) -> McpServer:
    command = (sys.executable, str(SUPPORT / "mcp_odd.py"), how)
    definition = {**TOOL, "description": how}
    found = McpServer(command=command, reads=(str(SUPPORT),), **{"timeout_s": 20.0, **more})
    return approve_tools(found, [definition])


def test_a_process_that_holds_many_files_speaks_to_its_servers(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4_096, hard), hard))
    with ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1_100):
            held.enter_context(Path(os.devnull).open("rb"))
        assert list_tools_of_process(desk(), None, tmp_path / "one", sandbox()), "select looks at none beyond 1,023"


def test_a_process_serves_its_session_and_sees_nothing_else(
    tmp_path: Path, context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abc")
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    (tmp_path / "others" / "secret").mkdir(parents=True)
    offered = list_tools_of_process(desk(), None, tmp_path / "one", sandbox())
    server = approve_tools(desk(), offered)
    write_servers(tmp_path, {"desk": server})
    server = load_servers(tmp_path)["desk"]
    assert [one.name for one in McpSource("desk", server, None).list_tools()] == [
        f"mcp_desk_{tool}" for tool in ("around", "connect", "keep", "leave", "order")
    ], "listing starts nothing"
    with standing(tmp_path, desk=server) as stand, socket.create_server(("127.0.0.1", 0)) as listening:
        assert stand.call(context, "keep", what="a").text == "a"
        assert stand.call(context, "keep", what="b").text == "a, b", "its memory is that of the session"
        other = stand.store.submit().run_id
        assert stand.call(context, "keep", other, what="c").text == "c", "another session has another process"
        seen = stand.call(context, "around", path=str(tmp_path / "others")).text
        rest = seen.partition(" ")[2]
        assert rest.startswith("[]"), "other directories of the machine are not there"
        assert "AWS" not in seen and "HERMES_HOME" not in seen
        assert seen.endswith("s3cret"), "its token is in its environment"
        listening.setblocking(False)
        assert stand.call(context, "connect", port=listening.getsockname()[1]).text.lstrip("-").isdigit()
        with pytest.raises(BlockingIOError):  # whatever it was told: no way around the proxy
            listening.accept()
        gone = stand.call(context, "leave")
        assert gone.is_unknown and "may have acted" in gone.text
        anew = stand.call(context, "keep", what="d")
        assert "started anew (it crashed)" in anew.text and anew.text.endswith("d")
        assert stand.call(context, "keep", what="e").text == "d, e", "it is said once"
        pids = list(stand.host.pids.values())
        children = [each.pid for one in pids for each in psutil.Process(one).children(recursive=True)]
    assert children and not any(psutil.pid_exists(one) for one in children)
    assert not any((tmp_path / "mcp-servers").iterdir())


FAULTS = [
    ("silence", "took too long", True),
    ("half", "took too long", True),
    ("huge", "ended before it answered", True),
    ("endless", "took too long", True),
    ("end", "out of ink", True),
    ("error", "-32603", True),
    ("asks and waits", "took too long; it asked us for 'roots/list', which is refused here", True),
    ("answers itself", "'input_required', which is refused here", True),
]


@pytest.mark.parametrize(("how", "said", "is_unknown"), FAULTS, ids=[row[0] for row in FAULTS])
def test_a_fault_of_a_process_costs_one_call(
    how: str, said: str, is_unknown: bool, tmp_path: Path, context: ToolContext
) -> None:
    with standing(tmp_path, odd=odd(how, timeout_s=1.5 if "too long" in said else 20.0), well=odd("others")) as stand:
        result = stand.call(context, "t0")
        assert result.is_error and result.is_unknown is is_unknown
        assert said in result.text
        assert (
            McpSource("well", stand.servers["well"], None, stand.rows)
            .call("mcp_well_t0", {}, replace(context, session_id=stand.session_id))
            .text
            == "mine"
        ), "what answers nobody is dropped"


def test_what_a_process_asks_of_us_is_refused(tmp_path: Path, context: ToolContext) -> None:
    with standing(tmp_path, odd=odd("asks")) as stand:
        said = stand.call(context, "t0").text
    assert "this client does not do that" in said
    assert "[it asked us for 'sampling/createMessage', which is refused here]" in said


def test_a_process_that_asks_a_person_is_answered_in_the_middle_of_its_call(
    tmp_path: Path, context: ToolContext
) -> None:
    server = approve_tools(desk(), list_tools_of_process(desk(), None, tmp_path / "one", sandbox()))

    def asked(stand: McpStand, page: int) -> RemoteTask:
        result = stand.call(context, "order", page=page)
        assert result.question is not None and result.task is not None
        assert f"How many copies of page {page}?" in result.question.request["question"]
        return RemoteTask.from_json(result.task.to_json())

    def answered(stand: McpStand, task: RemoteTask, answer: str, page: int) -> ToolResult:
        return stand.call(replace(context, task=replace(task, answer=answer)), "order", page=page)

    with standing(tmp_path, desk=server) as stand:
        assert answered(stand, asked(stand, 7), "3", 7).text == "3 of page 7"
        assert answered(stand, asked(stand, 7), "some", 7).text == "nothing: decline", "it fits no form"
        left = asked(stand, 8)
        assert stand.call(context, "keep", what="a").text == "a", "a call that nobody answered is in nobody's way"
        late = answered(stand, left, "3", 8)
        assert late.is_unknown and "not open any more" in late.text
        left = asked(stand, 9)
        os.kill(only_pid(stand.host), signal.SIGUSR1)  # its keeper ends it at once
        wait_for(lambda: not stand.host.pids)
        gone = answered(stand, left, "3", 9)
        assert gone.is_unknown and "ended while a person was asked" in gone.text
        assert not stand.host.pids, "nothing is started for an answer"


def test_a_changed_tool_of_a_process_is_not_called(tmp_path: Path, context: ToolContext) -> None:
    server = odd("others").model_copy(update={"tools": {"t0": "another digest"}})
    with standing(tmp_path, odd=server) as stand:
        result = stand.call(context, "t0")
        assert "approved" in result.text and "nothing was done" in result.text


@pytest.mark.parametrize(
    ("server", "said"),
    [(odd("dumb"), "no licence"), (odd("many"), "more than 500"), (McpServer(command=("/no/such",)), "ended")],
    ids=["dumb", "many", "absent"],
)
def test_a_process_that_does_not_begin_says_why(
    server: McpServer, said: str, tmp_path: Path, context: ToolContext
) -> None:
    server = server.model_copy(update={"tools": {"t0": "x"}})
    with standing(tmp_path, odd=server) as stand:
        result = stand.call(context, "t0")
        assert said in result.text and "could not be started" in result.text
        assert not result.is_unknown


def test_a_server_that_asks_and_listens_no_more_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to its question is written by the thread that reads."""
    broke: list[object] = []
    monkeypatch.setattr(threading, "excepthook", broke.append)
    program = (
        "import os, time\n"
        "os.close(0)\n"
        """os.write(1, b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\\n')\n"""
        "time.sleep(60)\n"
    )
    server = McpServer(command=(sys.executable, "-c", program), timeout_s=20)
    process = StdioServer(server, None, tmp_path / "one", sandbox())
    wait_for(lambda: process.has_ended, saying="for the end of what no longer listens")
    process.end()
    assert broke == []


def test_a_host_that_was_lost_is_waited_for(tmp_path: Path, context: ToolContext) -> None:
    with standing(tmp_path, odd=odd("others")) as stand:
        assert stand.call(context, "t0").text == "mine"
        stand.end()
        # As a host that was killed: the row still names it, and nobody answers there.
        with socket.create_server(("127.0.0.1", 0)) as listening:
            nowhere = f"http://127.0.0.1:{listening.getsockname()[1]}/x/y"
        gone = {"state": "live", "lease_token": "gone", "endpoint": nowhere, "reason": None}
        with stand.store.database.write() as connection:
            connection.execute(resources.update().values(**gone, expires_at=db_now() + 1.0))
        stand.begin(name="another")
        assert stand.call(context, "t0").text.partition("]")[::2] == (
            "[The server was started anew (its host was lost): what it remembered of this session is gone.",
            "\nmine",
        )


def test_only_the_call_that_has_the_use_is_let_in(tmp_path: Path, context: ToolContext) -> None:
    with standing(tmp_path, odd=odd("others")) as stand:
        stand.call(context, "t0")
        found = stand.rows.find(stand.session_id, ResourceKind.MCP_STDIO, "odd")
        assert found is not None and found.endpoint is not None
        use = stand.rows.acquire_use(found.resource_id)
        assert use is not None

        def status(url: str, token: str, body: bytes) -> int:
            request = HttpRequest(method="POST", url=url, headers={"Authorization": f"Bearer {token}"}, body=body)
            return send(request, UrlPolicy(allows_private=True), total_s=10).status

        call = b'{"id": 1, "method": "tools/call", "params": {"name": "t0", "arguments": {}}}'
        assert status(found.endpoint, use.token, call) == 200
        assert status(found.endpoint, "another", call) == 403
        assert status(found.endpoint[:-1], use.token, call) == 410
        assert status(found.endpoint, use.token, call.replace(b"tools/call", b"tools/list")) == 400
        assert status(found.endpoint, use.token, b"[" * 100_000) == 400
        assert status(found.endpoint, use.token, b"") == 400


def test_without_a_host_a_call_says_so(tmp_path: Path, context: ToolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "START_S", 0.2)
    with standing(tmp_path, odd=odd("others")) as stand:
        stand.end()
        result = stand.call(context, "t0")
        assert "mcp-host" in result.text and "nothing was done" in result.text
        stand.begin()


def test_a_server_is_confined_or_not_started(tmp_path: Path) -> None:
    with pytest.raises(NotStarted, match="switched off"):
        list_tools_of_process(odd("others"), None, tmp_path / "one", Sandbox(SandboxMode.OFF, SandboxPolicy()))


@pytest.mark.parametrize(
    "facts",
    [
        {"command": ("a",), "url": "http://a"},
        {},
        {"url": "http://a", "env": {"A": "b"}},
        {"command": ("a",), "reads": ("relative",)},
        {"command": ("a", "")},
        {"command": ("a\0b",)},
        {"command": ("a",), "token_as": "A=B"},
    ],
)
def test_a_server_that_makes_no_sense_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        make_server(**facts)


def test_a_process_dies_with_its_host(tmp_path: Path) -> None:
    """A host that is killed: its keeper's guardian ends what it kept."""
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from hermes_worker.mcp.servers import McpServer\n"
        "from hermes_worker.mcp.stdio import StdioServer\n"
        "from hermes_worker.settings import load_settings\n"
        "from hermes_worker.workspaces.build import build_sandbox\n"
        f"server = McpServer(command=({sys.executable!r}, {str(SUPPORT / 'mcp_odd.py')!r}, 'others'), "
        f"reads=({str(SUPPORT)!r},))\n"
        f"one = StdioServer(server, None, Path({str(tmp_path / 'own')!r}), "
        "build_sandbox(load_settings({'HERMES_PROVIDER': 'scripted'})))\n"
        "one.initialize()\n"
        "print(one.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    host = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    keeper = psutil.Process(int(host.stdout.readline()))
    family = [keeper, *keeper.children(recursive=True)]
    os.kill(host.pid, signal.SIGKILL)
    host.wait()
    _, alive = psutil.wait_procs(family, timeout=15)
    assert not alive


def test_an_unknown_tool_is_an_answer(tmp_path: Path) -> None:
    with pytest.raises(McpError, match="no licence"):
        list_tools_of_process(odd("dumb"), None, tmp_path / "one", sandbox())
