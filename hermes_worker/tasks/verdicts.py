"""What a model says about a dangerous command, before a person is asked (``approvals.mode: smart``)."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.approvals import VERDICT_RULES, Ask, Verdict, verdict_of, verdict_question
from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.messages import ModelRequest, canonical_json, user_body
from hermes_worker.observe import count, log
from hermes_worker.tasks.auxiliary import Auxiliary, AuxTask
from hermes_worker.tasks.metering import Bill

_OUTPUT_TOKENS_MAX = 16
"""One word; a model that thinks first says nothing in it, and then a person decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Asks a model once: one that is meant for this, or that of the run."""

    auxiliary: Auxiliary
    model: str
    """Of the run."""
    call_key: str
    bill: Bill
    abort: AbortSignal

    def verdict(self, command: str, asked: Ask) -> Verdict:
        """Escalate, that is leave it to a person, whenever anything is unclear."""
        request = ModelRequest(
            model=self.model,
            messages=(
                canonical_json({"role": "system", "content": VERDICT_RULES}),
                user_body(verdict_question(command, asked.description)),
            ),
            output_tokens_max=_OUTPUT_TOKENS_MAX,
            reasoning_effort="none",
        )
        try:
            said = self.auxiliary.ask(AuxTask.APPROVAL, request, self.abort, ticket=self.call_key, bill=self.bill)
        except ModelCallError as error:
            log.info("command.not_judged", reason=error.kind.value)
            return Verdict.ESCALATE
        found = verdict_of(said.text)
        count(f"command.judged.{found.value}")
        return found
