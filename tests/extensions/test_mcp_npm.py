"""The stock servers of npm as processes of a real host, as an operator adds them: ``npm install
@modelcontextprotocol/server-filesystem @modelcontextprotocol/server-memory``."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from support.hosted import only_pid
from support.mcp_stand import McpStand, sandbox, standing

from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.mcp.servers import McpServer, approve_tools
from hermes_worker.mcp.stdio import list_tools_of_process

pytestmark = pytest.mark.slow


def stock(package: str, *arguments: str, **more: Any) -> McpServer:
    """A server as its package comes, with the Node of this machine; it may read the packages."""
    program, node = shutil.which(f"mcp-server-{package}"), shutil.which("node")
    if program is None or node is None:
        pytest.skip(f"needs the npm package @modelcontextprotocol/server-{package}, and its program in PATH")
    script, runs_it = Path(program).resolve(), Path(node).resolve()
    packages = next(one for one in script.parents if one.name == "node_modules")
    reads = (str(packages), *(() if runs_it.is_relative_to("/usr") else (str(runs_it.parent),)))
    return McpServer(command=(str(runs_it), str(script), *arguments), reads=reads, timeout_s=30, **more)


def added(server: McpServer, folder: Path) -> McpServer:
    """With all that it offers approved."""
    return approve_tools(server, list_tools_of_process(server, None, folder / "asked", sandbox()))


def test_the_file_server_works_in_its_directory_and_in_no_other(tmp_path: Path, context: ToolContext) -> None:
    data, others = tmp_path / "data", tmp_path / "others"
    data.mkdir()
    others.mkdir()
    (data / "of-ours.txt").write_text("ours")
    (others / "secret.txt").write_text("theirs")
    (data / "way-out").symlink_to(others)
    server = added(stock("filesystem", str(data), writes=(str(data),)), tmp_path)
    assert {"read_text_file", "write_file", "edit_file", "list_directory"} <= set(server.tools)
    with standing(tmp_path, files=server) as stand:
        assert stand.call(context, "read_text_file", path=str(data / "of-ours.txt")).text == "ours"
        written = stand.call(context, "write_file", path=str(data / "new.txt"), content="one\ntwo\n")
        assert not written.is_error and (data / "new.txt").read_text() == "one\ntwo\n"
        edits = [{"oldText": "two", "newText": "three"}]
        assert "+three" in stand.call(context, "edit_file", path=str(data / "new.txt"), edits=edits).text
        assert (data / "new.txt").read_text() == "one\nthree\n"
        assert "[FILE] new.txt" in stand.call(context, "list_directory", path=str(data)).text
        for path in (others / "secret.txt", data / "way-out" / "secret.txt", data / ".." / "others" / "secret.txt"):
            refused = stand.call(context, "read_text_file", path=str(path))
            assert refused.is_error and "theirs" not in refused.text
        assert stand.call(context, "read_text_file", path=5).is_error, "its own check of arguments costs the call only"
        assert stand.call(context, "read_text_file", path=str(data / "new.txt")).text == "one\nthree\n"


def test_the_file_server_cannot_be_told_to_leave_its_directory(tmp_path: Path, context: ToolContext) -> None:
    """Its own check stands aside here: it was given the whole machine, and shown one directory of it."""
    data, others = tmp_path / "data", tmp_path / "others"
    data.mkdir()
    others.mkdir()
    (others / "secret.txt").write_text("theirs")
    with standing(tmp_path, files=added(stock("filesystem", "/", writes=(str(data),)), tmp_path)) as stand:
        assert not stand.call(context, "write_file", path=str(data / "a.txt"), content="a").is_error
        for tool, more in (("read_text_file", {}), ("write_file", {"content": "x"})):
            assert stand.call(context, tool, path=str(others / "secret.txt"), **more).is_error
        assert stand.call(context, "write_file", path="/etc/hermes-was-here", content="x").is_error
    assert (others / "secret.txt").read_text() == "theirs"
    assert not Path("/etc/hermes-was-here").exists()


def test_the_memory_server_remembers_for_its_session_and_after_it_was_killed(
    tmp_path: Path, context: ToolContext
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    server = stock("memory", env={"MEMORY_FILE_PATH": str(kept / "memory.jsonl")}, writes=(str(kept),))
    with standing(tmp_path, memory=added(server, tmp_path)) as stand:
        entities = [{"name": "Anna", "entityType": "person", "observations": ["likes pears"]}]
        assert not stand.call(context, "create_entities", entities=entities).is_error
        more = [{"entityName": "Anna", "contents": ["moved to Bonn"]}]
        assert "Bonn" in stand.call(context, "add_observations", observations=more).text
        assert _remembered(stand, context) == ["likes pears", "moved to Bonn"]

        os.kill(only_pid(stand.host), signal.SIGKILL)
        lost = stand.call(context, "read_graph")
        assert lost.is_unknown or "started anew" in lost.text
        assert _remembered(stand, context) == ["likes pears", "moved to Bonn"], "a directory of --write outlives it"


def test_a_memory_without_a_directory_is_that_of_one_session(tmp_path: Path, context: ToolContext) -> None:
    """Its file is where its package is, unless it is told otherwise; a process may write to its own home alone."""
    server = stock("memory", env={"MEMORY_FILE_PATH": "/tmp/memory.jsonl"})
    with standing(tmp_path, memory=added(server, tmp_path)) as stand:
        entities = [{"name": "Anna", "entityType": "person", "observations": ["likes pears"]}]
        assert not stand.call(context, "create_entities", entities=entities).is_error
        assert _remembered(stand, context) == ["likes pears"]
        other = stand.store.submit().run_id
        assert "Anna" not in stand.call(context, "read_graph", other).text
    assert not Path("/tmp/memory.jsonl").exists()


def _remembered(stand: McpStand, context: ToolContext) -> list[str]:
    said = stand.call(context, "read_graph").text
    graph = json.loads(said[said.index("{") :])
    return [said for entity in graph["entities"] for said in entity["observations"]]
