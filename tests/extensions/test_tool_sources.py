"""Tools that only a worker can learn of: listed as rows, frozen with a session, dispatched by what is frozen."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hermes_worker import installed
from hermes_worker.agent.source_tools import build_definitions
from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.catalog import UnknownTool, build_default_catalog, build_sourced_catalog
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.agent.tools.sources import ToolGone
from hermes_worker.core.messages import ModelReply, ModelRequest, ToolRequest, build_assistant_body
from hermes_worker.core.replay import Replay
from hermes_worker.extension import Extension, ExtensionConflict, ToolSourceDeclaration, ToolSpec, fold_extensions
from hermes_worker.models.wires.definitions import fit_request, fit_tools
from hermes_worker.services.submission import InvalidSubmission, Submission, build_run
from hermes_worker.settings import load_settings
from hermes_worker.tasks.iteration.planning import plan_calls, read_tool_names, read_tool_texts
from hermes_worker.tasks.tool_sources import ToolLister


def spec(name: str, **changes: Any) -> ToolSpec:
    made = ToolSpec(
        name=name,
        description=f"Does {name}.",
        parameters={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        toolset="",
        replay=Replay.PURE,
        is_untrusted=False,
    )
    return replace(made, **changes)


class Machines:
    """A source whose offer changes."""

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self.offered: Any = [spec("press", replay=Replay.ONCE, timeout_s=7.0), spec("drill")]
        self.called: list[tuple[str, Mapping[str, Any]]] = []

    def list_tools(self) -> Sequence[ToolSpec]:
        if isinstance(self.offered, BaseException):
            raise self.offered
        return self.offered  # type: ignore[no-any-return]

    def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        if name not in {one.name for one in self.offered}:
            raise ToolGone("the machine was sold")
        self.called.append((name, arguments))
        return ToolResult(text=f"{name}ed {arguments['n']}")


class Rows:
    """What a store was told."""

    def __init__(self) -> None:
        self.written: list[tuple[str, list[str]]] = []

    def write(self, source: str, definitions: Sequence[str]) -> bool:
        self.written.append((source, list(definitions)))
        return True


DECLARED = ToolSourceDeclaration(name="machines", implementation=Machines, refresh_s=10, timeout_s=1)


def bring(machines: Machines, *others: Extension) -> None:
    declared = replace(DECLARED, implementation=lambda values: machines)
    acme = Extension(name="acme", version="1", tool_sources=(declared,))
    installed.put_in_force(fold_extensions((*installed.load_built_in(), acme, *others)))


def definitions(machines: Machines) -> list[str]:
    return build_definitions("machines", machines.list_tools(), ())[0]


def session_tools(machines: Machines, *toolsets: str) -> str:
    settings = load_settings({"HOME": "/nowhere", "HERMES_PROVIDER": "scripted"})
    asked = Submission(input="x", toolsets=toolsets or None)
    return build_run(settings, asked, sourced=definitions(machines)).tools


def test_a_session_gets_what_workers_listed() -> None:
    machines = Machines()
    bring(machines)
    tools = session_tools(machines, "machines")
    assert read_tool_names(tools) == {"press", "drill"}
    assert {"press", "drill", "todo"} <= read_tool_names(session_tools(machines)), "it is among the usual toolsets"
    assert not {"press", "drill"} & read_tool_names(session_tools(machines, "file"))
    sent = [json.loads(text) for text in read_tool_texts(tools)]
    assert [one.keys() for one in sent] == [{"type", "function"}] * 2, "models are sent nothing of ours"
    assert machines.called == []


def test_before_a_worker_listed_anything_there_is_no_such_toolset() -> None:
    bring(Machines())
    settings = load_settings({"HOME": "/nowhere", "HERMES_PROVIDER": "scripted"})
    with pytest.raises(InvalidSubmission, match="there is no toolset 'machines'"):
        build_run(settings, Submission(input="x", toolsets=["machines"]))


def test_a_call_is_planned_and_run_by_what_the_session_stored(context: ToolContext) -> None:
    machines = Machines()
    bring(machines)
    tools = session_tools(machines, "machines")
    # By now it offers the tool otherwise; the session goes on with the one that it began with.
    machines.offered = [spec("press", replay=Replay.PURE, timeout_s=99.0, parameters={"type": "object"})]
    catalog = build_default_catalog(services={"jobs": None, "messages": None, "fetching": None}).for_session(tools)
    request = ToolRequest(id="1", name="Press", arguments='{"n": "3"}')
    _, [call] = plan_calls(ModelReply(text="", tool_requests=(request,)), catalog)
    assert (call.name, call.replay, call.timeout_s) == ("press", Replay.ONCE, 7.0)
    assert run_tool(catalog.get("press"), request.arguments, context).text == "pressed 3"
    assert machines.called == [("press", {"n": 3})], "the arguments are checked by the stored schema"
    assert run_tool(catalog.get("press"), "{}", context).is_error


def test_a_tool_that_is_gone_answers_with_an_error(context: ToolContext) -> None:
    machines = Machines()
    bring(machines)
    tools = session_tools(machines, "machines")
    machines.offered = []
    catalog = build_default_catalog(services={"jobs": None, "messages": None, "fetching": None})
    result = run_tool(catalog.for_session(tools).get("drill"), '{"n": 1}', context)
    assert result.is_error
    assert "drill is not there any more (the machine was sold); do without it" in result.text
    installed.put_in_force(None)
    without = build_default_catalog(services={"jobs": None, "messages": None, "fetching": None}).for_session(tools)
    assert without.get_spec("drill").name == "drill"
    with pytest.raises(UnknownTool, match="'machines' cannot be used any more"):
        without.get("drill")


def test_a_session_without_sources_costs_no_catalogue_of_its_own() -> None:
    catalog = build_default_catalog(services={"jobs": None, "messages": None, "fetching": None})
    assert catalog.for_session("[]") is catalog
    machines = Machines()
    bring(machines)
    tools = session_tools(machines, "machines")
    assert catalog.for_session(tools) is catalog.for_session(tools) is not catalog


def test_no_tool_of_a_source_takes_the_name_of_another() -> None:
    machines = Machines()
    machines.offered = [spec("terminal"), spec("press"), spec("press"), spec("two words"), "nonsense", spec("x", replay="?"), spec("a\nb"), spec("y" * 101)]  # fmt: skip  # noqa: E501
    found, left_out = build_definitions("machines", machines.list_tools(), {"terminal"})
    assert [json.loads(one)["function"]["name"] for one in found] == ["press", "two words"]
    assert [str(one) for one in left_out] == [
        "'terminal' has the name of a tool that is there already",
        "'press' has the name of a tool that is there already",
        "'str' is no ToolSpec",
        "'x' says no replay class",
        "'a\\nb' has a name with invisible characters; use letters, digits, '_' and '-'",
        f"{'y' * 100!r} has a name of 101 characters; at most 100 are taken",
    ]
    bring(machines)
    stored = build_definitions("machines", [spec("terminal"), spec("press")], ())[0]
    assert build_sourced_catalog(stored).get_spec("terminal").toolset == "terminal", "not even by a row"
    assert "press" in build_sourced_catalog(stored).names
    assert "press" not in build_sourced_catalog([one.replace("machines", "others") for one in stored]).names


def test_a_source_that_is_called_like_a_toolset_is_refused() -> None:
    for name, sentence in (("terminal", "both a toolset and a tool source"), ("safe", "bundle of toolsets 'safe'")):
        extension = Extension(name="acme", version="1", tool_sources=(replace(DECLARED, name=name),))
        with pytest.raises(ExtensionConflict, match=sentence):
            fold_extensions((*installed.load_built_in(), extension))


def look(lister: ToolLister) -> int:
    begun = lister.poll_once()
    for thread in begun:
        thread.join()
    return len(begun)


def test_a_worker_lists_a_source_again_and_again() -> None:
    machines, rows, now = Machines(), Rows(), [100.0]
    lister = ToolLister({"machines": (DECLARED, machines)}, rows, {"drill"}, clock=lambda: now[0])
    assert look(lister) == 1
    [(source, [press])] = rows.written
    assert (source, json.loads(press)["function"]["name"]) == ("machines", "press")
    assert look(lister) == 0
    now[0] += 10
    assert look(lister) == 1


@pytest.mark.parametrize("offered", [RuntimeError("no luck"), SystemExit(3), 7, [spec(f"t{n}") for n in range(501)]])
def test_a_source_that_fails_keeps_its_row_and_is_asked_again_soon(
    offered: object, capfd: pytest.CaptureFixture[str]
) -> None:
    machines, rows, now = Machines(), Rows(), [100.0]
    machines.offered = offered
    declared = replace(DECLARED, refresh_s=3600)
    lister = ToolLister({"machines": (declared, machines)}, rows, (), clock=lambda: now[0])
    assert look(lister) == 1
    assert rows.written == []
    assert "tool_source.failed" in capfd.readouterr().err
    machines.offered = []
    now[0] += 15
    assert look(lister) == 1
    assert rows.written == [("machines", [])]


def test_a_source_that_hangs_is_named_once_and_not_asked_twice(capfd: pytest.CaptureFixture[str]) -> None:
    is_over = threading.Event()

    class Slow(Machines):
        def list_tools(self) -> Sequence[ToolSpec]:
            is_over.wait(60)
            return []

    rows, now = Rows(), [100.0]
    lister = ToolLister({"machines": (DECLARED, Slow())}, rows, (), clock=lambda: now[0])
    [thread] = lister.poll_once()
    for _ in range(3):
        now[0] += 20
        assert lister.poll_once() == []
    is_over.set()
    thread.join()
    assert capfd.readouterr().err.count("it takes longer than 1 s") == 1
    assert rows.written == [("machines", [])], "late is better than never"


@pytest.mark.parametrize("name", ["p" * 80, "files/read.all", "two words", "größe", 'say "it"'])
def test_a_source_is_called_by_its_own_name_whatever_models_are_sent(name: str, context: ToolContext) -> None:
    machines = Machines()
    machines.offered = [spec(name), spec("drill")]
    bring(machines)
    tools = session_tools(machines, "machines")
    fitted = fit_tools(tuple(read_tool_texts(tools)))
    sent = next(one for one, own in fitted.names.items() if own == name)
    catalog = build_default_catalog(services={"jobs": None, "messages": None, "fetching": None}).for_session(tools)
    reply = ModelReply(text="", tool_requests=(ToolRequest(id="1", name=sent, arguments='{"n": 3}'),))
    stored, [call] = plan_calls(fitted.restore(reply), catalog)
    assert run_tool(catalog.get(call.name), stored.tool_requests[0].arguments, context).text == f"{name}ed 3"
    assert machines.called == [(name, {"n": 3})]
    row = build_assistant_body(stored)
    asked = fit_request(ModelRequest(model="m", messages=[row], tools=read_tool_texts(tools)))
    assert json.loads(asked.messages[0])["tool_calls"][0]["function"]["name"] == sent, "earlier calls as well"
