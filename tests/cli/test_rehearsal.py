"""A rehearsed upgrade: a clean one loses no run, seeded defects are refused, and the copy has no outside."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from support.commandline import CommandLine
from support.migrated import bring_up

from hermes_worker.agent.tools import catalog
from hermes_worker.core import pricing
from hermes_worker.core.recovery.reply_policy import AcceptReason
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import ExitReason, RunStatus
from hermes_worker.core.run_events import RunEventName
from hermes_worker.features.forks import rehearsal_service, work
from hermes_worker.features.forks.rehearsal_rows import digest_columns
from hermes_worker.features.forks.rehearsal_rules import FactKind, parse_facts
from hermes_worker.features.forks.rehearsal_service import Rehearsal, record_facts, rehearse
from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate
from hermes_worker.store.sweep import Sweeper
from hermes_worker.tasks.iteration import reply_validation, requests
from hermes_worker.testing import AgentStack, AskedModel, call

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Home:
    """A home with runs that ended and runs at work, and the world outside."""

    settings: Settings
    workspace: Path
    posts: list[bytes]
    at_work: int

    def rehearse(self, **said: Any) -> dict[str, Any]:
        return rehearse(self.settings, Rehearsal(**said))

    def digest(self) -> Mapping[str, str]:
        database = Database(self.settings.database_url)
        try:
            return digest_columns(database)
        finally:
            database.close()


@pytest.fixture
def sink() -> Iterator[tuple[str, list[bytes]]]:
    posts: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/hook", posts
    server.shutdown()
    server.server_close()


def say(asked: AskedModel) -> Any:
    """A run writes a file, makes a list, and answers; one that is to ask wants a dangerous command."""
    begun = next(at for at, row in reversed(list(enumerate(asked.messages))) if row["role"] == "user")
    if "ask" in str(asked.messages[begun]["content"]):
        return call("terminal", command="rm -rf build")
    match len(asked.messages) - begun - 1:
        case 0:
            return call("write_file", path="paid.txt", content="100")
        case 2:
            return call("todo", todos=[{"id": "1", "content": "pay", "status": "completed"}])
        case _:
            return "All is paid."


def make_home(
    folder: Path, sink: tuple[str, list[bytes]], *, ended: int, at_work: int, database_url: str | None = None
) -> Home:
    url, posts = sink
    workspace = folder / "workspace"
    workspace.mkdir()
    environ = {"HERMES_DELIVERY_ALLOW_PRIVATE_URLS": "true", "HERMES_WORKSPACE_ROOT": str(workspace)}
    if database_url is not None:
        bring_up(database_url)
        environ["HERMES_DATABASE_URL"] = database_url
    with AgentStack(folder / "home", say, environ=environ) as stack:
        for number in range(ended):
            stack.run(f"Pay order {number}", session_id=f"s{number % 2}").require_completed()
        assert stack.run("Please ask").status is RunStatus.WAITING_FOR_APPROVAL
        for number in range(at_work - 1):
            stack.submit(f"Pay order {number}", deliver=[f"webhook:{url}"] if number % 2 else [])
        for _ in range(at_work):
            if (hint := stack._hints.take()) is not None:
                stack._do_step(hint)
        settings = stack.client.settings
    return Home(settings=settings, workspace=workspace, posts=posts, at_work=at_work)


@pytest.fixture
def home(tmp_path: Path, sink: tuple[str, list[bytes]]) -> Home:
    return make_home(tmp_path, sink, ended=2, at_work=3)


def test_a_clean_upgrade_is_safe_loses_no_run_and_touches_nothing(home: Home) -> None:
    before, files = home.digest(), sorted(path.read_bytes() for path in home.workspace.rglob("*") if path.is_file())
    facts = record_facts(home.settings, Rehearsal())["facts"]
    for known in (facts, None):
        report = home.rehearse(before=known)
        assert report["reasons"] == []
        assert (report["is_safe"], report["taken_over"], report["replayed"]) == (True, home.at_work, 2)
    goes_on = [end for subject, end in facts[FactKind.RUN_AT_WORK].items() if " " not in subject]
    assert goes_on == ["goes on"] * home.at_work
    assert home.digest() == before
    assert sorted(path.read_bytes() for path in home.workspace.rglob("*") if path.is_file()) == files
    assert home.posts == []


def test_the_command_records_compares_and_says_how_to_go_back(home: Home, tmp_path: Path) -> None:
    hermes, facts = CommandLine(home.settings.home), tmp_path / "before.json"
    recorded = hermes.inline("data", "rehearse", "--record", str(facts))
    assert (recorded.code, f"--before {facts}" in recorded.out) == (0, True), recorded.said
    safe = hermes.inline("data", "rehearse", "--before", str(facts))
    assert (safe.code, safe.out.split(":")[0], "to go back" in safe.out) == (0, "yes", True), safe.said
    known = json.loads(facts.read_text())
    known["facts"]["price"]["acme:model"] = "1"
    facts.write_text(json.dumps(known))
    refused = hermes.inline("data", "rehearse", "--before", str(facts), "--json")
    assert (refused.code, json.loads(refused.out)["is_safe"]) == (1, False), refused.said
    assert hermes.inline("data", "rehearse", "--before", str(facts), "--accept", "price").code == 0
    facts.write_text("{}")
    assert "--record" in hermes.inline("data", "rehearse", "--before", str(facts)).err


def test_a_clean_upgrade_on_postgresql_is_safe_and_its_copy_goes(
    tmp_path: Path, sink: tuple[str, list[bytes]], postgres_url: str
) -> None:
    home = make_home(tmp_path, sink, ended=1, at_work=2, database_url=postgres_url)
    before = home.digest()
    report = home.rehearse(before=record_facts(home.settings, Rehearsal())["facts"])
    assert (report["is_safe"], report["reasons"], report["taken_over"]) == (True, [], 2)
    assert home.digest() == before
    with sa.create_engine(sa.make_url(postgres_url).set(drivername="postgresql+psycopg")).connect() as connection:
        names = connection.exec_driver_sql("select datname from pg_database").scalars().all()
    assert not [name for name in names if name.startswith("hermes_rehearsal_")]


@pytest.mark.slow
def test_two_hundred_runs_at_work_are_all_taken_over(tmp_path: Path, sink: tuple[str, list[bytes]]) -> None:
    home = make_home(tmp_path, sink, ended=50, at_work=200)
    began = time.process_time()
    report = home.rehearse()
    print(f"{time.process_time() - began:.1f} CPU seconds")
    assert (report["is_safe"], report["reasons"], report["taken_over"]) == (True, [], 200)


# --- seeded defects --------------------------------------------------------------------------------------------------


def migrating(statement: str) -> Callable[[Patch], None]:
    """The migration does more than it should."""

    def seed(patch: Patch) -> None:
        def migrate_badly(database: Database) -> str | None:
            found = migrate(database)
            with database.write() as connection:
                connection.exec_driver_sql(statement)
            return found

        patch.setattr(rehearsal_service, "migrate", migrate_badly)

    return seed


def defining(tool: str, before: str, after: str) -> Callable[[Patch], None]:
    """A tool is described otherwise."""

    def seed(patch: Patch) -> None:
        render = catalog._render_definition

        def render_otherwise(declared: Any) -> str:
            text = render(declared)
            return text.replace(before, after) if f'"name":"{tool}"' in text else text

        patch.setattr(catalog, "_render_definition", render_otherwise)

    return seed


def changing(module: Any, name: str, change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """What a function of the new version returns is changed."""

    def seed(patch: Patch) -> None:
        function = getattr(module, name)
        patch.setattr(module, name, lambda *given, **named: change(function(*given, **named)))

    return seed


def lacking(name: str, words: type[StrEnum], word: str) -> Callable[[Patch], None]:
    """A closed list has one word less."""

    def seed(patch: Patch) -> None:
        patch.setattr(rehearsal_service, name, [each for each in words if each.value != word])

    return seed


def fail_to_migrate(patch: Patch) -> None:
    def fail(database: Database) -> None:
        raise sa.exc.OperationalError("alter table", {}, Exception("disk is full"))

    patch.setattr(rehearsal_service, "migrate", fail)


def reprice(patch: Patch) -> None:
    rows = dict(pricing._PRICES["anthropic"])
    name, price = next(iter(rows.items()))
    rows[name] = replace(price, output=price.output + Decimal("0.01"))
    patch.setattr(pricing, "_PRICES", {**pricing._PRICES, "anthropic": rows})


def forget_prices(patch: Patch) -> None:
    patch.setattr(pricing, "_PRICES", {name: rows for name, rows in pricing._PRICES.items() if name != "openai"})


def forget_a_tool(patch: Patch) -> None:
    begin = catalog.ToolCatalog.__init__

    def begin_without(self: Any, tools: Any, **said: Any) -> None:
        begin(self, [tool for tool in tools if tool.spec.name != "todo"], **said)

    patch.setattr(catalog.ToolCatalog, "__init__", begin_without)


def repeat_what_must_not(patch: Patch) -> None:
    spec = catalog.ToolCatalog.get_spec

    def spec_otherwise(self: Any, name: str) -> Any:
        found = spec(self, name)
        return replace(found, replay=Replay.PURE) if name == "terminal" else found

    patch.setattr(catalog.ToolCatalog, "get_spec", spec_otherwise)


def forget_lost_steps(patch: Patch) -> None:
    patch.setattr(Sweeper, "sweep", lambda self, depths=None: None)


def break_requests(patch: Patch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("this row makes no sense")

    patch.setattr(requests, "build_messages", fail)


DEFECTS: Mapping[str, tuple[FactKind, Callable[[Patch], None]]] = {
    "a column is gone": (FactKind.SCHEMA, migrating("alter table steers drop column created_at")),
    "an index is gone": (FactKind.SCHEMA, migrating("drop index ix_runs_caused")),
    "a table is gone": (FactKind.SCHEMA, migrating("drop table steers")),
    "a column is there that nobody knows": (FactKind.SCHEMA, migrating("alter table steers add column more text")),
    "the migration fails": (FactKind.SCHEMA, fail_to_migrate),
    "a stored prompt has a byte more": (
        FactKind.ROW,
        migrating("update sessions set system_prompt = system_prompt || ' '"),
    ),
    "a row of a transcript is gone": (FactKind.ROW, migrating("delete from events where seq = 1")),
    "a stored result is changed": (FactKind.ROW, migrating("update messages set body = replace(body, '100', '101')")),
    "a cost is changed": (FactKind.ROW, migrating("update runs set cost_nano_usd = cost_nano_usd + 1")),
    "a replay class is changed": (FactKind.ROW, migrating("update tool_calls set replay = 'pure'")),
    "a sent prompt has a byte more": (
        FactKind.PROMPT,
        changing(requests, "_build_system_row", lambda row: row.replace("}", " }")),
    ),
    "a sent row is left out": (FactKind.PROMPT, changing(requests, "build_messages", lambda rows: rows[:-1])),
    "a recorded result is worded otherwise": (
        FactKind.PROMPT,
        changing(work, "find_recorded", lambda found: found and replace(found, result=f"{found.result} ")),
    ),
    "a description of a tool": (FactKind.TOOL, defining("todo", '"description":"', '"description":"New: ')),
    "a parameter of a tool": (FactKind.TOOL, defining("write_file", '"path"', '"file"')),
    "a tool is gone": (FactKind.TOOL, forget_a_tool),
    "a tool may be repeated": (FactKind.TOOL, repeat_what_must_not),
    "a price": (FactKind.PRICE, reprice),
    "prices are gone": (FactKind.PRICE, forget_prices),
    "an exit reason is gone": (FactKind.EXIT_REASON, lacking("ExitReason", ExitReason, "guardrail_halt")),
    "an event is gone": (FactKind.EVENT, lacking("RunEventName", RunEventName, "run.steered")),
    "runs end with another reason": (
        FactKind.REPLAY,
        lambda patch: patch.setitem(
            cast(Any, reply_validation._EXIT_OF), AcceptReason.TEXT_RESPONSE, ExitReason.FALLBACK_PRIOR_TURN_CONTENT
        ),
    ),
    "recorded results are not found": (FactKind.PROMPT, changing(work, "find_recorded", lambda found: None)),
    "lost steps are not sent again": (FactKind.RUN_AT_WORK, forget_lost_steps),
    "requests cannot be built": (FactKind.RUN_AT_WORK, break_requests),
}


def test_every_seeded_defect_is_refused(home: Home) -> None:
    facts = parse_facts(json.dumps(record_facts(home.settings, Rehearsal())))
    assert len(DEFECTS) >= 20
    for name, (kind, seed) in DEFECTS.items():
        with pytest.MonkeyPatch.context() as patch:
            seed(patch)
            report = home.rehearse(before=facts)
        assert not report["is_safe"], name
        assert kind.value in {reason["kind"] for reason in report["reasons"]}, (name, report["reasons"])
    assert home.rehearse(before=facts)["is_safe"]
    assert home.posts == []
