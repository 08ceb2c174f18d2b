"""Convert a transcript into a training sample: ShareGPT rows with the tags of Hermes models. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hermes_worker.core.json_values import parse_json
from hermes_worker.core.messages import Message

Turn = dict[str, str]
"""``from`` (``system``, ``human``, ``gpt`` or ``tool``) and ``value``."""

IMAGE = "[screenshot]"
_SYSTEM = (
    "You are an AI model that can call functions. Their signatures are given within <tools> </tools> XML tags. Call "
    "one or more of them where they help with the request; where none does, answer in plain language. Do not guess "
    "values for arguments. The results of the functions that you call come back within <tool_response> "
    "</tool_response> XML tags.\n<tools>\n{tools}\n</tools>\n"
    "For each call return a JSON object with the name of the function and its arguments, within <tool_call> "
    "</tool_call> XML tags:\n"
    '<tool_call>\n{{"name": <function-name>, "arguments": <args-dict>}}\n</tool_call>'
)


def build_trajectory(rows: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Convert a conversation; ``tools`` are the definitions it had, in chat-completions form."""
    turns: list[Turn] = [{"from": "system", "value": _SYSTEM.format(tools=_format_tools(tools))}]
    names: dict[str, str] = {}
    for body in (json.loads(row.body) for row in rows):
        if "_compacted" in body:
            continue  # the rows that it summarizes are in the trajectory
        match body["role"]:
            case "assistant":
                names |= {call["id"]: call["function"]["name"] for call in body.get("tool_calls") or ()}
                turns.append({"from": "gpt", "value": _format_reply(body)})
            case "tool" if turns[-1]["from"] == "tool":
                turns[-1]["value"] += f"\n{_format_response(body, names)}"
            case "tool":
                turns.append({"from": "tool", "value": _format_response(body, names)})
            case "user":
                turns.append({"from": "human", "value": _read_text(body.get("content"))})
    return turns


def _format_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    functions = (tool.get("function", {}) for tool in tools)
    return _dump(
        [
            {
                "name": function.get("name"),
                "description": function.get("description", ""),
                "parameters": function.get("parameters", {}),
                "required": None,
            }
            for function in functions
        ]
    )


def _format_reply(body: Mapping[str, Any]) -> str:
    return "\n".join(_list_parts(body))


def _list_parts(body: Mapping[str, Any]) -> Iterator[str]:
    """The parts of a reply. Every turn has a thinking part, even an empty one, so that all samples have one form."""
    reasoning = str(body.get("reasoning") or "").strip()
    yield f"<think>\n{reasoning}\n</think>" if reasoning else "<think>\n</think>"
    if text := _read_text(body.get("content")).strip():
        yield text
    for call in body.get("tool_calls") or ():
        function = call["function"]
        yield _tag("tool_call", {"name": function["name"], "arguments": parse_json(function["arguments"], {})})


def _format_response(body: Mapping[str, Any], names: Mapping[str, str]) -> str:
    call_id = str(body.get("tool_call_id", ""))
    text = _read_text(body.get("content"))
    content = parse_json(text, text) if text.lstrip()[:1] in ("{", "[") else text
    return _tag("tool_response", {"tool_call_id": call_id, "name": names.get(call_id, "unknown"), "content": content})


def _tag(tag: str, document: object) -> str:
    return f"<{tag}>\n{_dump(document)}\n</{tag}>"


def _read_text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", IMAGE)) if isinstance(part, dict) else str(part) for part in content)
    return content if isinstance(content, str) else ""


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
