"""Which runs are meant: the options of ``runs list``, and the list itself."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import click

from hermes_worker.cli.layout import moment, table
from hermes_worker.cli.options import TEXT, OneOf, of_tenant, reachable
from hermes_worker.cli.records import run_document
from hermes_worker.cli.run_backend import PAGE, open_backend
from hermes_worker.cli.screen import coloured, one_line
from hermes_worker.core.run import RunStatus
from hermes_worker.store.runs.views import RunView
from scheduler.grammar import ScheduleError, parse_duration

_Command = TypeVar("_Command", bound=Callable[..., Any])


_SECONDS = re.compile(r"\d{1,9}(\.\d{1,3})?s")


class _Moment(click.ParamType):  # type: ignore[type-arg]
    """A moment, as epoch seconds: ``2027-01-01T09:00`` by the clock of this machine, or so long before now (after it
    with ``is_ahead``)."""

    name = "when"

    def __init__(self, *, is_ahead: bool) -> None:
        self._is_ahead = is_ahead

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError, OSError):
            pass
        try:
            is_short = _SECONDS.fullmatch(value)
            seconds = float(value[:-1]) if is_short else parse_duration(value).total_seconds()
        except ScheduleError:
            self.fail(f"{value!r} is neither a time (2027-01-01T09:00) nor a duration (90s, 30m, 2h, 3d)", param, ctx)
        return time.time() + (seconds if self._is_ahead else -seconds)


AGO = _Moment(is_ahead=False)
AHEAD = _Moment(is_ahead=True)

_STATUSES = OneOf([status.value for status in RunStatus])
_USD = click.FloatRange(0)
_FILTERS: tuple[Callable[[Any], Any], ...] = (
    click.option("--status", "statuses", multiple=True, type=_STATUSES, help="Of this status; may be repeated."),
    click.option("--tag", "tags", multiple=True, type=TEXT, help="With this tag; repeated, with all of them."),
    click.option(
        "--session",
        "session_id",
        type=TEXT,
        help="Of this session: its id, or its name among those that the command line gave.",
    ),
    click.option("--job", "job_id", type=TEXT, help="Of this scheduled job."),
    click.option("--model", type=TEXT, help="That ask this model."),
    click.option("--since", "created_after", type=AGO, help="Made since then: 30m, 2h, 3d ago, or 2027-01-01T09:00."),
    click.option("--until", "created_before", type=AGO, help="Made before then, likewise."),
    click.option("--min-cost-usd", "cost_usd_min", type=_USD, help="That cost at least so much."),
    click.option("--max-cost-usd", "cost_usd_max", type=_USD, help="That cost at most so much."),
)


def filtering(command: _Command) -> _Command:
    """The options that say which runs are meant; ``filter_of`` takes what they give."""
    return reduce(lambda found, option: option(found), reversed(_FILTERS), command)


def filter_of(said: dict[str, Any]) -> dict[str, Any]:
    """What the options of ``filtering`` say, as fields of ``RunFilter``."""
    return {**said, "statuses": tuple(RunStatus(status) for status in said["statuses"])}


@click.command("list", epilog="Example: hermes-worker runs list --status failed --tag nightly --since 2d")
@reachable
@of_tenant
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@filtering
@click.option("--before", type=TEXT, metavar="RUN_ID", help="Only runs older than this one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_runs(home: Path | None, limit: int, before: str | None, as_json: bool, **said: Any) -> None:
    """The newest runs first."""
    backend = open_backend(home)
    runs = backend.runs(filter_of(said), before=backend.run_id(before) if before else None, page=min(limit, PAGE))
    found = list(islice(runs, limit))
    if as_json:
        for view in found:
            click.echo(json.dumps(run_document(view, {})))
    elif found:
        header = ("RUN", "STATUS", "CREATED", "MODEL", "ANSWER OR ERROR")
        click.echo(table([_row(view) for view in found], header, ids=(0,), whole=(2,)))
    else:
        click.echo("no runs", err=True)


def _row(view: RunView) -> tuple[str, ...]:
    said = view.output if view.output is not None else view.error or ""
    return view.run_id, coloured(view.status), moment(view.created_at), one_line(view.model, 30), one_line(said, 60)
