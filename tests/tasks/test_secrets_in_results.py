"""What a command prints reaches rows, events, logs and the next request without its secrets."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.dumps import texts_of
from support.store import Store, opened
from support.turns import Turns

from hermes_worker.core.effects import Iterate, RunTool
from hermes_worker.core.messages import ModelReply, ToolRequest, dump_canonical_json
from hermes_worker.observe import configure_logging, log
from hermes_worker.safety.redaction import Redactor
from hermes_worker.settings import LogSettings, load_settings
from hermes_worker.tasks.build import build_redactor
from hermes_worker.tasks.calls.call_tool import call_tool
from hermes_worker.tasks.iteration.planning import plan_calls
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

KEY = "ghp_" + "HsVJeM39xRFc8vDon3WHOi2MJrqLEpDcwJLA"
KNOWN = "only known by its value"

_OPENING = OpeningOptions(base_env={"PATH": "/usr/bin:/bin"}, hermes_home="")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(f"sqlite:///{tmp_path / 'test.db'}") as store:
        yield store


def _turns(store: Store, redactor: Redactor) -> Turns:
    turns = Turns.over(store)
    turns.parts = replace(
        turns.parts,
        redactor=redactor,
        workspace=lambda ref: open_workspace(WorkspaceRef.from_json(ref), _OPENING),
    )
    return turns


def _cat(turns: Turns, folder: Path) -> str:
    store, parts = turns.store, turns.parts
    workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(folder)).to_json()
    definitions = f"[{','.join(parts.catalog.render_definitions(['terminal']))}]"
    run_id = store.submit(tools=definitions, workspace=workspace).run_id
    request = ToolRequest(id="c1", name="terminal", arguments=dump_canonical_json({"command": "cat .env"}))
    reply, calls = plan_calls(ModelReply(text="", tool_requests=(request,)), parts.catalog)
    store.runs.commit_reply(store.turn(run_id), reply, calls)
    [effect] = store.due(run_id)
    assert isinstance(effect, RunTool)
    call_tool(parts, effect, store.database.read_clock())
    [following] = store.due(run_id)
    assert isinstance(following, Iterate)
    return run_id


@pytest.mark.parametrize("is_on", [True, False])
def test_what_a_command_prints_is_hidden_before_it_is_stored(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on: bool
) -> None:
    for name in ("_level", "_emit"):
        monkeypatch.setattr(log, name, getattr(log, name))  # for the tests after this one
    lines = io.StringIO()
    configure_logging(LogSettings(level="DEBUG"), "worker", stream=lines)
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / ".env").write_text(f"GITHUB_TOKEN={KEY}\nNOTE={KNOWN}\nDEBUG=1\n")
    turns = _turns(store, Redactor(is_on=is_on, known=(KNOWN,)))

    run_id = _cat(turns, folder)

    output = json.loads(store.results(run_id)[0])["output"]
    hidden = "GITHUB_TOKEN=«redacted:ghp_…»\nNOTE=«redacted:only…»\nDEBUG=1\n"
    assert output == (hidden if is_on else f"GITHUB_TOKEN={KEY}\nNOTE={KNOWN}\nDEBUG=1\n")
    told = json.dumps([dict(event.data) for event in store.views.list_events_after(run_id, 0)], ensure_ascii=False)
    database = texts_of(tmp_path / "test.db")
    bodies = json.dumps(store.bodies(run_id), ensure_ascii=False)
    assert [KEY in place or KNOWN in place for place in (bodies, database)] == [not is_on] * 2
    assert [KEY in place or KNOWN in place for place in (told, lines.getvalue())] == [False, False] or not is_on


def test_a_secret_among_the_arguments_is_hidden_in_the_event_of_the_call(store: Store, tmp_path: Path) -> None:
    turns = _turns(store, Redactor())
    request = ToolRequest(id="c1", name="todo", arguments=dump_canonical_json({"x": "y" * 90, "k": KEY}))
    run_id = turns.submit()
    reply, calls = plan_calls(ModelReply(text="", tool_requests=(request,)), turns.parts.catalog)
    store.runs.commit_reply(store.turn(run_id), reply, calls)
    store.settle(run_id)

    [started] = [event for event in store.views.list_events_after(run_id, 0) if event.name == "tool.started"]

    assert KEY[:8] not in started.data["preview"]


def test_the_secrets_of_the_installation_are_known(tmp_path: Path) -> None:
    environ = {
        "HERMES_API_KEY": "hunter2hunter2",
        "HERMES_ENV_PASSTHROUGH": "DEPLOY_TOKEN,LANG_OF_CHOICE",
        "DEPLOY_TOKEN": "a b c d e f g",
        "LANG_OF_CHOICE": "Esperanto",
        "TELEGRAM_BOT_TOKEN": "nothing like a token",
    }

    redactor = build_redactor(load_settings(environ, home=tmp_path))

    assert (
        redactor.redact_text("hunter2hunter2, a b c d e f g, nothing like a token, Esperanto").count("«redacted") == 3
    )
    assert "Esperanto" in redactor.redact_text("Esperanto")
    assert not build_redactor(load_settings({**environ, "HERMES_REDACT_SECRETS": "false"}, home=tmp_path)).is_on
