"""``hermes-worker submit``: put a task into the queue."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from hermes_worker.cli.options import client_settings, common
from hermes_worker.cli.records import records_of
from hermes_worker.cli.runs import watch_run
from hermes_worker.core.errors import ConfigurationError

PROMPT_BYTES_MAX = 10 * 1024 * 1024


@click.command(epilog="Example: git diff | hermes-worker submit - --session review --watch")
@common
@click.argument("prompt")
@click.option("--session", help="Continue this conversation, or start it under this name.")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Directory a new session works in. Default: one of its own in the home.",
)
@click.option("--model", help="Model to ask. Default: the configured one.")
@click.option("--idempotency-key", help="Submitting again with the same key gives the same run.")
@click.option("--watch", is_flag=True, help="Follow the run to its end.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def submit(
    home: Path | None,
    prompt: str,
    session: str | None,
    workspace: Path | None,
    model: str | None,
    idempotency_key: str | None,
    watch: bool,
    as_json: bool,
) -> int:
    """Put a task into the queue. PROMPT is the task; - reads it from standard input."""
    from hermes_worker.submission import Submission
    from hermes_worker.submission import submit as accept
    from hermes_worker.wiring import open_client

    settings = client_settings(home)
    submission = Submission(
        input=prompt_text(prompt),
        session_id=session,
        model=model,
        directory=str(workspace.absolute()) if workspace else None,
        source="cli",
        idempotency_key=idempotency_key,
    )
    client = open_client(settings)
    created = accept(client, submission)
    client.close()
    if as_json:
        click.echo(json.dumps({"run_id": created.run_id, "session_id": created.session_id, "status": "started"}))
    else:
        click.echo(created.run_id)
    return watch_run(records_of(settings), created.run_id, as_json=as_json) if watch else 0


def prompt_text(prompt: str) -> str:
    """The task; ``-`` stands for standard input. Raises ``ConfigurationError`` for one that is empty or too long."""
    text = prompt if prompt != "-" else _read_stdin()
    if not text.strip():
        raise ConfigurationError("PROMPT is empty; say what is to be done")
    if len(text.encode("utf-8", "surrogatepass")) > PROMPT_BYTES_MAX:
        raise ConfigurationError("PROMPT is longer than 10 MB; put the material into a file in the workspace")
    return text


def _read_stdin() -> str:
    data = sys.stdin.buffer.read(PROMPT_BYTES_MAX + 1)
    return data.decode("utf-8", "replace")
