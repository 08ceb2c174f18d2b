"""What each role loads before it does anything: a new import of much at the top of a module shows here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly  # of texts and lists: .ci/run plays it

ROOT = Path(__file__).resolve().parent.parent

MODULES_MAX = {
    "hermes_worker.api.server": 370,
    "hermes_worker.worker.main": 495,
    "scheduler.beat": 350,
    "hermes_worker.gateway.listening": 365,
    "hermes_worker.cli.entry": 90,
    "hermes_worker.cli.runs": 140,
    "hermes_worker.cli.cron": 150,
    "hermes_worker.features.approvals.verbs": 130,
    "hermes_worker.client": 20,
    "hermes_worker.cli.stack_process": 102,
    "hermes_worker.cli.help_page": 3,
}
"""The most modules of the product that a role loads, with some room. Raise a figure only for what every process of the
role needs; lower it when imports have gone."""

NOT_NEEDED = {
    "hermes_worker.cli.entry": "sqlalchemy celery redis pydantic httpx2 structlog tomllib hermes_worker.core.recovery",
    "hermes_worker.cli.help_page": "click asyncio tomllib hermes_worker.settings",
    "hermes_worker.cli.stack_process": "sqlalchemy celery redis pydantic httpx2 structlog asyncio yaml click email",
    "hermes_worker.cli.runs": "sqlalchemy celery redis pydantic httpx2 structlog asyncio yaml",
    "hermes_worker.cli.cron": "sqlalchemy celery redis pydantic httpx2 structlog asyncio yaml",
    "hermes_worker.features.approvals.verbs": "sqlalchemy celery redis pydantic httpx2 structlog asyncio yaml",
    "hermes_worker.client": "sqlalchemy celery redis yaml structlog httpx2 tomllib hermes_worker.core.recovery",
    "hermes_worker.api.server": "celery openai anthropic hermes_worker.core.recovery.classify",
    "hermes_worker.worker.main": "fastapi pydantic openai anthropic",
    "scheduler.beat": "fastapi pydantic openai anthropic hermes_worker.core.recovery.classify",
    "hermes_worker.gateway.listening": "celery fastapi pydantic openai anthropic hermes_worker.core.recovery.classify",
}
"""Libraries and rooms that a role does without until it is asked for something that needs them."""


@pytest.mark.parametrize("role", MODULES_MAX)
def test_a_role_loads_no_more_modules_than_recorded(role: str) -> None:
    code = f"import sys, {role}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True).stdout
    ours = [name for name in loaded.split() if name.startswith(("hermes_worker", "scheduler"))]
    assert set(NOT_NEEDED[role].split()) & set(loaded.split()) == set()
    assert MODULES_MAX[role] * 0.9 < len(ours) <= MODULES_MAX[role], f"{role} loads {len(ours)} modules of ours"
