"""What the verbs of ``cron`` need, as typed calls, and how a database and a server answer them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from hermes_worker.cli.options import client_settings
from hermes_worker.cli.preflight import Needs, require_all
from hermes_worker.cli.records import records_of
from hermes_worker.cli.server import read, server_client
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings import Settings
from hermes_worker.store.jobs.job_rows import JobRow
from hermes_worker.store.jobs.jobs import AmbiguousJob, FiringView, JobNotFound, Jobs
from hermes_worker.store.short_ids import AmbiguousId
from hermes_worker.wiring import shelf_of
from scheduler import jobs as work
from scheduler.jobtext import default_name
from scheduler.schedule import slots_from

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient


class JobBackend(Protocol):
    """Jobs of one tenant, each named by its id, the beginning of that, or its name. Each call raises ``HermesError``s
    that say what is wrong."""

    def require(self, needs: Needs) -> None:
        """Raises ``ConfigurationError`` for what a job needs and is not there."""

    def all(self) -> Sequence[JobRow]: ...
    def get(self, job: str) -> tuple[JobRow, str | None]:
        """A job, and why its last delivery failed."""

    def slots(self, job: str, limit: int) -> Sequence[float]:
        """Those to come."""

    def create(self, request: work.JobRequest) -> JobRow: ...
    def edit(self, job: str, request: work.JobRequest) -> JobRow: ...
    def pause(self, job: str, reason: str | None) -> JobRow: ...
    def resume(self, job: str) -> JobRow: ...
    def run_now(self, job: str) -> JobRow: ...
    def remove(self, job: str) -> str:
        """What was removed, as it was named, in full."""

    def history(self, job: str, *, limit: int, before: float | None) -> Sequence[FiringView]: ...


def open_jobs(home: Path | None) -> JobBackend:
    """The server that was chosen, or the database of a home. Raises ``ConfigurationError``, ``UnavailableError``."""
    client = server_client()
    return LocalJobs(client_settings(home)) if client is None else RemoteJobs(client)


class LocalJobs:
    """Asks a database."""

    def __init__(self, settings: Settings) -> None:
        records = records_of(settings)
        self._settings = settings
        self._tenant = records.tenant
        self._jobs = Jobs(records.database, records.tenant)
        self._skills = shelf_of(settings, records.database)

    def require(self, needs: Needs) -> None:
        missing = self._skills.named(self._tenant, needs.skills).missing
        require_all(self._settings, needs, self._tenant, missing_skills=missing)

    def all(self) -> Sequence[JobRow]:
        return self._jobs.all()

    def get(self, job: str) -> tuple[JobRow, str | None]:
        row = self._jobs.get(self._jobs.full_id(job))
        return row, self._jobs.delivery_error(row.pk)

    def slots(self, job: str, limit: int) -> Sequence[float]:
        row, now = self._jobs.get(self._jobs.full_id(job)), self._jobs.now()
        schedule = work.JobSpec.from_json(row.definition).schedule_at(now)
        return [slot.timestamp() for slot in islice(slots_from(schedule, datetime.fromtimestamp(now, UTC)), limit)]

    def create(self, request: work.JobRequest) -> JobRow:
        return work.create(self._jobs, request, source="cli")

    def edit(self, job: str, request: work.JobRequest) -> JobRow:
        return work.edit(self._jobs, self._jobs.full_id(job), request, source="cli")

    def pause(self, job: str, reason: str | None) -> JobRow:
        return work.pause(self._jobs, self._jobs.full_id(job), reason)

    def resume(self, job: str) -> JobRow:
        return work.resume(self._jobs, self._jobs.full_id(job))

    def run_now(self, job: str) -> JobRow:
        return work.run_now(self._jobs, self._jobs.full_id(job))

    def remove(self, job: str) -> str:
        named = self._jobs.full_id(job)
        self._jobs.remove(named)
        return named

    def history(self, job: str, *, limit: int, before: float | None) -> Sequence[FiringView]:
        return self._jobs.history(self._jobs.get(self._jobs.full_id(job)).pk, limit=limit, before=before)


_NAMES = {"toolsets": "enabled_toolsets", "attach_to": "attach_to_session", "wraps": "wrap_response"}
"""Where the API calls a field otherwise."""


class RemoteJobs:
    """Asks a server. What its machine lacks for a job it says when the job comes due."""

    def __init__(self, client: HermesClient) -> None:
        self._client = client

    def require(self, needs: Needs) -> None:
        pass  # scripts, skills and credentials are on the server's machines

    def all(self) -> Sequence[JobRow]:
        return [_row_of(told) for told in self._client.job_sheets()]

    def get(self, job: str) -> tuple[JobRow, str | None]:
        told = self._client.job_sheet(self._found(job).job_id)
        return _row_of(told), told["last_delivery_error"]

    def slots(self, job: str, limit: int) -> Sequence[float]:
        return cast("Sequence[float]", self._client.job_sheet(self._found(job).job_id, slots=limit)["slots"])

    def create(self, request: work.JobRequest) -> JobRow:
        fields = _fields_of(request)
        named = default_name(request.prompt or "", tuple(request.more.get("skills", ())), request.more.get("script"))
        name, schedule = fields.pop("name", None) or named, fields.pop("schedule", "")
        return self._row(self._client.create_job(name, schedule, **fields)["id"])

    def edit(self, job: str, request: work.JobRequest) -> JobRow:
        return self._row(self._client.change_job(self._found(job).job_id, **_fields_of(request))["id"])

    def pause(self, job: str, reason: str | None) -> JobRow:
        return self._row(self._client.pause_job(self._found(job).job_id, reason=reason)["id"])

    def resume(self, job: str) -> JobRow:
        return self._row(self._client.resume_job(self._found(job).job_id)["id"])

    def run_now(self, job: str) -> JobRow:
        return self._row(self._client.run_job(self._found(job).job_id)["id"])

    def remove(self, job: str) -> str:
        found = self._found(job)
        self._client.remove_job(found.job_id)
        return job if job.strip().lower() == found.name.lower() else found.job_id

    def history(self, job: str, *, limit: int, before: float | None) -> Sequence[FiringView]:
        firings = self._client.job_history(self._found(job).job_id, limit=limit, before=before)
        return [_firing_of(told) for told in firings]

    def _row(self, job_id: str) -> JobRow:
        return _row_of(self._client.job_sheet(job_id))

    def _found(self, written: str) -> JobRow:
        return meant(self.all(), written)


def meant(rows: Sequence[JobRow], written: str) -> JobRow:
    """The one of ``rows`` that an id, the beginning of one, or a name means, as a database finds it. Raises
    ``JobNotFound``, ``AmbiguousJob``, ``AmbiguousId``."""
    named = [row for row in rows if row.job_id == written]
    named = named or [row for row in rows if row.name.lower() == written.strip().lower()]
    if len(named) > 1:
        raise AmbiguousJob(f"several jobs are called {written!r}; name one of {', '.join(row.job_id for row in named)}")
    digits = written.strip().lower()
    begun = [row for row in rows if digits and row.job_id.startswith(digits)]
    if not named and len(begun) > 1:
        ids = ", ".join(sorted(row.job_id for row in begun)[:5])
        raise AmbiguousId(f"{written!r} is the beginning of several ids: {ids}; write more of it")
    if not (found := named or begun):
        raise JobNotFound(f"there is no job {written!r}")
    return found[0]


def _fields_of(request: work.JobRequest) -> dict[str, Any]:
    """As the API takes them. Raises ``ConfigurationError`` for what only a home has a use for."""
    if request.more.get("directory"):
        raise ConfigurationError("--workspace names a directory of this machine, and the job works on the server's")
    plain = ("prompt", "schedule", "name", "deliver", "timezone", "starts_at", "ends_at", "jitter_s")
    fields = {name: getattr(request, name) for name in plain if getattr(request, name) is not None}
    if request.repeat is not None:
        fields["repeat"] = request.repeat or None
    more = {_NAMES.get(name, name): value for name, value in request.more.items()}
    return {**fields, **{name: list(value) if isinstance(value, tuple) else value for name, value in more.items()}}


def _row_of(told: Mapping[str, Any]) -> JobRow:
    """What a server says of a job, as a database does."""
    known = {name: told[name] for name in JobRow.__slots__ if name in told}
    return cast("JobRow", read(JobRow, {**known, "pk": 0}))


def _firing_of(told: Mapping[str, Any]) -> FiringView:
    document = {name: told[name] for name in FiringView.__slots__}
    for name in ("settled_at", "ended_at"):
        document[name] = datetime.fromisoformat(document[name]).timestamp() if document[name] else None
    return cast("FiringView", read(FiringView, document))
