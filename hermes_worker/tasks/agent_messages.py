"""Messages of agents: rows of the outbox, known by the key of the call that sends them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.channels.catalog import list_platforms
from hermes_worker.channels.targets import (
    ACCEPTED,
    NO_RULES,
    SpecialRef,
    TargetError,
    format_reference,
    parse_targets,
    require_open_to,
)
from hermes_worker.core.chat_accounts import ChatRules
from hermes_worker.core.sources import RequestKeys
from hermes_worker.store.jobs.jobs import Jobs
from hermes_worker.store.outbox.deliveries import Deliveries
from hermes_worker.store.rows import Hint

_SOURCE = "tool:send_message"


class AgentMessages:
    """``agent.tools.messaging.MessageSender`` of one database. Thread-safe."""

    def __init__(
        self,
        outbox: Deliveries,
        jobs: Jobs,
        send: Callable[[Sequence[Hint]], object],
        rules: ChatRules = NO_RULES,
    ) -> None:
        self._rules = rules
        self._outbox = outbox
        self._jobs = jobs
        self._send = send

    def send(self, target: str, message: str, context: ToolContext) -> Mapping[str, object]:
        """Enqueue a message to one target. Raises ``TargetError``, ``UnavailableError``."""
        found = parse_targets(target)
        if len(found) != 1 or isinstance(found[0], SpecialRef):
            raise TargetError("Name one target: a platform, '<platform>:<chat>[:<thread>]' or 'webhook:<url>'.")
        tenant = context.origin.tenant
        require_open_to(tenant, found, self._rules)
        wanted = format_reference(found[0])
        if wanted in self._jobs.list_answer_targets(context.session_id):
            return {"sent": False, "note": f"your answer goes to {wanted} by itself when you end; nothing was sent"}
        fingerprint = hashlib.sha256(f"{wanted}\0{message}".encode("utf-8", "replace")).hexdigest()
        request = RequestKeys(tenant=tenant, source=_SOURCE, key=context.idempotency_key, fingerprint=fingerprint)
        hints = self._outbox.enqueue_once(request, [wanted], message, run_id=context.run_id)
        self._send(hints or ())
        return {"sent": True, "target": wanted, "note": "it is on its way; what becomes of it is not known here"}

    def describe_targets(self, context: ToolContext) -> Mapping[str, object]:
        """Describe where an agent can send messages. Raises ``UnavailableError``."""
        own = list(self._jobs.list_answer_targets(context.session_id))
        return {"your_answer_goes_to": own, "platforms": sorted(list_platforms()), "accepted": ACCEPTED}
