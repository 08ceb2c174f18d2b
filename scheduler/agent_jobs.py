"""Jobs for agents: the actions of the ``cronjob`` tool, in Hermes Agent's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

from hermes_worker.channels.catalog import find_platform
from hermes_worker.channels.targets import ChatRef, format_reference, parse_targets
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.safety.approvals import UnattendedMode
from hermes_worker.store.access.audit import Actor, set_actor
from hermes_worker.store.jobs.job_rows import JobRow
from hermes_worker.store.jobs.jobs import ChainLimits, Jobs
from scheduler import jobs as work
from scheduler.definition import InvalidJob, JobRequest, JobSpec
from scheduler.policy import JobStatus, format_repeat

_PREVIEW_CHARS = 100
_NANO = 10**9
_PLAIN = ("schedule", "timezone", "prompt", "name", "repeat", "deliver")
_OUR_NAMES = {
    "skills": "skills",
    "script": "script",
    "no_agent": "no_agent",
    "context_from": "context_from",
    "enabled_toolsets": "toolsets",
    "workdir": "directory",
}


class AgentJobs:
    """The jobs of one database, for agents. Thread-safe."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def run_action(
        self, action: str, arguments: Mapping[str, Any], *, session_id: str, tenant: str = DEFAULT_TENANT
    ) -> Mapping[str, Any]:
        """Do an action of the tool. Raises ``InvalidJob``, ``ScheduleError``, ``JobNotFound``, ``AmbiguousJob``."""
        with set_actor(Actor(tenant=tenant, name=f"agent:{session_id}")):
            return AgentJobs(self._jobs.for_tenant(tenant))._act(action, arguments, session_id)

    def _act(self, action: str, arguments: Mapping[str, Any], session_id: str) -> Mapping[str, Any]:
        if action == "create":
            bounded = partial(_lower_limits, self._jobs.load_chain_limits(session_id))
            request = self._build_request(arguments, session_id)
            made = work.create(self._jobs, request, bounded=lambda spec: replace(bounded(spec), is_agents=True))
            warning = work.find_scheduler_notice(self._jobs)
            return _render_created(made) | ({"warning": warning} if warning else {})
        if action == "list":
            rows = self._jobs.list_jobs(include_disabled=bool(arguments.get("include_disabled", True)))
            return {"count": len(rows), "jobs": [_render_job(row) for row in rows]}
        reference = str(arguments.get("job_id") or "").strip()
        if not reference:
            raise InvalidJob(f"{action} needs a job_id.")
        return self._on_job(action, reference, arguments, session_id)

    def _build_request(self, arguments: Mapping[str, Any], session_id: str) -> JobRequest:
        """Build the request for a new job; its origin is the chat that this run answers to, if there is one."""
        request = _request(arguments, session_id)
        answers = (one for target in self._jobs.list_answer_targets(session_id) for one in parse_targets(target))
        chats = (
            format_reference(one) for one in answers if isinstance(one, ChatRef) and find_platform(one.target.platform)
        )
        chat = next(chats, None)
        return replace(request, more={**request.more, "origin": chat}) if chat is not None else request

    def _on_job(self, action: str, reference: str, arguments: Mapping[str, Any], session_id: str) -> Mapping[str, Any]:
        match action:
            case "update":
                return {"job": _render_job(self._update(reference, _request(arguments, session_id), session_id))}
            case "pause":
                return {"job": _render_job(work.pause(self._jobs, reference, arguments.get("reason")))}
            case "resume":
                _require_changeable(self._load_spec(reference))
                return {"job": _render_job(work.resume(self._jobs, reference))}
            case "run":
                row = work.run_now(self._jobs, reference)
                return {"job": _render_job(row), "message": f"Job '{row.name}' starts within a second."}
            case "remove":
                row = self._jobs.get(reference)
                _require_changeable(JobSpec.from_json(row.definition))
                self._jobs.remove(row.job_id)
                return {"removed_job": {"id": row.job_id, "name": row.name}, "message": f"Job '{row.name}' removed."}
            case _:
                raise InvalidJob(f"There is no action {action!r}.")

    def _load_spec(self, reference: str) -> JobSpec:
        return JobSpec.from_json(self._jobs.get(reference).definition)

    def _update(self, reference: str, request: JobRequest, session_id: str) -> JobRow:
        if request == JobRequest():
            raise InvalidJob("update changes nothing: name what is to be changed.")
        bounded = partial(_lower_limits, self._jobs.load_chain_limits(session_id))
        return work.edit(self._jobs, reference, request, may_change=_require_changeable, bounded=bounded)


def _require_changeable(spec: JobSpec) -> None:
    """Raise ``InvalidJob`` for a job whose dangerous commands a person allowed in advance: the permission is for what
    the job does, and not for what an agent makes of it. Also for a job with limits that a person set: without them it
    would be another job."""
    if spec.approvals == UnattendedMode.APPROVE:
        raise InvalidJob(
            "This job's dangerous commands are allowed in advance, for what it does now, so only a person may change "
            "it. Make another job, or ask for the change."
        )
    if work.has_limits(spec):
        raise InvalidJob(
            "A person gave this job limits, so only a person may change it, resume it or remove it. You may pause it; "
            "or ask for the change."
        )


def _lower_limits(limits: ChainLimits, spec: JobSpec) -> JobSpec:
    """Lower the limits of a job that an agent makes, for a run and for a day, to those of the chain that the agent
    works in."""
    cost = Decimal(limits.nano_usd) / _NANO if limits.nano_usd is not None else None
    return replace(
        spec,
        iterations_max=_choose_tightest(spec.iterations_max, limits.iterations),
        tokens_max=_choose_tightest(spec.tokens_max, limits.tokens),
        tokens_per_day=_choose_tightest(spec.tokens_per_day, limits.tokens),
        cost_usd_max=_choose_cheapest(spec.cost_usd_max, cost),
        cost_usd_per_day=_choose_cheapest(spec.cost_usd_per_day, cost),
    )


def _choose_tightest(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


def _choose_cheapest(one: str | None, other: Decimal | None) -> str | None:
    limits = [limit for limit in (Decimal(one) if one is not None else None, other) if limit is not None]
    return f"{min(limits):f}" if limits else None


def _request(arguments: Mapping[str, Any], session_id: str) -> JobRequest:
    more = {ours: arguments[name] for name, ours in _OUR_NAMES.items() if name in arguments}
    model = arguments.get("model")
    if isinstance(model, Mapping):
        more |= {name: model[name] for name in ("model", "provider", "base_url") if name in model}
    if "attach_to_session" in arguments:
        more["attach_to"] = session_id if arguments["attach_to_session"] else None
    return JobRequest(**{name: arguments[name] for name in _PLAIN if name in arguments}, more=more)


def _render_created(row: JobRow) -> dict[str, Any]:
    view = _render_job(row)
    told = {name: view[name] for name in ("job_id", "name", "skills", "schedule", "repeat", "deliver", "next_run_at")}
    if view["deliver"] == "local":
        told["notice"] = "The answers are kept as files only; name a target in 'deliver' to send them to somebody."
    return {**told, "job": view, "message": f"Job '{row.name}' created."}


def _render_job(row: JobRow) -> dict[str, Any]:
    document = work.build_job_document(row)
    spec = JobSpec.from_json(row.definition)
    preview = spec.prompt if len(spec.prompt) <= _PREVIEW_CHARS else f"{spec.prompt[:_PREVIEW_CHARS]}..."
    shown = ("name", "skill", "skills", "model", "provider", "base_url", "deliver")
    times = ("next_run_at", "last_run_at", "last_status", "state", "paused_at", "paused_reason")
    view = {
        "job_id": row.job_id,
        **{name: document[name] for name in (*shown, *times)},
        "prompt_preview": preview,
        "schedule": document["schedule_display"],
        "repeat": format_repeat(spec.times, row.completed),
        "enabled": row.state == JobStatus.SCHEDULED,
    }
    optional = ("script", "no_agent", "enabled_toolsets", "workdir", "context_from", "attach_to_session")
    return view | {name: document[name] for name in optional if document[name]}
