"""What a worker does with the calls of a fork: answer them from the rows, or refuse them."""

from __future__ import annotations

from hermes_worker.agent.tools.base import ToolResult
from hermes_worker.agent.tools.results import build_error_result
from hermes_worker.core.delegation import DELEGATE_TOOL
from hermes_worker.core.forks import ForkMatch, ForkTerms, ForkTools
from hermes_worker.core.questions import Refusal, RefusedBy
from hermes_worker.core.replay import Replay
from hermes_worker.core.rewind import RecordedCall, are_equal
from hermes_worker.core.run import CallStatus
from hermes_worker.features.forks.rows import list_calls, load_terms, record_original
from hermes_worker.features.forks.rules import explain_refusal, find_recorded
from hermes_worker.store.engine.database import RowStore
from hermes_worker.store.runs.calls import CallClaim


class ForkedCallRows(RowStore):
    """Answers the calls of forks by the rows of their originals. Thread-safe: it keeps nothing."""

    def find_answer(self, claim: CallClaim) -> ToolResult | None:
        """Find the result that stands in for a call of a session that was forked; ``None`` when the call may run.
        Raises ``UnavailableError``."""
        with self.database.read() as connection:
            terms = load_terms(connection, claim.session_pk)
        if terms is None:
            return None
        if terms.tools is ForkTools.LIVE:
            if claim.replay is not Replay.PURE or claim.request.name == DELEGATE_TOOL:
                with self.database.write() as connection:
                    record_original(connection, claim.session_pk)
            return None
        found = self._find_recorded(claim, terms) if terms.tools.is_replay else None
        if found is not None:
            unknown = found.status is CallStatus.UNKNOWN
            failed = found.status is not CallStatus.SUCCEEDED
            return ToolResult(text=found.result, is_error=failed, is_unknown=unknown)
        refusal = explain_refusal(terms.tools, claim.request.name, claim.replay)
        if refusal is None:
            return None
        answer = build_error_result(refusal)
        return ToolResult(text=answer.text, is_error=True, refusal=Refusal(by=RefusedBy.RULES, reason=refusal))

    def _find_recorded(self, claim: CallClaim, terms: ForkTerms) -> RecordedCall | None:
        call = _describe(claim, step=terms.step)
        is_strict = terms.match is ForkMatch.STRICT
        after, until = (call.iteration - 1, call.iteration) if is_strict else (terms.step, None)
        tool = claim.request.name
        recorded = list_calls(self.database, terms.run_id, after=after, until=until, tool=tool)
        return find_recorded(terms.match, call, recorded, 0 if is_strict else self._count_equal(claim))

    def _count_equal(self, claim: CallClaim) -> int:
        """Count the equal calls of this run that stand before this one."""
        tool = claim.request.name
        made = list_calls(self.database, claim.run_id, until=claim.iteration, tool=tool)
        place = (claim.iteration, claim.position)
        return sum(
            (call.iteration, call.position) < place and are_equal(call.arguments, claim.request.arguments)
            for call in made
        )


def _describe(claim: CallClaim, *, step: int = 0) -> RecordedCall:
    return RecordedCall(
        run_id=claim.run_id,
        iteration=step + claim.iteration,
        position=claim.position,
        tool=claim.request.name,
        replay=claim.replay,
        status=CallStatus.RUNNING,
        arguments=claim.request.arguments,
        place=claim.result_seq,
    )
