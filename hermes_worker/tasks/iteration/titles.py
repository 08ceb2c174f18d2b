"""A title for a conversation after its first turn, by a model that is named for it. Best effort: the run has ended."""

from __future__ import annotations

import json

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.auxiliary import AuxTask
from hermes_worker.core.errors import ModelCallError, UnavailableError
from hermes_worker.core.messages import ModelRequest, Role, build_user_body
from hermes_worker.core.titles import build_title_question, parse_title, read_row_text
from hermes_worker.observe import count, log
from hermes_worker.store.runs.runs import IterationClaim
from hermes_worker.tasks.calls.auxiliary import Auxiliary
from hermes_worker.tasks.context import WorkerContext
from hermes_worker.tasks.iteration.model_request import Answered
from hermes_worker.tasks.iteration.spending import Bill

_OUTPUT_TOKENS_MAX = 500
"""Enough for a model that thinks first."""


def give_title(parts: WorkerContext, claim: IterationClaim, answered: Answered, answer: str) -> None:
    """Give the session of a run that has just ended a title, if it was its first and a model is named for titles.

    What it costs is the run's, written with the title. A worker that dies here leaves the title as it was.
    """
    if (
        AuxTask.TITLE not in parts.find_models(claim.loaded.session_pk).auxiliary
        or claim.loaded.depth
        or parts.leases.is_draining
    ):
        return
    inputs = [row for row in answered.rows if row.role is Role.USER]
    if len(inputs) != 1:
        return
    request = ModelRequest(
        model=claim.loaded.model,
        messages=(build_user_body(build_title_question(read_row_text(json.loads(inputs[0].body)), answer)),),
        output_tokens_max=_OUTPUT_TOKENS_MAX,
        reasoning_effort="none",
    )
    bill, title = Bill(), None
    try:
        try:
            said = Auxiliary.for_run(parts, claim.loaded, claim.run_id).ask(
                AuxTask.TITLE, request, AbortSignal(), ticket=f"title:{claim.run_id}", bill=bill
            )
            title = parse_title(said.text)
        finally:
            if bill.cost is not None:
                parts.rows.runs.set_title(claim, title, usage=bill.usage, cost=bill.cost)
    except (ModelCallError, UnavailableError) as error:
        log.info("session.untitled", reason=type(error).__name__)
        return
    count("session.entitled")
