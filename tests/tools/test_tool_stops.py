"""A stop is heard in the middle of every tool, however long its input keeps it busy."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hermes_worker.agent import images
from hermes_worker.agent.tools.base import Cancellation, ToolContext
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.agent.tools.fetch import FetchedPage
from hermes_worker.agent.tools.interruptible import ToolInterrupted, run_interruptibly
from hermes_worker.features.skills.rules import SkillEntry, SkillFacts, SkillFile
from hermes_worker.safety.redaction import Redactor

LONG_S = 60.0
"""How long everything here takes that nobody stops."""
PATIENCE_S = 10.0
"""Until we give up on a tool. It answers within 0.2 s of a stop, on a machine that has nothing else to do."""


_is_over = threading.Event()


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """What nobody waits for ends with its test."""
    _is_over.clear()
    yield
    _is_over.set()


def work_for_long() -> None:
    """As code that compares texts: it computes, and looks at no stop."""
    ends = time.monotonic() + LONG_S
    while time.monotonic() < ends and not _is_over.is_set():
        sum(range(1_000))


class Watched(threading.Event):
    """A stop that knows when it was first looked at: as a call begins."""

    def __init__(self) -> None:
        super().__init__()
        self.was_looked_at = threading.Event()

    def is_set(self) -> bool:
        self.was_looked_at.set()
        return super().is_set()


class Thorough(Redactor):
    """Reads for secrets for a very long time."""

    def redact_text(self, text: str, **more: Any) -> str:
        work_for_long()
        return text

    def redact_result(self, text: str, **more: Any) -> str:
        if len(text) > 20_000:  # an error is read in no time
            work_for_long()
        return text


class Pages:
    """A web whose pages come at once."""

    def fetch(self, url: str, cancelled: Cancellation, *, bytes_max: int) -> FetchedPage:
        content = b"<p>hello</p>" if "image" not in url else b"\x89PNG\r\n\x1a\n"
        return FetchedPage(url=url, media_type="text/html", charset=None, content=content, is_cut=False)


class OneSkill:
    """The skills of a run, of which one is long."""

    variables: frozenset[str] = frozenset()

    def load_skill(self, name: str, context: ToolContext) -> tuple[SkillEntry, Sequence[SkillFile]]:
        facts = SkillFacts(name=name, description="Tidies.")
        text = b"Tidy up everything that is in the way.\n" * 1_000
        return SkillEntry(category="", hash="0" * 64, facts=facts), (SkillFile(path="SKILL.md", body=text),)


class EarlierTalk:
    """Conversations that are read for a very long time."""

    def browse(self, limit: int, context: object) -> dict[str, object]:
        work_for_long()
        return {}


def many_lines(root: Path) -> None:
    (root / "long.txt").write_text("".join(f"line {n} of many\n" for n in range(200_000)))


@contextmanager
def image_at_work() -> Iterator[None]:
    """Another call shrinks an image, which one at a time may do."""
    with images._one_at_a_time:
        yield


LONG: dict[str, dict[str, Any]] = {
    "read_file": {"path": "long.txt"},
    "search_files": {"pattern": "line", "limit": 1_000},
    "terminal": {"command": f"sleep {LONG_S}"},
    "patch": {"path": "long.txt", "old_string": "line nobody wrote\nat all " * 20, "new_string": "x"},
    "web_extract": {"urls": ["https://example.org/"]},
    "vision_analyze": {"image_url": "https://example.org/image", "question": "?"},
    "skill_view": {"name": "tidy"},
    "session_search": {},
    "skill_manage": {"action": "create", "name": "tidy", "content": "---"},
}
QUICK = {"write_file", "todo", "delegate_task", "clarify", "cronjob", "send_message", "memory", "skills_list"}
"""They write down what they are given, and compute nothing."""
ELSEWHERE = {
    "execute_code": "test_execute_code.py::test_a_stop_ends_the_script_and_the_call_that_it_makes",
    "process": "test_process_tool.py::test_a_stop_ends_the_wait_for_a_process_and_not_the_process",
}
"""What needs more around it, and the test that stops it."""


def test_every_tool_is_either_quick_or_stopped_here() -> None:
    assert build_default_catalog().names == LONG.keys() | QUICK | ELSEWHERE.keys()
    for test in ELSEWHERE.values():
        path, name = test.split("::")
        assert f"def {name}(" in Path(__file__).with_name(path).read_text()


@pytest.mark.parametrize("name", LONG)
def test_a_stop_is_heard_in_the_middle_of_a_call(
    session: Any, root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    many_lines(root)
    if name == "patch":
        monkeypatch.setattr("hermes_worker.agent.tools.files.replace_text", lambda *_, **__: work_for_long())
    services = {"fetching": Pages(), "skills": OneSkill(), "past_sessions": EarlierTalk()}
    tools = build_default_catalog(services=services)
    cancelled = Watched()
    context = replace(session.context(), redactor=Thorough(), cancelled=cancelled)
    answered: list[str] = []

    def call() -> None:
        answered.append(run_tool(tools.get(name), json.dumps(LONG[name]), context).text)

    caller = threading.Thread(target=call, daemon=True)
    with image_at_work():
        caller.start()
        assert cancelled.was_looked_at.wait(LONG_S)
        caller.join(1.0)
        assert caller.is_alive(), "it was to take long"
        cancelled.set()
        caller.join(PATIENCE_S)
    assert answered and "interrupted" in answered[0]


def test_work_that_nobody_stops_gives_what_it_found_or_raises_what_it_raised() -> None:
    never = threading.Event()
    assert run_interruptibly(lambda: 7, never) == 7
    with pytest.raises(ZeroDivisionError):
        run_interruptibly(lambda: 1 / 0, never)


def test_work_that_is_stopped_is_not_waited_for() -> None:
    stopped, ends = threading.Event(), threading.Event()
    stopped.set()
    with pytest.raises(ToolInterrupted):
        run_interruptibly(ends.wait, stopped)
    ends.set()
