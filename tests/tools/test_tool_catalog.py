from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.catalog import ToolCatalog, UnknownTool, build_default_catalog
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.replay import Replay
from hermes_worker.extension import ToolDeclaration, ToolSpec


class Named:
    def __init__(self, name: str, toolset: str) -> None:
        self.spec = ToolSpec(
            name=name, description=name, parameters={}, toolset=toolset, replay=Replay.PURE, is_untrusted=False
        )

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        raise NotImplementedError


API_TOOLS = (
    *(
        "cronjob",
        "delegate_task",
        "execute_code",
        "memory",
        "patch",
        "process",
        "read_file",
        "search_files",
        "session_search",
        "skill_manage",
        "skill_view",
        "skills_list",
        "terminal",
        "todo",
    ),
    *("vision_analyze", "web_extract", "write_file"),
)
FILE_TOOLS = ("patch", "read_file", "search_files", "write_file")
EVERYTHING = tuple(sorted(("clarify", "send_message", *API_TOOLS)))
CATALOG = build_default_catalog()


@pytest.mark.parametrize(
    ("toolsets", "expected"),
    [
        (["file"], FILE_TOOLS),
        (["todo", "terminal"], ("process", "terminal", "todo")),
        (["debugging"], ("patch", "process", "read_file", "search_files", "terminal", "web_extract", "write_file")),
        (["hermes-api-server"], API_TOOLS),
        (["hermes-cli"], ("clarify", *API_TOOLS)),
        (["all"], EVERYTHING),
        (["*", "file"], EVERYTHING),
        ([], ()),
    ],
)
def test_a_toolset_holds_the_tools_of_all_it_includes(toolsets: list[str], expected: tuple[str, ...]) -> None:
    assert CATALOG.resolve(toolsets) == expected


@pytest.mark.parametrize("toolset", ["nonsense", "browser", ""])
def test_a_toolset_without_tools_is_an_error_that_names_those_there_are(toolset: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"no toolset .*; use one or more of all, clarify, code_execution, cronjob, debugging, delegation",
    ):
        CATALOG.resolve([toolset])


def test_a_disabled_toolset_is_taken_out_again() -> None:
    assert CATALOG.resolve(["hermes-cli"], disabled=["file"]) == (
        "clarify",
        "cronjob",
        "delegate_task",
        "execute_code",
        "memory",
        "process",
        "session_search",
        "skill_manage",
        "skill_view",
        "skills_list",
        "terminal",
        "todo",
        "vision_analyze",
        "web_extract",
    )


def test_disabling_a_bundle_takes_no_core_tool_away() -> None:
    assert CATALOG.resolve(["file"], disabled=["hermes-cli"]) == FILE_TOOLS


def test_the_api_server_has_no_tool_that_asks_a_person() -> None:
    assert "clarify" in CATALOG.resolve(["hermes-cli"])
    assert "clarify" not in CATALOG.resolve(["hermes-api-server"])


def test_bundles_that_include_each_other_are_no_harm() -> None:
    catalog = ToolCatalog([Named("x", "one"), Named("y", "two")], bundles={"a": ("b", "one"), "b": ("a", "two")})
    assert catalog.resolve(["a"]) == catalog.resolve(["b"]) == ("x", "y")


def test_a_new_tool_joins_the_toolset_it_names() -> None:
    catalog = build_default_catalog(Named("web_search", "web"))
    assert catalog.resolve(["web"]) == ("web_extract", "web_search")
    assert "web_search" in catalog.resolve(["debugging"])
    assert catalog.toolsets["web"] == ("web_extract", "web_search")


def test_two_tools_of_one_name_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match="two tools are named 'todo'"):
        build_default_catalog(Named("todo", "other"))


def test_a_bundle_may_not_hide_a_toolset() -> None:
    with pytest.raises(ConfigurationError, match="'one' names both"):
        ToolCatalog([Named("x", "one")], bundles={"one": ()})


def test_definitions_are_canonical_json_in_a_stable_order() -> None:
    definitions = CATALOG.render_definitions(["write_file", "read_file", "write_file"])
    assert definitions == CATALOG.render_definitions({"read_file", "write_file"})
    documents = [json.loads(definition) for definition in definitions]
    assert [document["function"]["name"] for document in documents] == ["read_file", "write_file"]
    assert all(document["type"] == "function" for document in documents)
    assert definitions == tuple(dump_canonical_json(document) for document in documents)


def test_definitions_are_computed_once() -> None:
    assert CATALOG.render_definitions(["todo"])[0] is CATALOG.render_definitions(["todo"])[0]
    assert CATALOG.resolve(["file"]) is CATALOG.resolve(["file"])


def test_an_unknown_tool_is_an_error_that_names_the_others() -> None:
    with pytest.raises(UnknownTool, match="there is no tool 'x'; there are clarify, cronjob, delegate_task"):
        CATALOG.get("x")
    with pytest.raises(UnknownTool):
        CATALOG.render_definitions(["x"])


REPLAY = {
    "read_file": Replay.PURE,
    "search_files": Replay.PURE,
    "todo": Replay.PURE,
    "clarify": Replay.PURE,
    "delegate_task": Replay.PURE,
    "write_file": Replay.KEYED,
    "patch": Replay.ONCE,
    "cronjob": Replay.ONCE,
    "memory": Replay.KEYED,
    "skills_list": Replay.PURE,
    "skill_view": Replay.PURE,
    "session_search": Replay.PURE,
    "skill_manage": Replay.KEYED,
    "send_message": Replay.KEYED,
    "terminal": Replay.ONCE,
    "process": Replay.ONCE,
    "execute_code": Replay.ONCE,
    "vision_analyze": Replay.PURE,
    "web_extract": Replay.PURE,
}


@pytest.mark.parametrize("name", sorted(CATALOG.names))
def test_every_tool_declares_what_the_worker_must_know(name: str) -> None:
    spec = CATALOG.get_spec(name)
    assert spec.replay is REPLAY[name]
    assert spec.parameters["type"] == "object"
    assert set(spec.parameters.get("required", ())) <= spec.parameters["properties"].keys()
    assert spec.path_argument is None or spec.path_argument in spec.parameters["properties"]
    assert spec.description


def test_every_declared_tool_is_there_and_is_what_is_declared() -> None:
    services = ("jobs", "messages", "memories", "skills", "past_sessions", "fetching")
    catalog = build_default_catalog(services=dict.fromkeys(services))
    catalog.load_all()
    assert {name: catalog.get(name).spec for name in catalog.names} == {n: CATALOG.get_spec(n) for n in CATALOG.names}


def test_a_tool_that_differs_from_its_declaration_is_not_run() -> None:
    other = replace(CATALOG.get_spec("todo"), name="other", replay=Replay.ONCE)
    catalog = ToolCatalog([ToolDeclaration(spec=other, implementation="hermes_worker.agent.tools.todo:TodoTool")])
    with pytest.raises(ConfigurationError, match="'other' is declared otherwise"):
        catalog.get("other")


def test_a_tool_that_is_not_there_is_named() -> None:
    catalog = ToolCatalog(
        [ToolDeclaration(spec=CATALOG.get_spec("todo"), implementation="hermes_worker.agent.tools.todo:Gone")]
    )
    with pytest.raises(ConfigurationError, match=r"is broken \(module 'hermes_worker.agent.tools.todo' .*'Gone'\)"):
        catalog.load_all()


def test_the_tools_that_read_from_outside_the_workspace_say_so() -> None:
    foreign = {name for name in CATALOG.names if CATALOG.get_spec(name).is_untrusted}
    assert foreign == {"session_search", "vision_analyze", "web_extract"}
