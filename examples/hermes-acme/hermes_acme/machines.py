"""The machines of Acme's workshop, as tools: which there are is only known to the workshop's server.

Imported by workers for tools and by nobody else.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_worker.extending import Replay, ToolContext, ToolGone, ToolResult, ToolSpec


class Workshop:
    """A ``ToolSource``."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._url = str(values.get("workshop_url") or "")

    def list_tools(self) -> Sequence[ToolSpec]:
        """One tool for each machine."""
        return [_tool(machine) for machine in json.loads(self._get("/machines"))] if self._url else []

    def call(self, name: str, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Start a machine. The server knows a repetition by the key of the call."""
        try:
            told = self._get(f"/machines/{name}/start?pieces={arguments['pieces']}&key={context.idempotency_key}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise ToolGone("the workshop has no such machine now") from error
            raise
        return ToolResult(text=told.decode())

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self._url}{path}", timeout=10) as response:
            data: bytes = response.read()
            return data


def _tool(machine: Mapping[str, Any]) -> ToolSpec:
    return ToolSpec(
        name=str(machine["name"]),
        description=str(machine["does"]),
        parameters={"type": "object", "properties": {"pieces": {"type": "integer"}}, "required": ["pieces"]},
        toolset="",
        replay=Replay.KEYED,
        is_untrusted=True,
        timeout_s=30,
    )
