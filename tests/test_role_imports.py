"""What each role loads before it does anything: a new import of much at the top of a module shows here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.migrated import bring_up

from hermes_worker.cli.stack import Stack, StackPlan
from hermes_worker.settings import load_settings

pytestmark = pytest.mark.nightly  # of texts and lists: .ci/run plays it

IS_RECORDED_VERSION = sys.version_info[:2] == (3, 11)
ROOT = Path(__file__).resolve().parent.parent

MODULES_MAX = {
    "hermes_worker.api.server": 330,
    "hermes_worker.worker.main": 498,
    "scheduler.beat": 330,
    "hermes_worker.gateway.listening": 340,
    "hermes_worker.cli.entry": 85,
    "hermes_worker.cli.runs": 118,
    "hermes_worker.cli.cron": 150,
    "hermes_worker.features.approvals.verbs": 114,
    "hermes_worker.client": 16,
    "hermes_worker.cli.stack_process": 93,
    "hermes_worker.cli.help_page": 3,
}
"""The most modules of the product that a role loads, with some room. Raise a figure only for what every process of the
role needs; lower it when imports have gone."""

MEGABYTES_MAX = {
    "hermes_worker.api.server": 82,
    "hermes_worker.worker.main": 88,
    "scheduler.beat": 75,
    "hermes_worker.gateway.listening": 68,
    "hermes_worker.cli.entry": 15,
    "hermes_worker.cli.runs": 17.5,
    "hermes_worker.cli.cron": 20.5,
    "hermes_worker.features.approvals.verbs": 17.5,
    "hermes_worker.client": 12.5,
    "hermes_worker.cli.stack_process": 16.5,
    "hermes_worker.cli.help_page": 7,
}
"""The most memory of its own, in MB on CPython 3.11, that a role takes for its imports, with some room."""

FORK_SERVER_MODULES_MAX = 885
FORK_SERVER_MEGABYTES_MAX = 150
"""Of the process that ``up`` forks its roles from, on SQLite."""

NOT_NEEDED = {
    "hermes_worker.cli.entry": "sqlalchemy celery redis pydantic httpx2 structlog tomllib hermes_worker.core.recovery",
    "hermes_worker.cli.help_page": "click asyncio tomllib hermes_worker.settings",
    "hermes_worker.cli.stack_process": "sqlalchemy celery redis pydantic httpx2 structlog asyncio yaml click email",
    "hermes_worker.cli.runs": (
        "sqlalchemy celery redis pydantic httpx2 structlog asyncio yaml hermes_worker.safety.redaction"
    ),
    "hermes_worker.cli.cron": "sqlalchemy celery redis pydantic httpx2 structlog asyncio yaml",
    "hermes_worker.features.approvals.verbs": (
        "sqlalchemy celery redis pydantic httpx2 structlog asyncio yaml hermes_worker.safety.redaction"
    ),
    "hermes_worker.client": "sqlalchemy celery redis yaml structlog httpx2 tomllib hermes_worker.core.recovery",
    "hermes_worker.api.server": "celery openai anthropic hermes_worker.core.recovery hermes_worker.tasks.build",
    "hermes_worker.worker.main": "fastapi pydantic openai anthropic",
    "scheduler.beat": "fastapi pydantic openai anthropic hermes_worker.core.recovery.classify",
    "hermes_worker.gateway.listening": "celery fastapi pydantic openai anthropic hermes_worker.core.recovery.classify",
}
"""Libraries and rooms that a role does without until it is asked for something that needs them."""


@pytest.mark.parametrize("role", MODULES_MAX)
def test_a_role_loads_no_more_than_recorded(role: str) -> None:
    loaded, megabytes = _load(f"import {role}")
    assert set(NOT_NEEDED[role].split()) & set(loaded) == set()
    _require_figure(role, "modules of ours", _count_ours(loaded), MODULES_MAX[role])
    if IS_RECORDED_VERSION:
        _require_figure(role, "MB", megabytes, MEGABYTES_MAX[role])


def test_the_fork_server_of_up_loads_no_more_than_recorded() -> None:
    entry = Stack(load_settings({}), StackPlan()).preload
    loaded, megabytes = _load(f"from {entry.place.replace(':', ' import ')}; import_for_roles({entry.arguments!r})")
    assert {"psycopg", "anthropic", "prompt_toolkit", "rich"} & set(loaded) == set()
    _require_figure("the fork server", "modules of ours", _count_ours(loaded), FORK_SERVER_MODULES_MAX)
    if IS_RECORDED_VERSION:
        _require_figure("the fork server", "MB", megabytes, FORK_SERVER_MEGABYTES_MAX)


PLAN_OF_UP = """
from pathlib import Path
from hermes_worker.cli import models, up
from hermes_worker.cli.stack import Stack, StackPlan
from hermes_worker.settings import load_settings

settings = load_settings({{}}, home=Path({home!r}), overrides={{"server.port": 0}})
stack = Stack(settings, StackPlan())
try:
    stack.prepare(lambda doing: None)
finally:
    stack.release()
assert models.find_model_name(stack.settings) == "scripted"
assert up._describe_database(settings).endswith("hermes-worker.db")
"""


def test_up_plans_a_stack_on_sqlite_without_the_libraries_of_its_roles(tmp_path: Path) -> None:
    bring_up(f"sqlite:///{tmp_path / 'hermes-worker.db'}")
    loaded, _ = _load(PLAN_OF_UP.format(home=str(tmp_path)))
    assert {"sqlalchemy", "redis", "celery", "pydantic", "structlog", "openai"} & set(loaded) == set()


def _load(code: str) -> tuple[list[str], float]:
    """Run code in a process of its own; return the modules that are loaded then, and the MB that are its own. It runs
    twice: what had to be compiled takes memory."""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    code = f"{code}\nimport sys; print(*sys.modules); print(*open('/proc/self/smaps_rollup'))"
    said = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True).stdout
    modules, _, memory = said.partition("\n")
    [kilobytes] = re.findall(r"Anonymous: +(\d+) kB", memory)
    return modules.split(), int(kilobytes) / 1024


def _count_ours(loaded: list[str]) -> int:
    return sum(name.startswith(("hermes_worker", "scheduler")) for name in loaded)


def _require_figure(role: str, unit: str, found: float, at_most: float) -> None:
    # A MB more or less is chance: where the heap of the interpreter begins, and what it had to read.
    least = at_most * 0.9 - (1 if unit == "MB" else 0)
    assert least < found <= at_most, f"{role} loads {found:.1f} {unit}; {at_most} are recorded"
