"""The bytes of MCP over HTTP (modelcontextprotocol.io, revision 2026-07-28, "Transports"), pure: requests to send, and
the meaning of answers. Everything that a server sends is hostile, so every shape is looked at before it is used.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.tool_schemas import (
    NO_ARGUMENTS,
    LeftOutTool,
    UnfitDefinition,
    explain_unusable_name,
    fit_schema,
)
from hermes_worker.mcp.param_headers import MARK, find_header_paths, format_header_value
from hermes_worker.mcp.servers import STATELESS, TOOLS_MAX

_META = "io.modelcontextprotocol/"
_CLIENT = {"name": "hermes-worker", "version": "1"}
KEY_META: Final = "hermes-worker/idempotency-key"
"""The field in which a server finds the key of the call, the same at each attempt."""
TASKS: Final = "io.modelcontextprotocol/tasks"
"""The extension for calls that take long."""
INPUT_REQUIRED: Final = "input_required"
ELICITATION: Final = "elicitation/create"
"""The method by which a server asks a person."""
_QUESTIONS_MAX: Final = 20
_STATE_CHARS_MAX: Final = 64_000
TASK_STATES: Final = frozenset({"working", "input_required", "completed", "failed", "cancelled"})
_NAMED_BY: Final = {"tools/call": "name", "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}
_TASK_ID = re.compile(r"[!-~]{1,500}")
_NAME_CHARS_MAX: Final = 500
"""Characters of a tool's name at its server; agents know it by a shorter name (``mcp.servers.name_tools``)."""
_PAGES_MAX: Final = 50
DEFINITION_CHARS_MAX = 50_000
RESULT_CHARS_MAX = 1_000_000
_FILES_MAX: Final = 20
_MEDIA_TYPE = re.compile(r"[a-z]+/[A-Za-z0-9.+-]{1,80}")


class McpError(HermesError):
    """A server did not answer as it should; the message may be shown to a model."""

    status: int | None = None
    """The HTTP status, where there was one."""


class McpRefusal(McpError):
    """A server answered with an error of the protocol, so it did not do what was asked."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        """The code of JSON-RPC; ``None`` for a refusal of HTTP."""


class ScopesLacking(McpRefusal):
    """A server refused a good token, because it lacks scopes (RFC 6750 §3.1)."""

    def __init__(self, scopes: str | None) -> None:
        """``scopes`` are those that the server needs, ``None`` when it does not say."""
        super().__init__(f"our token may too little for the server{f': it needs {scopes!r}' if scopes else ''}")
        self.scopes = scopes


class UnknownOutcome(McpError):
    """The request was sent and no usable answer came: the server may have done what was asked."""


_NOT_DONE: Final[Mapping[str, Any]] = {"error": {"code": -32601, "message": "this client does not do that"}}
_NOTHING_DONE = frozenset({-32700, -32600, -32601, -32602, -32020, -32021, -32022})
"""Codes of errors that come before a tool runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRequest:
    """A request that a server makes of us."""

    number: int | str
    method: str
    params: object = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpAnswer:
    """The answer of a tool."""

    text: str
    is_error: bool
    files: tuple[AnsweredFile, ...] = ()
    """The parts that are no text. ``text`` holds their marks, in their places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredFile:
    """A picture, a sound or another file in an answer."""

    mark: str
    """The text in the place of the file; no text of a server can be the same."""
    kind: str
    media_type: str
    """The media type that the server gives, of harmless characters only."""
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """The state of a task, as its server tells it (modelcontextprotocol.io, extension Tasks, SEP-2663)."""

    task_id: str
    status: str
    """``working``, ``input_required``, ``completed``, ``failed`` or ``cancelled``."""
    message: str = ""
    wished_s: float = 0.0
    result: Mapping[str, Any] | None = None
    error: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """The server's questions, by its keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputWanted:
    """The questions of a server before it answers a call (SEP-2322). The call is sent once more, with the responses."""

    asked: Mapping[str, Any] = field(repr=False)
    """The questions, by the server's keys."""
    server_state: str | None = field(repr=False)
    """State to be sent back unchanged."""


def build_stateless_request(
    method: str, params: Mapping[str, Any], *, key: str | None = None, capabilities: Mapping[str, Any] | None = None
) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request that stands by itself. ``key`` names the call, the same at each attempt."""
    meta: dict[str, Any] = {
        f"{_META}protocolVersion": STATELESS,
        f"{_META}clientInfo": _CLIENT,
        f"{_META}clientCapabilities": dict(capabilities or {}),
    }
    if key is not None:
        meta[KEY_META] = key
    headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": method}
    if (named := _NAMED_BY.get(method)) is not None:
        headers["Mcp-Name"] = format_header_value(str(params[named]))
    return headers, build_request(method, {**params, "_meta": meta})


def build_request(method: str, params: Mapping[str, Any], number: int = 1) -> bytes:
    """A request of JSON-RPC. Where a request has a connection to itself, it is number 1."""
    return dump_canonical_json({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()


def build_notification(method: str, params: Mapping[str, Any] | None = None) -> bytes:
    """Build a message that a server does not answer."""
    return dump_canonical_json({"jsonrpc": "2.0", "method": method, "params": params or {}}).encode()


def build_reply(asked: ServerRequest, result: Mapping[str, Any] | None = None) -> bytes:
    """Build our answer to a request of a server: with ``result``, or the usual one. A ``ping`` is answered, anything
    else refused.
    """
    usual = {"result": {}} if asked.method == "ping" else _NOT_DONE
    said = usual if result is None else {"result": result}
    return dump_canonical_json({"jsonrpc": "2.0", "id": asked.number, **said}).encode()


def build_initialize_params(protocol: str, capabilities: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """The parameters of the first request of a revision with sessions."""
    return {"protocolVersion": protocol, "capabilities": dict(capabilities or {}), "clientInfo": _CLIENT}


def format_refused(methods: Collection[str]) -> str:
    """What a server asked of us and did not get, as the end of a sentence; empty when it asked nothing."""
    named = ", ".join(repr(one[:60]) for one in sorted(methods)[:5])
    return f"it asked us for {named}, which is refused here" if named else ""


def parse_messages(text: str) -> list[Mapping[str, Any]]:
    """The messages in one JSON text: in revision 2025-03-26 it may be a list of them. Raises ``McpError``."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise McpError("the server answered with broken JSON") from None
    return [one for one in (found[:1_000] if isinstance(found, list) else [found]) if isinstance(one, dict)]


def parse_server_request(found: Mapping[str, Any]) -> ServerRequest | None:
    """The request in a message; ``None`` when it is none."""
    number, method = found.get("id"), found.get("method")
    if not isinstance(number, int | str) or not isinstance(method, str):
        return None
    return ServerRequest(number=number, method=method, params=found.get("params"))


def is_answer_to(found: Mapping[str, Any], number: int | None) -> bool:
    """Whether a message is the answer to our request of this number."""
    return type(found.get("id")) is int and found["id"] == number and "method" not in found


def add_refusal(result: Mapping[str, Any], refused: str) -> Mapping[str, Any]:
    """The result of a call that also says what the server asked for and did not get: it may be why it did no more."""
    content = result.get("content")
    if not refused or not isinstance(content, list):
        return result
    return {**result, "content": [*content, {"type": "text", "text": f"[{refused}]"}]}


def parse_result(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result in the answer to a request. Raises ``McpRefusal``, ``UnknownOutcome``, ``McpError``."""
    error = found.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        said = f"the server answered with an error: {str(error.get('message'))[:500]} (code {str(code)[:20]})"
        if isinstance(code, int) and code in _NOTHING_DONE:
            raise McpRefusal(said, code)
        raise UnknownOutcome(said)
    result = found.get("result")
    if not isinstance(result, dict):
        raise McpError("the server ended its answer without a result")
    kind = result.get("resultType", "complete")
    if kind not in ("complete", "task", INPUT_REQUIRED):
        raise McpError(format_refusal(result))
    return result


def format_refusal(result: Mapping[str, Any]) -> str:
    """The sentence about a request of a server that is refused here."""
    kind = str(result.get("resultType"))[:40]
    return f"the server wants to go on with {kind!r}{_format_asked_methods(result)}, which is refused here"


def parse_input_wanted(result: Mapping[str, Any]) -> InputWanted | None:
    """The questions in the result of ``tools/call``; ``None`` when it has none. Raises ``UnknownOutcome`` for questions
    that no person can be asked here.
    """
    if result.get("resultType") != INPUT_REQUIRED:
        return None
    asked, state = result.get("inputRequests") or {}, result.get("requestState")
    is_usable = isinstance(asked, dict) and len(asked) <= _QUESTIONS_MAX and isinstance(state, str | None)
    if not is_usable or not (asked or state) or len(state or "") > _STATE_CHARS_MAX:
        raise UnknownOutcome(format_refusal(result))
    if any(not isinstance(one, dict) or one.get("method") != ELICITATION for one in asked.values()):
        raise UnknownOutcome(format_refusal(result))
    return InputWanted(asked=asked, server_state=state)


def _format_asked_methods(result: Mapping[str, Any]) -> str:
    """The methods that a server asks of us before it goes on: to sample a model, to ask a person."""
    requests = result.get("inputRequests")
    if not isinstance(requests, dict):
        return ""
    methods = {str(one.get("method"))[:60] for one in list(requests.values())[:20] if isinstance(one, dict)}
    return f" ({', '.join(sorted(methods))})" if methods else ""


class OfferedTools(list[Mapping[str, Any]]):
    """The usable tools that a server offers, by name."""

    def __init__(self, tools: Iterable[Mapping[str, Any]] = (), left_out: Sequence[LeftOutTool] = ()) -> None:
        super().__init__(tools)
        self.left_out = left_out


def list_offered_tools(ask: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> OfferedTools:
    """The tools on all pages of a server's list; ``ask`` returns the result of ``tools/list`` with parameters. Raises
    ``McpError``.
    """
    found: dict[str, Mapping[str, Any]] = {}
    left_out: list[LeftOutTool] = []
    params: dict[str, Any] = {}
    for _ in range(_PAGES_MAX):
        page, cursor = parse_definitions(ask(params))
        left_out += page.left_out
        for one in page:
            if one["name"] in found:
                left_out.append(LeftOutTool(one["name"], "is offered twice; the first one counts"))
            found.setdefault(one["name"], one)
        if len(found) > TOOLS_MAX:
            raise McpError(f"the server offers more than {TOOLS_MAX} tools")
        if cursor is None:
            return OfferedTools([found[name] for name in sorted(found)], left_out[:TOOLS_MAX])
        params = {"cursor": cursor}
    raise McpError(f"the server's list of tools has more than {_PAGES_MAX} pages")


def parse_definitions(result: Mapping[str, Any]) -> tuple[OfferedTools, str | None]:
    """The usable tools of one page of ``tools/list``, and the cursor of the next page."""
    tools = result.get("tools")
    if not isinstance(tools, list):
        raise McpError("the server listed no tools")
    judged = [(one, _explain_unusable(one)) for one in tools]
    cursor = result.get("nextCursor")
    usable = [_complete_definition(one) for one, why in judged if why is None]
    left_out = [LeftOutTool(_read_tool_name(one), why) for one, why in judged if why is not None]
    return OfferedTools(usable, left_out), cursor if isinstance(cursor, str) and cursor else None


def _read_tool_name(tool: object) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name[:_NAME_CHARS_MAX] if isinstance(name, str) else ""


def _explain_unusable(tool: object) -> str | None:
    """The reason why agents cannot have a tool, as the end of a sentence; ``None`` when they can. One whose arguments
    are also sent as headers is usable only if they can be.
    """
    if not isinstance(tool, dict):
        return "is no JSON object"
    schema = tool.get("inputSchema")
    if problem := explain_unusable_name(tool.get("name"), _NAME_CHARS_MAX):
        return problem
    try:
        text = dump_canonical_json(tool)
        fit_schema(schema)
    except UnfitDefinition as error:
        return str(error)
    except (TypeError, ValueError, RecursionError):
        return "cannot be written as JSON"
    if len(text) > DEFINITION_CHARS_MAX:
        return f"has a definition of {len(text):,} characters; at most {DEFINITION_CHARS_MAX:,} are taken"
    return None if find_header_paths(schema) is not None else f"marks arguments with {MARK!r} that cannot be headers"


def _complete_definition(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The definition with a schema, and without a description that is no text; schemas are mended when they are
    sent.
    """
    described = {key: value for key, value in tool.items() if key != "description" or isinstance(value, str)}
    return described if isinstance(tool.get("inputSchema"), dict) else {**described, "inputSchema": NO_ARGUMENTS}


def parse_answer(result: Mapping[str, Any]) -> McpAnswer:
    """The text in the result of ``tools/call``, and the files among it."""
    content = result.get("content")
    files: list[AnsweredFile] = []
    parts = [_render_part(one, files) for one in content[:1_000]] if isinstance(content, list) else []
    text = "\n".join(part for part in parts if part)
    if not text and "structuredContent" in result:
        try:
            text = dump_canonical_json(result["structuredContent"])
        except (TypeError, ValueError, RecursionError):
            raise McpError("the server's result cannot be read") from None
    if len(text) > RESULT_CHARS_MAX:
        text = f"{text[:RESULT_CHARS_MAX]}\n[the rest, {len(text) - RESULT_CHARS_MAX:,} characters, is left out]"
    return McpAnswer(text=text or "(an empty result)", is_error=result.get("isError") is True, files=tuple(files))


def parse_task(result: Mapping[str, Any]) -> TaskView | None:
    """Parse the task in the result of ``tools/call``; ``None`` when it is none. Raises ``McpError``."""
    return parse_task_view(result) if result.get("resultType") == "task" else None


def parse_task_view(result: Mapping[str, Any], task_id: str | None = None) -> TaskView:
    """Parse a task; with ``task_id`` the result of ``tasks/get`` for it, which is complete. Raises ``McpError``."""
    named, status = result.get("taskId"), result.get("status")
    if not isinstance(named, str) or not _TASK_ID.fullmatch(named) or (task_id is not None and named != task_id):
        raise McpError("the server answered with a task that has no usable id")
    if not isinstance(status, str) or status not in TASK_STATES:
        raise McpError(f"the server answered with a task in the state {str(status)[:40]!r}")
    found, error, wished = result.get("result"), result.get("error"), result.get("pollIntervalMs")
    asked = result.get("inputRequests")
    if status == "completed" and not isinstance(found, dict) and task_id is not None:
        raise McpError("the server answered with a task that is completed without a result")
    return TaskView(
        task_id=named,
        status=status,
        message=str(result.get("statusMessage") or "")[:500],
        wished_s=_to_seconds(wished),
        result=found if isinstance(found, dict) else None,
        error=str(error.get("message"))[:500] if isinstance(error, dict) else "",
        asked=asked if isinstance(asked, dict) else {},
    )


def _to_seconds(milliseconds: object) -> float:
    """Milliseconds as seconds; 0 for a value that makes no sense."""
    return milliseconds / 1000 if isinstance(milliseconds, int | float) and 0 < milliseconds < 3.6e6 else 0.0


def _render_part(one: object, files: list[AnsweredFile]) -> str:
    """The text of a part, or the mark of a file that is added to ``files``."""
    if not isinstance(one, dict):
        return ""
    if isinstance(one.get("text"), str):
        return str(one["text"])
    resource = one.get("resource")
    held = resource if isinstance(resource, dict) else one
    if isinstance(held.get("text"), str):
        return str(held["text"])
    kind, media_type = str(one.get("type"))[:30], str(held.get("mimeType") or "")[:100]
    data = held.get("blob") if held is resource else one.get("data")
    named = str(held.get("uri") or media_type)[:300]
    if not isinstance(data, str):
        return f"[{kind} {named}: not fetched]"
    try:
        content = base64.b64decode(data, validate=True)
    except ValueError:
        return f"[{kind} {named}: its data cannot be read]"
    if len(files) >= _FILES_MAX or not content:
        return f"[{kind} {named}, {len(content):,} bytes: left out]"
    plain = media_type if _MEDIA_TYPE.fullmatch(media_type) else "application/octet-stream"
    mark = f"[{secrets.token_hex(12)}]"
    files.append(AnsweredFile(mark=mark, kind=kind, media_type=plain, content=content))
    return mark
