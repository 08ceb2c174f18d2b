"""``hermes-worker runs fork|compare``: go on from an earlier point of a run, and see where two runs part."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from hermes_worker.cli.layout import format_duration, render_table
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.run_backend import open_backend
from hermes_worker.cli.screen import flatten_text, strip_controls
from hermes_worker.cli.story import render_call
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.pricing import format_cost
from hermes_worker.core.titles import TITLE_CHARS_MAX

if TYPE_CHECKING:
    from hermes_worker.schemas.runs import RunObject

_PROMPT_BYTES_MAX = 1_000_000


@click.command(epilog="Example: hermes-worker runs fork run_0123... --at 2 --model gpt-5 --tools recorded")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.option("--at", "step", type=click.IntRange(0), required=True, help="Behind which step; 0: behind the input.")
@click.option("--model", type=TEXT, help="Another model.")
@click.option("--prompt", type=click.Path(dir_okay=False, path_type=Path), help="A file with another system prompt.")
@click.option(
    "--tools",
    type=click.Choice(["recorded", "live", "deny"]),
    default="recorded",
    show_default=True,
    help="What answers tool calls: what the run recorded; the tools, which ask for permission again; or only tools "
    "without effects.",
)
@click.option(
    "--match",
    type=click.Choice(["strict", "order"]),
    default="strict",
    show_default=True,
    help="Which recorded call answers: the one at the same position, or the next equal one.",
)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def fork(
    home: Path | None,
    run_id: str,
    step: int,
    model: str | None,
    prompt: Path | None,
    tools: Literal["recorded", "live", "deny"],
    match: Literal["strict", "order"],
    as_json: bool,
) -> None:
    """Go on from an earlier step of a run, in a conversation of its own. The run itself does not change, and its
    effects are not taken back. Prints the id of the new run."""
    text = None if prompt is None else read_prompt(prompt)
    backend = open_backend(home, begins_work=True)
    made = backend.client.fork_run(
        backend.complete_run_id(run_id), step, model=model, prompt=text, tools=tools, match=match
    )
    click.echo(json.dumps(made.model_dump(exclude={"object"})) if as_json else made.run_id)


@click.command(epilog="Example: hermes-worker runs compare run_0123... run_4567...")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.argument("other_run_id", metavar="OTHER", type=TEXT)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def compare(home: Path | None, run_id: str, other_run_id: str, as_json: bool) -> None:
    """Where two runs part, and what each of them took.

    They may have the same task and another model, or be a run and its fork.
    """
    backend = open_backend(home)
    ids = [backend.complete_run_id(each) for each in (run_id, other_run_id)]
    found = backend.client.compare_runs(*ids)
    if as_json:
        click.echo(json.dumps(found.model_dump(exclude={"object"})))
        return
    steps = (found.steps, found.other_steps)
    columns = [_format_side(backend.client.run(each), count) for each, count in zip(ids, steps, strict=True)]
    header = ("", *(each[:_ID_CHARS] for each in ids))
    click.echo(render_table(zip(_COMPARED, *columns, strict=True), header, whole=(0,)))
    if found.differs_at is None:
        click.echo("\nno step differs")
    else:
        click.echo(f"\nstep {found.differs_at} is the first that differs:")
        sides = zip(ids, (found.does, found.other_does), (found.calls, found.other_calls), strict=True)
        for each, does, calls in sides:
            click.echo(f"\n{each}  {strip_controls(does or 'does nothing more')}")
            for call in calls:
                click.echo(
                    "\n".join(f"  {line}" for line in render_call(backend.client, each, call, lines_max=_CALL_LINES))
                )


_ID_CHARS = 16
_CALL_LINES = 10
"""Lines of the arguments and of the output of a call that are shown beside others."""
_COMPARED = ("title", "status", "model", "steps", "took", "tokens", "cost")


def _format_side(run: RunObject, steps: int) -> tuple[str, ...]:
    ended_at = run.finished_at or time.time()
    return (
        flatten_text(run.title or "-", TITLE_CHARS_MAX),
        run.status.value.replace("_", " "),
        flatten_text(run.model, 60),
        f"{steps:,}",
        "-" if run.started_at is None else format_duration(max(0.0, ended_at - run.started_at)),
        f"{run.usage['total_tokens']:,}" if run.usage else "-",
        format_cost(run.estimated_cost_usd, run.cost_status),
    )


def read_prompt(path: Path) -> str:
    """Read the file of a system prompt. Raises ``ConfigurationError``."""
    try:
        with path.open("rb") as file:
            content = file.read(_PROMPT_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    if len(content) > _PROMPT_BYTES_MAX or not content.strip():
        raise ConfigurationError(f"{str(path)!r} is empty or longer than {_PROMPT_BYTES_MAX:,} bytes; name a prompt")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ConfigurationError(f"{str(path)!r} is no text in UTF-8") from None
