"""``send_message``: sends a message of an agent to a target outside while it works (docs/deliveries.md, "Messages of
agents").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.builtin import SEND_MESSAGE
from hermes_worker.agent.tools.results import build_error_result, build_json_result
from hermes_worker.core.errors import HermesError

MESSAGE_CHARS_MAX: Final = 100_000


class MessageSender(Protocol):
    """Keeps the outbox. ``tasks.agent_messages``."""

    def send(self, target: str, message: str, context: ToolContext) -> Mapping[str, object]:
        """Enqueue the message for the target; the same call enqueues it once, however often it is made. Returns what
        the model is told. Raises ``HermesError``, whose message may be shown to it.
        """

    def describe_targets(self, context: ToolContext) -> Mapping[str, object]:
        """Describe the form of targets, and the target of the run's answer. Raises ``HermesError``."""


class SendMessageTool:
    """Passes the model's message on to the ``MessageSender``."""

    def __init__(self, messages: MessageSender) -> None:
        self._messages = messages

    spec: Final = SEND_MESSAGE

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        try:
            if arguments.get("action", "send") == "list":
                return build_json_result(self._messages.describe_targets(context))
            target = (arguments.get("target") or "").strip()
            message = context.redactor.redact_text((arguments.get("message") or "").strip())
            if not target or not 0 < len(message) <= MESSAGE_CHARS_MAX:
                return build_error_result(f"give a target and a message of 1 to {MESSAGE_CHARS_MAX} characters")
            return build_json_result({"success": True, **self._messages.send(target, message, context)})
        except HermesError as error:
            return build_error_result(str(error))
