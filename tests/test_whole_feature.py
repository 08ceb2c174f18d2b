"""A whole small feature is one folder and one line of the catalogue: a dry run with ``support.greetings``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest
from click.testing import CliRunner
from fastapi import FastAPI
from fastapi.testclient import TestClient
from support import greetings
from support.store import opened

from hermes_worker import installed
from hermes_worker.agent.tools.catalog import build_default_catalog, get_declared_catalog
from hermes_worker.cli import doctor
from hermes_worker.cli.entry import commands
from hermes_worker.core.retention_rules import DEFAULT_RULES
from hermes_worker.extension import load_reference
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.features.retention.work import remove_files
from hermes_worker.plugins import list_brought
from hermes_worker.settings import load_settings

ROOT = Path(__file__).parents[1]
LINE = "support.greetings:EXTENSION"


@pytest.fixture(autouse=True)
def catalogue(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The one line."""
    kinds = tuple(list_brought(greetings.EXTENSION))
    monkeypatch.setattr(installed, "BUILT_IN", MappingProxyType({**installed.BUILT_IN, LINE: kinds}))
    installed.load_built_in.cache_clear()
    installed.put_in_force(None)
    yield
    monkeypatch.undo()
    installed.load_built_in.cache_clear()
    installed.put_in_force(None)


def test_it_is_one_folder_and_the_product_does_not_know_it() -> None:
    folder = Path(greetings.__file__).parent
    assert {path.name for path in folder.glob("*.py")} == {
        "__init__.py",
        "checks.py",
        "routes.py",
        "rules.py",
        "tool.py",
        "verbs.py",
        "work.py",
    }
    sources = [*(ROOT / "hermes_worker").rglob("*.py"), *(ROOT / "scheduler").rglob("*.py")]
    assert [path for path in sources if "support.greetings" in path.read_text("utf-8")] == []


def test_sessions_are_offered_its_tool() -> None:
    assert get_declared_catalog().get_spec("greet") == greetings.GREET
    result = build_default_catalog().get("greet").run({"name": "Ann"}, None)  # type: ignore[arg-type]
    assert result.text == "Good day, Ann."


def test_the_api_has_its_route() -> None:
    app = FastAPI()
    app.include_router(load_reference(installed.get_installed().routers["greetings"].implementation))
    assert TestClient(app).get("/v1/greetings/Ann").json() == {"text": "Good day, Ann."}


def test_the_command_line_has_its_verb(tmp_path: Path) -> None:
    done = CliRunner(env={"HERMES_HOME": str(tmp_path)}).invoke(commands, ["greet", "Ann"])
    assert (done.exit_code, done.output) == (0, "Good day, Ann.\n")


def test_prunes_erasures_servers_and_the_doctor_do_its_upkeep(tmp_path: Path) -> None:
    settings = load_settings({"HERMES_PROVIDER": "scripted"}, home=tmp_path)
    kept = tmp_path / "greetings" / "default"
    kept.mkdir(parents=True)
    for name in ("run_gone", "run_kept"):
        (kept / name).touch()
    with opened(f"sqlite:///{tmp_path}/state.db") as store:
        store.submit()
        pruned = {batch.what: batch.count for batch in Pruner(store.database, DEFAULT_RULES).prune_stepwise()}
        for _, begin_serving in installed.list_upkeep("begin_serving"):
            begin_serving(settings, store.database)
    assert pruned["greetings"] == 1 and (tmp_path / "greetings.ready").exists()
    assert remove_files(tmp_path, "default", ["run_gone"], [])["greetings"] == 1
    assert [path.name for path in kept.iterdir()] == ["run_kept"]
    texts = {finding.subject: finding.text for finding in doctor._list_findings(settings, None)}
    assert texts["greetings"] == "Good day, doctor."
