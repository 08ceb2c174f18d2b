"""Build the message to a target about the end of a run. The words are the same in every attempt: they come from rows
that do not change any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from hermes_worker.channels.narration import is_silence_narration
from hermes_worker.core.errors import FailureKind
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_views import RunView
from hermes_worker.core.spec import RunSpec
from hermes_worker.store.outbox.deliveries import DeliveryClaim
from hermes_worker.store.runs.views import Views
from scheduler.jobtext import OutputDocument, make_output_path, render_output
from scheduler.silence import JobLabel, JobOutcome, is_empty, render_delivery, summarize_failure

JOB_ID = "job_id"
JOB_NAME = "job_name"
JOB_SCHEDULE = "job_schedule"
JOB_WRAP = "job_wrap"
"""Keys of a run's metadata that name the job it belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A message to send."""

    text: str | None
    """For a chat or a mailbox; ``None`` when there is nothing to say."""
    document: str
    """For a file."""
    title: str
    file_name: str
    """The name of the file, below the directory of local deliveries."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """For a program that receives it."""
    says_nothing: bool = False
    """Whether the answer is a stage direction such as ``*(silent)*``, which is not delivered."""


def build_report(claim: DeliveryClaim, views: Views) -> Report:
    """Build the message that ``claim`` is to send."""
    if claim.body is not None or claim.run_id is None:
        # A message on the way (a question, a message of the agent) is no report of the run's end.
        text = claim.body or ""
        return Report(text=text, document=text, title="Hermes", file_name=f"notices/{claim.delivery_id}.md")
    view = views.load_run(claim.run_id)
    spec = RunSpec.from_json(claim.spec or "{}")
    facts = {"id": view.run_id, "status": view.status.value, "session_id": view.session.choose_reference("api")}
    # A caller may put anything into metadata; only those of a scheduled run are ours.
    if spec.source_kind != "cron" or JOB_ID not in spec.metadata:
        text = _render_run(view)
        title = f"Run {view.run_id} {view.status.value}"
        return Report(
            text=text,
            document=text,
            title=title,
            file_name=f"runs/{view.run_id}.md",
            facts=facts,
            says_nothing=is_silence_narration(text),
        )
    return _build_job_report(view, spec, facts)


def _render_run(view: RunView) -> str:
    if view.status is RunStatus.COMPLETED:
        return view.output or "(no response)"
    reason = summarize_failure(view.error or view.exit_reason or "", _parse_failure_kind(view.failure_kind))
    return f"⚠️ Run {view.run_id} {view.status.value}: {reason}"


def _build_job_report(view: RunView, spec: RunSpec, facts: Mapping[str, str]) -> Report:
    label = JobLabel(id=spec.metadata[JOB_ID], name=spec.metadata.get(JOB_NAME, "job"))
    outcome = JobOutcome(
        response=view.output or "", failure=find_failure(view), failure_kind=_parse_failure_kind(view.failure_kind)
    )
    ended_at = datetime.fromtimestamp(view.finished_at or view.updated_at, UTC)
    document = OutputDocument(
        job_id=label.id,
        job_name=label.name,
        schedule=spec.metadata.get(JOB_SCHEDULE, ""),
        ran_at=ended_at,
        prompt=spec.input if isinstance(spec.input, str) else "",
        response=outcome.response,
        failure=outcome.failure,
    )
    return Report(
        text=render_delivery(label, outcome, is_wrapped=spec.metadata.get(JOB_WRAP) != "no"),
        document=render_output(document),
        title=label.name,
        file_name=str(make_output_path(label.id, ended_at)),
        facts={**facts, JOB_ID: label.id},
        says_nothing=outcome.failure is None and is_silence_narration(outcome.response),
    )


def find_failure(view: RunView) -> str | None:
    """Say why a job's run counts as failed; ``None`` for a success. An empty answer is a failure."""
    if view.status is not RunStatus.COMPLETED:
        return view.error or view.exit_reason or view.status.value
    return "the answer was empty" if is_empty(view.output or "") else None


def _parse_failure_kind(text: str | None) -> FailureKind | None:
    try:
        return FailureKind(text) if text else None
    except ValueError:
        return None
