"""``hermes-worker submit``: submit a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hermes_worker.cli.api_connection import connect_api
from hermes_worker.cli.listing import AHEAD
from hermes_worker.cli.options import (
    TEXT,
    OneOf,
    of_tenant,
    parse_toolset_names,
    reachable,
    read_prompt_text,
    toolsets_option,
)
from hermes_worker.cli.prompt_words import PromptCommand
from hermes_worker.cli.run_backend import RunBackend
from hermes_worker.cli.runs import watch_run
from hermes_worker.cli.short_ids import complete_session_id
from hermes_worker.core.budget import BudgetMode
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.priority import PRIORITIES
from hermes_worker.core.spec import Multitask


@click.command(cls=PromptCommand, epilog="Example: git diff | hermes-worker submit - --session review --watch")
@reachable
@of_tenant
@click.argument("prompt", type=TEXT)
@click.option("--session", type=TEXT, help="Continue the conversation of this name or id, or start one of this name.")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Directory a new session works in. Default: one of its own in the home.",
)
@click.option("--model", type=TEXT, help="Model to ask. Default: the configured one.")
@toolsets_option
@click.option("--max-iterations", type=click.IntRange(1, 100_000), help="Model calls before a last summary.")
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens that the run and all it delegates may use.")
@click.option("--max-tool-calls", type=click.IntRange(1), help="Tool calls, likewise.")
@click.option("--max-cost-usd", type=click.FloatRange(0, 1_000_000, min_open=True), help="US dollars, likewise.")
@click.option("--max-wall-s", type=click.FloatRange(0, 31 * 86_400, min_open=True), help="Seconds until it expires.")
@click.option("--budget", type=OneOf([mode.value for mode in BudgetMode]), help="How child runs share these.")
@click.option("--tag", "tags", multiple=True, type=TEXT, help="A word to find the run by; may be repeated.")
@click.option("--meta", "metadata", multiple=True, type=TEXT, metavar="NAME=VALUE", help="A note; may be repeated.")
@click.option("--priority", type=OneOf(PRIORITIES), help="Which runs go first when many wait. Default: normal.")
@click.option("--not-before", type=AHEAD, help="Begin then: 90s, 2h, 3d from now, or 2027-01-01T09:00.")
@click.option("--deadline", type=AHEAD, help="Expire then, likewise.")
@click.option(
    "--multitask",
    type=OneOf([kind.value for kind in Multitask]),
    default=Multitask.QUEUE.value,
    show_default=True,
    help="What to do when another run is at work in the session.",
)
@click.option("--deliver", multiple=True, type=TEXT, metavar="TARGET", help="Send the answer there; may be repeated.")
@click.option(
    "--output-schema",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="The answer is JSON that fits this JSON Schema.",
)
@click.option("--skill", "skills", multiple=True, type=TEXT, metavar="NAME", help="Follow this skill; may be repeated.")
@click.option(
    "--artifact",
    "artifacts",
    multiple=True,
    type=TEXT,
    metavar="PATTERN",
    help="Keep files that fit, such as '*.csv' or 'out/**'; may be repeated.",
)
@click.option("--idempotency-key", type=TEXT, help="Submitting again with the same key gives the same run.")
@click.option("--watch", is_flag=True, help="Follow the run to its end.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def submit(home: Path | None, prompt: str, watch: bool, as_json: bool, **asked: Any) -> int:
    """Put a task into the queue. PROMPT is the task; - reads it from standard input."""
    text = read_prompt_text(prompt)
    asked_api = connect_api(home, begins_work=True)
    if asked["workspace"] and asked_api.settings is None:
        raise ConfigurationError("--workspace names a directory of this machine, and the run works on the server's")
    given = {_API_NAMES.get(name, name): asked[name] for name in _API_FIELDS if asked[name] not in (None, ())}
    if asked["workspace"]:
        given["workspace"] = str(asked["workspace"].absolute())
    if asked["metadata"]:
        given["metadata"] = parse_metadata(asked["metadata"])
    if asked["output_schema"]:
        given["output_schema"] = read_schema(asked["output_schema"])
    if (names := parse_toolset_names(asked["toolsets"])) is not None:
        given["toolsets"] = names
    client = asked_api.client
    if "session_id" in given:
        given["session_id"] = complete_session_id(client, given["session_id"])
    started = client.start(text, idempotency_key=asked["idempotency_key"], **given)
    run_id = started["run_id"]
    if as_json:
        session_id = client.run(run_id)["session_id"]
        said = {"run_id": run_id, "session_id": session_id, "status": started.get("status", "started")}
        click.echo(json.dumps(said))
    else:
        click.echo(run_id)
    return watch_run(RunBackend(asked_api), run_id, as_json=as_json) if watch else 0


_API_NAMES = {"session": "session_id", "max_tokens": "max_total_tokens", "budget": "budget_mode"}
_API_FIELDS = (
    *("session", "model", "max_iterations", "max_tokens", "max_tool_calls", "max_cost_usd", "max_wall_s", "budget"),
    *("tags", "priority", "not_before", "deadline", "multitask", "deliver", "skills", "artifacts"),
)
"""Options that the API takes as they are, and those that have another name there."""


def read_schema(path: Path) -> dict[str, Any]:
    """Read a JSON schema from a file. Raises ``ConfigurationError``."""
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"--output-schema: {str(path)!r} is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise ConfigurationError(f"--output-schema: {str(path)!r} is not a JSON object")
    return schema


def parse_metadata(pairs: Sequence[str]) -> dict[str, str]:
    """Parse ``NAME=VALUE`` pairs. Raises ``ConfigurationError`` for what is none."""
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not 1 <= len(name) <= 64 or len(value) > 512:
            raise ConfigurationError(f"--meta {pair[:80]!r} is not NAME=VALUE (64 and 512 characters at most)")
    return dict(pair.split("=", 1) for pair in pairs)
