"""Presets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.features.configurations.verbs import config
from hermes_worker.settings import (
    SettingLayer,
    Settings,
    describe_settings,
    list_with_sources,
    load_settings,
    render_environ,
)
from hermes_worker.settings.overriding import parse_fleet_values
from hermes_worker.settings.presets import CONCURRENCY, PRESETS


def load_home(tmp_path: Path, environ: Mapping[str, str], config: str = "") -> Settings:
    (tmp_path / "config.yaml").write_text(config)
    return load_settings({"PATH": "/usr/bin", **environ}, home=tmp_path)


def find_row(settings: Settings, key: str) -> tuple[str | None, SettingLayer, str]:
    [row] = [row for row in list_with_sources(settings) if row.key == key]
    return row.value, row.layer, row.origin


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_gives_defaults_and_is_named_as_their_origin(name: str, tmp_path: Path) -> None:
    settings = load_home(tmp_path, {"HERMES_PRESET": name})
    usual = {row.key: row.default for row in describe_settings()}
    for key, value in PRESETS[name].items():
        assert find_row(settings, key) == (value, SettingLayer.PRESET, f"preset {name}")
        assert value != usual[key], "it differs from what counts without a preset"


def test_whatever_is_said_elsewhere_wins_over_a_preset(tmp_path: Path) -> None:
    config = "preset: team\nterminal:\n  sandbox: auto\n"
    settings = load_home(tmp_path, {"HERMES_LOG_FORMAT": "console"}, config)
    assert find_row(settings, "terminal.sandbox")[:2] == ("auto", SettingLayer.FILE)
    assert find_row(settings, "logging.format")[:2] == ("console", SettingLayer.ENVIRONMENT)
    assert find_row(settings, "terminal.profile") == ("tenant", SettingLayer.PRESET, "preset team")
    assert find_row(settings, "preset")[:2] == ("team", SettingLayer.FILE)


def test_nothing_changes_without_a_preset(tmp_path: Path) -> None:
    assert load_home(tmp_path, {}) == load_settings({"PATH": "/usr/bin"}, home=tmp_path)
    assert not [row for row in list_with_sources(load_home(tmp_path, {})) if row.layer is SettingLayer.PRESET]


@pytest.mark.parametrize(
    ("name", "why"),
    [("flet", "there is no preset 'flet'; the nearest is 'fleet'"), ("huge", "there is no preset 'huge'")],
)
def test_an_unknown_preset_is_refused_with_the_nearest_name(name: str, why: str, tmp_path: Path) -> None:
    sentence = f"preset must be one of small, team, fleet, but HERMES_PRESET in the environment is wrong: {why}."
    with pytest.raises(ConfigurationError, match=rf"^{re.escape(sentence)}$"):
        load_home(tmp_path, {"HERMES_PRESET": name})


def test_a_preset_has_no_place_in_the_rows_of_a_fleet() -> None:
    with pytest.raises(ConfigurationError, match="preset has no place in"):
        parse_fleet_values("preset: team\n", place="the configuration of the fleet")


def test_every_preset_of_concurrency_is_one() -> None:
    assert set(CONCURRENCY) - {None} <= set(PRESETS)


def test_config_show_names_the_preset_as_the_origin(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("preset: small\n")
    shown = CliRunner().invoke(config, ["show", "--origin", "--home", str(tmp_path), "lease.lanes_max"])
    assert "preset small" in shown.output


def test_a_child_process_has_the_values_of_the_preset(tmp_path: Path) -> None:
    settings = load_home(tmp_path, {"HERMES_PRESET": "fleet"})
    assert load_settings(render_environ(settings)) == settings
