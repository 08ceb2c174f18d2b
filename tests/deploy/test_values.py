"""Values that people give to the chart, and what becomes of each: a refusal in a sentence, or these objects.

A case is a file of ``values``: what somebody writes, and either what the refusal says (``refused``) or what the objects
hold (``rendered``, a part of each), lack (``absent``, ``absent_text``), or have otherwise than with no values at all
(``changed`` pods, a ``renamed`` object).
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.manifests import CHART, Manifest, by_helm, load_yaml, problems

CASES = {path.stem: load_yaml(path) for path in Path(__file__).parent.glob("values/*")}
KEYS = {"says", "values", "release", "refused", "rendered", "absent", "absent_text", "changed", "renamed"}
pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(
        importlib.util.find_spec("helm_python") is None or importlib.util.find_spec("kubernetes_validate") is None,
        reason="needs pip install -e '.[deploy-test]' (over 400 MB)",
    ),
]
REFUSED = sorted(name for name, case in CASES.items() if "refused" in case)
RENDERED = sorted(set(CASES) - set(REFUSED))
RULES = load_yaml(CHART / "files" / "settings.yaml")["settings"]
OTHERWISE_JUDGED = {"HERMES_METRICS_PORT", "HERMES_DRAIN_S", "HERMES_DRAIN_ONCE_S", "HERMES_LANE_MEMORY_MB"} | {
    *("HERMES_COMMAND_MEMORY_MB_MAX", "HERMES_SERVER_DRAIN_S", "HERMES_WORKSPACE")
}


@cache
def objects_of(name: str | None = None) -> dict[str, Manifest]:
    """What the chart makes of a case's values, or of none; not to be changed."""
    case = CASES[name] if name else {"values": {}}
    found = by_helm(case["values"], release=case.get("release", "hermes"))
    return {f"{kind}/{name}": manifest for (kind, name), manifest in found.items()}


@cache
def problems_of(manifest: str) -> list[str]:
    """Remembered, because most objects are the same in most cases; tests/machine has the other versions."""
    return problems(yaml.safe_load(manifest), "1.37")


def pick(objects: dict[str, Manifest], pattern: str) -> tuple[str, Manifest]:
    [found] = [(name, manifest) for name, manifest in objects.items() if fnmatch(name, pattern)]
    return found


def lacks(wanted: Any, given: Any, path: str = "") -> list[str]:
    """Where ``given`` does not hold ``wanted``: maps hold theirs and more, lists hold each of theirs somewhere."""
    if isinstance(wanted, dict) and isinstance(given, dict):
        return [each for key, value in wanted.items() for each in lacks(value, given.get(key), f"{path}.{key}")]
    if isinstance(wanted, list) and isinstance(given, list):
        return [f"{path}: no {each} in {given}" for each in wanted if not any(not lacks(each, one) for one in given)]
    return [] if wanted == given else [f"{path}: {given!r} is not {wanted!r}"]


def test_there_are_cases_of_both_kinds() -> None:
    assert len(CASES) >= 40
    assert min(len(REFUSED), len(RENDERED)) >= 15
    assert {name for name, case in CASES.items() if not case.keys() <= KEYS or not case["says"].endswith(".")} == set()


@pytest.mark.parametrize("name", REFUSED)
def test_a_mistake_is_refused_in_a_sentence(name: str) -> None:
    import helm_python

    with pytest.raises(helm_python.HelmError) as refused:
        objects_of(name)
    assert [part for part in CASES[name]["refused"] if part not in str(refused.value)] == [], refused.value


@pytest.mark.parametrize("name", RENDERED)
def test_values_are_rendered_as_they_are_meant(name: str) -> None:
    case, objects, usual = CASES[name], objects_of(name), objects_of()
    wrong = [
        f"{pattern}{each}"
        for pattern, wanted in case.get("rendered", {}).items()
        for each in lacks(wanted, pick(objects, pattern)[1])
    ]
    assert wrong == []
    assert set(case.get("absent", ())).isdisjoint(objects)
    for pattern, text in case.get("absent_text", {}).items():
        assert text not in yaml.safe_dump(pick(objects, pattern)[1])
    for pattern in case.get("changed", ()):
        assert pick(objects, pattern)[1]["spec"]["template"] != pick(usual, pattern)[1]["spec"]["template"], pattern
    if pattern := case.get("renamed"):
        assert pick(objects, pattern)[0] != pick(usual, pattern)[0]


@pytest.mark.parametrize("name", RENDERED)
def test_what_is_rendered_is_taken_by_a_strict_server(name: str) -> None:
    found = {key: problems_of(yaml.safe_dump(each)) for key, each in objects_of(name).items()}
    assert {key: wrong for key, wrong in found.items() if wrong} == {}


# --- the schema ------------------------------------------------------------------------------------------------------


def described(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, each in schema.get("properties", {}).items():
        yield f"{path}.{name}", each
        yield from described(each, f"{path}.{name}")


def test_the_schema_is_strict_and_describes_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    named = {**schema["definitions"], **dict(described(schema["definitions"]["values"]))}
    for path, each in named.items():
        if "properties" in each and path not in ("named", "mount", "variable"):
            assert each["additionalProperties"] is False, path
    assert {path for path, each in named.items() if path[0] == "." and not each["description"].endswith(".")} == set()
    assert {path for path, each in named.items() if "pattern" in each and "title" not in each} == set()
    values = load_yaml(CHART / "values.yaml")
    known = schema["definitions"]["values"]["properties"].keys() - set(values)
    assert known == {"global"}, "values.yaml shows every value"


def test_editors_are_told_of_a_mistake_by_the_schema_and_helm_by_a_template() -> None:
    schema = jsonschema_rs.validator_for(json.loads((CHART / "values.schema.json").read_text(encoding="utf-8")))
    mistake = {"workers": {"tools": {"drainSecond": 100}}}
    assert schema.is_valid({"workers": {"tools": {"drainSeconds": 100}}})
    assert not schema.is_valid(mistake)
    merged = load_yaml(CHART / "values.yaml") | mistake
    assert schema.is_valid(merged), "Helm would say no more than the schema's own words"


def test_lint_refuses_what_an_installation_refuses() -> None:
    import helm_python

    assert helm_python.lint(str(CHART), {})["errors"] == []
    assert helm_python.lint(str(CHART), {"worker": {}})["errors"] != []


def texts_of(rule: dict[str, Any]) -> st.SearchStrategy[str]:
    if rule["ranges"]:
        return st.sampled_from([f"{bound:.12g}" for bounds in rule["ranges"] for bound in bounds])
    return st.from_regex(re.compile(rule["pattern"], re.ASCII), fullmatch=True).filter(lambda text: "@" not in text)


@given(
    st.fixed_dictionaries(
        {name: texts_of(rule) for name, rule in RULES.items() if rule and name not in OTHERWISE_JUDGED}
    )
)
@settings(max_examples=5, deadline=None)
def test_what_a_setting_takes_is_rendered(values: dict[str, str]) -> None:
    """So no pattern means something else to Go than to Python."""
    by_helm({"settings": values})
