"""A run says what it began with, and two replicas that are configured alike say the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from serving import Served

from hermes_worker import __version__
from hermes_worker.settings import ModelSettings, Secret, ServerSettings, Settings, load_settings
from hermes_worker.settings.configuration_id import name_configuration
from hermes_worker.store.tables import sessions


def test_a_run_tells_the_program_prompt_and_configuration_it_began_with(
    serve: Callable[..., Served], settings: Settings
) -> None:
    served = serve()
    run_id = served.submit()
    began_with = served.http.get(f"/v1/runs/{run_id}").json()["began_with"]
    with served.client.database.read() as connection:
        prompt = connection.execute(sa.select(sessions.c.system_prompt)).scalar_one()
    assert began_with == {
        "program": __version__,
        "configuration": name_configuration(settings),
        "prompt": hashlib.sha256(prompt.encode()).hexdigest(),
    }


def test_a_later_turn_keeps_the_prompt_of_its_session_and_records_a_new_configuration(
    serve: Callable[..., Served], settings: Settings
) -> None:
    served = serve()
    first = served.submit(session_id="talk", instructions="Be brief.")
    changed = serve(replace(settings, agent=replace(settings.agent, iterations_max=7)))
    second = changed.submit(session_id="talk", instructions="Be long.")
    one, two = (served.http.get(f"/v1/runs/{run_id}").json()["began_with"] for run_id in (first, second))
    assert one["prompt"] == two["prompt"]
    assert one["configuration"] != two["configuration"]


def test_a_retry_records_the_versions_of_its_own_beginning(serve: Callable[..., Served], settings: Settings) -> None:
    served = serve()
    first = served.submit()
    served.http.post(f"/v1/runs/{first}/stop")
    changed = serve(replace(settings, agent=replace(settings.agent, iterations_max=7)))
    again = changed.http.post(f"/v1/runs/{first}/retry").json()["run_id"]
    told = changed.http.get(f"/v1/runs/{again}").json()["began_with"]
    assert told["configuration"] == name_configuration(changed.client.settings) != name_configuration(settings)


@pytest.mark.parametrize(
    "other",
    [
        {"model": ModelSettings(provider="scripted", api_key=Secret("sk-another"), more_keys=(Secret("sk-more"),))},
        {"model": ModelSettings(provider="scripted", is_asked_elsewhere=True)},
        {"home": Path("/elsewhere"), "server": ServerSettings(port=1)},
    ],
    ids=["other keys", "another process", "another place"],
)
def test_what_does_not_shape_a_run_does_not_change_the_name_of_a_configuration(other: dict[str, object]) -> None:
    usual = Settings(home=Path("/home"), model=ModelSettings(provider="scripted"))
    assert name_configuration(replace(usual, **other)) == name_configuration(usual)
    assert name_configuration(replace(usual, model=ModelSettings(provider="openai"))) != name_configuration(usual)


def test_replicas_that_read_the_same_configuration_agree(tmp_path: Path) -> None:
    environ = {"HERMES_MODEL": "some-model", "HERMES_BASE_URL": "https://models.example.org/v1"}
    first, second = (load_settings(environ, home=tmp_path / name) for name in ("one", "two"))
    assert name_configuration(first) == name_configuration(second)
    other = load_settings(environ | {"HERMES_MODEL": "another-model"}, home=tmp_path / "one")
    assert name_configuration(other) != name_configuration(first)
