"""``hermes-worker runs replay``: play recorded runs again, against another model or prompt, and compare."""

from __future__ import annotations

import importlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.layout import format_count
from hermes_worker.cli.listing import AGO
from hermes_worker.cli.options import of_tenant, reachable
from hermes_worker.cli.run_backend import open_backend
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.forks import FORK_TAG
from hermes_worker.core.sources import EVALUATION_SOURCE
from hermes_worker.features.forks.replay_rules import (
    DataItem,
    Grader,
    build_rubric_prompt,
    grade_exact,
    parse_data,
    quote_text,
    read_verdict,
)
from hermes_worker.features.forks.schema import ReplayedRun, ReplayObject
from hermes_worker.features.forks.verbs import read_prompt

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

_RUNS_MAX = 1_000
_RUBRIC = "rubric="
_FILTERS = ("tag", "model", "source", "session_id", "job_id", "text", "status")


@click.command(
    epilog="Example: hermes-worker runs replay --since 7d --filter tag=support --against model=gpt-5 --grade exact"
)
@reachable
@of_tenant
@click.option("--since", type=AGO, default="7d", show_default=True, help="Runs made since then: 90m, 12h, 7d ago.")
@click.option("--filter", "filters", multiple=True, help=f"NAME=VALUE, of {', '.join(_FILTERS)}. May be repeated.")
@click.option("--limit", type=click.IntRange(1, _RUNS_MAX), default=100, show_default=True, help="The newest of them.")
@click.option("--data", type=click.Path(dir_okay=False, path_type=Path), help="Runs and expected answers: JSON Lines.")
@click.option("--against", multiple=True, help="model=NAME or prompt=FILE; both may be given.")
@click.option("--match", type=click.Choice(["strict", "order"]), default="strict", show_default=True)
@click.option(
    "--grade",
    "graders",
    multiple=True,
    help="exact, schema=FILE, rubric=FILE, which a model judges by, or python=MODULE:FUNCTION, which gets the expected "
    "answer and the answer.",
)
@click.option("--judge", metavar="MODEL", help="The model that judges by a rubric. Default: that of each run.")
@click.option("--name", metavar="NAME", help="A name for the replay. One that was interrupted goes on under its name.")
@click.option("--show", "shown", metavar="NAME", help="Play nothing: print what an earlier replay found.")
@click.option("--export", is_flag=True, help="Play nothing: write the runs and their answers as a data set.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON; else as Markdown.")
def replay(
    home: Path | None,
    since: float,
    filters: tuple[str, ...],
    limit: int,
    data: Path | None,
    against: tuple[str, ...],
    match: str,
    graders: tuple[str, ...],
    judge: str | None,
    name: str | None,
    shown: str | None,
    export: bool,
    as_json: bool,
) -> int:
    """Play recorded runs again, offline, against another model or prompt, and compare. They begin with their input, and
    their calls are answered by what was recorded and by nothing else. Prints where each first differs, its answers, its
    cost and its grades, which --show prints again. The exit code is 1 when something could not be played, or a grader
    finds an answer not good."""
    said, named = _parse_against(against), dict(_parse_pair(each, _FILTERS, "--filter") for each in filters)
    rubrics = {each: read_prompt(Path(each[len(_RUBRIC) :])) for each in graders if each.startswith(_RUBRIC)}
    judges = dict(_parse_grader(each) for each in graders if each not in rubrics)
    items = _read_data(data) if data is not None else None
    client = open_backend(home, begins_work=not export and shown is None).client
    if shown is not None:
        return _print_report(client.replay(shown), as_json=as_json)
    if items is None:
        named.setdefault("status", "completed")
        items = list(_select_runs(client, named, since, limit))
    if export:
        for item in items:
            click.echo(json.dumps({"run_id": item.run_id, "expected": client.result(item.run_id).final_response or ""}))
        return 0
    expected = {item.run_id: item.expected for item in items}
    name = name or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    click.echo(f"replay {name}: {format_count(len(expected), 'run')}", err=True)
    refused = _play(client, name, list(expected), said, match, graders)
    if len(refused) < len(expected):
        if graders:
            rows = client.replay(name).data
            if data is None:  # nobody said what is expected: what the runs answered
                expected = {row.run_id: row.answer_before for row in rows}
            client.grade_replay(name, _grade(client, rows, expected, judges, rubrics, judge))
        report = client.replay(name)
    else:
        report = _build_empty_report(name)
    changes = {
        "against": dict(each.split("=", 1) for each in against),
        "runs": report.runs + len(refused),
        "not_played": len(refused),
        "data": [*report.data, *refused],
    }
    return _print_report(report.model_copy(update=changes), as_json=as_json)


def _build_empty_report(name: str) -> ReplayObject:
    return ReplayObject(
        name=name,
        against={},
        runs=0,
        not_played=0,
        differing=0,
        good={},
        steps_before=0,
        steps_after=0,
        cost_before_usd=None,
        cost_after_usd=None,
        data=[],
    )


def _print_report(report: ReplayObject, *, as_json: bool) -> int:
    click.echo(json.dumps(report.model_dump(exclude={"object"})) if as_json else render_markdown(report))
    return 0 if all(row.problem is None and all(row.grades.values()) for row in report.data) else EXIT_FAILED


def render_markdown(report: ReplayObject) -> str:
    """Render a report for people. Answers are shown as quoted text, cut to a few hundred characters."""
    against = ", ".join(f"{name}={value}" for name, value in report.against.items())
    costs = f"{_format_cost(report.cost_before_usd)} before and {_format_cost(report.cost_after_usd)} after"
    lines = [
        f"# Replay {report.name} against {against or 'the same model and prompt'}",
        "",
        f"{report.runs} runs, {report.not_played} not played, {report.differing} differing; steps "
        f"{report.steps_before} before and {report.steps_after} after; cost {costs}",
        *(f"- {name}: {good} of {report.runs} good" for name, good in report.good.items()),
        "",
    ]
    for row in report.data:
        at = "no step differs" if row.differs_at is None else f"step {row.differs_at} is the first that differs"
        grades = "".join(f", {name}: {'good' if good else 'not good'}" for name, good in row.grades.items())
        lines.append(f"## {row.run_id}: {row.problem or at}{grades}")
        lines += [f"- asked: {quote_text(row.title)}"] if row.title else []
        if row.answer_before != row.answer_after:
            lines += [f"- before: {quote_text(row.answer_before)}", f"- after: {quote_text(row.answer_after)}"]
        lines.append("")
    return "\n".join(lines)


def _format_cost(cost: float | None) -> str:
    return "unknown" if cost is None else f"{cost:.4f} USD"


def _play(
    client: HermesClient, name: str, run_ids: Sequence[str], said: Mapping[str, Any], match: Any, graders: Sequence[str]
) -> list[ReplayedRun]:
    """Play runs again and wait for their ends. Returns those that could not be played, which no grader finds good."""
    from hermes_worker.client import RefusedError

    begun: list[str] = []
    refused: list[ReplayedRun] = []
    for run_id in run_ids:
        try:
            key = f"replay-{name}-{run_id}"  # what began before an interruption is not begun again
            fork = client.fork_run(run_id, 0, tools="offline", match=match, replay=name, idempotency_key=key, **said)
            begun.append(fork.run_id)
        except RefusedError as error:
            before = client.result(run_id)
            row = ReplayedRun(
                run_id=run_id,
                problem=str(error),
                answer_before=before.final_response or "",
                steps_before=before.api_calls,
                grades=dict.fromkeys(graders, False),
            )
            refused.append(row)
    if begun:
        client.join(begun)
    return refused


def _grade(
    client: HermesClient,
    rows: Sequence[ReplayedRun],
    expected: Mapping[str, str | None],
    graders: Mapping[str, Grader],
    rubrics: Mapping[str, str],
    judge: str | None,
) -> dict[str, dict[str, bool]]:
    """Grade the replays, by their run ids. By a rubric a model judges: in a fork of each original, which is told to
    judge and is an evaluation, too."""
    found = {
        # one without an answer is not good
        str(row.replay_run_id): {
            name: row.problem is None and grade(expected.get(row.run_id), row.answer_after)
            for name, grade in graders.items()
        }
        for row in rows
    }
    asked: dict[tuple[str, str], str] = {}
    for row in rows:
        for name, rubric in rubrics.items():
            found[str(row.replay_run_id)][name] = False
            if row.problem is None:
                prompt = build_rubric_prompt(rubric, expected.get(row.run_id), row.answer_after, secrets.token_hex(8))
                fork = client.fork_run(row.run_id, 0, model=judge, prompt=prompt, tools="offline")
                asked[str(row.replay_run_id), name] = fork.run_id
    if asked:
        client.join(list(asked.values()))
    for (replay_run_id, name), run_id in asked.items():
        found[replay_run_id][name] = read_verdict(client.result(run_id).final_response or "")
    return found


def _select_runs(client: HermesClient, named: Mapping[str, str], since: float, limit: int) -> Iterator[DataItem]:
    wanted = {**named, "created_after": since}
    beside = {EVALUATION_SOURCE, FORK_TAG}
    for run in islice((each for each in client.runs(**wanted) if beside.isdisjoint(each.tags or ())), limit):
        yield DataItem(run_id=run.run_id, expected=None)


def _parse_pair(text: str, names: Sequence[str], option: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if name not in names or not value:
        raise ConfigurationError(f"{option}: {text!r} is not NAME=VALUE with a name of {', '.join(names)}")
    return name, value


def _parse_against(against: Sequence[str]) -> dict[str, str]:
    said = dict(_parse_pair(each, ("model", "prompt"), "--against") for each in against)
    return {**said, **({"prompt": read_prompt(Path(said["prompt"]))} if "prompt" in said else {})}


def _parse_grader(text: str) -> tuple[str, Grader]:
    if text == "exact":
        return text, grade_exact
    kind, value = _parse_pair(text, ("schema", "python"), "--grade")
    return text, _make_schema_grader(Path(value)) if kind == "schema" else _load_function(value)


def _make_schema_grader(path: Path) -> Grader:
    from hermes_worker.agent.tools.json_schema import iterate_errors, require_usable

    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
        require_usable(schema)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--grade: {str(path)!r} is no usable JSON Schema: {error}") from None

    def grade(_expected: str | None, answer: str) -> bool:
        try:
            return next(iterate_errors(json.loads(answer), schema), None) is None
        except (ValueError, RecursionError):
            return False

    return grade


def _load_function(place: str) -> Grader:
    """Load a function of the user's, by ``MODULE:FUNCTION``."""
    module, _, name = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"--grade: {place!r} names no function: {error}") from None
    return lambda expected, answer: bool(found(expected, answer))


def _read_data(path: Path) -> list[DataItem]:
    try:
        items = parse_data(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--data: {str(path)!r} cannot be read: {error}") from None
    if len({item.run_id for item in items}) != len(items) or len(items) > _RUNS_MAX:
        raise ConfigurationError(f"--data: {str(path)!r} names a run twice, or more than {_RUNS_MAX:,} runs")
    return items
