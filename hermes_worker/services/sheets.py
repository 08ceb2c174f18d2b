"""The sheet of a run: everything about it at one moment, as ``runs show`` prints it, locally or over the API."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hermes_worker.channels.targets import redact_target
from hermes_worker.core.run import CallStatus
from hermes_worker.core.run_views import RunNews, RunSheet, RunView, WaitView
from hermes_worker.safety.redaction import redact
from hermes_worker.store.engine.database import Database
from hermes_worker.store.runs.families import Families
from hermes_worker.store.runs.listing import Listing
from hermes_worker.store.runs.status_reasons import Standings
from hermes_worker.store.runs.trees import Trees
from hermes_worker.store.runs.views import Views
from hermes_worker.store.runs.waits import Waits

CALLS_MAX = 10_000


def load_sheet(database: Database, run_id: str) -> RunSheet:
    """Load the sheet of a run. Commands in it are redacted. Raises ``RunNotFound``, ``UnavailableError``."""
    views, families, listing = Views(database), Families(database), Listing(database)
    view = redact_deliveries(replace(views.load_run(run_id), undelivered=listing.list_undelivered(run_id)))
    calls = views.list_calls(run_id, limit=CALLS_MAX)
    return RunSheet(
        view=view,
        calls_by_status=dict(Counter(call.status.value for call in calls)),
        doubtful=[call for call in calls if call.status is CallStatus.UNKNOWN],
        notes=listing.load_notes(run_id),
        answers=Waits(database).list_answers(run_id),
        waits=[_redact_wait(wait) for wait in Waits(database).list_open(run_id=run_id)],
        children=families.list_children(run_id),
        refusals=families.list_refusals(run_id),
        budget=Trees(database).load_budget(run_id),
        standing=None if view.status.is_terminal else Standings(database).find_standing(run_id),
    )


def load_news(database: Database, run_id: str) -> RunNews:
    """Load the news of a run. Raises ``RunNotFound``, ``UnavailableError``."""
    families = Families(database)
    return RunNews(
        standing=None
        if Views(database).load_run(run_id).status.is_terminal
        else Standings(database).find_standing(run_id),
        children=families.list_children(run_id),
        refusals=families.list_refusals(run_id),
    )


def _redact_wait(wait: WaitView) -> WaitView:
    """Write a wait as its event shows it, without the definitions of all tools."""
    command = wait.request.get("command")
    request = {**wait.request, "command": redact(command)} if isinstance(command, str) else wait.request
    return replace(wait, request=request, tools="")


def redact_run(view: RunView) -> RunView:
    """Redact a run for the holder of a key: without the address of the model, and with secrets hidden."""
    redacted = redact_deliveries(view)
    return replace(redacted, endpoint=None, error=redact(view.error) if view.error else view.error)


def redact_deliveries(view: RunView) -> RunView:
    """Hide secrets in the targets of a run, and in what their platforms answered."""
    undelivered = [
        replace(each, target=redact_target(each.target), error=redact(each.error) if each.error else None)
        for each in view.undelivered
    ]
    return replace(view, undelivered=undelivered)
