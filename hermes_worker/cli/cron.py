"""``hermes-worker cron``: jobs that run on a schedule."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli.job_backend import open_jobs
from hermes_worker.cli.layout import format_field, format_moment, parse_moment
from hermes_worker.cli.list_output import ListLayout, add_list_options, print_list
from hermes_worker.cli.options import TEXT, OneOf, of_tenant, reachable, read_prompt_text
from hermes_worker.cli.screen import flatten_text, strip_controls
from hermes_worker.core.job_policies import CatchUp, Overlap
from hermes_worker.core.titles import TITLE_CHARS_MAX
from hermes_worker.safety.approvals import UnattendedMode
from scheduler.definition import JobRequest, JobSpec
from scheduler.policy import format_repeat

if TYPE_CHECKING:
    from hermes_worker.cli.preflight import Needs
    from hermes_worker.schemas.jobs import FiringObject, JobSheet


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cron() -> None:
    """Create, list and change scheduled jobs."""


_WHEN = (
    click.option("--name", type=TEXT, help="Default: the beginning of the prompt."),
    click.option("--deliver", type=TEXT, help="Targets, separated by commas. Default: local."),
    click.option("--repeat", type=click.IntRange(min=0), help="Runs altogether; 0 for no limit."),
    click.option("--timezone", type=TEXT, help="IANA name of the clock to go by. Default: UTC."),
    click.option("--starts-at", type=TEXT, help="No run before this time."),
    click.option("--ends-at", type=TEXT, help="No run after this time."),
    click.option("--jitter-s", type=click.IntRange(0, 86_400), help="Start up to so many seconds late."),
    click.option("--overlap", type=OneOf([o.value for o in Overlap])),
    click.option("--catch-up", type=OneOf([c.value for c in CatchUp])),
    click.option("--misfire-grace-s", type=click.IntRange(0, 86_400)),
    click.option("--failures-max", type=click.IntRange(1), help="Pause after so many failures in a row."),
)
"""Options: the job's name and the targets of its answers; when it is due, and what happens with a slot that it
misses."""
_LIMITS = (
    click.option("--tokens-per-day", type=click.IntRange(1), help="Budget of all runs of one day."),
    click.option("--iterations-per-day", type=click.IntRange(1), help="Budget of all runs of one day."),
    click.option("--cost-usd-per-day", type=TEXT, help="Budget of all runs of one day, in US dollars."),
    click.option("--iterations-max", type=click.IntRange(1), help="Model calls of one run."),
    click.option("--tokens-max", type=click.IntRange(1), help="Tokens of one run."),
    click.option("--wall-s-max", type=click.FloatRange(1), help="Seconds one run may take."),
    click.option("--idle-s-max", type=click.FloatRange(0), help="Seconds without progress; 0 for no limit."),
    click.option("--cost-usd-max", type=click.FloatRange(0, min_open=True), help="US dollars of one run."),
)
"""Options: what its runs may use altogether, and one of them."""
_ASKING = (
    click.option("--model", type=TEXT, help="Ask this model whatever is configured; '' for the configured one."),
    click.option("--provider", type=TEXT, help="Run only while this provider is configured."),
    click.option("--base-url", type=TEXT, help="Run only while the provider is configured with this address."),
    click.option("--origin", type=TEXT, help="The chat the job belongs to; 'origin' in --deliver means it."),
    click.option("--toolset", "toolsets", type=TEXT, multiple=True),
    click.option("--skill", "skills", type=TEXT, multiple=True, help="A skill to follow. May be repeated."),
    click.option(
        "--script",
        type=TEXT,
        help="A file below HOME/scripts whose output the agent is given. It writes to $HERMES_JOB_DATA only.",
    ),
    click.option("--no-agent/--agent", default=None, help="The script is the job; no model is asked."),
    click.option("--context-from", type=TEXT, multiple=True, help="Id of a job whose latest answer is given."),
)
"""Options: the model, and what stands beside the prompt."""
_SURROUNDINGS = (
    click.option(
        "--attach-to-session",
        "attach_to",
        type=TEXT,
        help="Name or id of a session that gets every answer as a note.",
    ),
    click.option("--wrap/--no-wrap", "wraps", default=None, help="Name the job in what is delivered."),
    click.option(
        "--approvals",
        type=OneOf([outcome.value for outcome in UnattendedMode]),
        help="What becomes of dangerous commands. Default: approvals.cron_mode.",
    ),
    click.option(
        "--approval-s",
        type=click.FloatRange(1, 31 * 86_400),
        help="Seconds to wait for an answer with --approvals ask. Default: approvals.timeout.",
    ),
    click.option(
        "--network",
        type=OneOf(["open", "proxy", "none"]),
        help="Network of its commands, never more than terminal.network_unattended gives. Default: that.",
    ),
    click.option(
        "--workspace",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Directory to work in. Default: one of its own for each run.",
    ),
)
"""Options: where its runs answer and work, and what they may do there."""


def _add_job_options(command: Any) -> Any:
    """Add the options that describe a job."""
    for option in reversed((*_WHEN, *_LIMITS, *_ASKING, *_SURROUNDINGS)):
        command = option(command)
    return command


_force = click.option(
    "--force", is_flag=True, help="Keep the job even if its script, a skill or a credential is not here."
)


def _build_needs(given: Mapping[str, Any]) -> Needs:
    from hermes_worker.cli.preflight import Needs

    return Needs(**{name: given[name] for name in ("deliver", "origin", "script", "skills", "toolsets")})


def _request(prompt: str | None, schedule: str | None, given: dict[str, Any]) -> JobRequest:
    workspace = given.pop("workspace")
    plain = {name: given.pop(name) for name in _REQUEST_OPTIONS}
    more = {**given, "directory": str(workspace.absolute()) if workspace else None}
    return JobRequest(
        prompt=read_prompt_text(prompt) if prompt is not None else None,
        schedule=schedule,
        **plain,
        more={name: value for name, value in more.items() if value is not None and value != ()},
    )


_REQUEST_OPTIONS = ("name", "deliver", "repeat", "timezone", "starts_at", "ends_at", "jitter_s")


@cron.command(epilog='Example: hermes-worker cron create "every day at 9am" "Summarise the news" --deliver telegram')
@reachable
@of_tenant
@click.argument("schedule", type=TEXT)
@click.argument("prompt", type=TEXT, required=False)
@_add_job_options
@_force
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def create(home: Path | None, schedule: str, prompt: str | None, force: bool, as_json: bool, **given: Any) -> None:
    """Keep a job. SCHEDULE: 'every 30m', '0 9 * * 1-5', 'every monday 08:30', '2027-01-31T08:00', '30m' (once).
    A job with a script or skills may do without PROMPT."""
    jobs = open_jobs(home)
    if not force:
        jobs.require(_build_needs(given))
    row = jobs.create(_request(prompt, schedule, given))
    if jobs.notice:
        click.echo(jobs.notice, err=True)
    click.echo(
        json.dumps(build_document(row))
        if as_json
        else f"{row.job_id} {flatten_text(row.name, 60)}, next {format_moment(row.next_slot)}"
    )


@cron.command(epilog="Example: hermes-worker cron edit news --schedule 'every 2h'")
@reachable
@of_tenant
@click.argument("job", type=TEXT)
@click.option("--schedule", type=TEXT)
@click.option("--prompt", type=TEXT)
@_add_job_options
@click.option("--clear-skills", is_flag=True, help="The job follows no skill any more.")
@_force
def edit(
    home: Path | None,
    job: str,
    schedule: str | None,
    prompt: str | None,
    clear_skills: bool,
    force: bool,
    **given: Any,
) -> None:
    """Change what is named; an empty value takes it back to its default. JOB is an id, its beginning, or a name."""
    jobs = open_jobs(home)
    if not force:
        jobs.require(_build_needs(given))
    request = _request(prompt, schedule, given)
    if clear_skills:
        request = replace(request, more={**request.more, "skills": None})
    row = jobs.edit(job, request)
    click.echo(f"{row.job_id} {row.state}, next {format_moment(row.next_slot)}")


@cron.command("list")
@reachable
@of_tenant
@add_list_options
def list_jobs(home: Path | None, output: str | None) -> None:
    """All jobs."""
    print_list(open_jobs(home).list_all(), output, _JOBS)


@cron.command()
@reachable
@of_tenant
@click.argument("job", type=TEXT)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def show(home: Path | None, job: str, as_json: bool) -> None:
    """Everything about one job."""
    sheet = open_jobs(home).get(job)
    shown = {**build_document(sheet), "last_delivery_error": sheet.last_delivery_error}
    if as_json:
        click.echo(json.dumps(shown))
        return
    for name, value in shown.items():
        # What is not set has no line, and of a value with parts there are words elsewhere.
        if value not in (None, "", [], ()) and not isinstance(value, Mapping):
            click.echo(f"{name:20} {strip_controls(format_field(name, value))}")


@cron.command()
@reachable
@of_tenant
@click.argument("job", type=TEXT)
@click.option("--reason", type=TEXT)
def pause(home: Path | None, job: str, reason: str | None) -> None:
    """Let nothing come due until the job is resumed."""
    click.echo(f"{open_jobs(home).pause(job, reason).job_id} paused")


@cron.command()
@reachable
@of_tenant
@click.argument("job", type=TEXT)
def resume(home: Path | None, job: str) -> None:
    """Go on with the next slot; those of the pause are not made up for."""
    row = open_jobs(home).resume(job)
    click.echo(f"{row.job_id} scheduled, next {format_moment(row.next_slot)}")


@cron.command()
@reachable
@of_tenant
@click.argument("job", type=TEXT)
def run(home: Path | None, job: str) -> None:
    """Run a job now, beside its schedule."""
    click.echo(f"{open_jobs(home).run_now(job).job_id} due now")


@cron.command()
@reachable
@of_tenant
@click.argument("job", type=TEXT)
def remove(home: Path | None, job: str) -> None:
    """Forget a job. What it ran is kept."""
    click.echo(f"{open_jobs(home).remove(job)} removed")


@cron.command()
@reachable
@of_tenant
@click.argument("job", type=TEXT)
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True)
@click.option("--before", type=float, help="Only slots before this one: the 'slot' that ended the page before.")
@add_list_options
def history(home: Path | None, job: str, limit: int, before: float | None, output: str | None) -> None:
    """What became of the latest slots."""
    print_list(open_jobs(home).list_history(job, limit=limit, before=before), output, _FIRINGS)


@cron.command("next")
@reachable
@of_tenant
@click.argument("job", type=TEXT)
@click.option("--limit", type=click.IntRange(1, 100), default=5, show_default=True)
def next_slots(home: Path | None, job: str, limit: int) -> None:
    """The slots to come."""
    for slot in open_jobs(home).get(job, slots=limit).slots:
        click.echo(format_moment(slot))


def _build_firing_document(view: FiringObject) -> dict[str, Any]:
    """Render a slot as JSON. Its times are epoch seconds."""
    times = {name: parse_moment(view[name]) for name in ("settled_at", "ended_at")}
    return {name: times.get(name, view[name]) for name in _PRINTED_OF_SLOT}


_PRINTED_OF_SLOT = (
    *("slot", "outcome", "reason", "settled_at", "run_id", "run_status", "is_waiting", "execution", "remark"),
    "ended_at",
)


def build_document(row: JobSheet) -> dict[str, Any]:
    """Render a job as JSON."""
    spec = JobSpec.from_json(row.definition)
    known = row.model_dump(exclude={"object", "definition", "last_delivery_error", "slots"})
    repeat = format_repeat(spec.times, row.completed)
    return {**known, "schedule_display": _format_schedule(row), "repeat": repeat, **asdict(spec)}


def _format_schedule(row: JobSheet) -> str:
    return str(JobSpec.from_json(row.definition).schedule.get("display", ""))


_JOBS: ListLayout[JobSheet] = ListLayout(
    header=("NAME", "STATE", "NEXT", "LAST", "SCHEDULE", "JOB"),
    row=lambda job, format_time: (
        flatten_text(job.name, TITLE_CHARS_MAX),
        job.state,
        format_time(job.next_slot),
        job.last_status or "-",
        flatten_text(_format_schedule(job), 24),
        job.job_id,
    ),
    document=build_document,
    name=lambda job: job.job_id,
    empty="no jobs; 'hermes-worker cron create' makes one",
    whole=(1, 2, 3, 5),
    spared=(4, 3),
)
_FIRINGS: ListLayout[FiringObject] = ListLayout(
    header=("SLOT", "OUTCOME", "STATUS", "REASON", "RUN"),
    row=lambda one, format_time: (
        format_time(one.slot),
        one.outcome,
        one.run_status or one.execution or "-",
        flatten_text(f"{one.reason}; {one.remark}" if one.remark else one.reason or "-", 80),
        one.run_id or "-",
    ),
    document=_build_firing_document,
    name=lambda one: one.run_id or "-",
    empty="no slot of it was due yet",
    ids=(4,),
    whole=(0,),
)
