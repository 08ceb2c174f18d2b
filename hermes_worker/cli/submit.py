"""``hermes-worker submit``: put a task into the queue."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli.listing import AHEAD
from hermes_worker.cli.options import (
    TEXT,
    OneOf,
    acts_as_this_user,
    chosen_tenant,
    client_settings,
    of_tenant,
    prompt_text,
    reachable,
    this_user,
    toolset_names,
    toolsets_option,
)
from hermes_worker.cli.records import records_of, require_begun
from hermes_worker.cli.run_backend import LocalBackend
from hermes_worker.cli.runs import watch_run
from hermes_worker.cli.server import server_client
from hermes_worker.core.budget import BudgetMode
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.principals import Principal
from hermes_worker.core.urgency import PRIORITIES, Priority
from hermes_worker.local.paths import StackNote, running_stack
from hermes_worker.settings import Settings
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.runs.runs import Created, Multitask

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient
    from hermes_worker.services.submission import Submission


@click.command(epilog="Example: git diff | hermes-worker submit - --session review --watch")
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
    if (client := server_client()) is not None:
        return submit_to(client, prompt_text(prompt), asked, watch=watch, as_json=as_json)
    from hermes_worker.services.submission import submit as accept
    from hermes_worker.wiring import open_client

    settings = client_settings(home)
    require_begun(settings)
    submission = _submission(prompt_text(prompt), asked, _stack(settings))
    acts_as_this_user()
    submitter = open_client(settings)
    Tenants(submitter.database).require_enabled(submission.principal.tenant)
    created = accept(submitter, submission)
    submitter.close()
    if as_json:
        click.echo(json.dumps({"run_id": created.run_id, "session_id": created.session_id, "status": _status(created)}))
    else:
        click.echo(created.run_id)
    return watch_run(LocalBackend(records_of(settings)), created.run_id, as_json=as_json) if watch else 0


def submit_to(client: HermesClient, text: str, asked: Mapping[str, Any], *, watch: bool, as_json: bool) -> int:
    """Hand a task to a server."""
    from hermes_worker.cli.remote_backend import RemoteBackend

    if asked["workspace"]:
        raise ConfigurationError("--workspace names a directory of this machine, and the run works on the server's")
    given = {_REMOTE_NAMES.get(name, name): asked[name] for name in _REMOTE_FIELDS if asked[name] not in (None, ())}
    if asked["metadata"]:
        given["metadata"] = metadata_of(asked["metadata"])
    if asked["output_schema"]:
        given["output_schema"] = schema_in(asked["output_schema"])
    if (names := toolset_names(asked["toolsets"])) is not None:
        given["toolsets"] = names
    started = client.start(text, idempotency_key=asked["idempotency_key"], **given)
    run_id = started["run_id"]
    if as_json:
        session_id = client.run(run_id)["session_id"]
        said = {"run_id": run_id, "session_id": session_id, "status": started.get("status", "started")}
        click.echo(json.dumps(said))
    else:
        click.echo(run_id)
    return watch_run(RemoteBackend(client), run_id, as_json=as_json) if watch else 0


_REMOTE_NAMES = {"session": "session_id", "max_tokens": "max_total_tokens", "budget": "budget_mode"}
_REMOTE_FIELDS = (
    *("session", "model", "max_iterations", "max_tokens", "max_tool_calls", "max_cost_usd", "max_wall_s", "budget"),
    *("tags", "priority", "not_before", "deadline", "multitask", "deliver", "skills", "artifacts"),
)
"""Options that the API takes as they are, and those that it calls otherwise."""


def _submission(text: str, asked: Mapping[str, Any], stack: StackNote | None) -> Submission:
    """What the options say."""
    from hermes_worker.services.submission import Submission

    return Submission(
        input=text,
        session_id=asked["session"],
        toolsets=toolset_names(asked["toolsets"]),
        model=asked["model"] or (stack.model_name if stack else None),
        endpoint=stack.model_key if stack else None,
        directory=str(asked["workspace"].absolute()) if asked["workspace"] else None,
        principal=Principal(tenant=chosen_tenant(), name=this_user()),
        source="cli",
        iterations_max=asked["max_iterations"],
        tokens_max=asked["max_tokens"],
        tool_calls_max=asked["max_tool_calls"],
        cost_usd_max=asked["max_cost_usd"],
        wall_s_max=asked["max_wall_s"],
        budget=BudgetMode(asked["budget"]) if asked["budget"] else None,
        tags=asked["tags"],
        metadata=metadata_of(asked["metadata"]),
        priority=Priority.of(asked["priority"]) if asked["priority"] else None,
        not_before=asked["not_before"],
        deadline=asked["deadline"],
        skills=asked["skills"],
        artifacts=asked["artifacts"] or None,
        multitask=Multitask(asked["multitask"]),
        deliver=asked["deliver"] or None,
        idempotency_key=asked["idempotency_key"],
        output_schema=schema_in(asked["output_schema"]) if asked["output_schema"] else None,
    )


def schema_in(path: Path) -> dict[str, Any]:
    """Raises ``ConfigurationError``."""
    try:
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"--output-schema: {str(path)!r} is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise ConfigurationError(f"--output-schema: {str(path)!r} is not a JSON object")
    return schema


def _status(created: Created) -> str:
    return "steered" if created.was_steered else "scheduled" if created.not_before is not None else "started"


def metadata_of(pairs: Sequence[str]) -> dict[str, str]:
    """Raises ``ConfigurationError`` for what is no ``NAME=VALUE``."""
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not 1 <= len(name) <= 64 or len(value) > 512:
            raise ConfigurationError(f"--meta {pair[:80]!r} is not NAME=VALUE (64 and 512 characters at most)")
    return dict(pair.split("=", 1) for pair in pairs)


def _stack(settings: Settings) -> StackNote | None:
    """The embedded stack that will do the work: it may have been started with other settings than these."""
    return running_stack(settings.home) if settings.broker.url is None else None
