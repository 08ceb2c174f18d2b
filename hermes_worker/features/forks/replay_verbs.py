"""``hermes-worker runs replay``: play recorded runs again, against another model or prompt, and compare."""

from __future__ import annotations

import importlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.listing import AGO
from hermes_worker.cli.options import of_tenant, reachable
from hermes_worker.cli.run_backend import open_backend
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.forks import EVALUATION_SOURCE
from hermes_worker.features.forks.replay_rules import (
    Comparison,
    DataItem,
    Grader,
    PlayedRun,
    build_failed,
    build_report,
    build_rubric_prompt,
    compare_runs,
    grade_exact,
    parse_data,
    read_verdict,
    render_markdown,
)
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
    export: bool,
    as_json: bool,
) -> int:
    """Play recorded runs again, offline, against another model or prompt, and compare. They begin with their input, and
    their calls are answered by what was recorded and by nothing else. Prints where each first differs, its answers, its
    cost and its grades. The exit code is 1 when something could not be played, or a grader finds an answer not
    good."""
    said, named = _parse_against(against), dict(_parse_pair(each, _FILTERS, "--filter") for each in filters)
    rubrics = {each: read_prompt(Path(each[len(_RUBRIC) :])) for each in graders if each.startswith(_RUBRIC)}
    judges = dict(_parse_grader(each) for each in graders if each not in rubrics)
    items = _read_data(data) if data is not None else None
    client = open_backend(home, begins_work=not export).client
    if items is None:
        named.setdefault("status", "completed")
        items = list(_select_runs(client, named, since, limit))
    played = {item.run_id: _load_played(client, item.run_id) for item in items[:_RUNS_MAX]}
    if export:
        for item in items:
            click.echo(json.dumps({"run_id": item.run_id, "expected": played[item.run_id].answer}))
        return 0
    rows = _play(client, items[:_RUNS_MAX], played, said, match, judges)
    rows = _grade_by_rubrics(client, rows, {item.run_id: item.expected for item in items}, rubrics, judge)
    report = build_report(dict(each.split("=", 1) for each in against), rows)
    click.echo(json.dumps(report) if as_json else render_markdown(report))
    is_good = all(row.problem is None and all(row.grades.values()) for row in rows)
    return 0 if is_good else EXIT_FAILED


def _play(
    client: HermesClient,
    items: Sequence[DataItem],
    played: Mapping[str, PlayedRun],
    said: Mapping[str, Any],
    match: Any,
    graders: Mapping[str, Grader],
) -> list[Comparison]:
    from hermes_worker.client import RefusedError

    forks: dict[str, str] = {}
    problems: dict[str, str] = {}
    for item in items:
        try:
            forks[item.run_id] = client.fork_run(item.run_id, 0, tools="offline", match=match, **said).run_id
        except RefusedError as error:
            problems[item.run_id] = str(error)
    if forks:
        client.join(list(forks.values()))
    rows = []
    for item in items:
        before = played[item.run_id]
        if item.run_id in problems:
            rows.append(build_failed(before, problems[item.run_id], graders))
        else:
            rows.append(compare_runs(before, _load_played(client, forks[item.run_id]), item.expected, graders))
    return rows


def _grade_by_rubrics(
    client: HermesClient,
    rows: Sequence[Comparison],
    expected: Mapping[str, str | None],
    rubrics: Mapping[str, str],
    judge: str | None,
) -> list[Comparison]:
    """Have a model judge the answers: in a fork of each original, which is told to judge and is an evaluation, too."""
    asked = {}
    for row in rows:
        for name, rubric in rubrics.items() if row.problem is None else ():
            prompt = build_rubric_prompt(rubric, expected[row.original], row.answer_after, secrets.token_hex(8))
            fork = client.fork_run(row.original, 0, model=judge, prompt=prompt, tools="offline")
            asked[row.original, name] = fork.run_id
    if asked:
        client.join(list(asked.values()))
    verdicts = {key: read_verdict(client.result(run_id).final_response or "") for key, run_id in asked.items()}
    found = [{name: verdicts.get((row.original, name), False) for name in rubrics} for row in rows]
    return [replace(row, grades={**row.grades, **each}) for row, each in zip(rows, found, strict=True)]


def _select_runs(client: HermesClient, named: Mapping[str, str], since: float, limit: int) -> Iterator[DataItem]:
    wanted = {**named, "created_after": since}
    for run in islice((each for each in client.runs(**wanted) if EVALUATION_SOURCE not in (each.tags or ())), limit):
        yield DataItem(run_id=run.run_id, expected=None)


def _load_played(client: HermesClient, run_id: str) -> PlayedRun:
    found = client.result(run_id)
    return PlayedRun(
        run_id=run_id,
        status="completed" if found.completed else found.turn_exit_reason or "unfinished",
        answer=found.final_response or "",
        steps=found.api_calls,
        cost_usd=None if found.cost_status == "unknown" else found.estimated_cost_usd,
        replies=[row for row in found.messages if row.get("role") == "assistant"],
    )


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
