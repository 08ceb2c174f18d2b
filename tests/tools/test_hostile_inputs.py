"""One set of hostile inputs: none gets out of the workspace or to an address, and each costs its call only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address
from itertools import product
from pathlib import Path

import pytest
from support.hostile_inputs import ARGUMENTS, MCP_BODIES, PATHS, SECRET, URLS, counted
from tools.conftest import Session

from hermes_worker.agent.fetching import AddressFetcher
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.agent.tools.vision import VisionTool
from hermes_worker.agent.tools.web import WebExtractTool
from hermes_worker.mcp.protocol import (
    RESULT_CHARS_MAX,
    McpError,
    parse_answer,
    parse_definitions,
    parse_task,
    parse_task_view,
)
from hermes_worker.mcp.response_reader import ANSWER_BYTES_MAX, ResponseReader, read_events
from hermes_worker.net.events import EventReader
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy, check_addresses, parse_http_url
from hermes_worker.workspaces.base import PATH_BYTES_MAX

WHOLE = 300
"""So many different inputs the set has at least (issue 18)."""
_UNFORESEEN = re.compile(r"\[TOOL_ERROR\]|Traceback")
_PUBLIC = "http://93.184.216.34/"


def named(value: object) -> str:
    return re.sub(r"[^\x21-\x7e]+", "_", str(value))[:40] or "empty"


@pytest.fixture
def fenced(session: Session, root: Path) -> Iterator[Session]:
    """A session whose workspace has ways out of it; nothing may have changed in the end, and nothing been shown."""
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text(SECRET)
    (root / "sub").mkdir()
    for name in (".env", ".env.production", ".netrc"):
        (root / name).write_text(f"PASSWORD={SECRET}")
    (root / "notes.txt").write_text("plain")
    for link, to in {
        "out": str(outside),
        "link": "../outside/secret",
        "dangling": str(outside / "absent"),
        "chain": "link",
        "circle": "circle",
        "sub/up": "../../outside",
        "alias-of-env": ".env",
    }.items():
        (root / link).symlink_to(to)
    before = _tree(root.parent)
    yield session
    assert _tree(root.parent) == before


def _tree(folder: Path) -> dict[str, str | None]:
    """Every name below ``folder`` and what the file says."""
    return {
        str(path): path.read_text() if path.is_file() and not path.is_symlink() else None
        for path in sorted(folder.rglob("*"))
    }


def test_the_set_is_large_and_has_every_kind() -> None:
    found = counted()
    assert sum(found.values()) >= WHOLE, found
    assert min(found.values()) >= 10, found
    assert len(found) == 6


@pytest.mark.parametrize("path", PATHS, ids=named)
def test_a_hostile_path_is_refused_by_every_file_tool(fenced: Session, path: str) -> None:
    for tool, arguments in {
        "read_file": {"path": path},
        "write_file": {"path": path, "content": "x"},
        "patch": {"path": path, "old_string": SECRET, "new_string": "x"},
    }.items():
        result = fenced.result(tool, **arguments)
        assert result.is_error, (tool, result.text)
        assert SECRET not in result.text and "root:" not in result.text
        assert not _UNFORESEEN.search(result.text), result.text
        assert len(result.text) < 2 * PATH_BYTES_MAX, "a path is not repeated at any length"
    found = fenced.result("search_files", pattern=SECRET[:6], path=path)
    assert SECRET not in found.text


def test_a_hostile_url_is_refused_before_anybody_is_asked() -> None:
    accepted = []
    for url in URLS:
        try:
            target = parse_http_url(url)
            ip_address(target.host)  # a name would be for the resolver to judge
            check_addresses(target, (target.host,), UrlPolicy())
            accepted.append(url)
        except UnsafeUrl as refused:
            assert len(str(refused)) < 1_000, url
    assert accepted == []


def test_a_public_address_is_not_refused() -> None:
    target = parse_http_url(_PUBLIC)
    assert check_addresses(target, (target.host,), UrlPolicy()) == ("93.184.216.34",)


@pytest.mark.parametrize("body", MCP_BODIES, ids=range(len(MCP_BODIES)))
def test_a_hostile_answer_of_an_mcp_server_is_a_short_error_or_a_bounded_text(body: bytes) -> None:
    sent = {"application/json": body, "text/event-stream": b"data: " + body + b"\n\n", "text/html": body}
    readers = (parse_answer, parse_definitions, parse_task, lambda result: parse_task_view(result, "t"))
    for kind, read in product(sent, readers):
        hearing = ResponseReader()
        try:
            for event in read_events(kind, [sent[kind]], EventReader(chars_max=ANSWER_BYTES_MAX)):
                hearing.on_event(event)
            found = read(hearing.get_result())
        except McpError as error:
            assert len(str(error)) < 1_000
            continue
        assert len(getattr(found, "text", "")) <= RESULT_CHARS_MAX + 100
        assert kind != "text/html"


@pytest.mark.parametrize(("tool", "text"), ARGUMENTS, ids=named)
def test_hostile_arguments_are_an_error_that_says_what_is_wrong(fenced: Session, tool: str, text: str) -> None:
    fetching = {"web_extract": WebExtractTool, "vision_analyze": VisionTool}
    called = fetching[tool](AddressFetcher(policy=UrlPolicy())) if tool in fetching else fenced.catalog.get(tool)
    result = run_tool(called, text, fenced.context())
    assert result.is_error, result.text
    said = result.text  # that of a tool that reads pages is wrapped
    assert '"error":' in said and len(said) < 5_000 + len(text), "an error names what it was given at most"
    assert SECRET not in said and "root:" not in said
    assert not _UNFORESEEN.search(said), said
