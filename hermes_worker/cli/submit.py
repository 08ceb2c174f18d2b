"""``hermes-worker submit``: put a task into the queue."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hermes_worker.cli.options import (
    TEXT,
    OneOf,
    chosen_tenant,
    client_settings,
    common,
    of_tenant,
    prompt_text,
    this_user,
    toolset_names,
    toolsets_option,
)
from hermes_worker.cli.records import records_of, require_begun
from hermes_worker.cli.runs import watch_run
from hermes_worker.core.budget import BudgetMode
from hermes_worker.core.principals import Principal
from hermes_worker.local.paths import StackNote, running_stack
from hermes_worker.settings import Settings
from hermes_worker.store.access.principals import Tenants


@click.command(epilog="Example: git diff | hermes-worker submit - --session review --watch")
@common
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
@click.option("--idempotency-key", type=TEXT, help="Submitting again with the same key gives the same run.")
@click.option("--watch", is_flag=True, help="Follow the run to its end.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def submit(
    home: Path | None,
    prompt: str,
    session: str | None,
    workspace: Path | None,
    model: str | None,
    toolsets: str | None,
    max_iterations: int | None,
    max_tokens: int | None,
    max_tool_calls: int | None,
    max_cost_usd: float | None,
    max_wall_s: float | None,
    budget: str | None,
    idempotency_key: str | None,
    watch: bool,
    as_json: bool,
) -> int:
    """Put a task into the queue. PROMPT is the task; - reads it from standard input."""
    from hermes_worker.services.submission import Submission
    from hermes_worker.services.submission import submit as accept
    from hermes_worker.wiring import open_client

    settings = client_settings(home)
    require_begun(settings)
    stack = _stack(settings)
    submission = Submission(
        input=prompt_text(prompt),
        session_id=session,
        toolsets=toolset_names(toolsets),
        model=model or (stack.model_name if stack else None),
        endpoint=stack.model_key if stack else None,
        directory=str(workspace.absolute()) if workspace else None,
        principal=Principal(tenant=chosen_tenant(), name=this_user()),
        source="cli",
        iterations_max=max_iterations,
        tokens_max=max_tokens,
        tool_calls_max=max_tool_calls,
        cost_usd_max=max_cost_usd,
        wall_s_max=max_wall_s,
        budget=BudgetMode(budget) if budget else None,
        idempotency_key=idempotency_key,
    )
    client = open_client(settings)
    Tenants(client.database).require_enabled(submission.principal.tenant)
    created = accept(client, submission)
    client.close()
    if as_json:
        click.echo(json.dumps({"run_id": created.run_id, "session_id": created.session_id, "status": "started"}))
    else:
        click.echo(created.run_id)
    return watch_run(records_of(settings), created.run_id, as_json=as_json) if watch else 0


def _stack(settings: Settings) -> StackNote | None:
    """The embedded stack that will do the work: it may have been started with other settings than these."""
    return running_stack(settings.home) if settings.broker.url is None else None
