"""Read one MCP request over HTTP, and write its answer. Pure (modelcontextprotocol.io, "Transports").

Every request stands by itself. The revision 2026-07-28 wants that. With an older one a client says ``initialize``
first; it gets no session, so its next request may come to another server. Nothing of a request is kept.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.datastructures import Headers

from hermes_worker.api.bodies import parse_json

STATELESS: Final = "2026-07-28"
OLDER: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The revisions that begin with ``initialize``."""
TASKS: Final = "io.modelcontextprotocol/tasks"
"""The extension for calls that take long (modelcontextprotocol.github.io/ext-tasks, SEP-2663)."""
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
UNKNOWN_METHOD: Final = -32601
INVALID_PARAMS: Final = -32602
WRONG_HEADER: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022
_META = "io.modelcontextprotocol/"
_NAMED_BY = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""Per method, the parameter that a request repeats in the header ``Mcp-Name``."""
_ROUTING = ("mcp-protocol-version", "mcp-method", "mcp-name")


class RpcRefusal(Exception):
    """A request is answered with an error of JSON-RPC."""

    def __init__(self, code: int, message: str, *, asked: RpcRequest | None = None, data: Any = None) -> None:
        """``asked`` is ``None`` for a body that could not be read as a request."""
        super().__init__(message)
        self.code = code
        self.message = message
        self._asked = asked
        self._data = data

    @property
    def document(self) -> dict[str, Any]:
        error = {"code": self.code, "message": self.message} | ({} if self._data is None else {"data": self._data})
        return {"jsonrpc": "2.0", "id": self._asked and self._asked.request_id, "error": error}

    @property
    def status(self) -> int:
        """The HTTP status of the answer. A client of an older revision takes a 404 for the end of its session, so it
        gets 200."""
        if self._asked is not None and not self._asked.is_stateless:
            return 200
        return 404 if self.code == UNKNOWN_METHOD else 400


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcRequest:
    """A client's request."""

    request_id: str | int | None
    """``None`` for a notification, which gets no answer."""
    method: str
    params: Mapping[str, Any]
    is_stateless: bool
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    """Capabilities of the client; none are known of a client of an older revision."""

    @property
    def takes_tasks(self) -> bool:
        extensions = self.capabilities.get("extensions")
        return isinstance(extensions, Mapping) and isinstance(extensions.get(TASKS), Mapping)

    @property
    def takes_questions(self) -> bool:
        """Whether its person can be asked to fill in a form."""
        asked = self.capabilities.get("elicitation")
        return isinstance(asked, Mapping) and (not asked or "form" in asked)

    @property
    def meta(self) -> Mapping[str, Any]:
        found = self.params.get("_meta")
        return found if isinstance(found, Mapping) else {}

    def refusal(self, code: int, message: str, data: Any = None) -> RpcRefusal:
        return RpcRefusal(code, message, asked=self, data=data)

    def build_response(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Build the response message with this result."""
        return {"jsonrpc": "2.0", "id": self.request_id, "result": result}


def parse_request(headers: Headers, body: bytes) -> RpcRequest:
    """Parse a request. Raises ``RpcRefusal``."""
    document = _parse_document(body)
    request_id = document.get("id")
    if "id" in document and (isinstance(request_id, bool) or not isinstance(request_id, str | int)):
        raise RpcRefusal(INVALID_REQUEST, "The id of a request must be a text or a whole number.")
    method, params = document.get("method"), document.get("params", {})
    if document.get("jsonrpc") != "2.0" or not isinstance(method, str):
        raise RpcRefusal(INVALID_REQUEST, "This is no request of JSON-RPC 2.0.")
    if not isinstance(params, dict):
        raise RpcRefusal(INVALID_PARAMS, "'params' must be an object.")
    version = headers.get("mcp-protocol-version")
    if version in OLDER or (version is None and _read_version(params) is None):
        return RpcRequest(request_id=request_id, method=method, params=params, is_stateless=False)
    found = RpcRequest(
        request_id=request_id,
        method=method,
        params=params,
        is_stateless=True,
        capabilities=_read_capabilities(params) or {},
    )
    _check_stateless(found, headers)
    return found


def _parse_document(body: bytes) -> dict[str, Any]:
    try:
        document = parse_json(body)
    except ValueError as error:
        raise RpcRefusal(PARSE_ERROR, f"The body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise RpcRefusal(INVALID_REQUEST, "The body must be one request of JSON-RPC, not a list.")
    return document


def _read_version(params: Mapping[str, Any]) -> Any:
    meta = params.get("_meta")
    return meta.get(f"{_META}protocolVersion") if isinstance(meta, dict) else None


def _read_capabilities(params: Mapping[str, Any]) -> Mapping[str, Any] | None:
    meta = params.get("_meta")
    found = meta.get(f"{_META}clientCapabilities") if isinstance(meta, dict) else None
    return found if isinstance(found, Mapping) else None


def _check_stateless(asked: RpcRequest, headers: Headers) -> None:
    """Check that the request says in its headers what it says in its body, as the revision requires. Raises
    ``RpcRefusal``."""
    for name in _ROUTING:
        if len(headers.getlist(name)) > 1:
            raise asked.refusal(WRONG_HEADER, f"The header {name} is there more than once.")
    said = headers.get("mcp-protocol-version")
    if asked.request_id is None:
        _check_version(asked, said)
        return
    version = _read_version(asked.params)
    if not isinstance(version, str) or _read_capabilities(asked.params) is None:
        # An unknown version is what such a client has to hear of first.
        if isinstance(said, str) and said != STATELESS:
            _check_version(asked, said)
        missing = f"params._meta must have {_META}protocolVersion and {_META}clientCapabilities."
        raise asked.refusal(INVALID_PARAMS, missing)
    if said != version:
        raise asked.refusal(WRONG_HEADER, "The header MCP-Protocol-Version and the body name different versions.")
    if headers.get("mcp-method") != asked.method:
        raise asked.refusal(WRONG_HEADER, "The header Mcp-Method and the body name different methods.")
    named = asked.params.get(_NAMED_BY.get(asked.method, ""))
    if named is not None and _decode_header(headers.get("mcp-name")) != named:
        raise asked.refusal(WRONG_HEADER, "The header Mcp-Name and the body name different things.")
    _check_version(asked, version)


def _check_version(asked: RpcRequest, version: str | None) -> None:
    if version != STATELESS:
        told = {"supported": [STATELESS, *reversed(OLDER)], "requested": str(version)[:40]}
        raise asked.refusal(UNSUPPORTED_VERSION, "This version of the protocol is not spoken here.", told)


def _decode_header(value: str | None) -> str | None:
    """Decode a header's value that may be written ``=?base64?...?=``; ``None`` where the encoding is broken."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def choose_version(wanted: object) -> str:
    """Choose the revision that ``initialize`` is answered with."""
    return wanted if isinstance(wanted, str) and wanted in OLDER else OLDER[-1]
