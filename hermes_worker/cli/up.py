"""``hermes-worker up``: run everything on this machine, until Ctrl-C."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from hermes_worker.cli.code_watch import list_code_places, run_reloading
from hermes_worker.cli.copies import find_copy_note
from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.options import TEXT, OneOf, common, format_home_option, load_settings
from hermes_worker.cli.stack import Stack, StackPlan
from hermes_worker.cli.stack_process import PlannedStack, StartReport, become_stack, read_report
from hermes_worker.core.errors import HermesError
from hermes_worker.local.background_stack import StackLog, get_broker_log_path, get_log_path
from hermes_worker.local.paths import (
    HeldHome,
    StackNote,
    build_embedded_database_url,
    hold_home,
    prepare_home,
    require_free_home,
)
from hermes_worker.local.process import format_root_warning, title_process
from hermes_worker.local.supervisor import StartFailed
from hermes_worker.settings import Settings
from hermes_worker.settings.presets import CONCURRENCY, PRESETS
from hermes_worker.settings.server_key import describe_key_place, get_key_file_path


@click.command(
    epilog="Example: hermes-worker up --home ./state --port 8642   then, elsewhere: hermes-worker submit '...' --watch"
)
@common
@click.option("--host", type=TEXT, help="Address of the API. Default: 127.0.0.1; another one needs HERMES_SERVER_KEY.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port of the API; 0 takes a free one. Default: 8642.")
@click.option("--model", type=TEXT, help="Model of runs that name none.")
@click.option("--base-url", type=TEXT, help="Address of an OpenAI-compatible model server.")
@click.option(
    "--model-concurrency",
    type=click.IntRange(1, 1000),
    help="Model calls at once. Default: 32, or what the preset says.",
)
@click.option(
    "--tool-concurrency", type=click.IntRange(1, 1000), help="Tool calls at once. Default: 8, or what the preset says."
)
@click.option("--preset", type=OneOf([*PRESETS]), help="Defaults for a size of installation. Default: $HERMES_PRESET.")
@click.option("--reload", is_flag=True, help="Start anew when the Python files of HERMES_TOOLS or of plugins change.")
@click.option("-d", "--detach", is_flag=True, help="In the background; 'status', 'logs' and 'down' are for it.")
def up(
    home: Path | None,
    host: str | None,
    port: int | None,
    model: str | None,
    base_url: str | None,
    model_concurrency: int | None,
    tool_concurrency: int | None,
    preset: str | None,
    reload: bool,
    detach: bool,
) -> int | None:
    """Start everything on this machine and keep it running.

    Broker, database, workers, scheduler, HTTP API and, without a key, a scripted stand-in for the model. What crashes
    is started again. Ctrl-C drains and stops; a second Ctrl-C stops at once.
    """
    from hermes_worker.observe import configure_logging

    given = {"server.host": host, "server.port": port, "model.default": model, "model.base_url": base_url}
    given["preset"] = preset
    title_process("up")
    settings = load_settings(home, given, is_of_fleet=True)
    configure_logging(settings.log, "up", secrets=settings.secrets)
    model_calls, tool_calls = CONCURRENCY.get(settings.preset, CONCURRENCY[None])
    plan = StackPlan(
        model_concurrency=model_concurrency or model_calls, tool_concurrency=tool_concurrency or tool_calls
    )
    if reload and detach:
        raise click.UsageError("--reload is for work at a terminal: leave --detach out")
    if reload:
        return run_reloading(list_code_places(settings), settings.extensions.modules)
    if detach:
        return _detach(settings, plan)
    with hold_home(settings.home) as held:
        _run(held, settings, plan)
    return None


def _detach(settings: Settings, plan: StackPlan) -> int:
    """Start a stack that stays when this process ends, and wait until it is up. It is forked and not executed, so it
    has the secrets of this process, which stand in no file and in no environment. Raises ``HermesError``."""
    prepare_home(settings.home)
    require_free_home(settings.home)
    log_file = StackLog(get_log_path(settings.home))
    log_file.keep_small()
    reader, writer = os.pipe()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _run_detached(settings, plan, log_file, StartReport(writer))
    os.close(writer)
    try:
        is_up, words = read_report(reader)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        click.echo("stopping what was started", err=True)
        raise
    if not is_up:
        raise StartFailed(words or f"it ended without a word; see {get_log_path(settings.home)}")
    click.echo(words)
    return 0


def _run_detached(settings: Settings, plan: StackPlan, log_file: StackLog, report: StartReport) -> NoReturn:
    """Run the stack in the background, from its start to its end."""
    from hermes_worker.observe import log

    try:
        os.setsid()
        with Path(os.devnull).open() as nothing:
            os.dup2(nothing.fileno(), 0)
        output = log_file.open()
        os.dup2(output, 1)
        os.dup2(output, 2)
        with hold_home(settings.home) as held:
            _run(held, settings, plan, [log_file], report)
    except HermesError as error:
        click.echo(f"hermes-worker: {error}", err=True)
        report.report_failure(str(error))
    except BaseException:
        log.exception("supervisor.failed")
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(EXIT_FAILED)


def _run(
    held: HeldHome,
    settings: Settings,
    plan: StackPlan,
    logs: Sequence[StackLog] = (),
    report: StartReport | None = None,
) -> NoReturn:
    """Plan the stack, and become the process that keeps it running. Raises ``HermesError``."""
    from hermes_worker.cli.models import describe_model, find_model_name, make_model_key

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
            model=describe_model(settings),
            model_key=make_model_key(settings),
            model_name=find_model_name(stack.settings),
            api_url=stack.api_url,
        )
        become_stack(
            PlannedStack(
                specs=specs,
                preload=stack.preload,
                home=held,
                note=note,
                valkey=stack.valkey,
                log=settings.log,
                secrets=[secret.reveal() for secret in settings.secrets],
                logs=[StackLog(get_broker_log_path(settings.home)), *logs],
                welcome=_render_welcome(stack, note),
                warning=format_root_warning(),
                began=began,
                report=report.with_words(_render_background(note, settings.home)) if report is not None else None,
            )
        )
    finally:
        held.withdraw()
        stack.release()


def _render_background(note: StackNote, home: Path) -> str:
    option = format_home_option(home)
    return (
        f"Hermes worker is up in the background (pid {note.pid}), API at {note.api_url}.\n"
        f"hermes-worker status{option}, hermes-worker logs -f{option}, hermes-worker down{option}"
    )


def _describe_database(settings: Settings) -> str:
    if settings.database.url is None:
        return build_embedded_database_url(settings.home)
    from hermes_worker.store.build import build_database  # which takes 0.2 s

    return build_database(settings).url.render_as_string(hide_password=True)


def _render_welcome(stack: Stack, note: StackNote) -> str:
    settings = stack.settings
    path = shlex.quote(str(get_key_file_path(settings.home)))
    key = f'-H "Authorization: Bearer {"$HERMES_SERVER_KEY" if settings.server.key else f"$(cat {path})"}"'
    home = format_home_option(settings.home)
    missing = find_copy_note(settings)
    page = " (in a browser a page: log in with the key)" if settings.server.page else ""
    copy = f"\nThis is a restored copy: {missing}\n" if missing else ""
    return f"""
Hermes worker is up, in {{took_s}} s.
{copy}
  home      {settings.home}
  database  {_describe_database(settings)}
  model     {note.model}
  API       {note.api_url}{page}
  its key   in {describe_key_place(settings)}
  logs      here, and {settings.home / "logs"}

Try, in another terminal:

  hermes-worker submit{home} "Survey this directory" --workspace . --watch
  hermes-worker runs list{home}
  curl {note.api_url}/v1/runs {key} -H 'Content-Type: application/json' -d '{{"input": "Say hello"}}'
  curl -N {note.api_url}/v1/runs/RUN_ID/events {key}

Ctrl-C drains and stops; a second Ctrl-C stops at once.
"""
