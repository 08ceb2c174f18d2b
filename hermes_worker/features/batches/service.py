"""Accept many submissions at once, and retry a run that ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from hermes_worker import __version__
from hermes_worker.core.errors import HermesError, UnavailableError
from hermes_worker.core.principals import Principal
from hermes_worker.core.spec import Multitask
from hermes_worker.observe import count, find_fact, log
from hermes_worker.services.prompt_blocks import share_reads
from hermes_worker.services.submission import Submission, accept, prepare_run
from hermes_worker.settings.configuration_id import name_configuration
from hermes_worker.settings.overriding import filter_for_callers
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.admission import fill_places
from hermes_worker.store.runs.new_runs import insert_runs
from hermes_worker.store.runs.rerun import load_submission
from hermes_worker.store.runs.runs import Created, NewRun
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.tracing.recording import record_submission
from hermes_worker.wiring import Client

BATCH_MAX = 1_000
_CHUNK = 100
"""Most runs that one transaction writes: few statements for each run, and its locks are short."""

Outcome = Created | HermesError
"""The result for one submission of a batch."""


def accept_all(client: Client, submissions: Sequence[Submission]) -> list[Outcome]:
    """Commit runs without announcing them. Returns the result of each, in their order. Submissions that open a
    conversation of their own share transactions; one that may be refused because of its conversation or its key has its
    own.

    Raises ``UnavailableError``: it is then not known which of them were accepted.
    """
    outcomes: list[Outcome | None] = [None] * len(submissions)
    plain: list[tuple[int, NewRun]] = []
    for index, submission in enumerate(submissions):
        if submission.session_id is None and submission.idempotency_key is None:
            made = _catch_error(partial(prepare_run, client, submission))
            if isinstance(made, NewRun):
                plain.append((index, made))
            else:
                outcomes[index] = made
        else:
            outcomes[index] = _catch_error(partial(accept, client, submission))
    for start in range(0, len(plain), _CHUNK):
        chunk = plain[start : start + _CHUNK]
        with client.database.write() as connection, share_reads():
            written = insert_runs(connection, [new for _, new in chunk])
        if any(created.is_held for _, created in written):  # runs that got a place by this are announced with them
            last_pk, last = written[-1]
            written[-1] = (last_pk, replace(last, hints=[*last.hints, *fill_places(client.database)]))
        for (index, _), (_, created) in zip(chunk, written, strict=True):
            outcomes[index] = created
            count("run.submitted")
            record_submission(created.run_id, submissions[index].source, find_fact("request_id"))
    log.info("run.submitted", runs=len(plain), source=submissions[0].source if submissions else "")
    return [outcome for outcome in outcomes if outcome is not None]


_Done = TypeVar("_Done", NewRun, Created)


def _catch_error(act: Callable[[], _Done]) -> _Done | HermesError:
    try:
        return act()
    except UnavailableError:
        raise
    except HermesError as error:
        return error


def announce_all(client: Client, outcomes: Sequence[Outcome]) -> None:
    """Announce accepted runs to the workers, best effort, in few messages."""
    faults.pass_point(FaultPoint.SUBMIT_AFTER_COMMIT)
    hints: list[Hint] = [hint for each in outcomes if isinstance(each, Created) for hint in each.hints]
    client.publisher.send(hints)


def retry(client: Client, run_id: str, principal: Principal) -> Created:
    """Accept a new run with the submission of one that has ended, in its conversation: what that run did stands in the
    transcript, and nothing of it is done again by us. Not announced. Raises ``RunNotFound``, ``NotRepeatable``,
    ``SessionBusy``."""
    asked = load_submission(client.database, run_id)
    # What it was accepted with, as far as a caller may still override it.
    chosen = client.live_settings.choose_settings(asked.tenant, run=filter_for_callers(asked.spec.overrides))
    created = client.runs.create(
        NewRun(
            spec=replace(
                asked.spec,
                program=__version__,
                configuration=name_configuration(chosen.settings),
                layers=chosen.layers,
                overrides=chosen.overrides,
                overridden_by=chosen.origins,
            ),
            tenant=asked.tenant,
            principal=principal.name,
            session_id=asked.session_id,
            system_prompt="",
            tools="[]",
            workspace="{}",
            deliver=asked.deliver,
            multitask=Multitask.QUEUE,
            retry_of=run_id,
        )
    )
    count("run.submitted")
    record_submission(created.run_id, asked.spec.source, find_fact("request_id"))
    log.info("run.submitted", run_id=created.run_id, session_id=created.session_id, source=asked.spec.source)
    return created
