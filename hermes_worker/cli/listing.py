"""Select runs: the options of ``runs list``, and the list itself."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial, reduce
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import click

from hermes_worker.cli.layout import format_age, format_duration, format_moment, is_dumb, render_table
from hermes_worker.cli.list_output import add_list_options, render_documents
from hermes_worker.cli.options import TEXT, OneOf, of_tenant, reachable, suggest_word
from hermes_worker.cli.run_backend import PAGE, RunBackend, build_run_document, open_backend
from hermes_worker.cli.screen import flatten_text, format_run_status
from hermes_worker.cli.short_ids import require_id
from hermes_worker.core.pricing import format_cost
from hermes_worker.core.run import RunKind, RunStatus
from hermes_worker.core.run_views import RunView
from hermes_worker.core.short_ids import ShortKind
from hermes_worker.core.titles import TITLE_CHARS_MAX

_Command = TypeVar("_Command", bound=Callable[..., Any])


_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,3})?s")


class _Moment(click.ParamType):  # type: ignore[type-arg]
    """An option's moment, as epoch seconds: ``2027-01-01T09:00``, ``yesterday``, ``today`` or ``monday`` (their
    beginning) by the clock of this machine, or so long before now (after it with ``is_ahead``)."""

    name = "when"

    def __init__(self, *, is_ahead: bool) -> None:
        self._is_ahead = is_ahead

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError, OSError):
            pass  # it is no moment; it may be a duration
        if (day := self._find_day(value.strip().lower())) is not None:
            return day.timestamp()
        from scheduler.grammar import ScheduleError, parse_duration  # which loads the time zones

        length = value.strip().lower().removesuffix("ago").removeprefix("in ").strip()
        try:
            is_short = _SECONDS.fullmatch(length)
            seconds = float(length[:-1]) if is_short else parse_duration(length).total_seconds()
        except ScheduleError:
            self.fail(
                f"{value!r} is no time (2027-01-01T09:00), no day (yesterday, today, monday) and no duration (90s, "
                "30m, 2h, 3 days)",
                param,
                ctx,
            )
        return time.time() + (seconds if self._is_ahead else -seconds)

    def _find_day(self, word: str) -> datetime | None:
        """Find the beginning of a day by its name; a weekday is the last one, or the next one with ``is_ahead``."""
        today = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        if word in _DAYS:
            return today + timedelta(days=_DAYS[word])
        if word not in _WEEKDAYS:
            return None
        gone = (today.weekday() - _WEEKDAYS.index(word)) % 7
        return today + timedelta(days=7 - gone if self._is_ahead else -gone)


AGO = _Moment(is_ahead=False)
AHEAD = _Moment(is_ahead=True)

STATUSES = OneOf([status.value for status in RunStatus])
_USD = click.FloatRange(0)
_FILTERS: tuple[Callable[[Any], Any], ...] = (
    click.option("--status", "statuses", multiple=True, type=STATUSES, help="Of this status; may be repeated."),
    click.option("--tag", "tags", multiple=True, type=TEXT, help="With this tag; repeated, with all of them."),
    click.option(
        "--session",
        "session_id",
        type=TEXT,
        help="Of this session: its id or the beginning of it, its name or its title.",
    ),
    click.option(
        "--job", "job_id", type=TEXT, help="Of this scheduled job: its id or the beginning of it, or its name."
    ),
    click.option("--model", type=TEXT, help="That ask this model."),
    click.option("--source", "origin", type=TEXT, help="That came in there, or because of such a run: cli, api, cron."),
    click.option("--parent", type=TEXT, metavar="RUN_ID", help="That this run delegated."),
    click.option(
        "--since",
        "created_after",
        type=AGO,
        help="Made since then: 30m, 2h, 3d ago, yesterday, monday, or 2027-01-01T09:00.",
    ),
    click.option("--until", "created_before", type=AGO, help="Made before then, likewise."),
    click.option("--min-cost-usd", "cost_usd_min", type=_USD, help="That cost at least so much."),
    click.option("--max-cost-usd", "cost_usd_max", type=_USD, help="That cost at most so much."),
    click.option(
        "--text", type=TEXT, help='Whose input or answer has these words; also OR, NOT, "a phrase" and begin*.'
    ),
)


def add_filter_options(command: _Command) -> _Command:
    """Add the options that select runs; ``build_filter`` takes their values."""
    return reduce(lambda found, option: option(found), reversed(_FILTERS), command)


def build_filter(said: dict[str, Any], backend: RunBackend) -> dict[str, Any]:
    """Build the fields of ``RunFilter`` from the options of ``add_filter_options``. ``backend`` completes ids. Raises
    ``ConfigurationError`` for a session or a job that does not exist."""
    statuses = tuple(RunStatus(status) for status in said["statuses"])
    parent = backend.complete_run_id(said["parent"]) if said["parent"] else None
    kinds: Mapping[str, ShortKind] = {"session_id": "session", "job_id": "job"}
    named = {name: require_id(backend.client, said[name], kind) for name, kind in kinds.items() if said[name]}
    return {**said, "statuses": statuses, "parent": parent, **named}


@dataclass(frozen=True, slots=True)
class _Listed:
    """A run of a list, and how many runs stand above it in its tree."""

    view: RunView
    level: int = 0


@dataclass(frozen=True, slots=True)
class Column:
    """A column of ``runs list``."""

    header: str
    cell: Callable[[RunView], str]
    is_whole: bool = False
    """Whether it is never cut."""


def _format_title(view: RunView) -> str:
    """Format the title, with a mark for what a list leaves out by default and for what is folded below a run."""
    mark = f"[{view.kind}] " if view.kind.is_beside_work else ""
    folded = f" (+{view.delegated})" if view.delegated else ""
    return f"{mark}{flatten_text(view.title or '-', TITLE_CHARS_MAX)}{folded}"


def _find_output(view: RunView) -> str:
    return view.output if view.output is not None else view.error or ""


def _format_duration(view: RunView) -> str:
    return format_duration(max(0.0, (view.finished_at or time.time()) - (view.started_at or view.created_at)))


def _format_tokens(view: RunView) -> str:
    usage = view.usage
    return f"{usage.input + usage.cache_read + usage.cache_write + usage.output:,}"


COLUMNS: Mapping[str, Column] = {
    "title": Column("TITLE", _format_title),
    "status": Column("STATUS", format_run_status, is_whole=True),
    "when": Column("WHEN", lambda view: format_age(view.created_at), is_whole=True),
    "created": Column("CREATED", lambda view: format_moment(view.created_at), is_whole=True),
    "finished": Column("FINISHED", lambda view: format_moment(view.finished_at), is_whole=True),
    "took": Column("TOOK", _format_duration),
    "model": Column("MODEL", lambda view: flatten_text(view.model, 30)),
    "usd": Column("COST", lambda view: format_cost(view.cost_usd, view.cost_status)),
    "tokens": Column("TOKENS", _format_tokens),
    "iterations": Column("ITERATIONS", lambda view: f"{view.iteration}/{view.iterations_max}"),
    "session": Column("SESSION", lambda view: flatten_text(view.session.name or view.session.id, 40)),
    "tags": Column("TAGS", lambda view: flatten_text(" ".join(view.tags) or "-", 40)),
    "exit": Column("EXIT", lambda view: view.exit_text or "-"),
    "retry-of": Column("RETRY OF", lambda view: view.retry_of or "-"),
    "kind": Column("KIND", lambda view: view.kind.replace("_", " ")),
    "answer": Column("ANSWER OR ERROR", lambda view: flatten_text(_find_output(view), 60)),
    "run": Column("RUN", lambda view: view.run_id),
}
_USUAL = ("title", "status", "when", "took", "usd", "model", "run")
_SPARED = ("model", "took", "usd")
"""What is left out of the usual columns, in this order, where a title would have no room beside them."""
_WIDE = ("title", "status", "created", "took", "model", "usd", "tokens", "session", "tags", "answer", "run")
_LISTED_KINDS = [kind for kind in RunKind if kind is not RunKind.CHILD and not kind.is_beside_work]
_WATCHED_EVERY_S = 2.0


class _ColumnNames(click.ParamType):  # type: ignore[type-arg]
    """Names of columns, separated by commas."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = tuple(name.strip() for name in value.split(",") if name.strip())
        for name in names:
            if name not in COLUMNS:
                known = ", ".join(COLUMNS)
                self.fail(
                    f"there is no column {name[:40]!r}; there are {known}.{suggest_word(name, COLUMNS)}", param, ctx
                )
        if not names:
            self.fail("it names no column", param, ctx)
        return names


@click.command("list", epilog="Example: hermes-worker runs list --status failed --tag nightly --since 2d")
@reachable
@of_tenant
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@add_filter_options
@click.option("--before", type=TEXT, metavar="RUN_ID", help="Only runs older than this one.")
@click.option("--columns", type=_ColumnNames(), help=f"These columns, in this order: {','.join(COLUMNS)}.")
@click.option("--tree", "is_tree", is_flag=True, help="What a run delegated, below it; otherwise (+3) says how many.")
@click.option(
    "--all", "has_all", is_flag=True, help="Also what was delegated, reviews and evaluations, each in its own place."
)
@click.option("--watch", "is_watched", is_flag=True, help="Show the list again every 2 seconds, until Ctrl-C.")
@partial(add_list_options, wide=",".join(_WIDE))
def list_runs(
    home: Path | None,
    limit: int,
    before: str | None,
    columns: tuple[str, ...] | None,
    is_tree: bool,
    has_all: bool,
    is_watched: bool,
    output: str | None,
    **said: Any,
) -> None:
    """The newest runs first: what was asked, and what became of it. What runs delegated, reviews and
    evaluations are left out."""
    if columns is not None and output in ("wide", "name"):
        raise click.UsageError("--columns names the columns, and -o does too; give one of them")
    backend = open_backend(home, names_tenant=True)
    wanted = build_filter(said, backend)
    if not has_all and not said["parent"]:
        wanted["kind"] = [kind.value for kind in _LISTED_KINDS]
    start = backend.complete_run_id(before) if before else None
    names = columns or (_WIDE if output == "wide" else _USUAL)

    def render() -> str:
        views = islice(backend.iterate_runs(wanted, before=start, page=min(limit, PAGE)), limit)
        listed = [each for view in views for each in _add_delegated(backend, view, opens=is_tree)]
        documents = render_documents(listed, output, _build_document, lambda each: each.view.run_id)
        is_table = output in (None, "wide") and listed
        return _render_table(listed, names, _SPARED if names is _USUAL else ()) if is_table else documents

    if not is_watched:
        if shown := render():
            click.echo(shown)
        else:
            click.echo("no runs", err=True)
        return
    while True:
        shown = render()
        if sys.stdout.isatty() and not is_dumb():
            click.clear()
        click.echo(shown or "no runs")
        time.sleep(_WATCHED_EVERY_S)


def _add_delegated(backend: RunBackend, view: RunView, *, opens: bool, level: int = 0) -> Iterator[_Listed]:
    """Yield a run, and with ``opens`` what it delegated, each below the run that did."""
    yield _Listed(view, level)
    if opens and (view.delegated or level):
        children = backend.iterate_runs({"parent": view.run_id, "kind": [RunKind.CHILD.value]})
        for child in reversed(list(children)):
            yield from _add_delegated(backend, child, opens=True, level=level + 1)


def _build_document(listed: _Listed) -> dict[str, Any]:
    return build_run_document(listed.view, {})


def _render_table(listed: Sequence[_Listed], names: Sequence[str], spared: Sequence[str]) -> str:
    chosen = [COLUMNS[name] for name in names]
    return render_table(
        [
            tuple("  " * each.level * (name == "title") + COLUMNS[name].cell(each.view) for name in names)
            for each in listed
        ],
        tuple(column.header for column in chosen),
        ids=[number for number, name in enumerate(names) if name in ("run", "retry-of")],
        whole=[number for number, column in enumerate(chosen) if column.is_whole],
        spared=[names.index(name) for name in spared],
    )
