"""The settings that a run is accepted with: layers, who may say what, and what cannot be used."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.migrated import bring_up

from hermes_worker.agent.prompt.compaction import ProtectedRows
from hermes_worker.agent.tools.base import ToolPolicies
from hermes_worker.core.errors import ConfigurationError, UnavailableError
from hermes_worker.core.overrides import OverrideLevel
from hermes_worker.core.run_writers import MemoryWriter
from hermes_worker.features.memory.rules import MemoryPolicy, MemoryTarget
from hermes_worker.features.skills.change_rules import SkillPolicy, SkillWrites
from hermes_worker.live_settings import LiveSettings
from hermes_worker.settings import Settings, load_settings
from hermes_worker.settings.overriding import check_overrides, override_settings, parse_fleet_values, restrict_overrides
from hermes_worker.store.configurations import ConfigurationVersion
from hermes_worker.store.engine.database import Database
from hermes_worker.tasks.build import build_summary_compactor, make_override_builder
from hermes_worker.tasks.calls.call_tool import _build_origin
from hermes_worker.tasks.context import RunRules
from hermes_worker.tasks.iteration.requests import ModelOptions
from hermes_worker.wiring import build_rules_of_features
from hermes_worker.workspaces.build import build_sandbox
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef
from hermes_worker.workspaces.sandbox.network import RunOrigin


class Rows:
    """The rows of a database that can be taken away."""

    def __init__(self) -> None:
        self.rows: list[ConfigurationVersion] = []
        self.is_away = False
        self.looks = 0

    def write(self, text: str, tenant: str = "") -> None:
        version = 1 + sum(row.of_tenant == tenant for row in self.rows)
        self.rows.append(ConfigurationVersion(tenant, version, text, "me", 0.0))

    def load_newest_number(self) -> int:
        self.looks += 1
        if self.is_away:
            raise UnavailableError("away")
        return len(self.rows)

    def list_current(self) -> Sequence[ConfigurationVersion]:
        return list({row.of_tenant: row for row in self.rows}.values())

    def list_versions(self, tenant: str | None, limit: int = 100) -> Sequence[ConfigurationVersion]:
        return [row for row in reversed(self.rows) if row.of_tenant == (tenant or "")][:limit]


class Process:
    """A process with a clock of its own, which begins with these settings."""

    def __init__(self, home: Path, environ: Mapping[str, str] | None = None) -> None:
        self.rows = Rows()
        self.now = 0.0
        self.settings: Settings = load_settings(environ or {}, home=home)
        self.live = LiveSettings(self.settings, self.rows, now=lambda: self.now)

    def turns(self, tenant: str = "default", **said: Mapping[str, str]) -> int:
        self.now += 1.0
        return self.live.choose_settings(tenant, **said).settings.agent.iterations_max


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


def test_the_narrowest_layer_counts_and_is_recorded_with_its_version(process: Process) -> None:
    process.rows.write("agent: {max_turns: 50}")
    process.rows.write("agent: {max_turns: 40}\nmodel: {default: of-acme}", "acme")
    assert (process.turns(), process.turns("acme"), process.turns("other")) == (50, 40, 50)
    chosen = process.live.choose_settings("acme", {"agent.max_turns": "30"}, {"agent.max_turns": "20"})
    assert chosen.settings.agent.iterations_max == 20
    assert chosen.overrides == {"agent.max_turns": "20", "model.default": "of-acme"}
    assert chosen.origins == {"agent.max_turns": "run", "model.default": "tenant"}
    assert chosen.layers == {"fleet": "1", "tenant": "1"}
    told = {each.key: each for each in chosen.list_with_sources()}
    assert (told["agent.max_turns"].layer, told["model.default"].origin) == ("run", "the configuration of the tenant")
    assert told["lease.ttl_s"].layer == "default"


def test_what_was_said_before_a_limit_was_lowered_counts_no_more(process: Process) -> None:
    process.rows.write("agent: {max_turns: 40}", "acme")
    assert process.turns("acme", session={"agent.max_turns": "30"}) == 30
    process.rows.write("agent: {max_turns: 10}", "acme")
    assert process.turns("acme", session={"agent.max_turns": "30"}, run={"agent.max_turns": "5"}) == 5
    assert process.turns("acme", session={"agent.max_turns": "30"}) == 10


@pytest.mark.parametrize(
    "text", ["agent: {max_turns: many}", "nonsense: [", "agent: {max_turn: 5}", "server: {key: x}"]
)
def test_the_last_good_configuration_counts_while_the_newest_cannot_be_used(process: Process, text: str) -> None:
    process.rows.write("agent: {max_turns: 50}")
    assert process.turns() == 50
    process.rows.write(text)
    assert process.turns() == 50
    assert "version 2 of the configuration of the fleet cannot be used" in process.live.list_problems()["fleet"]
    again = LiveSettings(process.settings, process.rows, now=lambda: 0.0)
    assert again.choose_settings("default").settings.agent.iterations_max == 50, "a process that starts has it as well"
    process.rows.write("agent: {max_turns: 60}")
    assert (process.turns(), process.live.list_problems()) == (60, {})


def test_rows_are_looked_at_once_a_second_and_their_absence_changes_nothing(process: Process) -> None:
    process.rows.write("agent: {max_turns: 50}")
    assert process.turns() == 50
    looks = process.rows.looks
    for _ in range(10):
        process.live.choose_settings("default")
    assert process.rows.looks == looks
    process.rows.is_away = True
    assert process.turns() == 50
    with pytest.raises(UnavailableError):
        fresh = Rows()
        fresh.is_away = True
        LiveSettings(process.settings, fresh).choose_settings("default")


def test_the_environment_of_a_process_counts_more_than_the_fleet_and_less_than_a_tenant(tmp_path: Path) -> None:
    process = Process(tmp_path, {"HERMES_MAX_ITERATIONS": "7"})
    process.rows.write("agent: {max_turns: 50}")
    process.rows.write("agent: {max_turns: 40}", "acme")
    assert (process.turns(), process.turns("acme")) == (7, 40)


def test_a_file_that_changes_is_taken_up_and_one_that_cannot_be_used_is_not(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("agent: {max_turns: 7}\nlogging: {level: DEBUG}")
    process = Process(tmp_path)
    assert (process.turns(), process.live.choose_settings("default").overrides) == (7, {})
    replaced(file, "agent: {max_turns: 8}")
    assert process.turns() == 8
    assert list(process.live.choose_settings("default").layers) == ["file"]
    replaced(file, "agent: {max_turns: eight}")
    assert process.turns() == 8 and "config.yaml cannot be used" in process.live.list_problems()["file"]
    replaced(file, "agent: {}")
    assert (process.turns(), process.live.list_problems()) == (90, {}), "what the file said at the start is taken back"
    process.rows.write("agent: {max_turns: 50}")
    replaced(file, "agent: {max_turns: 9}")
    assert process.turns() == 50, "the rows count more"


def test_a_line_that_is_taken_out_of_the_file_leaves_the_value_of_the_preset(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("delegation: {max_concurrent_children: 7}")
    process = Process(tmp_path, {"HERMES_PRESET": "small"})
    assert process.live.choose_settings("default").settings.delegation.children_max == 7
    (tmp_path / "config.yaml").unlink()
    process.now += 1.0
    assert process.live.choose_settings("default").settings.delegation.children_max == 2


def test_a_value_of_the_file_with_a_variable_stays_as_it_was_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {default: '${OUR_MODEL}'}\nagent: {max_turns: 7}")
    process = Process(tmp_path, {"OUR_MODEL": "ours"})
    assert process.turns() == 7
    replaced(tmp_path / "config.yaml", "model: {default: '${OUR_MODEL}'}\nagent: {max_turns: 8}")
    assert process.turns() == 8
    assert process.live.choose_settings("default").settings.model.name == "ours"


def replaced(file: Path, text: str) -> None:
    """As a mounted file is: by another one."""
    new = file.with_name("new")
    new.write_text(text)
    new.replace(file)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("model: {api_key: sk-0123456789abcdef}", "has no place in"),
        ("database: {url: 'sqlite:////tmp/x'}", "has no place in"),
        ("extensions: {enabled: [mine]}", "has no place in"),
        ("terminal: {env_passthrough: [HERMES_API_KEY]}", "has no place in"),
        ("encryption: {keys_command: 'cat /etc/passwd'}", "has no place in"),
        ("model: {default: '${OPENAI_API_KEY}'}", "refers to a variable"),
        ("x" * 100_001, "more than 100,000 characters"),
    ],
)
def test_rows_hold_no_secret_and_nothing_that_runs_code(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        parse_fleet_values(text, place="the configuration of the fleet")


@pytest.mark.parametrize("level", list(OverrideLevel))
@pytest.mark.parametrize(
    "key", ["model.api_key", "model.base_url", "terminal.workspace", "server.key", "home", "no.such", ""]
)
def test_nobody_overrides_what_is_not_on_the_list(key: str, level: OverrideLevel) -> None:
    with pytest.raises(ConfigurationError, match="cannot be overridden"):
        check_overrides({key: "x"}, level, place="settings")


def test_callers_hear_what_is_too_much(process: Process) -> None:
    above = override_settings(process.settings, {"agent.max_turns": "10", "approvals.mode": "manual"})
    assert restrict_overrides(above, {"agent.max_turns": "10"}, place="settings")
    for said in (
        {"agent.max_turns": "11"},
        {"approvals.mode": "off"},
        {"agent.gateway_timeout": "0"},
        {"memory.writers": "person,webhook"},
        {"terminal.memory_mb_max": "9000"},
    ):
        with pytest.raises(ConfigurationError, match="may not allow more than what stands above"):
            restrict_overrides(above, said, place="settings")


@dataclass(frozen=True)
class _Served:
    """The parts that a run with settings of its own is served with."""

    rules: RunRules = field(default_factory=RunRules)
    workspace: object = None


def serving(settings: Settings, compactor: object, database: Database | None = None) -> Any:
    """What a worker with these settings serves runs with that have settings of their own."""
    shared: Any = SimpleNamespace(
        settings=settings, sandbox=build_sandbox(settings), database=database, open_keeper=None
    )
    return make_override_builder(shared, compactor, partial(build_rules_of_features, database))  # type: ignore[arg-type]


def test_what_is_said_of_compaction_reaches_the_compactor_of_a_run(tmp_path: Path) -> None:
    settings = load_settings({}, home=tmp_path)
    serve = serving(settings, build_summary_compactor(settings))
    said = {"compression.protect_first_n": "1", "compression.protect_last_n": "40", "compression.target_ratio": "0.4"}
    model = serve(_Served(), json.dumps(said)).rules.model
    assert model.compactor.protected == ProtectedRows(head_rows=1, tail_rows=40, tail_part=0.4)
    other = object()
    assert _with_own_compactor(tmp_path, other).compactor is other, "one of an extension stays"


def _with_own_compactor(home: Path, compactor: object) -> ModelOptions:
    settings = load_settings({"HERMES_COMPACTOR": "short"}, home=home)
    model: ModelOptions = serving(settings, compactor)(_Served(), "{}").rules.model
    return model


def test_what_is_said_of_memory_skills_and_commands_reaches_the_tools_of_a_run(tmp_path: Path) -> None:
    settings = load_settings({"HERMES_MODEL": "m", "HERMES_BASE_URL": "http://127.0.0.1:1/v1"}, home=tmp_path)
    serve = serving(settings, None)
    said = {
        "memory.profile": "work",
        "memory.user_profile_enabled": "false",
        "memory.write_approval": "true",
        "memory.nudge_interval": "3",
        "skills.writes": "off",
        "skills.writers": "child",
        "terminal.timeout": "7.5",
        "terminal.network": "proxy",
    }
    served = serve(_Served(workspace="usual"), json.dumps(said))
    memory, skills = served.rules.policies.find(MemoryPolicy), served.rules.policies.find(SkillPolicy)
    assert (memory.profile, memory.targets, memory.is_staged) == ("work", {MemoryTarget.MEMORY}, True)
    assert (skills.writes, skills.writers) == (SkillWrites.OFF, {MemoryWriter.CHILD})
    assert (served.rules.policies.command_s, served.rules.policies.network) == (8, "proxy")
    assert served.rules.reviewing.policy.turns == 3 and served.rules.reviewing.memory.profile == "work"
    assert served.workspace == "usual"
    other = serve(_Served(rules=RunRules(reviewing=cast(Any, "usual"))), json.dumps({"agent.max_turns": "5"}))
    assert other.rules.policies.network is None and other.rules.reviewing == "usual"


def test_limits_of_commands_that_are_said_for_a_run_are_those_of_its_workspace(tmp_path: Path) -> None:
    settings = load_settings({"HERMES_SANDBOX": "off"}, home=tmp_path / "home")
    said = {"terminal.cpu_s_max": "5", "terminal.open_files_max": "100"}
    bring_up(url := f"sqlite:///{tmp_path / 'rows.db'}")
    served = serving(settings, None, Database(url))(_Served(), json.dumps(said))
    root = tmp_path / "work"
    root.mkdir()
    workspace = served.workspace(WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(root)).to_json())
    found = workspace.execute(
        "ulimit -n; ulimit -t", cwd=None, env={}, timeout_s=30, output_bytes_max=1_000, should_stop=lambda: False
    )
    assert found.output.decode().split() == ["100", "5"]


def test_what_processes_use_themselves_is_live_for_tenants_and_not_for_the_fleet(process: Process) -> None:
    process.rows.write("terminal: {network: none}\nmemory: {memory_char_limit: 500}")
    process.rows.write("terminal: {network: proxy}", "acme")
    process.now += 1.0
    assert process.live.choose_settings("default").overrides == {"memory.memory_char_limit": "500"}
    assert process.live.choose_settings("acme").overrides["terminal.network"] == "proxy"


@pytest.mark.parametrize(
    ("of_job", "said", "asked"),
    [
        (None, None, None),
        ("none", None, "none"),
        (None, "proxy", "proxy"),
        ("proxy", "none", "none"),
        ("none", "open", "none"),
    ],
)
def test_the_narrower_network_of_a_job_and_its_settings_counts(
    of_job: str | None, said: str | None, asked: str | None
) -> None:
    parts: Any = SimpleNamespace(rules=RunRules(policies=ToolPolicies(network=said)))
    claim: Any = SimpleNamespace(loaded=SimpleNamespace(origin="cron", network=of_job))
    assert _build_origin(parts, claim, "acme") == RunOrigin(source="cron", asked=asked, tenant="acme")
