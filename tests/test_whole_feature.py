"""A whole small feature is one folder and one line of the catalogue: a dry run with ``support.greetings``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from fastapi import FastAPI
from fastapi.testclient import TestClient
from support import greetings
from support.store import Store, opened

from hermes_worker import installed
from hermes_worker.agent.tools.catalog import build_default_catalog, get_declared_catalog
from hermes_worker.cli import doctor
from hermes_worker.cli.entry import commands
from hermes_worker.core.effects import Iterate
from hermes_worker.core.retention_rules import DEFAULT_RULES
from hermes_worker.extension import load_reference
from hermes_worker.features.retention.erasure_rows import Erasures
from hermes_worker.features.retention.erasure_rules import Person
from hermes_worker.features.retention.export_rows import export_rows
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.features.retention.work import remove_files
from hermes_worker.plugins import list_brought
from hermes_worker.settings import load_settings
from hermes_worker.store.migrate import find_schema_differences
from hermes_worker.store.tables import metadata
from hermes_worker.store.text_keys import list_sealed_columns
from hermes_worker.store.whole_schema import load_schema

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
    # Other tests of this process compare the whole schema.
    if (table := metadata.tables.get("greetings")) is not None:
        metadata.remove(table)
    for name in ("rows", "tables"):
        sys.modules.pop(f"support.greetings.{name}", None)


def test_it_is_one_folder_and_the_product_does_not_know_it() -> None:
    folder = Path(greetings.__file__).parent
    assert {path.name for path in folder.glob("*.py")} == {
        "__init__.py",
        "checks.py",
        "routes.py",
        "rows.py",
        "rules.py",
        "schema.py",
        "tables.py",
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


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A database with the table of the feature, which its revision would make."""
    with opened(f"sqlite:///{tmp_path}/state.db") as store:
        load_schema().tables["greetings"].create(store.database.engine)
        yield store


def test_the_schema_is_checked_and_sealed_with_its_table(tmp_path: Path) -> None:
    """Also by a process that has not imported it yet."""
    assert "greetings" not in metadata.tables
    with opened(f"sqlite:///{tmp_path}/state.db") as store:
        [missing] = find_schema_differences(store.database)
        assert "add_table" in missing and "'greetings'" in missing
        load_schema().tables["greetings"].create(store.database.engine)
        assert find_schema_differences(store.database) == []
    sealed = {table.name: [column.name for column in columns] for table, columns in list_sealed_columns().items()}
    assert sealed["greetings"] == ["name"]


def test_exports_have_its_rows_and_erasures_delete_them(store: Store) -> None:
    from support.greetings.rows import add_greeting

    ours, other = (store.submit(principal=f"cli:{name}").run_id for name in ("ann", "bert"))
    for run_id, name in ((ours, "Ann"), (other, "Bert")):
        add_greeting(store.database, run_id, name)
        store.runs.request_stop(run_id)
    ann = Person(principals=("cli:ann",))
    [exported] = [row.row for row in export_rows(store.database, "default", ann) if row.kind == "greetings"]
    assert exported["name"] == "Ann" and "token" not in exported

    erasures = Erasures(store.database)
    erasure = erasures.begin("default", ann, by="cli:operator")
    for _ in erasures.delete_stepwise(erasure):
        pass
    erasures.finish(erasure)
    assert erasure.counts["greetings"] == 1
    with store.database.read() as connection:
        left = connection.execute(sa.select(load_schema().tables["greetings"].c.name))
        assert left.scalars().all() == ["Bert"]


def test_sweeps_do_what_is_due_of_it_and_send_its_hints_again(store: Store) -> None:
    from support.greetings.rows import add_greeting

    run_id = store.submit().run_id
    add_greeting(store.database, run_id, "Ann")
    effects = [Iterate(run_id=run_id, iteration=number, attempt=1) for number in (1, 2)]
    for depths, sent in ((None, effects[:1]), ({}, effects[1:]), (None, [])):
        swept = None
        while swept is None:
            swept = store.sweeper.sweep(depths)
        assert [hint.effect for hint in swept.hints if hint.at == 0.0] == sent


def test_prunes_erasures_servers_and_the_doctor_do_its_upkeep(tmp_path: Path, store: Store) -> None:
    from support.greetings.rows import add_greeting, sweep_rows

    settings = load_settings({"HERMES_PROVIDER": "scripted"}, home=tmp_path)
    kept = tmp_path / "greetings" / "default"
    kept.mkdir(parents=True)
    for name in ("run_gone", "run_kept"):
        (kept / name).touch()
    add_greeting(store.database, store.submit().run_id, "Ann")
    sweep_rows(store.database)
    pruned = {batch.what: batch.count for batch in Pruner(store.database, DEFAULT_RULES).prune_stepwise()}
    for _, begin_serving in installed.list_upkeep("begin_serving"):
        begin_serving(settings, store.database)
    assert pruned["greetings"] == 1 and (tmp_path / "greetings.ready").exists()
    assert remove_files(tmp_path, "default", ["run_gone"], [])["greetings"] == 1
    assert [path.name for path in kept.iterdir()] == ["run_kept"]
    texts = {finding.subject: finding.text for finding in doctor._list_findings(settings, None)}
    assert texts["greetings"] == "Good day, doctor."
