"""The roles that a deployment runs one by one: worker, beat, API, migration, and the scripted model to try things
with."""

from __future__ import annotations

import logging
import signal
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.options import TEXT, OneOf, common, load_settings, suggest_word
from hermes_worker.cli.role_process import run_role
from hermes_worker.cli.server import refuse_server_options
from hermes_worker.core.errors import UnavailableError
from hermes_worker.local.process import title_process
from hermes_worker.local.startup import LEAVING_SIGNALS, wait_for_database
from hermes_worker.system import heap
from hermes_worker.workspaces.command_mark import build_worker_title

if TYPE_CHECKING:
    from celery import Celery
    from celery.beat import Service

    from hermes_worker.hosting.host import ResourceHost
    from hermes_worker.settings import Settings
    from hermes_worker.settings.role_secrets import ProcessRole
    from hermes_worker.store.engine.database import Database

_SCHEMA_LOOK_S = 0.5
_QUEUES = ("model", "tools", "delivery", "system")
_LANE_QUEUES = ("suspect_model", "suspect_tools", "suspect_delivery")
"""Queues of suspects, for an operator who starts lanes by hand; a worker starts its own lanes by itself."""


def _parse_queues(_ctx: click.Context, _parameter: click.Parameter, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in (*_QUEUES, *_LANE_QUEUES)]
    if unknown or not names:
        meant = suggest_word(unknown[0], _QUEUES) if unknown else ""
        raise click.BadParameter(f"write one or more of {', '.join(_QUEUES)}, separated by commas.{meant}")
    return names


@click.command(
    epilog="Example: HERMES_BROKER_URL=redis://... HERMES_DATABASE_URL=postgresql://... "
    "hermes-worker start worker --queues model --concurrency 100"
)
@common
@click.option(
    "--queues",
    default=",".join(_QUEUES),
    show_default=True,
    callback=_parse_queues,
    help="Queues to consume: model calls, tool calls, deliveries, maintenance.",
)
@click.option(
    "--pool",
    type=OneOf(["threads", "prefork", "solo"]),
    default="threads",
    show_default=True,
    help="threads for model calls and ordinary tools; prefork for tools that need a process of their own.",
)
@click.option("--concurrency", type=click.IntRange(1, 1000), default=16, show_default=True, help="Tasks at once.")
@click.option("--name", type=TEXT, help="Name among the workers. Default: host and process number.")
@click.option(
    "--alive-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Touched at every heartbeat, also while the database is away, for a liveness probe that looks at its age.",
)
@click.option("-E", "--task-events", is_flag=True, help="Send Celery's events from the start.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Made when it begins to consume, and removed while it waits for a server and when it leaves; for a probe.",
)
@click.option("--beat", "has_beat", is_flag=True, help="Be a scheduler as well; for small fleets.")
def worker(
    home: Path | None,
    queues: tuple[str, ...],
    pool: str,
    concurrency: int,
    name: str | None,
    alive_file: Path | None,
    task_events: bool,
    ready_file: Path | None,
    has_beat: bool,
) -> int:
    """Run one worker process.

    It drains on SIGTERM: no new work, then HERMES_DRAIN_S seconds to finish, then it hands over the rest. A second
    signal ends the drain period at once.
    """
    from hermes_worker.tasks.build import WorkerOptions
    from hermes_worker.worker.main import WorkerPool, run_worker

    settings = load_settings(home, {"worker.events": task_events or None}, is_of_fleet=True)
    role = f"worker {','.join(queues)} [{concurrency}]{' and beat' if has_beat else ''}"
    title_process(build_worker_title(role, may_call_us=settings.terminal.allow_hermes_worker))
    options = WorkerOptions(name=name, queues=queues, alive_file=alive_file, ready_file=ready_file, has_beat=has_beat)
    make_beat = partial(_make_beat, settings, is_in_worker=True) if has_beat else None
    return run_worker(settings, options, pool=WorkerPool(pool), concurrency=concurrency, make_beat=make_beat)


def _make_beat(settings: Settings, app: Celery, **options: Any) -> Service:
    from celery.beat import Service

    from hermes_worker.role_needs import require_role_needs
    from hermes_worker.settings.role_secrets import ProcessRole
    from scheduler.beat import Scheduler

    require_role_needs(settings, [ProcessRole.BEAT])
    return Service(app, scheduler_cls=partial(Scheduler, settings=settings, **options))


@click.command(epilog="Any number of schedulers may run; none of them needs to know of the others.")
@common
@click.option(
    "--alive-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Touched every second, for a liveness probe that looks at its age.",
)
def beat(home: Path | None, alive_file: Path | None) -> int:
    """Run one scheduler process."""
    from hermes_worker.broker.queue import refuse_cluster
    from hermes_worker.local.paths import find_broker_url
    from hermes_worker.observe import configure_logging, log
    from hermes_worker.worker.celery import build_celery_app

    title_process("beat")
    settings = load_settings(home, is_of_fleet=True)
    configure_logging(settings.log, "beat", secrets=settings.secrets)
    logging.getLogger("celery").setLevel(logging.WARNING)  # its news of every tick is none
    refuse_cluster(find_broker_url(settings))
    service = _make_beat(settings, build_celery_app(find_broker_url(settings)), alive_file=alive_file)
    wait_for_database(lambda: service.scheduler, alive_file=alive_file)
    for number in LEAVING_SIGNALS:
        signal.signal(number, _leave)
    heap.freeze_objects()
    log.info("worker.started", schedule="maintenance")
    service.start()
    log.info("worker.stopped")
    return 0


_ALIVE_FILE = click.option(
    "--alive-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Touched several times a second while the database answers, for a liveness probe that looks at its age.",
)
_HOST_NAME = click.option("--name", type=TEXT, help="Name among the hosts. Default: host and process number.")


@click.command(epilog="Needs the extra browser, a Chromium and bubblewrap. Any number of hosts may run.")
@common
@_HOST_NAME
@_ALIVE_FILE
def browser(home: Path | None, name: str | None, alive_file: Path | None) -> int:
    """Run one process that starts and ends browsers for sessions.

    Workers connect to it when a tool is called. On SIGTERM it ends its browsers; cookies stay with their sessions.
    """
    from hermes_worker.browser.build import build_browser_host
    from hermes_worker.settings.role_secrets import ProcessRole

    def build_host(settings: Settings, known_as: str, stack: ExitStack) -> ResourceHost:
        logging.getLogger("websockets").setLevel(logging.WARNING)  # its news of every connection is none
        database = _open_host_database(settings, ProcessRole.BROWSER, stack)
        return build_browser_host(settings, database, name=known_as, alive_file=alive_file)

    return run_role(home, ProcessRole.BROWSER, name, build_host, alive_file)


@click.command("mcp-host", epilog="Any number of hosts may run; each needs the programs of the servers.")
@common
@_HOST_NAME
@_ALIVE_FILE
def mcp_processes(home: Path | None, name: str | None, alive_file: Path | None) -> int:
    """Run one process that starts and ends MCP servers that have a command, for sessions.

    Workers connect to it when a tool is called. On SIGTERM it ends its servers.
    """
    from hermes_worker.settings.role_secrets import ProcessRole
    from hermes_worker.wiring import build_mcp_host, start_process_lister

    def build_host(settings: Settings, known_as: str, stack: ExitStack) -> ResourceHost:
        database = _open_host_database(settings, ProcessRole.MCP, stack)
        host = build_mcp_host(settings, database, name=known_as, alive_file=alive_file)
        if (looker := start_process_lister(settings, database)) is not None:
            stack.callback(looker.stop)
        return host

    return run_role(home, ProcessRole.MCP, name, build_host, alive_file)


def _open_host_database(settings: Settings, role: ProcessRole, stack: ExitStack) -> Database:
    """Open the database of a host, and serve its metrics. What it reads of rows, such as where a browser was or a
    token, may be encrypted."""
    from hermes_worker.metrics.serving import build_connection_gauges, serve_metrics
    from hermes_worker.store.build import build_database, build_sealer

    database = build_database(settings, sealer=build_sealer(settings))
    stack.callback(database.close)
    serve_metrics(settings, role.value, build_connection_gauges(database))
    return database


def _leave(_number: int, _frame: Any) -> None:
    raise SystemExit(0)  # Celery's beat takes it for its end and closes the scheduler


@click.command(epilog="Example: hermes-worker start api --host 0.0.0.0 --port 8642   (needs HERMES_SERVER_KEY)")
@common
@click.option("--host", type=TEXT, help="Address to listen on. Default: 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Default: 8642.")
def api(home: Path | None, host: str | None, port: int | None) -> int:
    """Run one HTTP API process."""
    from hermes_worker.api.server import serve
    from hermes_worker.observe import configure_logging
    from hermes_worker.role_needs import require_role_needs
    from hermes_worker.settings.role_secrets import ProcessRole
    from hermes_worker.settings.server_key import keep_server_key

    settings = load_settings(home, {"server.host": host, "server.port": port}, is_of_fleet=True)
    require_role_needs(settings, [ProcessRole.API])
    title_process(f"api {settings.server.host}:{settings.server.port}")
    configure_logging(settings.log, "api", secrets=(*settings.secrets, keep_server_key(settings)))
    serve(settings, on_ready=lambda url: heap.freeze_objects())
    return 0


@click.command(epilog="Safe to repeat, and safe for several at once. With --check, exit code 0: ready; 1: not.")
@common
@click.option("--check", is_flag=True, help="Change nothing; say whether this version can work on the schema.")
@click.option(
    "--wait-s",
    type=click.FloatRange(0, 86_400),
    default=0.0,
    help="With --check: wait as long as this for the schema, or for the database itself.",
)
def migrate(home: Path | None, check: bool, wait_s: float) -> int:
    """Bring the database to this version's schema."""
    from hermes_worker.local.paths import prepare_home
    from hermes_worker.store.build import build_database

    if wait_s and not check:
        raise click.UsageError("--wait-s belongs to --check")
    settings = load_settings(home)
    if settings.database.url is None:
        prepare_home(settings.home)
    with closing(build_database(settings)) as database:
        return _await_schema(database, wait_s) if check else _upgrade(database)


def _upgrade(database: Database) -> int:
    from hermes_worker.store.migrate import migrate
    from hermes_worker.store.revisions import find_newest

    before = migrate(database)
    target = database.url.render_as_string(hide_password=True)
    match before:
        case None:
            click.echo(f"{target} is at {find_newest()} (upgraded from nothing)")
        case found if found > find_newest():
            click.echo(f"{target} is at {found}, which is newer than {find_newest()}; this version works on it")
        case found:
            change = "was up to date" if found == find_newest() else f"upgraded from {found}"
            click.echo(f"{target} is at {find_newest()} ({change})")
    return 0


def _await_schema(database: Database, wait_s: float) -> int:
    """Wait for the schema: ends when processes that started before the migration can work, or when the patience is
    over."""
    from hermes_worker.store.revisions import find_newest, format_advice, load_state

    give_up_at = time.monotonic() + wait_s
    target = database.url.render_as_string(hide_password=True)
    while True:
        try:
            there = load_state(database)
            if there.is_usable:
                click.echo(f"{target} is at {there.found}; this version is written for {find_newest()} and works on it")
                return 0
            why = f"{target} is at {there.found or 'nothing'}, this version needs {find_newest()}; "
            why += format_advice(there.found, there.works_with)
        except UnavailableError as error:
            why = f"{target}: {error}"
        if time.monotonic() >= give_up_at:
            click.echo(f"error: {why}", err=True)
            return EXIT_FAILED
        time.sleep(_SCHEMA_LOOK_S)


@click.command("scripted-model", epilog="Then: hermes-worker run --base-url http://127.0.0.1:8900/v1 --model scripted")
@click.option("--port", type=click.IntRange(0, 65_535), default=8900, show_default=True, help="0 takes a free one.")
@click.option("--latency-s", type=click.FloatRange(0, 3600), default=0.0, help="Seconds before each reply begins.")
@click.option(
    "--replies",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Say what this file has: scripts, or recorded answers (docs/testing.md).",
)
@click.option(
    "--record-from",
    type=TEXT,
    metavar="URL",
    help="Send requests on to this provider, such as https://api.openai.com, and append its answers to --replies.",
)
@refuse_server_options
def scripted_model(port: int, latency_s: float, replies: Path | None, record_from: str | None) -> int:
    """Serve the scripted stand-in for a model.

    It is not a language model: it follows a fixed procedure, the script in the user's message, or a file of replies. On
    this machine only.
    """
    from hermes_worker.models.scripted.__main__ import main

    title_process("scripted model")
    more = [*(("--replies", str(replies)) if replies else ()), *(("--record-from", record_from) if record_from else ())]
    return main(["--port", str(port), "--latency-s", str(latency_s), *more])
