"""Tick: settle due slots, follow up what workers collected, count runs that ended.

Theory of operation. A job's row names the slot that it waits for. A tick reads which jobs are due, and settles them in
batches of ``AT_ONCE``, one transaction each:

    lock those of the jobs that are due and that no other scheduler has locked
    decide for each (``decide_tick``, by ``scheduler.policy``): rows of the ledger, a run or none, the next slot
    write the ledger (unique per job and slot), the runs, the jobs' next slots, notices
    commit; send hints

Any number of schedulers tick at once, without a leader: a locked job is skipped, and a job that another one has moved
on is not due any more. What takes time or may fail (context sources, skills, tool sources, settings) is gathered before
the transaction, per tenant.

Most slots make their run at once. A job with a script or skills takes two steps, because only workers can reach those:

| who | does | the firing |
|---|---|---|
| scheduler | settles slot 09:00; the run needs a script | ``fired``, to be collected, no run |
| worker | claims it, runs the script, stores the texts once (``hermes_worker.tasks.jobs.collect``) | collected |
| scheduler | ``decide_follow_up``: builds the prompt from the texts, or finds nothing to do | run 7, or ended with a
remark | | sweeper, worker | run 7 ends | run ended, not counted |
| scheduler | ``decide_after_run``: counts success or failure for the job, frees a waiting run | counted |

Each step is taken by compare-and-set, so a tick that dies leaves it to the next one. Lists are worked off in random
order: schedulers seldom meet, and a job on which our code breaks does not hold up the others for ever. A stored job
that cannot be parsed is stopped visibly (``_stop_broken``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol, TypeVar

from hermes_worker.agent.prompt.sources import ContextFacts, PromptBlock
from hermes_worker.agent.tools.catalog import has_tool_sources
from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.offered_skills import NO_SKILLS, OfferedSkills, SkillError, SkillLibrary
from hermes_worker.core.principals import Principal
from hermes_worker.live_settings import ChosenSettings, LiveSettings
from hermes_worker.observe import log
from hermes_worker.safety.threats import scan_assembled_prompt
from hermes_worker.safety.untrusted import Provenance, wrap_untrusted
from hermes_worker.services.context import ask_for_blocks, has_slow_sources
from hermes_worker.services.submission import (
    Submission,
    build_run,
    find_provider_address,
    list_sourced_tools,
    resolve_model,
)
from hermes_worker.settings import Settings
from hermes_worker.store.jobs.executions import ExecutionState
from hermes_worker.store.jobs.job_rows import (
    STOPPED_FOR_A_LATER_SLOT,
    Collected,
    DayUse,
    DueJob,
    EndedRun,
    Followup,
    JobAfter,
    JobProgress,
    JobRow,
    JobTick,
    SettledJobs,
    Slot,
)
from hermes_worker.store.jobs.jobs import DUE_MAX, ENDED_MAX, Jobs
from hermes_worker.store.runs.runs import NewRun
from hermes_worker.store.tool_sources import ToolSources
from scheduler import policy
from scheduler.definition import InvalidJob, JobSpec, check_prompt
from scheduler.grammar import load_zone
from scheduler.jobs import build_place, build_state, to_instant
from scheduler.jobtext import (
    CollectedTexts,
    EarlierResponse,
    JobPromptParts,
    assemble_prompt,
    build_watchdog_report,
    format_ending,
    is_agent_needed,
    make_session_id,
)
from scheduler.reports import JOB_ID, JOB_NAME, JOB_SCHEDULE, JOB_WRAP
from scheduler.silence import JobLabel, is_empty, is_silent, wrap_content

T = TypeVar("T")

_NEAR_MIDNIGHT_LEFT = 1
"""The least that is left of a budget: a slot with nothing left was blocked before."""


AT_ONCE = 50
"""Most jobs of one transaction: few enough that its locks are short, many enough that a thousand jobs are soon
started."""
FOLLOWED_MAX = 50
"""Most collected firings of one tick; each has a transaction of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickResult:
    """The slots that one look of the scheduler settled."""

    settled: SettledJobs
    has_more: bool
    """Whether something was left for the next tick, which should come at once."""


def tick(
    jobs: Jobs,
    settings: Settings,
    *,
    at_once: int = AT_ONCE,
    tool_sources: ToolSources | None = None,
    skills: SkillLibrary | None = None,
    live_settings: LiveSettings | None = None,
) -> TickResult:
    """Count runs that ended, and settle the slots that are due. Any number of schedulers may do it at once. A job that
    cannot be parsed holds up no other. ``tool_sources`` holds the tools that workers learned of; ``None`` for none.
    ``skills`` are those of all tenants; ``live_settings`` gives the settings of new runs in place of ``settings``.
    Raises ``UnavailableError``."""
    gathering = _Gathering(jobs, tool_sources, skills, live_settings, settings.mcp.has_rows)
    settled = SettledJobs()
    ended = _shuffle(jobs.list_ended())
    for batch in _split_into_batches([pk for pk, has_run in ended if has_run], at_once):
        settled += SettledJobs(hints=jobs.count_ended_runs(batch, decide_after_run))
    collected = [pk for pk, has_run in ended if not has_run]
    for pk in collected[:FOLLOWED_MAX]:
        settled += _follow_up_firing(gathering, pk, settings)
    due = _shuffle(jobs.list_due())
    for batch in _split_into_batches(due, at_once):
        settled += _settle_batch(gathering, batch, settings)
    for pk in jobs.list_notes_due():
        jobs.write_note(pk, build_note)
    is_left = len(due) == DUE_MAX or len(ended) == ENDED_MAX or len(collected) > FOLLOWED_MAX
    return TickResult(settled=settled, has_more=is_left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What was gathered for a tenant before the transaction that begins its jobs' runs."""

    context: Sequence[PromptBlock] = ()
    """The blocks of context sources."""
    sourced: Sequence[str] = ()
    """The tools of tool sources."""
    skills: OfferedSkills = NO_SKILLS
    """All skills of the tenant."""
    stored_skills: Callable[[str], OfferedSkills] = lambda digest: NO_SKILLS
    """Finds the skills of a set that was stored before, by its hash."""
    chosen: ChosenSettings | None = None
    """The settings that a run of the tenant is accepted with; ``None`` for those of the process."""

    def choose_settings(self, settings: Settings) -> Settings:
        """The settings for the tenant's runs: the gathered ones, or else ``settings`` of the process."""
        return settings if self.chosen is None else self.chosen.settings


NOTHING_GATHERED = Gathered()


@dataclass(frozen=True, slots=True)
class _Gathering:
    """Gathers what a transaction needs, before it begins."""

    jobs: Jobs
    tool_sources: ToolSources | None
    shelf: SkillLibrary | None
    live_settings: LiveSettings | None
    has_rows: bool
    """Whether tenants may have MCP servers of their own."""

    @property
    def is_needed(self) -> bool:
        if self.live_settings is not None:
            return True
        has_sources = self.tool_sources is not None and (self.has_rows or has_tool_sources())
        return self.shelf is not None or has_slow_sources() or has_sources

    def gather(self, tenants: Sequence[str]) -> Mapping[str, Gathered]:
        """Gather for each of the tenants."""
        return {tenant: self._gather_for_tenant(tenant) for tenant in tenants}

    def _gather_for_tenant(self, tenant: str) -> Gathered:
        return Gathered(
            context=ask_for_blocks(ContextFacts(tenant=tenant, source="cron")),
            sourced=(
                ()
                if self.tool_sources is None
                else list_sourced_tools(self.tool_sources, tenant, has_rows=self.has_rows)
            ),
            chosen=self.live_settings.choose_settings(tenant) if self.live_settings is not None else None,
            **({} if self.shelf is None else _gather_skills(self.shelf, tenant)),
        )


def _gather_skills(shelf: SkillLibrary, tenant: str) -> dict[str, Any]:
    now = shelf.find_offered(tenant)

    def find_stored(digest: str) -> OfferedSkills:
        try:
            return shelf.find_stored(tenant, digest)
        except SkillError:
            return now  # more than a day has passed; the texts are in the prompt all the same

    return {"skills": now, "stored_skills": find_stored}


def _settle_batch(gathering: _Gathering, pks: Sequence[int], settings: Settings) -> SettledJobs:
    found = gathering.gather(gathering.jobs.list_tenants(pks)) if gathering.is_needed else {}
    return gathering.jobs.settle(
        pks, lambda job: decide_tick(job, settings, found.get(job.row.tenant, NOTHING_GATHERED))
    )


def _follow_up_firing(gathering: _Gathering, firing_pk: int, settings: Settings) -> SettledJobs:
    found = gathering.gather(gathering.jobs.list_tenants_of_firing(firing_pk)) if gathering.is_needed else {}
    hints = gathering.jobs.follow_up(
        firing_pk, lambda job: decide_follow_up(job, settings, found.get(job.row.tenant, NOTHING_GATHERED))
    )
    return SettledJobs(hints=hints)


def _shuffle(items: Sequence[T]) -> list[T]:
    """Shuffle: every scheduler sees the same list, and in orders of their own they seldom meet, nor does one fail on
    the same thing for ever."""
    return random.sample(items, len(items))


def _split_into_batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


class _JobFacts(Protocol):
    """What a run is built from: ``DueJob`` or ``Collected``."""

    @property
    def row(self) -> JobRow: ...

    @property
    def now(self) -> float: ...

    def load_use_since(self, at: float) -> DayUse: ...

    def load_latest_answer(self, job_id: str) -> str | None: ...


def decide_tick(due: DueJob, settings: Settings, gathered: Gathered = NOTHING_GATHERED) -> JobTick | None:
    """Decide what to write for a due job; ``None`` when nothing is due."""
    try:
        spec = JobSpec.from_json(due.row.definition)
        state = build_state(due.row, spec, due.now)
    except _UNREADABLE as error:
        return _stop_broken(due, error)
    now = to_instant(due.now)
    decision = policy.decide(state, _collect_facts(due, spec, now), now)
    if decision is None:
        return None
    run: NewRun | None = None
    pinned = spec
    start = decision.start
    settings = gathered.choose_settings(settings)
    if start is not None:
        try:
            pinned = pin_model(spec, settings)
            if not spec.is_collected:
                made = _build_run(due, pinned, start.slot, settings, CollectedTexts(), gathered)
                run = replace(made, is_held=start.waits)
        except (HermesError, ConfigurationError) as error:
            start = None
            decision = policy.fail_start(state, decision, str(error))
    return JobTick(
        slots=[Slot(at=s.slot.timestamp(), outcome=s.outcome.value, reason=s.reason) for s in decision.settled],
        place=build_place(decision.job),
        run=run,
        collects=start is not None and run is None,
        waits=start is not None and start.waits,
        cancels=start is not None and start.cancels_running,
        definition=pinned.to_json() if pinned is not spec else None,
        notice=_notice(due.row, decision.notice),
        targets=spec.targets,
    )


def pin_model(spec: JobSpec, settings: Settings) -> JobSpec:
    """Add the model and the provider of its first run to ``spec``. Raises ``InvalidJob`` when they are not what the job
    was pinned to, or what it ran with before: a change of the configuration must not spend money unseen. The scheduler
    adds them, because the process that stores a job may be configured otherwise."""
    if spec.no_agent:
        return spec
    model, provider = resolve_model(settings.model, spec.model)
    if spec.base_url is not None and spec.base_url != find_provider_address(settings.model):
        raise InvalidJob(
            f"{spec.base_url!r} is not the configured address of the provider, so no model was asked; "
            "edit the job: name the address, or give an empty one to accept the change"
        )
    for what, wanted, now in (
        ("provider", spec.provider or spec.provider_snapshot, provider),
        ("model", spec.model or spec.model_snapshot, model),
    ):
        if wanted is not None and wanted != now:
            raise InvalidJob(
                f"the {what} is {now!r} now and not {wanted!r}, so no model was asked; "
                f"edit the job: name the {what}, or give an empty one to accept the change"
            )
    if (spec.model or spec.model_snapshot) and (spec.provider or spec.provider_snapshot):
        return spec
    return replace(
        spec,
        model_snapshot=None if spec.model else model,
        provider_snapshot=None if spec.provider else provider,
    )


def _collect_facts(due: DueJob, spec: JobSpec, now: datetime) -> policy.SlotFacts:
    used = _compute_used_today(due, spec, now)
    if used is None:
        return policy.SlotFacts(running=due.running, waiting=due.waiting)
    midnight = policy.find_local_day(spec.timezone, now)[0].timestamp()
    return policy.SlotFacts(
        running=due.running,
        waiting=due.waiting,
        used_today=used,
        was_blocked_today=due.was_blocked_since(midnight),
    )


def _compute_used_today(asked: _JobFacts, spec: JobSpec, now: datetime) -> policy.DailyUse | None:
    """Sum up what the job used today; ``None`` for a job without a daily budget, which needs no sum."""
    if spec.rules.daily_budget == policy.DailyBudget():
        return None
    used = asked.load_use_since(policy.find_local_day(spec.timezone, now)[0].timestamp())
    return policy.DailyUse(
        iterations=used.iterations, tokens=used.tokens, cost_usd=used.cost_usd, is_cost_known=used.is_cost_known
    )


def _build_run(
    asked: _JobFacts,
    spec: JobSpec,
    slot: datetime,
    settings: Settings,
    collected: CollectedTexts,
    gathered: Gathered,
) -> NewRun:
    """Build the run of a slot. Raises ``InvalidJob`` or ``InvalidSubmission`` for a job that must not or cannot run."""
    text = _assemble_input(asked, spec, collected)
    now = to_instant(asked.now)
    limits = _compute_limits(asked, spec, now)
    submission = Submission(
        input=text,
        about=f"{asked.row.name}, {slot.astimezone(load_zone(spec.timezone)):%Y-%m-%d %H:%M %Z}",
        # The microseconds keep two runs of one second apart: by hand, or after a catch-up.
        session_id=f"{make_session_id(asked.row.job_id, now)}_{now.microsecond:06d}",
        model=spec.model,
        toolsets=spec.toolsets,
        iterations_max=_choose_lower(spec.iterations_max, limits.iterations),
        tokens_max=_choose_lower(spec.tokens_max, limits.tokens),
        wall_s_max=spec.wall_s_max,
        idle_s_max=settings.cron.idle_s_max if spec.idle_s_max is None else spec.idle_s_max,
        approvals=spec.approvals,
        approval_s=spec.approval_s,
        network=spec.network,
        cost_usd_max=_choose_lower_usd(spec.cost_usd_max, limits.cost_usd),
        directory=spec.directory,
        principal=Principal(tenant=asked.row.tenant, name=f"cron:{asked.row.job_id}"),
        source="cron",
        metadata={
            JOB_ID: asked.row.job_id,
            JOB_NAME: asked.row.name,
            JOB_SCHEDULE: str(spec.schedule.get("display", "")),
            JOB_WRAP: "yes" if spec.wraps and settings.cron.wraps else "no",
        },
        # The document of a run is kept in any case, also when the answer is silence.
        deliver=tuple(dict.fromkeys(("local", *spec.targets))),
    )
    digest = collected.skills_hash
    skills = gathered.skills if digest is None else gathered.stored_skills(digest)
    return build_run(
        settings,
        submission,
        chosen=gathered.chosen,
        context=gathered.context,
        sourced=gathered.sourced,
        skills=skills,
    )


def _assemble_input(asked: _JobFacts, spec: JobSpec, collected: CollectedTexts) -> str:
    """Assemble the input of a job's run. Raises ``InvalidJob`` for a prompt that must not run."""
    check_prompt(spec.prompt)
    earlier = [(job_id, asked.load_latest_answer(job_id)) for job_id in spec.context_from]
    parts = JobPromptParts(
        prompt=spec.prompt,
        skills=collected.skills,
        missing_skills=collected.missing_skills,
        context=tuple(EarlierResponse(job_id=job_id, text=text) for job_id, text in earlier if text),
        script=collected.script,
    )
    scanned = scan_assembled_prompt(assemble_prompt(parts))
    if scanned.removed:
        log.warning("job.prompt_cleaned", job_id=asked.row.job_id, removed=list(scanned.removed))
    if scanned.finding is not None:
        raise InvalidJob(scanned.finding.message)
    return scanned.text


def _compute_limits(asked: _JobFacts, spec: JobSpec, now: datetime) -> policy.DailyBudget:
    """Compute what today's budget leaves to a run that starts now."""
    used = _compute_used_today(asked, spec, now)
    return policy.DailyBudget() if used is None else policy.compute_remaining_budget(spec.rules.daily_budget, used)


def _choose_lower(of_run: int | None, of_day: int | None) -> int | None:
    limits = [limit for limit in (of_run, of_day) if limit is not None]
    return max(_NEAR_MIDNIGHT_LEFT, min(limits)) if limits else None


def _choose_lower_usd(of_run: str | None, of_day: Decimal | None) -> float | None:
    """Choose the lower limit. A run without a limit of its own gets none from its day: where prices are not known it
    could not start."""
    if of_run is None:
        return None
    return float(Decimal(of_run) if of_day is None else min(Decimal(of_run), of_day))


_UNREADABLE = (HermesError, ValueError, TypeError, KeyError)
"""What parsing a stored job raises when it makes no sense: it was changed in the database, or a newer version wrote
it."""


def _stop_broken(due: DueJob, error: Exception) -> JobTick:
    """Stop a stored job that cannot be parsed, visibly."""
    reason = _describe_unreadable(due.row, error)
    at = due.row.next_slot if due.row.next_slot is not None else due.now
    slot = Slot(at=at, outcome=policy.SlotOutcome.FAILED_TO_START.value, reason=reason)
    return JobTick(
        slots=[slot], place=_build_broken_place(due.row), notice=_notice(due.row, reason), targets=("local",)
    )


def _build_after_broken(row: JobRow, error: Exception) -> JobAfter:
    reason = _describe_unreadable(row, error)
    notice = _notice(row, reason)
    status = policy.RunVerdict.ERROR.value
    return JobAfter(place=_build_broken_place(row), status=status, error=reason, notice=notice, targets=("local",))


def _describe_unreadable(row: JobRow, error: Exception) -> str:
    log.error("job.broken", job_id=row.job_id, error=f"{type(error).__name__}: {error}")
    return f"the stored job cannot be read: {type(error).__name__}"


def _build_broken_place(row: JobRow) -> JobProgress:
    return JobProgress(
        state=policy.JobStatus.ERROR.value,
        next_slot=None,
        next_fire_at=None,
        completed=row.completed,
        consecutive_failures=row.consecutive_failures + 1,
    )


# --- what a worker collected -----------------------------------------------------------------------------------------


def decide_follow_up(collected: Collected, settings: Settings, gathered: Gathered = NOTHING_GATHERED) -> Followup:
    """Decide what follows from a firing for which a worker has collected."""
    try:
        spec = JobSpec.from_json(collected.row.definition)
        build_state(collected.row, spec, collected.now)
    except _UNREADABLE as error:
        after = _build_after_broken(collected.row, error)
        return Followup(then=after, remark=after.error)
    if collected.state is ExecutionState.UNKNOWN:
        return _end_unknown(collected, spec)
    try:
        texts = CollectedTexts.from_json(collected.document or "{}")
        if texts.error is not None:
            raise InvalidJob(texts.error)
        if spec.no_agent:
            return _end_watchdog(collected, spec, texts)
        if not is_agent_needed(texts.script):
            return _end_firing(
                collected, spec, policy.RunVerdict.OK, remark="the script found nothing for the agent to do"
            )
        return Followup(
            then=_build_run(
                collected, spec, to_instant(collected.slot), gathered.choose_settings(settings), texts, gathered
            )
        )
    except _UNREADABLE as error:
        return _end_firing(
            collected,
            spec,
            policy.RunVerdict.ERROR,
            remark=str(error),
            body=_notice(collected.row, f"Job '{collected.row.name}' failed: {error}"),
        )


def _end_unknown(collected: Collected, spec: JobSpec) -> Followup:
    remark = collected.remark or "how it ended is not known"
    was_meant = remark == STOPPED_FOR_A_LATER_SLOT
    body = None if was_meant else _notice(collected.row, f"Job '{collected.row.name}': {remark}")
    return _end_firing(collected, spec, policy.RunVerdict.UNKNOWN, remark=remark, body=body)


def _end_watchdog(collected: Collected, spec: JobSpec, texts: CollectedTexts) -> Followup:
    """End the firing of a job without an agent: the output of its script is delivered."""
    if texts.script is None:
        raise InvalidJob("the job has neither an agent nor a script")
    report = build_watchdog_report(collected.row.name, texts.script, to_instant(collected.slot))
    if report is None or (not report.is_failure and is_silent(report.text)):
        return _end_firing(collected, spec, policy.RunVerdict.OK, remark="the script had nothing to say")
    label = JobLabel(id=collected.row.job_id, name=collected.row.name)
    verdict = policy.RunVerdict.ERROR if report.is_failure else policy.RunVerdict.OK
    # What it wrote may be anything, so it stands in the message and not among the slots.
    remark = format_ending(texts.script) if report.is_failure else "the script's output was delivered"
    body = wrap_content(label, report.text) if spec.wraps else report.text
    return _end_firing(collected, spec, verdict, remark=remark, body=body)


def _end_firing(
    collected: Collected, spec: JobSpec, verdict: policy.RunVerdict, *, remark: str, body: str | None = None
) -> Followup:
    changes, notice = policy.count_run(build_state(collected.row, spec, collected.now), verdict)
    after = JobAfter(
        place=replace(build_place(changes), paused_reason=changes.paused_reason or collected.row.paused_reason),
        status=verdict.value,
        error=None if verdict is policy.RunVerdict.OK else remark,
        notice=_notice(collected.row, notice),
        targets=spec.targets,
        owes_note=spec.attach_to is not None and spec.no_agent and body is not None,
    )
    # The document of a script is kept by the worker that ran it.
    targets = spec.targets if verdict is not policy.RunVerdict.OK else [t for t in spec.targets if t != "local"]
    return Followup(then=after, remark=remark, body=body, targets=targets)


# --- what ended ------------------------------------------------------------------------------------------------------


def decide_after_run(row: JobRow, ended: EndedRun) -> JobAfter:
    """Decide what the end of a run changes in its job."""
    try:
        spec = JobSpec.from_json(row.definition)
        state = build_state(row, spec, ended.now)
    except _UNREADABLE as broken:
        return _build_after_broken(row, broken)
    verdict, error = _VERDICTS[ended.status], ended.error
    if ended.status == "completed" and is_empty(ended.output or ""):
        verdict, error = policy.RunVerdict.ERROR, "the answer was empty"
    changes, notice = policy.count_run(state, verdict)
    place = replace(build_place(changes), paused_reason=changes.paused_reason or row.paused_reason)
    is_said = verdict is policy.RunVerdict.OK and not is_silent(ended.output or "")
    return JobAfter(
        place=place,
        status=verdict.value,
        error=error,
        notice=_notice(row, notice),
        targets=spec.targets,
        owes_note=spec.attach_to is not None and is_said,
    )


_VERDICTS = {
    "completed": policy.RunVerdict.OK,
    "failed": policy.RunVerdict.ERROR,
    "expired": policy.RunVerdict.ERROR,
    "cancelled": policy.RunVerdict.UNKNOWN,
}


def build_note(row: JobRow, answer: str) -> tuple[str, str] | None:
    """Find the session that a job is attached to, and write its note; ``None`` for a job without one."""
    try:
        spec = JobSpec.from_json(row.definition)
    except _UNREADABLE:
        return None
    if spec.attach_to is None or not answer.strip():
        return None
    return (
        spec.attach_to,
        f"[Cron delivery: {row.name}]\n\n{wrap_untrusted(answer.strip(), row.job_id, Provenance.JOB).text}",
    )


def _notice(row: JobRow, notice: str | None) -> str | None:
    return wrap_content(JobLabel(id=row.job_id, name=row.name), f"⚠️ {notice}") if notice else None
