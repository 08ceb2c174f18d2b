"""``hermes-worker extensions tools`` and the line of ``doctor``: what is there, what is not, and why."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.commandline import CommandLine


def listed(hermes: CommandLine) -> dict[str, dict[str, Any]]:
    said = hermes.inline("extensions", "tools", "--json")
    assert said.code == 0, said.said
    return {one["name"]: one for one in map(json.loads, said.out.splitlines())}


def test_what_is_missing_says_how_to_get_it(hermes: CommandLine) -> None:
    found = listed(hermes)
    assert found["terminal"] == {
        "name": "terminal",
        "toolset": "terminal",
        "is_available": True,
        "note": "",
        "unfit": "",
    }
    assert found["execute_code"]["is_available"] and found["process"]["is_available"]
    assert found["web_search"]["is_available"] is False
    assert found["web_search"]["note"].startswith("hermes-worker extensions enable web_search; it is set by ")
    assert "HASS_URL" in found["ha_get_state"]["note"]
    assert found["browser_click"]["note"].startswith("switched off: HERMES_BROWSER=true")
    table = hermes.inline("extensions", "tools").out
    assert table.splitlines()[0].split() == ["TOOL", "TOOLSET", "THERE", "NOTE"]
    assert len(table.splitlines()) == len(found) + 1


def test_what_is_switched_on_is_there(hermes: CommandLine) -> None:
    hermes.environ["HERMES_EXTENSIONS"] = "web_search"
    assert listed(hermes)["web_search"]["is_available"] is True


def test_a_workspace_that_cannot_run_scripts_is_named(hermes: CommandLine) -> None:
    hermes.environ |= {"HERMES_WORKSPACE": "docker", "HERMES_DOCKER_IMAGE": "debian"}
    found = listed(hermes)
    assert "terminal.workspace is docker" in found["execute_code"]["note"]
    assert found["execute_code"]["is_available"] is False
    assert "no text of documents" in found["read_file"]["note"]


def test_documents_that_cannot_be_read_are_named(hermes: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_worker.agent.tools.documents.find_spec", lambda name: None if name == "pypdf" else name)
    note = "no text of pdf documents: pip install 'hermes-worker[documents]'"
    assert listed(hermes)["read_file"]["note"] == note
    lines = [json.loads(line) for line in hermes.inline("doctor", "--json").out.splitlines()]
    [tools] = [line for line in lines if line["subject"] == "tools"]
    assert note in tools["text"] and "hermes-worker extensions tools" in tools["text"]
