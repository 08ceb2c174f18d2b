"""Transcripts as training samples."""

from __future__ import annotations

import json
from typing import Any

from hermes_worker.core.messages import Message, Role, dump_canonical_json
from hermes_worker.core.trajectory import build_trajectory

TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}]


def rows(*bodies: dict[str, Any]) -> list[Message]:
    return [Message(seq=n, role=Role(body["role"]), body=dump_canonical_json(body)) for n, body in enumerate(bodies, 1)]


def call(call_id: str, arguments: str = '{"n": 1}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}}


def test_a_turn_with_tools_is_written_with_tags() -> None:
    turns = build_trajectory(
        rows(
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "I look.", "reasoning": "hm", "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "tool_call_id": "b", "content": '{"found": true}'},
            {"role": "tool", "tool_call_id": "a", "content": "[not json"},
            {"role": "assistant", "content": "done"},
        ),
        TOOLS,
    )

    assert [turn["from"] for turn in turns] == ["system", "human", "gpt", "tool", "gpt"]
    assert (
        '[{"name": "look", "description": "Looks.", "parameters": {"type": "object"}, "required": null}]'
        in (turns[0]["value"])
    )
    assert turns[2]["value"] == (
        "<think>\nhm\n</think>\nI look.\n"
        '<tool_call>\n{"name": "look", "arguments": {"n": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "look", "arguments": {"n": 1}}\n</tool_call>'
    )
    responses = turns[3]["value"].replace("<tool_response>\n", "").split("\n</tool_response>")
    assert [json.loads(text) for text in responses if text] == [
        {"tool_call_id": "b", "name": "look", "content": {"found": True}},
        {"tool_call_id": "a", "name": "look", "content": "[not json"},
    ]
    assert turns[4]["value"] == "<think>\n</think>\ndone"


def test_odd_rows_are_survived() -> None:
    turns = build_trajectory(
        rows(
            {"role": "tool", "tool_call_id": "x", "content": "stray"},
            {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]},
            {"role": "assistant", "content": None, "tool_calls": [call("c", "not json")]},
        ),
        [],
    )

    assert [turn["value"] for turn in turns[2:]] == [
        "see\n[screenshot]",
        '<think>\n</think>\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>',
    ]
    assert '"name": "unknown"' in turns[1]["value"]
