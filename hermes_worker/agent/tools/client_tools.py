"""A tool of the client (docs/openai.md, "Tools of the client"). Its call waits; the result comes with a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.core.client_tools import IS_CLIENTS
from hermes_worker.core.questions import Question
from hermes_worker.core.run import WaitKind
from hermes_worker.extension import ToolSpec


@dataclass(frozen=True, slots=True)
class ClientToolRunner:
    """A tool that a client brought, as a session knows it."""

    spec: ToolSpec

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        words = f"The client that asked is to bring the result of its tool {self.spec.name!r}."
        asked = Question(
            kind=WaitKind.INPUT, request={"question": words, IS_CLIENTS: True}, expires_s=self.spec.timeout_s
        )
        return ToolResult(text="", question=asked)
