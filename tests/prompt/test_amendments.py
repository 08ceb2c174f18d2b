"""What is left out of requests, and what is left alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hermes_worker.agent.prompt.amendments import IMAGE_LEFT_OUT, amend_messages, amend_tools, has_images
from hermes_worker.core.messages import build_tool_body, build_user_body, dump_canonical_json
from hermes_worker.core.recovery_state import Amendment

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
USER = build_user_body([{"type": "text", "text": "what is this?"}, IMAGE])
RESULT = dump_canonical_json(
    {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a shot"}, IMAGE]}
)
PLAIN = build_tool_body("c", 'the word "image_url" is only text here')


def amended(*rows: str, amendment: Amendment) -> list[dict[str, Any]]:
    return [json.loads(row) for row in amend_messages(rows, frozenset({amendment}))]


def test_images_become_a_text_everywhere_and_results_become_plain() -> None:
    user, result = amended(USER, RESULT, amendment=Amendment.NO_IMAGES)

    assert user["content"] == [{"type": "text", "text": "what is this?"}, {"type": "text", "text": IMAGE_LEFT_OUT}]
    assert result["content"] == f"a shot\n{IMAGE_LEFT_OUT}"


def test_images_of_tools_alone_become_a_text() -> None:
    user, result = amended(USER, RESULT, amendment=Amendment.NO_TOOL_IMAGES)

    assert user == json.loads(USER)
    assert IMAGE_LEFT_OUT in result["content"]


def test_rows_without_images_stay_the_same_bytes() -> None:
    rows = [PLAIN, build_user_body("hello")]

    assert list(amend_messages(rows, frozenset({Amendment.NO_IMAGES}))) == rows
    assert amend_messages(rows, frozenset()) is rows


def test_images_are_found_by_role() -> None:
    assert has_images([USER]) and not has_images([build_user_body("x")])
    assert has_images([RESULT], role="tool") and not has_images([USER], role="tool")


@pytest.mark.parametrize("name", ["pattern", "format"])
def test_keywords_go_and_properties_of_that_name_stay(name: str) -> None:
    parameters = {
        "type": "object",
        "properties": {name: {"type": "string", name: "^a$"}, "list": {"type": "array", "items": {name: "uri"}}},
        "required": [name],
    }
    tool = dump_canonical_json({"type": "function", "function": {"name": "t", "parameters": parameters}})

    (plain,) = amend_tools([tool], frozenset({Amendment.PLAIN_TOOL_SCHEMAS}))

    assert json.loads(plain)["function"]["parameters"] == {
        "type": "object",
        "properties": {name: {"type": "string"}, "list": {"type": "array", "items": {}}},
        "required": [name],
    }
    assert amend_tools([tool], frozenset()) == [tool]
