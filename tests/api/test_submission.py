"""The one way a run comes into being, without a server in front."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from serving import hints_waiting
from support.store import Store

from hermes_worker.live_settings import build_live_settings
from hermes_worker.services.submission import InvalidSubmission, Submission, build_run, resolve_model, submit
from hermes_worker.settings import AgentSettings, ModelSettings, Secret, Settings
from hermes_worker.store.access.idempotency_keys import IdempotencyConflict
from hermes_worker.store.tables import runs, sessions
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultInjected
from hermes_worker.wiring import Client, open_client


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    opened = open_client(settings)
    yield opened
    opened.close()


@pytest.fixture
def store(client: Client) -> Store:
    return Store.over(client.database)


def with_settings(client: Client, **changes: object) -> Client:
    settings = replace(client.settings, **changes)  # type: ignore[arg-type]
    return replace(client, settings=settings, live_settings=build_live_settings(settings, client.database))


def test_a_submission_is_durable_before_it_is_announced(client: Client, store: Store) -> None:
    faults.arm_faults("submit.after_commit=raise")
    try:
        with pytest.raises(FaultInjected):
            submit(client, Submission(input="x", idempotency_key="k"))
    finally:
        faults.disarm_faults()
    assert hints_waiting(client) == 0
    [view] = client.views.list_runs()
    assert store.due(view.run_id), "the sweeper finds it"
    again = submit(client, Submission(input="x", idempotency_key="k"))
    assert (again.run_id, again.was_replayed) == (view.run_id, True)


def test_the_settings_fill_in_what_was_not_asked_for(client: Client) -> None:
    agent = AgentSettings(iterations_max=5, wall_s_max=60.0, idle_s_max=None, toolsets=("file",))
    chosen = with_settings(client, agent=agent, model=ModelSettings(provider="scripted", name="my-model"))
    view = client.views.load_run(submit(chosen, Submission(input="x")).run_id)
    assert (view.model, view.iterations_max) == ("my-model", 5)
    asked = Submission(input="x", model="other", iterations_max=7)
    view = client.views.load_run(submit(chosen, asked).run_id)
    assert (view.model, view.iterations_max) == ("other", 7)


def test_a_retry_after_a_change_of_settings_is_still_a_retry(client: Client) -> None:
    asked = Submission(input="x", idempotency_key="k")
    first = submit(client, asked)
    changed = with_settings(client, agent=AgentSettings(iterations_max=3))
    assert submit(changed, asked).run_id == first.run_id
    with pytest.raises(IdempotencyConflict):
        submit(client, replace(asked, model="other"))


def test_tools_are_the_same_bytes_whatever_the_order_of_the_toolsets(client: Client, store: Store) -> None:
    def tools(*toolsets: str) -> str:
        run_id = submit(client, Submission(input="x", toolsets=toolsets)).run_id
        return store.runs.load_session_context(store.turn(run_id).loaded.session_pk).tools

    assert tools("file", "terminal") == tools("terminal", "file", "file")
    assert {tool["function"]["name"] for tool in json.loads(tools("terminal"))} == {"process", "terminal"}


def test_a_toolset_that_is_not_there_is_named(client: Client) -> None:
    with pytest.raises(InvalidSubmission, match="'nope'") as caught:
        submit(client, Submission(input="x", toolsets=("nope",)))
    assert caught.value.field == "toolsets"


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": ""},
        {"input": " \n\t"},
        {"input": "x" * 1_000_001},
        {"session_id": "../x"},
        {"session_id": "a\n"},
        {"session_id": "a/b"},
        {"session_id": "a\\b"},
        {"session_id": ""},
        {"model": "a b"},
        {"model": "m" * 201},
        {"idempotency_key": ""},
        {"idempotency_key": "k\n"},
    ],
)
def test_whoever_asks_is_told_which_field_is_wrong(client: Client, wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidSubmission) as caught:
        submit(client, Submission(**{"input": "x", **wrong}))  # type: ignore[arg-type]
    assert [caught.value.field] == list(wrong)
    assert client.views.list_runs() == []


@pytest.mark.parametrize("name", ["a", "agent:main:telegram:dm:42", "!", "~", "[", "]", "^", "s" * 256, "a.b"])
def test_a_session_may_have_any_harmless_name(client: Client, name: str) -> None:
    assert submit(client, Submission(input="x", session_id=name)).session_id == name


def test_an_id_that_no_session_has_is_refused(client: Client) -> None:
    with pytest.raises(InvalidSubmission, match="no session has the id") as caught:
        submit(client, Submission(input="x", session_id=f"run_{'0' * 32}"))
    assert caught.value.field == "session_id"


def test_one_name_from_two_sources_means_two_conversations_in_two_directories(client: Client, store: Store) -> None:
    asked = [Submission(input="x", session_id="s", source=source) for source in ("api", "cli", "webhook:r")]
    assert len({root_of(client, store, one) for one in asked}) == 3


# --- where it works --------------------------------------------------------------------------------------------------


def root_of(client: Client, store: Store, asked: Submission) -> str:
    run_id = submit(client, asked).run_id
    with store.database.read() as connection:
        wanted = (
            sa.select(sessions.c.workspace)
            .join(runs, runs.c.session_pk == sessions.c.pk)
            .where(runs.c.run_id == run_id)
        )
        return str(json.loads(connection.execute(wanted).scalar_one())["root"])


def test_two_sessions_have_two_directories_below_the_home(client: Client, store: Store) -> None:
    below = client.settings.home / "workspaces"
    roots = {root_of(client, store, Submission(input="x", session_id=name)) for name in ("a", "A:b", ".a", ".", "_")}
    assert len(roots) == 5
    assert {Path(root).parent for root in roots} == {below}
    assert {Path(root).resolve().parent for root in roots} == {below.resolve()}
    assert not below.exists()


def test_a_given_directory_is_worked_in(client: Client, store: Store, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "link").symlink_to("project")
    asked = Submission(input="x", directory=str(tmp_path / "link"), source="cli")
    assert root_of(client, store, asked) == str(tmp_path / "project")
    with store.database.read() as connection:
        [prompt] = connection.execute(sa.select(sessions.c.system_prompt)).scalars()
    assert str(tmp_path / "project") in prompt


def test_what_cannot_be_worked_in_is_refused(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "sneaky").symlink_to(client.settings.home)
    (client.settings.home / "logs").mkdir()
    for directory in ("relative", str(tmp_path / "nope"), str(tmp_path / "file"), "/x\0y"):
        with pytest.raises(InvalidSubmission, match="not an absolute path of a directory"):
            submit(client, Submission(input="x", directory=directory))
    for directory in (client.settings.home, client.settings.home / "logs", tmp_path / "sneaky"):
        with pytest.raises(InvalidSubmission, match="holds the state"):
            submit(client, Submission(input="x", directory=str(directory)))
    assert client.views.list_runs() == []


# --- which model -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "asked_for", "expected"),
    [
        (ModelSettings(provider="scripted"), None, ("scripted", "scripted")),
        (ModelSettings(), None, ("scripted", "custom")),
        (ModelSettings(provider="openai", api_key=Secret("sk-x")), "gpt-x", ("gpt-x", "openai")),
        (ModelSettings(provider="openai", name="gpt-y"), "hermes-agent", ("gpt-y", "openai")),
        (ModelSettings(base_url="https://api.openai.com/v1", name="gpt-y"), None, ("gpt-y", "openai")),
        (ModelSettings(base_url="http://127.0.0.1:1/v1", name="local"), None, ("local", "custom")),
    ],
)
def test_the_model_is_what_was_asked_for_or_is_usual(
    settings: ModelSettings, asked_for: str | None, expected: tuple[str, str]
) -> None:
    assert resolve_model(settings, asked_for) == expected


def test_a_known_provider_has_a_usual_model() -> None:
    model, provider = resolve_model(ModelSettings(provider="anthropic"), None)
    assert (bool(model), provider) == (True, "anthropic")


def test_a_prompt_names_a_provider_by_its_usual_name(client: Client) -> None:
    settings = replace(client.settings, model=ModelSettings(provider="Claude", api_key=Secret("sk-x")))
    prompt = build_run(settings, Submission(input="hello"), context=()).system_prompt
    assert "Provider: anthropic" in prompt


def test_a_server_of_ones_own_has_no_usual_model() -> None:
    with pytest.raises(InvalidSubmission, match="HERMES_MODEL"):
        resolve_model(ModelSettings(base_url="http://127.0.0.1:1/v1"), None)


def test_a_run_from_the_command_line_may_ask_its_user(client: Client) -> None:
    def tools(source: str, **more: object) -> str:
        return build_run(client.settings, Submission(input="x", source=source, **more)).tools  # type: ignore[arg-type]

    assert '"clarify"' in tools("cli")
    assert '"clarify"' not in tools("api")
    assert '"clarify"' not in tools("cli", toolsets=["file"])
