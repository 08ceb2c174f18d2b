"""ARCHITECTURE.md's map, held to its word: who imports whom, who reads the environment, who opens the database."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hermes_worker"


def sources(*folders: str) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, path.read_text(encoding="utf-8")


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_the_layers_import_in_one_direction() -> None:
    found = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_core_imports_only_the_standard_library_and_itself() -> None:
    for path, text in sources("hermes_worker/core"):
        for name in imported(ast.parse(text)):
            top = name.split(".")[0]
            is_core = name == "hermes_worker.core" or name.startswith("hermes_worker.core.")
            assert is_core or top in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_only_the_store_executes_sql() -> None:
    """The crash lab's auditor and the doctor look at the database too; neither writes."""
    for path, text in sources("hermes_worker", "scheduler"):
        # Most files do not even mention the tables, and to parse them all takes seconds.
        if {"store", "chaos"} & set(path.parts) or "hermes_worker.store.tables" not in text:
            continue
        for name in imported(ast.parse(text)):
            assert not name.startswith("hermes_worker.store.tables"), f"{path} reads tables directly"


def test_task_names_are_written_out() -> None:
    from hermes_worker.broker.queue import TaskName

    names = {
        "hermes.iterate",
        "hermes.call_tool",
        "hermes.ask_auxiliary",
        "hermes.deliver",
        "hermes.collect",
        "hermes.maintain",
    }
    assert {name.value for name in TaskName} == names


def test_modules_import_without_side_effects() -> None:
    names = ("hermes_worker", "hermes_worker.core.step", "hermes_worker.store.runs.runs", "scheduler")
    code = "; ".join(f"import {name}; assert threading.active_count() == 1, {name!r}" for name in names)
    subprocess.run([sys.executable, "-c", f"import threading; {code}"], check=True, cwd=ROOT)


def test_who_asks_no_model_loads_no_sdk() -> None:
    """A scheduler, an API and a worker for tools start in half the time, and are a third smaller."""
    roles = "scheduler.beat, hermes_worker.api.server, hermes_worker.worker.main, hermes_worker.tasks.pieces"
    code = f"import sys, {roles}; assert not {{'openai', 'anthropic'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


_STARTING = re.compile(
    r"\bsubprocess\.(?:run|Popen|call|check_call|check_output)\("
    r"|\bos\.(?:fork|forkpty|system|popen|posix_spawnp?|exec[lv]p?e?|spawn\w+)\("
    r"|\bcreate_subprocess_|\bmultiprocessing\b|\bProcessPoolExecutor\b|\bpty\.spawn\b|_SYS_CLONE\["
)


def test_the_documentation_names_every_module_that_starts_processes() -> None:
    """What a model asks for must go through the workspace; a new way to start something is a decision."""
    table = (ROOT / "docs" / "security.md").read_text(encoding="utf-8").partition("## Who starts processes")[2]
    named = set(re.findall(r"`([a-z_/]+\.py)`", table.partition("\n\nWeb pages")[0]))
    named = {f"workspace/sandbox/{name}" if name.startswith("helper/") else name for name in named}
    found = {
        path.relative_to(PACKAGE if PACKAGE in path.parents else ROOT).as_posix()
        for path, text in sources("hermes_worker", "scheduler")
        if _STARTING.search(text)
    }
    assert named == found


def test_a_worker_takes_every_message_that_is_sent() -> None:
    """From the queues of its kind, with arguments of its form."""
    from hermes_worker.broker import transport
    from hermes_worker.broker.queue import TaskName

    assert set(transport._ARGUMENTS) == set(transport._QUEUES) == set(TaskName)
