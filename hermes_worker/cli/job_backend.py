"""The API's operations on jobs, as typed calls for the verbs of ``cron``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hermes_worker.cli.api_connection import connect_api
from hermes_worker.cli.options import get_chosen_tenant
from hermes_worker.cli.short_ids import complete_id, require_id
from hermes_worker.core.errors import ConfigurationError
from scheduler.definition import JobRequest
from scheduler.jobtext import choose_default_name

if TYPE_CHECKING:
    from hermes_worker.cli.api_connection import ApiConnection
    from hermes_worker.cli.preflight import Needs
    from hermes_worker.schemas.jobs import FiringObject, FullJobSheet, JobSheet


def open_jobs(home: Path | None) -> JobRows:
    """Open the jobs of a home or server. Raises ``ConfigurationError``, ``UnavailableError``."""
    return JobRows(connect_api(home))


_NAMES = {
    "toolsets": "enabled_toolsets",
    "attach_to": "attach_to_session",
    "wraps": "wrap_response",
    "directory": "workspace",
}
"""Fields that have another name in the API."""


class JobRows:
    """Jobs of one tenant, each named by its id, the beginning of the id, or its name."""

    def __init__(self, asked: ApiConnection) -> None:
        self._client = asked.client
        self._settings = asked.settings
        self.notice = ""
        """The server's notice about the job that was created last."""

    def require(self, needs: Needs) -> None:
        """Raise ``ConfigurationError`` for what a job needs and is missing. Over a server, missing scripts, skills and
        credentials are reported when the job comes due: they are on the server's machine."""
        if self._settings is None:
            return
        from hermes_worker.cli.preflight import require_all  # it knows every platform

        known = {each.name for each in self._client.skills()} if needs.skills else set()
        missing = tuple(name for name in needs.skills if name not in known)
        require_all(self._settings, needs, get_chosen_tenant(), missing_skills=missing)

    def list_all(self) -> Sequence[JobSheet]:
        return self._client.job_sheets()

    def get(self, job: str, *, slots: int = 0) -> FullJobSheet:
        return self._client.job_sheet(self._find_id(job), slots=slots)

    def create(self, request: JobRequest) -> JobSheet:
        fields = self._resolve_fields(request)
        named = choose_default_name(
            request.prompt or "", tuple(request.more.get("skills", ())), request.more.get("script")
        )
        name, schedule = fields.pop("name", None) or named, fields.pop("schedule", "")
        made = self._client.create_job(name, schedule, **fields)
        self.notice = made.notice or ""
        return self._client.job_sheet(made.id)

    def edit(self, job: str, request: JobRequest) -> JobSheet:
        return self._client.job_sheet(self._client.change_job(self._find_id(job), **self._resolve_fields(request)).id)

    def pause(self, job: str, reason: str | None) -> JobSheet:
        return self._client.job_sheet(self._client.pause_job(self._find_id(job), reason=reason).id)

    def resume(self, job: str) -> JobSheet:
        return self._client.job_sheet(self._client.resume_job(self._find_id(job)).id)

    def run_now(self, job: str) -> JobSheet:
        return self._client.job_sheet(self._client.run_job(self._find_id(job)).id)

    def remove(self, job: str) -> str:
        found = self._client.job_sheet(self._find_id(job))
        self._client.remove_job(found.job_id)
        return job if job.strip().lower() == found.name.lower() else found.job_id

    def list_history(self, job: str, *, limit: int, before: float | None) -> Sequence[FiringObject]:
        return self._client.job_history(self._find_id(job), limit=limit, before=before)

    def _resolve_fields(self, request: JobRequest) -> dict[str, Any]:
        """Build the fields of a request. Raises ``ConfigurationError``."""
        fields = _build_fields(request, is_here=self._settings is not None)
        if fields.get("attach_to_session"):
            fields["attach_to_session"] = complete_id(self._client, fields["attach_to_session"], "session")
        if fields.get("context_from"):
            fields["context_from"] = [complete_id(self._client, job, "job") for job in fields["context_from"]]
        return fields

    def _find_id(self, written: str) -> str:
        return require_id(self._client, written, "job")


def _build_fields(request: JobRequest, *, is_here: bool) -> dict[str, Any]:
    """Build the fields as the API takes them. Raises ``ConfigurationError`` for fields that only make sense on this
    machine, unless the API ``is_here``."""
    if request.more.get("directory") and not is_here:
        raise ConfigurationError("--workspace names a directory of this machine, and the job works on the server's")
    plain = ("prompt", "schedule", "name", "deliver", "timezone", "starts_at", "ends_at", "jitter_s")
    fields = {name: getattr(request, name) for name in plain if getattr(request, name) is not None}
    if request.repeat is not None:
        fields["repeat"] = request.repeat or None
    more = {_NAMES.get(name, name): value for name, value in request.more.items()}
    return {**fields, **{name: list(value) if isinstance(value, tuple) else value for name, value in more.items()}}
