"""Settings of extensions: a frozen group with names, types, defaults, bounds and secrets, read by ``settings``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from hermes_worker import plugins
from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.agent.tools.catalog import build_catalog
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.extending import Extension, SettingDeclaration, setting, settings_of, tool
from hermes_worker.extension import fold_extensions
from hermes_worker.settings import build_handover, load_settings
from hermes_worker.settings.declared import describe_declared, read_values
from hermes_worker.settings.role_secrets import ProcessRole


@dataclass(frozen=True, slots=True, kw_only=True)
class Warehouse:
    token: str = setting("ACME_TOKEN", "What the warehouse knows you by.", is_secret=True, roles=("tools", "api"))
    timeout_s: float = setting("ACME_TIMEOUT_S", "Seconds to wait.", default=5.0, minimum=0.5, maximum=60)
    pages: int = setting("ACME_PAGES", "Pages to read.", default=3, minimum=1)
    is_strict: bool = setting("ACME_STRICT", "Whether to be strict.", default=False)
    region: Literal["eu", "us"] = setting("ACME_REGION", "Where it stands.", default="eu")
    note: str | None = setting("ACME_NOTE", "Said with every request.")


DECLARED = settings_of(Warehouse)


def test_a_group_says_what_each_setting_holds() -> None:
    token, timeout, *_, region, note = DECLARED
    assert token == SettingDeclaration(
        name="token",
        variable="ACME_TOKEN",
        summary="What the warehouse knows you by.",
        is_required=True,
        is_secret=True,
        roles=("tools", "api"),
    )
    assert (timeout.holds, timeout.default, timeout.minimum, timeout.maximum) == ("number", 5.0, 0.5, 60)
    assert region.choices == ("eu", "us")
    assert [item.name for item in DECLARED if item.is_required] == ["token"]
    assert (note.default, note.is_required) == (None, False)


def test_values_are_what_their_types_say() -> None:
    held = read_values(DECLARED, {"ACME_TOKEN": "t", "ACME_TIMEOUT_S": " 2 ", "ACME_STRICT": "yes", "ACME_PAGES": ""})
    assert held == {
        "ACME_TOKEN": "t",
        "ACME_TIMEOUT_S": 2.0,
        "ACME_PAGES": 3,
        "ACME_STRICT": True,
        "ACME_REGION": "eu",
    }


@pytest.mark.parametrize(
    ("variable", "text", "sentence"),
    [
        (
            "ACME_TIMEOUT_S",
            "0.1",
            r"ACME_TIMEOUT_S \(Seconds to wait\) must be a number from 0.5 to 60, and it says '0.1'",
        ),
        ("ACME_TIMEOUT_S", "nan", "must be a number from"),
        ("ACME_PAGES", "1.5", "ACME_PAGES .* must be a whole number from 1, and it says '1.5'"),
        ("ACME_PAGES", "0", "must be a whole number from 1"),
        ("ACME_STRICT", "perhaps", "must be true or false"),
        ("ACME_REGION", "mars", "must be one of eu, us, and it says 'mars'"),
    ],
)
def test_a_wrong_value_is_one_sentence(variable: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        read_values(DECLARED, {variable: text})
    assert "\n" not in str(raised.value)


def test_people_are_shown_values_and_no_secret() -> None:
    acme = Extension(name="acme", version="1", settings=DECLARED)
    shown = {row.variable: row.value for row in describe_declared([acme], {"ACME_TOKEN": "hush", "ACME_NOTE": "hi"})}
    assert shown["ACME_TOKEN"] == "set"
    assert (shown["ACME_TIMEOUT_S"], shown["ACME_STRICT"], shown["ACME_NOTE"]) == ("5", "false", "hi")
    assert next(iter(describe_declared([acme], {}))).value == "missing"


def test_a_tool_gets_its_group(context: ToolContext) -> None:
    @tool(replay="pure", is_untrusted=False)
    def look(item: str, warehouse: Warehouse) -> dict[str, Any]:
        """Look."""
        return {"item": item, "wait": warehouse.timeout_s, "in": warehouse.region, "note": warehouse.note}

    assert look.spec.parameters["properties"].keys() == {"item"}
    acme = Extension(name="acme", version="1", tools=(look,), settings=DECLARED)
    found = fold_extensions([acme], read_values(DECLARED, {"ACME_TOKEN": "t", "ACME_REGION": "US"}))
    told = run_tool(build_catalog(found).get("look"), '{"item": "bolt"}', replace(context)).text
    assert json.loads(told) == {"item": "bolt", "wait": 5.0, "in": "us", "note": None}


def test_what_is_no_group_is_refused_when_it_is_declared() -> None:
    @dataclass
    class Loose:
        a: str = setting("A", "A.")

    @dataclass(frozen=True)
    class Odd:
        a: dict[str, str] = setting("A", "A.")  # noqa: RUF009 - a field

    @dataclass(frozen=True)
    class Plain:
        a: str = "x"

    for group, sentence in ((Loose, "frozen dataclass"), (Odd, "Odd.a must be a str, int"), (Plain, "setting()")):
        with pytest.raises(TypeError, match=sentence.replace("(", r"\(").replace(")", r"\)")):
            settings_of(group)


# --- from config.yaml ------------------------------------------------------------------------------------------------

_PLUGIN = """
from dataclasses import dataclass
from hermes_worker.extending import Extension, setting, settings_of

@dataclass(frozen=True, slots=True, kw_only=True)
class Acme:
    token: str | None = setting("ACME_TOKEN", "What the warehouse knows you by.", is_secret=True)
    pages: int = setting("ACME_PAGES", "Pages to read.", default=3, minimum=1)
    is_strict: bool = setting("ACME_STRICT", "Whether to be strict.", default=False)

EXTENSION = Extension(name="acme", version="1.0", settings=settings_of(Acme))
"""


def held_with(home: Path, config: str, **environ: str) -> Mapping[str, object]:
    """What the plugin ``acme`` holds with this ``config.yaml``."""
    (home / "plugins" / "acme").mkdir(parents=True, exist_ok=True)
    (home / "plugins" / "acme" / "__init__.py").write_text(_PLUGIN)
    (home / "plugins" / "acme" / "plugin.yaml").write_text(
        "name: acme\nprovides_settings: [ACME_TOKEN, ACME_PAGES, ACME_STRICT]\n"
    )
    (home / "config.yaml").write_text(f"extensions:\n  enabled: [acme]\n  settings: {config}\n")
    return plugins.begin_extensions(load_settings(environ, home=home)).values["acme"]


def test_settings_stand_in_config_yaml_below_the_variables(tmp_path: Path) -> None:
    held = held_with(tmp_path, "{ACME_PAGES: 7, ACME_STRICT: true}", ACME_PAGES="9")
    assert (held["pages"], held["is_strict"]) == (9, True)


def test_they_are_handed_to_every_role(tmp_path: Path) -> None:
    held_with(tmp_path, "{ACME_PAGES: 7}")
    environ, _ = build_handover(load_settings({}, home=tmp_path), ProcessRole.TOOLS)
    assert load_settings(environ, home=tmp_path / "elsewhere").variables["ACME_PAGES"] == "7"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("{ACME_PAGE: 7}", "names ACME_PAGE, which no enabled extension declares"),
        ("{ACME_TOKEN: hush}", "names ACME_TOKEN, which is a secret"),
        ("{ACME_PAGES: [7]}", "must be a mapping from names of variables to texts"),
        ("{acme: 7}", "must be a mapping from names of variables to texts"),
        ("{ACME_PAGES: 0}", "must be a whole number from 1"),
    ],
)
def test_what_makes_no_sense_there_is_one_sentence(tmp_path: Path, config: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        held_with(tmp_path, config)
    assert "hush" not in str(raised.value)
