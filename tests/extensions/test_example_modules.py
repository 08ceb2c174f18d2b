"""The example package brings one plug of each kind, and each takes one module and one line."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from hermes_worker.agent.prompt.compactors import check_plan
from hermes_worker.core.messages import Message, Role, dump_canonical_json
from hermes_worker.extension import Extension, load_reference
from hermes_worker.plugins import MANIFEST, list_brought

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "hermes-acme"
PACKAGE = EXAMPLE / "hermes_acme"
TABLE = re.compile(r"^\| an? [\w ]+ \| `(\w+)` \| `(\w+)\.py` \| 1 \|$", re.MULTILINE)
ROWS = dict(TABLE.findall((ROOT / "docs" / "extending.md").read_text(encoding="utf-8")))
"""Module by field, as the documentation says."""


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> Iterator[Extension]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    found = load_reference("hermes_acme:EXTENSION")
    assert isinstance(found, Extension)
    yield found
    for name in [name for name in sys.modules if name.partition(".")[0] == "hermes_acme"]:
        del sys.modules[name]


def lines() -> Mapping[str, tuple[int, set[str]]]:
    """By field of ``EXTENSION``: how many lines it takes, and which modules of the package its words come from."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    comes_from = {
        name.name: node.module.partition(".")[2]
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hermes_acme.")
        for name in node.names
        if node.module
    }
    [call] = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    found = {}
    for field in call.keywords:
        words = [node.id for node in ast.walk(field.value) if isinstance(node, ast.Name)]
        texts = [str(node.value) for node in ast.walk(field.value) if isinstance(node, ast.Constant)]
        named = {comes_from[word] for word in words if word in comes_from}
        named |= {text.partition(":")[0].partition(".")[2] for text in texts if text.startswith("hermes_acme.")}
        found[str(field.arg)] = ((field.value.end_lineno or 0) - field.value.lineno + 1, named)
    return found


def test_each_kind_of_plug_is_one_line_and_one_module(acme: Extension) -> None:
    kinds = set(list_brought(acme)) - {"settings"}
    assert kinds == set(ROWS), "the table of docs/extending.md has a row for each"
    assert kinds >= {"providers", "tools", "channels", "workspaces", "routers", "context_sources", "hooks"}
    found = lines()
    assert {kind: found[kind] for kind in kinds} == {kind: (1, {module}) for kind, module in ROWS.items()}
    assert len(set(ROWS.values())) == len(ROWS), "a module for each"
    assert {path.stem for path in PACKAGE.glob("*.py")} == {*ROWS.values(), "__init__"}


def test_the_product_knows_nothing_of_it() -> None:
    mentions = [path for path in (ROOT / "hermes_worker").rglob("*.py") if "hermes_acme" in path.read_text("utf-8")]
    assert mentions == []


def test_its_manifest_says_what_it_brings(acme: Extension) -> None:
    said = yaml.safe_load((PACKAGE / MANIFEST).read_text(encoding="utf-8"))
    assert {kind: tuple(said[f"provides_{kind}"]) for kind in list_brought(acme)} == list_brought(acme)


def test_its_compactor_plans_what_is_taken(acme: Extension) -> None:
    bodies = [{"role": "user", "content": "go"}]
    for n in range(20):
        call = {"id": f"c{n}", "type": "function", "function": {"name": "t", "arguments": "{}"}}
        bodies += [
            {"role": "assistant", "content": "", "tool_calls": [call]},  # type: ignore[dict-item]
            {"role": "tool", "content": "x", "tool_call_id": f"c{n}"},
        ]
    rows = [Message(seq=n, role=Role(body["role"]), body=dump_canonical_json(body)) for n, body in enumerate(bodies, 1)]
    compactor = load_reference(acme.compactors[0].implementation)({})
    plan = check_plan(compactor.plan(rows, trigger=1), rows)
    assert (plan.asked, plan.is_asked_later, len(rows) - plan.through) == ("go", False, 12)
    assert compactor.question(plan, chars_max=1) is None
    assert compactor.notes(plan) == "29 earlier messages were left out."
    assert compactor.plan(rows[:5], trigger=1) is None
