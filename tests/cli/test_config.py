"""``hermes-worker config``: where values come from, and changes that leave the rest of the file alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import example, given
from hypothesis import strategies as st

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.features.configurations.verbs import config
from hermes_worker.settings import load_settings
from hermes_worker.settings.config_editing import set_value

TEXT = """\
# How we run it.
model:
  default: gpt-x   # the model that we like
  providers:
    openai:
      region: eu   # by law

agent: {max_turns: 7}
fallback_providers:
- openrouter:a/b
# the end
"""


def asked(home: Path, *arguments: str, **environ: str) -> Result:
    verb, *rest = arguments
    return CliRunner().invoke(config, [verb, "--home", str(home), *rest], env={"HERMES_HOME": None, **environ})


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("model.default", "gpt-y", "  default: gpt-y   # the model that we like"),
        ("model.context_length", 4_096, "  context_length: 4096"),
        ("agent.max_turns", 9, "agent: {max_turns: 9}"),
        ("agent.reasoning_effort", "low", "agent: {max_turns: 7, reasoning_effort: low}"),
        ("compression.threshold", 0.6, "  threshold: 0.6"),
        ("tool_loop_guardrails.warn_after.exact_failure", 4, "    exact_failure: 4"),
        ("fallback_providers", ["x:y"], "fallback_providers: ['x:y']"),
    ],
)
def test_one_value_changes_and_the_rest_of_the_text_stays(key: str, value: object, line: str) -> None:
    after = set_value(TEXT, key, value)
    assert any(line in each for each in after.splitlines()), after
    expected = yaml.safe_load(TEXT)
    place = expected
    *groups, last = key.split(".")
    for group in groups:
        place = place.setdefault(group, {})
    place[last] = value
    assert yaml.safe_load(after) == expected
    for comment in ("# How we run it.", "# the model that we like", "# by law", "# the end"):
        assert comment in after


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "model: short-form\n", "model:\n", "model:\n  # later\n"])
def test_there_is_a_place_in_every_file(text: str) -> None:
    read = yaml.safe_load(set_value(text, "model.context_length", 4_096))
    assert read["model"]["context_length"] == 4_096
    assert read["model"].get("default") == ("short-form" if "short" in text else None)


@pytest.mark.parametrize("text", ["- a list\n", "a: [", "model: 7: 8"])
def test_what_is_no_file_of_settings_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"valid YAML|must be a mapping"):
        set_value(text, "model.default", "x")


names = st.sampled_from(["alpha", "beta", "gamma"])
values = st.one_of(st.integers(), st.booleans(), st.text(max_size=30), st.lists(st.text(max_size=5), max_size=3))
documents = st.dictionaries(names, st.dictionaries(names, values, max_size=3), max_size=3)


@example(document={}, group="alpha", name="alpha", value="\xa0", is_flow=None)
@example(document={"alpha": {"alpha": 0}}, group="alpha", name="alpha", value="a{b", is_flow=True)
@given(document=documents, group=names, name=names, value=values, is_flow=st.sampled_from([True, False, None]))
def test_any_file_reads_as_it_did_but_for_the_value(
    document: dict[str, dict[str, object]], group: str, name: str, value: object, is_flow: bool | None
) -> None:
    text = yaml.safe_dump(document, default_flow_style=is_flow)
    after = set_value(text, f"{group}.{name}", value)
    assert yaml.safe_load(after) == {**document, group: {**document.get(group, {}), name: value}}


def test_each_value_says_where_it_comes_from_and_no_secret_is_shown(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(TEXT)
    (tmp_path / ".env").write_text("HERMES_MAX_ITERATIONS=5\nHERMES_API_KEY=sk-0123456789abcdef0123\n")
    (tmp_path / ".env").chmod(0o600)
    result = asked(tmp_path, "show", "--json", HERMES_LOG_LEVEL="DEBUG", HERMES_PROVIDER="openai")
    assert result.exit_code == 0, result.output
    rows = {
        row["key"]: row
        for row in map(json.loads, filter(lambda line: line.startswith("{"), result.output.splitlines()))
    }
    assert "config.yaml" in rows["model.default"]["origin"]
    assert (rows["agent.max_turns"]["value"], ".env" in rows["agent.max_turns"]["origin"]) == ("5", True)
    assert "environment" in rows["logging.level"]["origin"]
    assert rows["lease.ttl_s"]["origin"] == "default"
    assert rows["model.api_key"]["value"] == "(secret)"
    assert "sk-0123" not in result.output


def test_a_value_is_written_at_once_and_shown_as_a_difference(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(TEXT)
    (tmp_path / "config.yaml").chmod(0o640)
    result = asked(tmp_path, "set", "compression.threshold", "0.6")
    assert result.exit_code == 0, result.output
    assert "+  threshold: 0.6" in result.output and "restart them" in result.output
    assert load_settings({}, home=tmp_path).model.compact_at == 0.6
    assert (tmp_path / "config.yaml").stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".config")] == []


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("compression.threshold", "7", "must be a number"),
        ("compression.treshold", "0.6", "did you mean"),
        ("server.key", "sk-0123456789abcdef0123", "is a secret"),
    ],
)
def test_what_cannot_be_used_changes_nothing(tmp_path: Path, key: str, value: str, reason: str) -> None:
    (tmp_path / "config.yaml").write_text(TEXT)
    result = asked(tmp_path, "set", key, value)
    assert isinstance(result.exception, ConfigurationError) and reason in str(result.exception)
    assert (tmp_path / "config.yaml").read_text() == TEXT


def test_what_the_environment_overrules_is_said(tmp_path: Path) -> None:
    result = asked(tmp_path, "set", "logging.level", "WARNING", HERMES_LOG_LEVEL="DEBUG")
    assert "counts more" in result.output
    assert result.exit_code != 0 or result.return_value != 0
    assert "logging:\n  level: WARNING\n" in (tmp_path / "config.yaml").read_text()


def test_a_dry_run_and_an_edit_that_cannot_be_used_write_nothing(tmp_path: Path) -> None:
    assert asked(tmp_path, "set", "agent.max_turns", "9", "--dry-run").exit_code == 0
    assert not (tmp_path / "config.yaml").exists()
    (tmp_path / "config.yaml").write_text(TEXT)
    editor = tmp_path / "editor.sh"
    editor.write_text("#!/bin/sh\nsleep 1\necho 'agent: {max_turns: many}' > \"$1\"\n")
    editor.chmod(0o755)
    result = asked(tmp_path, "edit", EDITOR=str(editor), VISUAL=str(editor), PATH=os.environ["PATH"])
    assert isinstance(result.exception, ConfigurationError) and "max_turns" in str(result.exception)
    assert (tmp_path / "config.yaml").read_text() == TEXT
