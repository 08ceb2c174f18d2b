"""``hermes-worker runs fork``: go on from an earlier point of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import click

from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.run_backend import open_backend
from hermes_worker.core.errors import ConfigurationError

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
