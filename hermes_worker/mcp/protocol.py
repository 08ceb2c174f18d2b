"""The bytes of MCP over HTTP (modelcontextprotocol.io, revision 2026-07-28, "Transports"), pure: a request to send, and
what an answer says. Whatever a server sends is hostile, so every shape is looked at before it is used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import canonical_json
from hermes_worker.mcp.servers import STATELESS

_META = "io.modelcontextprotocol/"
_CLIENT = {"name": "hermes-worker", "version": "1"}
KEY_META: Final = "hermes-worker/idempotency-key"
"""Where a server finds what names the call, the same at each attempt."""
_NAME = re.compile(r"[!-~]{1,128}")
DEFINITION_CHARS_MAX = 50_000
RESULT_CHARS_MAX = 1_000_000


class McpError(HermesError):
    """A server did not answer as it should; the message may be shown to a model."""


class McpRefusal(McpError):
    """A server answered with an error of the protocol, so it did not do what was asked."""


class UnknownOutcome(McpError):
    """The request was sent and no usable answer came: the server may have done what was asked."""


_NOTHING_DONE = frozenset({-32700, -32600, -32601, -32602, -32020, -32021, -32022})
"""Codes of errors that come before a tool runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpAnswer:
    """What a tool answered."""

    text: str
    is_error: bool


def stateless(method: str, params: Mapping[str, Any], *, key: str | None = None) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request that stands by itself. ``key`` names the call, the same at each attempt."""
    meta: dict[str, Any] = {
        f"{_META}protocolVersion": STATELESS,
        f"{_META}clientInfo": _CLIENT,
        f"{_META}clientCapabilities": {},
    }
    if key is not None:
        meta[KEY_META] = key
    headers = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": method}
    if method == "tools/call":
        headers["Mcp-Name"] = str(params["name"])
    return headers, message(method, {**params, "_meta": meta})


def message(method: str, params: Mapping[str, Any], *, is_notification: bool = False) -> bytes:
    """A message of JSON-RPC. One request has one connection, so all of them are number 1."""
    number = {} if is_notification else {"id": 1}
    return canonical_json({"jsonrpc": "2.0", **number, "method": method, "params": params}).encode()


def initialize_params(protocol: str) -> Mapping[str, Any]:
    """Of the first request of a revision with sessions."""
    return {"protocolVersion": protocol, "capabilities": {}, "clientInfo": _CLIENT}


def result_of(media_type: str, body: bytes) -> Mapping[str, Any]:
    """The result in a response, JSON or a stream of events. Raises ``McpRefusal``, ``UnknownOutcome``, ``McpError``."""
    kind = media_type.partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        texts = list(_events(body))
    elif kind == "application/json":
        texts = [body.decode("utf-8", "replace")]
    else:
        raise McpError(f"the server answered with {kind[:60] or 'nothing'!r} and not with JSON")
    asked = ""
    for text in texts:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise McpError("the server answered with broken JSON") from None
        if isinstance(found, dict) and found.get("id") == 1 and "method" not in found:
            return _result(found)
        if isinstance(found, dict) and "id" in found and isinstance(found.get("method"), str):
            asked = f"; it asked us for {found['method'][:60]!r}, which is refused here"
    raise McpError(f"the server ended its answer without a result{asked}")


def _events(body: bytes) -> Iterator[str]:
    text = body.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    for event in text.split("\n\n")[:10_000]:
        data = [line[5:].removeprefix(" ") for line in event.split("\n") if line.startswith("data:")]
        if any(data):
            yield "\n".join(data)


def _result(found: Mapping[str, Any]) -> Mapping[str, Any]:
    error = found.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        refused = McpRefusal if isinstance(code, int) and code in _NOTHING_DONE else UnknownOutcome
        raise refused(f"the server answered with an error: {str(error.get('message'))[:500]} (code {str(code)[:20]})")
    result = found.get("result")
    if not isinstance(result, dict):
        raise McpError("the server ended its answer without a result")
    kind = result.get("resultType", "complete")
    if kind != "complete":
        raise McpError(f"the server wants to go on with {str(kind)[:40]!r}{_asked_in(result)}, which is refused here")
    return result


def _asked_in(result: Mapping[str, Any]) -> str:
    """What a server asks of us before it goes on: to sample a model, to ask a person."""
    requests = result.get("inputRequests")
    if not isinstance(requests, dict):
        return ""
    methods = {str(one.get("method"))[:60] for one in list(requests.values())[:20] if isinstance(one, dict)}
    return f" ({', '.join(sorted(methods))})" if methods else ""


def definitions_of(result: Mapping[str, Any]) -> tuple[Sequence[Mapping[str, Any]], str | None]:
    """Of one page of ``tools/list``: the tools that can be used, and where the next page begins."""
    tools = result.get("tools")
    if not isinstance(tools, list):
        raise McpError("the server listed no tools")
    cursor = result.get("nextCursor")
    return [one for one in tools if _is_usable(one)], cursor if isinstance(cursor, str) and cursor else None


def _is_usable(tool: object) -> bool:
    """A tool whose arguments belong into headers (``x-mcp-header``) is none of ours."""
    if not isinstance(tool, dict):
        return False
    name, description, schema = tool.get("name"), tool.get("description", ""), tool.get("inputSchema")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(description, str | None):
        return False
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return False
    try:
        text = canonical_json(tool)
    except (TypeError, ValueError, RecursionError):
        return False
    return len(text) <= DEFINITION_CHARS_MAX and '"x-mcp-header"' not in text


def answer_of(result: Mapping[str, Any]) -> McpAnswer:
    """The text in the result of ``tools/call``; what is no text is named."""
    content = result.get("content")
    parts = [_part(one) for one in content[:1_000]] if isinstance(content, list) else []
    text = "\n".join(part for part in parts if part)
    if not text and "structuredContent" in result:
        try:
            text = canonical_json(result["structuredContent"])
        except (TypeError, ValueError, RecursionError):
            raise McpError("the server's result cannot be read") from None
    if len(text) > RESULT_CHARS_MAX:
        text = f"{text[:RESULT_CHARS_MAX]}\n[the rest, {len(text) - RESULT_CHARS_MAX:,} characters, is left out]"
    return McpAnswer(text=text or "(an empty result)", is_error=result.get("isError") is True)


def _part(one: object) -> str:
    if not isinstance(one, dict):
        return ""
    if isinstance(one.get("text"), str):
        return str(one["text"])
    resource = one.get("resource")
    if isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return str(resource["text"])
    named = one.get("uri") or one.get("mimeType") or ""
    return f"[{str(one.get('type'))[:30]} {str(named)[:300]}: not shown]"
