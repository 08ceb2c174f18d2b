"""``hermes-worker up``: everything on this machine, until Ctrl-C."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

import click

from hermes_worker.cli.options import TEXT, common, home_option, load_settings
from hermes_worker.cli.stack import Stack, StackPlan
from hermes_worker.local.paths import HeldHome, StackNote, holding_home
from hermes_worker.local.process import root_warning, title_process
from hermes_worker.local.supervisor import StartFailed, Supervisor
from hermes_worker.settings import Settings
from hermes_worker.settings.server_key import key_file, place_of_key


@click.command(
    epilog="Example: hermes-worker up --home ./state --port 8642   then, elsewhere: hermes-worker submit '...' --watch"
)
@common
@click.option("--host", type=TEXT, help="Address of the API. Default: 127.0.0.1; another one needs HERMES_SERVER_KEY.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port of the API; 0 takes a free one. Default: 8642.")
@click.option("--model", type=TEXT, help="Model of runs that name none.")
@click.option("--base-url", type=TEXT, help="Address of an OpenAI-compatible model server.")
@click.option(
    "--model-concurrency", type=click.IntRange(1, 1000), default=32, show_default=True, help="Model calls at once."
)
@click.option(
    "--tool-concurrency", type=click.IntRange(1, 1000), default=8, show_default=True, help="Tool calls at once."
)
def up(
    home: Path | None,
    host: str | None,
    port: int | None,
    model: str | None,
    base_url: str | None,
    model_concurrency: int,
    tool_concurrency: int,
) -> int:
    """Start everything on this machine and keep it running.

    Broker, database, workers, scheduler, HTTP API and, without a key, a scripted stand-in for the model. What crashes
    is started again. Ctrl-C drains and stops; a second Ctrl-C stops at once.
    """
    from hermes_worker.observe import configure_logging

    given = {"server.host": host, "server.port": port, "model.default": model, "model.base_url": base_url}
    title_process("up")
    settings = load_settings(home, given)
    configure_logging(settings.log, "up", secrets=settings.secrets)
    plan = StackPlan(model_concurrency=model_concurrency, tool_concurrency=tool_concurrency)
    with holding_home(settings.home) as held:
        return _supervise(held, settings, plan)


def _supervise(held: HeldHome, settings: Settings, plan: StackPlan) -> int:
    from hermes_worker.cli.models import described, model_key, model_name

    began = time.monotonic()
    stack = Stack(settings, plan)
    try:
        specs = stack.prepare(lambda doing: click.echo(f"{doing} ...", err=True))
        click.echo(f"starting {', '.join(spec.name for spec in specs)} ...", err=True)
        note = StackNote(
            pid=os.getpid(),
            command="up",
            started_at=time.time(),
            broker_url=stack.settings.broker.url or "",
            model=described(settings),
            model_key=model_key(settings),
            model_name=model_name(stack.settings),
            api_url=stack.api_url,
        )

        def announce() -> None:
            held.announce(note)
            click.echo(_welcome(stack, note, time.monotonic() - began))
            if warning := root_warning():
                click.echo(f"warning: {warning}", err=True)

        supervisor = Supervisor(specs, on_exit=stack.on_exit, preload=stack.preload)
        status = supervisor.run(on_ready=announce)
        if supervisor.failure is not None:
            held.note_failure(supervisor.failure)
            raise StartFailed(supervisor.failure)
        return status
    finally:
        held.withdraw()
        stack.release()


def _welcome(stack: Stack, note: StackNote, took_s: float) -> str:
    from hermes_worker.wiring import database_of

    settings = stack.settings
    database = database_of(settings).url.render_as_string(hide_password=True)
    path = shlex.quote(str(key_file(settings.home)))
    key = f'-H "Authorization: Bearer {"$HERMES_SERVER_KEY" if settings.server.key else f"$(cat {path})"}"'
    home = home_option(settings.home)
    return f"""
Hermes worker is up, in {took_s:.1f} s.

  home      {settings.home}
  database  {database}
  model     {note.model}
  API       {note.api_url}
  its key   in {place_of_key(settings)}
  logs      here, and {settings.home / "logs"}

Try, in another terminal:

  hermes-worker submit{home} "Survey this directory" --workspace . --watch
  hermes-worker runs list{home}
  curl {note.api_url}/v1/runs {key} -H 'Content-Type: application/json' -d '{{"input": "Say hello"}}'
  curl -N {note.api_url}/v1/runs/RUN_ID/events {key}

Ctrl-C drains and stops; a second Ctrl-C stops at once.
"""
