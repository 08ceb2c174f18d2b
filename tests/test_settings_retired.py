"""Settings that became constants."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.overrides import OverrideLevel
from hermes_worker.settings import describe_settings, find_setting, load_settings
from hermes_worker.settings.overriding import (
    check_overrides,
    drop_excessive,
    override_settings,
    parse_configuration,
    parse_file_values,
)
from hermes_worker.settings.retired import RETIRED, RetiredSetting

GONE = RETIRED["delegation.max_tasks"]


@pytest.mark.parametrize("gone", RETIRED.values(), ids=list(RETIRED))
def test_a_retired_setting_is_accepted_changes_nothing_and_is_noted(gone: RetiredSetting, tmp_path: Path) -> None:
    usual = load_settings({}, home=tmp_path)
    by_variable = load_settings({gone.variables[0]: "77"}, home=tmp_path)
    by_fleet = load_settings({}, home=tmp_path, fleet={gone.key: "77"})
    group, name = gone.key.split(".")
    (tmp_path / "config.yaml").write_text(f"{group}: {{{name}: 77}}")
    by_file = load_settings({}, home=tmp_path)
    assert by_variable == by_fleet == by_file == usual
    why = f"is no setting any more: it is always {gone.constant}; leave it out."
    assert by_variable.notes == (f"{gone.key} ({gone.variables[0]} in the environment) {why}",)
    assert by_fleet.notes == (f"{gone.key} ({gone.key} in the configuration of the fleet) {why}",)
    assert by_file.notes == (f"{gone.key} ({gone.key} in config.yaml) {why}",)
    assert usual.notes == ()


def test_no_retired_setting_is_still_a_setting() -> None:
    assert not {row.key for row in describe_settings()} & set(RETIRED)
    variables = {variable for each in RETIRED.values() for variable in each.variables}
    assert not {row.variable for row in describe_settings()} & variables


def test_nobody_can_set_a_retired_setting_anew() -> None:
    with pytest.raises(ConfigurationError, match=rf"^{GONE.key} is no setting any more: it is always 1000\.$"):
        find_setting(GONE.key)


def test_what_was_overridden_before_is_left_out(tmp_path: Path) -> None:
    said = {GONE.key: "5", "agent.max_turns": "7"}
    assert check_overrides(said, OverrideLevel.RUN, place="settings") == {"agent.max_turns": "7"}
    text = "agent: {max_turns: 7}\ndelegation: {max_tasks: 5}"
    assert parse_configuration(text, "acme") == parse_file_values(text, place="here") == {"agent.max_turns": "7"}
    settings = load_settings({}, home=tmp_path)
    assert drop_excessive(settings, said) == {"agent.max_turns": "7"}
    assert override_settings(settings, said) == override_settings(settings, {"agent.max_turns": "7"})
