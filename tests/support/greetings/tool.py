from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from support.greetings import GREET
from support.greetings.rules import render_greeting


class GreetTool:
    spec: Final = GREET

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(text=render_greeting(str(arguments["name"])))
