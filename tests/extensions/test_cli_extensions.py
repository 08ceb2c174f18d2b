"""``hermes-worker extensions``: list, enable, disable."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.extensions_of_others import CODE, MANIFEST, plugin

from hermes_worker.cli.entry import main
from hermes_worker.cli.extensions import set_enabled
from hermes_worker.settings import load_settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    for name in ("HERMES_EXTENSIONS", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY", "HERMES_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HERMES_HOME", str(home))
    return home


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    capsys.readouterr()
    assert call("extensions", "list", "--json") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [ours] = [one for one in found if one["name"] == "loud"]
    assert isinstance(ours, dict)
    return ours


def test_one_is_found_enabled_and_disabled(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin(home)
    assert listed(capsys)["state"] == "disabled"
    assert listed(capsys)["brings"] == {"tools": ["shout"]}
    assert call("extensions", "enable", "loud") == 0
    assert "restart" in capsys.readouterr().out
    assert load_settings({}, home=home).extensions.enabled == ("loud",)
    assert listed(capsys)["state"] == "enabled"
    assert call("extensions", "list") == 0
    assert "tools: shout" in capsys.readouterr().out
    assert call("extensions", "disable", "loud") == 0
    assert load_settings({}, home=home).extensions.enabled == ()


def test_what_cannot_be_used_is_not_enabled(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin(home, "raise RuntimeError('no luck')")
    assert call("extensions", "enable", "loud") == 2
    assert "no luck" in capsys.readouterr().err
    assert call("extensions", "enable", "nobody") == 2
    assert "'nobody' is enabled" in capsys.readouterr().err
    assert not (home / "config.yaml").exists()


def test_a_command_does_not_start_with_an_extension_that_is_broken(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin(home)
    call("extensions", "enable", "loud")
    (home / "plugins" / "loud" / "__init__.py").write_text("import nothing_like_that\n")
    (home / "plugins" / "loud" / "plugin.yaml").write_text(f"{MANIFEST}api_version: 2\n")
    capsys.readouterr()
    from hermes_worker import plugins

    plugins._BegunFor.key = None
    assert call("runs", "list") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert call("extensions", "disable", "loud") == 0, "there is a way out"


COMMAND = """
import click
from hermes_worker.extending import CommandDeclaration, Extension

@click.command()
def greet() -> None:
    "Greet."
    click.echo("hello from a plugin")

EXTENSION = Extension(name="loud", version="1", commands=(
    CommandDeclaration(name="greet", summary="Greet.", implementation="hermes_plugins.loud:greet"),
    CommandDeclaration(name="cron greet", summary="Greet on time.", implementation="hermes_plugins.loud:greet"),
    CommandDeclaration(name="fleet greet", summary="Greet all.", implementation="hermes_plugins.loud:greet"),))
"""


def test_an_extension_brings_a_command(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin(home, COMMAND, "name: loud\nprovides_commands: [greet, cron greet, fleet greet]\n")
    assert call("greet") == 2
    assert call("extensions", "enable", "loud") == 0
    capsys.readouterr()
    assert call("greet") == 0
    assert capsys.readouterr().out == "hello from a plugin\n"
    assert call("--help") == 0
    assert "Extensions:\n  greet  Greet.\n" in capsys.readouterr().out


@pytest.mark.parametrize(("group", "summary"), [("cron", "Greet on time."), ("fleet", "Greet all.")])
def test_an_extension_brings_a_verb_of_a_group(
    group: str, summary: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin(home, COMMAND, "name: loud\nprovides_commands: [greet, cron greet, fleet greet]\n")
    assert call("extensions", "enable", "loud") == 0
    capsys.readouterr()
    assert call(group, "greet") == 0
    assert capsys.readouterr().out == "hello from a plugin\n"
    assert call(group, "--help") == 0
    assert re.search(rf"^  greet +{summary}$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "extensions:\n  enabled: [a, b]\n"),
        (
            "# mine\nmodel:\n  default: x # why\n",
            "# mine\nmodel:\n  default: x # why\nextensions:\n  enabled: [a, b]\n",
        ),
        ("extensions:\n  enabled: [c]\nmodel: x\n", "extensions:\n  enabled: [a, b]\nmodel: x\n"),
        ("extensions:\n  # names\n  enabled:\n    - c\n    - d\n", "extensions:\n  # names\n  enabled: [a, b]\n"),
        ("extensions:\nmodel: x\n", "extensions:\n  enabled: [a, b]\nmodel: x\n"),
        ("extensions: {enabled: [c]}\n", None),
        ("a: [\n", None),
        ("- a\n", None),
    ],
)
def test_only_the_lines_of_the_setting_change(before: str, after: str | None) -> None:
    assert set_enabled(before, ["a", "b"]) == after


NEEDY = CODE.replace(
    "tools=(shout,)",
    "tools=(shout,), settings=(SettingDeclaration("
    'name="token", variable="LOUD_TOKEN", summary="The token.", is_required=True, is_secret=True),)',
)


def test_a_required_secret_is_asked_for_where_it_is_used(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(home, NEEDY, f"{MANIFEST}provides_settings: [LOUD_TOKEN]\n")
    assert call("extensions", "enable", "loud") == 2, "it is tried as it would be used"
    monkeypatch.setenv("LOUD_TOKEN", "hush-hush-hush")
    assert call("extensions", "enable", "loud") == 0
    assert call("config", "check") == 0
    assert "loud      LOUD_TOKEN: set  (The token.)" in capsys.readouterr().out
    monkeypatch.delenv("LOUD_TOKEN")
    assert call("data", "migrate") == 0, "no tool runs there"
    for needs_it in (
        ("start", "worker", "--queues", "tools"),
        ("up",),
        (
            "config",
            "check",
        ),
    ):
        monkeypatch.setenv("HERMES_BROKER_URL", "redis://127.0.0.1:1/0")
        assert call(*needs_it) == 2
        assert "'loud' needs LOUD_TOKEN (The token): set it, or disable" in capsys.readouterr().err


def test_a_variable_that_decides_is_named(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(home, CODE)
    monkeypatch.setenv("HERMES_EXTENSIONS", "loud")
    assert call("extensions", "disable", "loud") == 2
    assert "HERMES_EXTENSIONS decides" in capsys.readouterr().err
