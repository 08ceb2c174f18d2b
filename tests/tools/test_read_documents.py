"""``read_file`` of documents, in real sandboxes: text of good ones, and bad ones that cost that call only."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.confined import SECRET, machine, working
from support.hostile_documents import GOOD, archive, hostile_documents, pdf

from hermes_worker.agent.tools import documents
from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.agent.tools.documents import find_document_kind
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.sandbox.network import Network

READ_FILE = build_default_catalog().get("read_file")
HOSTILE = {name: (file, make) for name, file, make in hostile_documents()}
EVERY_TIME = ("docx-entities", "docx-bomb", "pdf-bomb", "pdf-pages-in-a-circle", "xlsx-deep")
SAMPLE = sorted({*EVERY_TIME, *random.Random(18).sample(sorted(HOSTILE), 5)})


def read(workspace: Any, path: str, *, cancelled: threading.Event | None = None, **arguments: Any) -> ToolResult:
    context = ToolContext(
        run_id="run",
        session_id="session",
        idempotency_key="key",
        attempt=1,
        workspace=workspace,
        session={},
        cancelled=cancelled or threading.Event(),
    )
    return run_tool(READ_FILE, json.dumps({"path": path, **arguments}), context)


@pytest.fixture(params=["bubblewrap", "landlock"])
def confined(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalWorkspace]:
    with machine(tmp_path, working(request.param), network=Network.NONE) as here:
        yield here.workspace


def test_the_text_of_each_kind_is_read_in_the_sandbox(confined: LocalWorkspace) -> None:
    root = Path(confined.root)
    (root / "a.pdf").write_bytes(pdf("Hello paper", "Second page"))
    for kind, make in GOOD.items():
        (root / f"a.{kind}").write_bytes(make())
    found = {kind: json.loads(read(confined, f"a.{kind}").text) for kind in ("pdf", *GOOD)}
    assert found["pdf"]["content"].splitlines()[:2] == ["1|--- page 1 of 2 ---", "2|Hello paper"]
    assert (found["pdf"]["pages"], found["pdf"]["document"]) == (2, "pdf")
    assert found["docx"]["content"] == "1|## Plan\n2|First we measure.\n3|left\tright"
    assert found["xlsx"]["content"] == "1|--- sheet Costs ---\n2|item\teur\n3|tea\t4.5\n4|--- sheet Empty ---"
    assert found["xlsx"]["sheets"] == 2
    assert found["pptx"]["content"].splitlines() == [
        "1|--- slide 1 of 1 ---",
        "2|Results",
        "3|It works.",
        "4|notes: Speak slowly.",
    ]


def test_documents_are_read_in_pages_as_files_are(workspace: LocalWorkspace, root: Path) -> None:
    (root / "a.pdf").write_bytes(pdf(*(f"text {n}" for n in range(5))))
    page = json.loads(read(workspace, "a.pdf", offset=3, limit=2).text)
    assert page["content"] == "3|--- page 2 of 5 ---\n4|text 1"
    assert (page["total_lines"], page["truncated"]) == (10, True)
    assert read(workspace, "a.pdf", offset=99).is_error


def test_secrets_in_documents_are_hidden(workspace: LocalWorkspace, root: Path) -> None:
    (root / "a.pdf").write_bytes(pdf("ghp_" + "a1B2c3D4" * 5))
    assert "a1B2c3D4a1B2" not in read(workspace, "a.pdf").text


def test_a_document_without_text_says_so(workspace: LocalWorkspace, root: Path) -> None:
    import openpyxl

    openpyxl.Workbook().save(root / "a.xlsx")
    assert json.loads(read(workspace, "a.xlsx").text)["content"] == "1|--- sheet Sheet ---"


@pytest.mark.parametrize("name", SAMPLE)
def test_a_hostile_document_costs_its_call_only(name: str, workspace: LocalWorkspace, root: Path) -> None:
    _is_harmless(name, workspace, root)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(HOSTILE.keys() - set(SAMPLE)))
def test_every_hostile_document_costs_its_call_only(name: str, workspace: LocalWorkspace, root: Path) -> None:
    _is_harmless(name, workspace, root)


def _is_harmless(name: str, workspace: LocalWorkspace, root: Path) -> None:
    file, make = HOSTILE[name]
    (root / file).write_bytes(make())
    began = time.monotonic()
    result = read(workspace, file)
    assert time.monotonic() - began < documents.DOCUMENT_S_MAX + 10
    said = json.loads(result.text)
    assert "root:" not in result.text and len(result.text) < 10_000
    assert result.is_error or said["content"].count("ha") < 100, said
    assert [path.name for path in root.iterdir()] == [file], "nothing was unpacked"


def test_a_parser_that_is_taken_over_reaches_nothing_but_what_commands_do(
    confined: LocalWorkspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "home" / ".hermes-worker" / ".env"
    assert SECRET in secret.read_text()
    taken = f"import os, struct, json\nd = json.dumps(dict(text=open({str(secret)!r}).read())).encode()\n"
    taken += "os.write(0, struct.pack('>I', len(d)) + d)"
    monkeypatch.setattr(documents, "_build_document_command", lambda: f"exec python3 -c {json.dumps(taken)}")
    (Path(confined.root) / "a.pdf").write_bytes(pdf("x"))
    result = read(confined, "a.pdf")
    assert result.is_error and SECRET not in result.text


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02[]",
        b"\x00\x00\x00\x02{}",
        b'\x00\x00\x00\x0b{"text": 1}\x00',
        b"\x00\x00\x00\x04\xff\xff\xff\xff",
        b"\x00\x01\x86\xa0" + b"[" * 100_000,
        b"",
    ],
)
def test_nonsense_of_the_parser_is_an_error_of_the_call(
    workspace: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    (root / "answer").write_bytes(answer)
    monkeypatch.setattr(documents, "_build_document_command", lambda: "cat answer >&0")
    (root / "a.pdf").write_bytes(pdf("x"))
    assert "took too much, or broke off" in json.loads(read(workspace, "a.pdf").text)["error"]


def test_reading_takes_no_longer_than_it_may(
    workspace: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "DOCUMENT_S_MAX", 0.3)
    monkeypatch.setattr(documents, "_build_document_command", lambda: "sleep 60")
    (root / "a.pdf").write_bytes(pdf("x"))
    assert "takes more than 0 s to read" in read(workspace, "a.pdf").text


def test_a_document_that_is_too_large_is_not_read(workspace: LocalWorkspace, root: Path) -> None:
    (root / "a.pdf").write_bytes(pdf("x") + bytes(21 * 1024 * 1024))
    assert "more than 20 MB" in read(workspace, "a.pdf").text


def test_without_the_library_the_result_says_what_to_install(
    workspace: LocalWorkspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = documents._build_document_command().replace("import pypdf", "import pypdf_that_is_not_there")
    monkeypatch.setattr(documents, "_build_document_command", lambda: command)
    (root / "a.pdf").write_bytes(pdf("x"))
    assert "pip install 'hermes-worker[documents]'" in json.loads(read(workspace, "a.pdf").text)["error"]


def test_a_kind_is_told_by_content_and_archives_by_name_too() -> None:
    assert find_document_kind("x.bin", pdf("a")) == "pdf"
    assert find_document_kind("x.DOCX", archive(("a", b""))) == "docx"
    assert find_document_kind("x.zip", archive(("a", b""))) is None
    assert find_document_kind("x.docx", b"plain text") is None
    assert not documents.list_missing_libraries()
