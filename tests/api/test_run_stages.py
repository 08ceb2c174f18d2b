"""The stages of a submission, as functions of what was read for them."""

from __future__ import annotations

import builtins
import os
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from hermes_worker.core.client_tools import ClientTool
from hermes_worker.core.offered_skills import NO_SKILLS
from hermes_worker.core.principals import Principal
from hermes_worker.core.spec import REQUESTED, Multitask, RunSpec
from hermes_worker.live_settings import ChosenSettings
from hermes_worker.models.identity import STAND_IN
from hermes_worker.services.prompting import PromptTexts
from hermes_worker.services.run_stages import (
    ConfiguredRun,
    EquippedRun,
    FoundDirectory,
    compose,
    configure,
    equip,
)
from hermes_worker.services.submission_rules import InvalidSubmission, Submission, make_fingerprint, validate
from hermes_worker.settings import Settings, load_settings
from hermes_worker.store.runs.runs import NewRun

NOW = 1_000_000.0
RUN = "run_0123456789abcdef0123456789abcdef"
TEXTS = PromptTexts(blocks=(), identity="You are Ann.", today=date(2026, 2, 3))
ACME = Principal(tenant="acme", name="ann")


@pytest.fixture
def own(tmp_path: Path) -> Settings:
    return load_settings({"HERMES_PROVIDER": "scripted"}, home=tmp_path)


def configured(settings: Settings, chosen: ChosenSettings | None = None, **asked: Any) -> ConfiguredRun:
    return configure(Submission(**{"input": "hello", **asked}), settings, chosen)


def equipped(settings: Settings, found: FoundDirectory | None = None, **asked: Any) -> EquippedRun:
    return equip(configured(settings, **asked), RUN, (), found)


def composed(settings: Settings, **asked: Any) -> NewRun:
    return compose(equipped(settings, **asked), NO_SKILLS, TEXTS)


def test_times_are_judged_by_the_time_that_is_given() -> None:
    late = Submission(input="x", deadline=NOW + 10)
    validate(late, NOW)
    with pytest.raises(InvalidSubmission, match="the deadline has passed"):
        validate(late, NOW + 10)
    with pytest.raises(InvalidSubmission, match="the deadline has passed"):
        validate(replace(late, delay_s=10.0), NOW)


def test_a_run_that_begins_later_waits_for_its_turn() -> None:
    with pytest.raises(InvalidSubmission) as caught:
        validate(Submission(input="x", delay_s=1.0, multitask=Multitask.REJECT), NOW)
    assert caught.value.field == "multitask"


def test_what_a_submission_names_goes_before_the_settings(own: Settings) -> None:
    usual = configured(own)
    assert (usual.model, usual.provider, usual.toolsets) == ("scripted", "scripted", ("hermes-api-server",))
    asked = configured(own, model="gpt-x", endpoint="elsewhere", toolsets=["file"], source="cli")
    assert (asked.model, asked.endpoint, asked.toolsets, asked.kind) == ("gpt-x", "elsewhere", ("file",), "cli")
    assert configured(own, source="cli").toolsets == ("hermes-cli",)


def test_the_chosen_settings_stand_in_for_those_of_the_process(own: Settings) -> None:
    settings = replace(own, agent=replace(own.agent, iterations_max=5))
    layer = {"agent.max_turns": "tenant"}
    chosen = ChosenSettings(
        settings=settings, overrides={"agent.max_turns": "5"}, origins=layer, layers={"tenant": "2"}
    )
    run = compose(equip(configured(own, chosen), RUN, (), None), NO_SKILLS, TEXTS)
    assert (run.spec.iterations_max, run.spec.overridden_by, run.spec.layers) == (5, layer, {"tenant": "2"})
    with pytest.raises(InvalidSubmission, match=r"at most 5 here: agent\.max_turns says so for this tenant"):
        configured(own, chosen, iterations_max=6)
    assert configured(own, replace(chosen, origins={"agent.max_turns": "file"}), iterations_max=6).settings is settings


def test_a_model_that_nobody_serves_is_refused_before_tools_are_looked_at(own: Settings) -> None:
    with pytest.raises(InvalidSubmission) as caught:
        equipped(own, model="gpt-x", endpoint=STAND_IN, toolsets=["nope"])
    assert caught.value.field == "model"
    with pytest.raises(InvalidSubmission) as caught:
        equipped(own, toolsets=["nope"])
    assert caught.value.field == "toolsets"


@pytest.mark.parametrize(
    ("found", "principal", "problem"),
    [
        (None, Principal(), "is not an absolute path of a directory"),
        (
            FoundDirectory(root=Path("/p"), is_of_tenant=False, holds_state=False),
            ACME,
            "not in a workspace of the tena",
        ),
        (FoundDirectory(root=Path("/p"), is_of_tenant=True, holds_state=True), ACME, "holds the state"),
    ],
)
def test_a_directory_is_judged_by_what_was_found(
    own: Settings, found: FoundDirectory | None, principal: Principal, problem: str
) -> None:
    with pytest.raises(InvalidSubmission, match=problem) as caught:
        equipped(own, found, directory="/p", principal=principal)
    assert caught.value.field == "directory"


def test_a_directory_that_was_found_is_the_workspace(own: Settings) -> None:
    found = FoundDirectory(root=Path("/real/p"), is_of_tenant=True, holds_state=False)
    assert equipped(own, found, directory="/p").workspace.root == "/real/p"
    assert equipped(own).workspace.root.endswith(RUN)


def test_tools_of_the_caller_stand_behind_the_others_by_name(own: Settings) -> None:
    brought = [ClientTool(name=name, description="d", parameters={"type": "object"}) for name in ("zz", "aa")]
    tools = equipped(own, client_tools=brought).tools
    without = equipped(own).tools
    assert tools.startswith(without[:-1])
    assert -1 < tools.index('"aa"') < tools.index('"zz"')


def test_a_prompt_has_the_texts_that_were_read_for_it(own: Settings) -> None:
    new = composed(own, instructions="Be brief.")
    assert new.system_prompt.startswith("You are Ann.\n\n")
    assert "Be brief." in new.system_prompt
    assert "Today: Tuesday, 2026-02-03" in new.system_prompt


@dataclass(frozen=True)
class _Skills:
    set_hash: str | None = "f00"

    def build_index(self, tools: Set[str]) -> str:
        return ""

    def prepend_texts(self, asked: str | Sequence[Mapping[str, Any]]) -> str | Sequence[Mapping[str, Any]]:
        return f"skill, then {asked}"


def test_skills_stand_before_the_input_and_their_set_is_named(own: Settings) -> None:
    new = compose(equipped(own), _Skills(), TEXTS)
    assert (new.spec.input, new.skills) == ("skill, then hello", "f00")


def test_what_is_asked_of_a_run_is_stored_as_it_was_asked(own: Settings) -> None:
    asked = {
        "instructions": "i",
        "tokens_max": 7,
        "tool_calls_max": 8,
        "source": "webhook:r",
        "network": "none",
        "approvals": "deny",
        "approval_s": 3.0,
        "metadata": {"a": "b"},
        "echo": {"x": [1]},
        "tags": ("t",),
        "output_schema": {"type": "object"},
        "forced_tools": ("t",),
        "compress": "topic",
        "about": "the nightly report",
        "files": "kept",
    }
    assert {*asked, "input", "history"} == set(REQUESTED)
    spec = composed(own, **asked).spec
    assert {name: getattr(spec, name) for name in asked} == asked
    assert RunSpec.from_json(spec.to_json()).to_json() == spec.to_json()


def test_an_earlier_turn_that_cannot_be_stored_is_refused_before_a_target(own: Settings) -> None:
    with pytest.raises(InvalidSubmission) as caught:
        composed(own, history=[{"role": "user", "content": float("nan")}], deliver="nope:::")
    assert caught.value.field == "history"
    with pytest.raises(InvalidSubmission) as caught:
        composed(own, deliver="nope:::")
    assert caught.value.field == "deliver"


def test_stages_read_nothing(own: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"instructions": "x", "directory": "/p", "idempotency_key": "k", "deliver": "local"}
    found = FoundDirectory(root=Path("/p"), is_of_tenant=True, holds_state=False)

    def walk() -> NewRun:
        return replace(compose(equip(configured(own, **asked), RUN, (), found), NO_SKILLS, TEXTS), blocks=None)

    def refuse(*args: object, **more: object) -> None:
        raise AssertionError("a stage read something")

    first = walk()  # what is imported late is imported now
    with monkeypatch.context() as patch:
        for module, name in ((builtins, "open"), (os, "stat"), (os, "lstat"), (os, "open"), (time, "time")):
            patch.setattr(module, name, refuse)
        again = walk()
    assert again == first


def test_a_fingerprint_is_of_what_was_asked_and_not_of_its_key() -> None:
    asked = Submission(input="x", idempotency_key="k")
    assert make_fingerprint(asked) == make_fingerprint(replace(asked, idempotency_key="other", endpoint="e"))
    assert make_fingerprint(asked) != make_fingerprint(replace(asked, model="m"))
    assert make_fingerprint(Submission(input="x")) == ""
