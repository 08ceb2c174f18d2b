"""A tool in five lines: a typed function with a docstring and a replay class."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from hermes_worker.agent.tools.base import ToolResult
from hermes_worker.agent.tools.catalog import build_catalog
from hermes_worker.agent.tools.dispatch import run_tool
from hermes_worker.extending import Deadline, Extension, Key, Progress, Stop, ToolContext, ToolFailed, Values, tool
from hermes_worker.extension import fold_extensions


def call(declared: Any, context: ToolContext, values: dict[str, str] | None = None, **arguments: Any) -> ToolResult:
    """As a worker does it: from the declaration, by way of the catalogue."""
    found = fold_extensions([Extension(name="acme", version="1", tools=(declared,))])
    catalog = build_catalog(replace(found, values={"acme": values or {}}))
    return run_tool(catalog.get(declared.name), json.dumps(arguments), context)


@tool(replay="pure", is_untrusted=False)
def word_count(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


def test_five_lines_are_a_tool(context: ToolContext) -> None:
    assert call(word_count, context, text="one two three").text == "3"
    assert word_count("as before") == 2
    spec = fold_extensions([Extension(name="acme", version="1", tools=(word_count,))]).tools["word_count"].spec
    assert (spec.toolset, spec.description, spec.replay) == ("acme", "Count the words of a text.", "pure")
    assert spec.parameters == {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class Place(BaseModel):
    name: str
    title: str = ""


@tool(replay="once")
def send(
    to: Annotated[str, "Whom it goes to."],
    size: Annotated[int, Field(ge=1, le=9)] = 3,
    kind: Literal["letter", "parcel"] = "letter",
    places: list[Place] | None = None,
) -> dict[str, Any]:
    """Send something."""
    return {"to": to, "size": size, "kind": kind, "places": [type(place).__name__ for place in places or ()]}


def test_the_schema_comes_from_the_annotations() -> None:
    schema = send.spec.parameters
    assert schema["required"] == ["to"]
    assert schema["properties"]["to"] == {"type": "string", "description": "Whom it goes to."}
    assert schema["properties"]["size"] == {"type": "integer", "minimum": 1, "maximum": 9, "default": 3}
    assert schema["properties"]["kind"]["enum"] == ["letter", "parcel"]
    assert schema["$defs"]["Place"]["properties"].keys() == {"name", "title"}


def test_arguments_arrive_as_their_types_and_wrong_ones_do_not_arrive(context: ToolContext) -> None:
    told = call(send, context, to="Ada", places=[{"name": "x"}]).text
    assert '"places":["Place"]' in told
    assert '"size":3' in told
    wrong = call(send, context, to="Ada", size=10)
    assert wrong.is_error
    assert "send was not run" in wrong.text
    nested = call(send, context, to="Ada", places=[{"title": "no name"}])
    assert nested.is_error


def test_what_the_worker_gives_is_no_argument_of_the_model(context: ToolContext) -> None:
    said: list[str] = []

    @tool(replay="keyed", is_untrusted=False, timeout_s=7)
    def all_of_it(
        n: int, stop: Stop, progress: Progress, deadline: Deadline, key: Key, values: Values, context: ToolContext
    ) -> dict[str, Any]:
        """Take everything."""
        progress("half way")
        left = 6 < deadline.left_s <= 7
        return {
            "n": n,
            "stop": stop.is_set(),
            "left": left,
            "key": key,
            "token": values["token"],
            "run": context.run_id,
        }

    assert all_of_it.spec.parameters["properties"].keys() == {"n"}
    result = call(all_of_it, replace(context, progress=said.append), {"token": "t"}, n=1)
    assert json.loads(result.text) == {"n": 1, "stop": False, "left": True, "key": "key-1", "token": "t", "run": "run"}
    assert said == ["half way"]


def test_progress_shows_no_secret(context: ToolContext) -> None:
    said: list[str] = []

    @tool(replay="pure")
    def careless(progress: Progress) -> str:
        """Say too much."""
        progress("using sk-ant-api03-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
        return "done"

    call(careless, replace(context, progress=said.append))
    assert said
    assert "AAAAAAAAAA" not in said[0]


def test_a_stop_is_heard_by_a_pure_tool_that_does_not_listen(context: ToolContext) -> None:
    is_over = threading.Event()

    @tool(replay="pure")
    def deaf() -> str:
        """Wait for long."""
        is_over.wait(60)
        return "never"

    threading.Timer(0.2, context.cancelled.set).start()  # type: ignore[attr-defined]
    began = time.monotonic()
    result = call(deaf, context)
    is_over.set()
    assert result.is_error
    assert time.monotonic() - began < 30


def test_a_coroutine_is_a_tool_and_is_cancelled_by_a_stop(context: ToolContext) -> None:
    ended: list[str] = []

    @tool(replay="once", is_untrusted=False)
    async def patient(seconds: float) -> str:
        """Wait."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "waited"

    assert call(patient, context, seconds=0.0).text == "waited"
    threading.Timer(0.2, context.cancelled.set).start()  # type: ignore[attr-defined]
    result = call(patient, context, seconds=60.0)
    assert result.is_error
    assert ended == ["cancelled"]


def test_what_a_tool_raises_on_purpose_is_told_word_for_word(context: ToolContext) -> None:
    @tool(replay="pure", is_untrusted=False)
    def closed() -> str:
        """Be closed."""
        raise ToolFailed("the shop is closed on Sundays")

    result = call(closed, context)
    assert (result.is_error, json.loads(result.text)["error"]) == (True, "the shop is closed on Sundays")


def test_a_tool_may_give_a_result_of_its_own(context: ToolContext) -> None:
    @tool(replay="pure", is_untrusted=False)
    def remember(thing: str) -> ToolResult:
        """Remember."""
        return ToolResult(text="ok", session_updates={"thing": thing})

    assert call(remember, context, thing="x").session_updates == {"thing": "x"}


def undocumented(x: int) -> int:
    return x


def untyped(x):  # type: ignore[no-untyped-def]
    """Do."""


def many(*x: int) -> None:
    """Do."""


def documented(x: int) -> None:
    """Do."""


@pytest.mark.parametrize(
    ("function", "replay", "sentence"),
    [
        (documented, "sometimes", "choose pure, keyed or once"),
        (documented, "keyed", "a keyed tool takes its key"),
        (undocumented, "pure", "undocumented has no docstring"),
        (untyped, "pure", "the parameter 'x' has no type"),
        (many, "pure", "a tool has no parameter like"),
    ],
)
def test_what_cannot_be_a_tool_is_said_when_it_is_declared(function: Any, replay: str, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        tool(replay=replay)(function)


def test_a_replay_class_is_required() -> None:
    with pytest.raises(TypeError, match="replay"):
        tool()  # type: ignore[call-arg]
