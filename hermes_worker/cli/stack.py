"""A whole installation on one machine, as one process tree: what ``up`` and ``run`` start.

The broker starts first, everything else at the same time once it answers. SQLite wants few processes that write, so by
default there is one worker for model calls and one for tools.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

from hermes_worker import installed, mcp
from hermes_worker.cli.entry import main
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.extension import load_reference
from hermes_worker.local.background_stack import StackLog, get_broker_log_path
from hermes_worker.local.children import ChildSpec
from hermes_worker.local.forking import ChildEntry
from hermes_worker.local.process import title_process
from hermes_worker.local.readiness import ApiIsWell, FilesExist, PortAnswers, get_waiting_file, read_cause
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.role_needs import require_role_needs
from hermes_worker.settings import ServerSettings, Settings, build_handover, load_settings
from hermes_worker.settings.role_secrets import ProcessRole
from hermes_worker.settings.server_key import keep_server_key
from hermes_worker.store.revisions import find_newest

_API = "hermes_worker.api.server"
_SERVERS = "servers"
"""The group of servers that roles need: started before them, and ended after them, so that a draining worker can hand
its call over."""
_LEAVING_S = 8.0
"""Seconds that a worker gets to end after its drain periods, before it is killed."""
_BROKER_GRACE_S = 10.0
REPLIES_FILE = "replies.yaml"
"""A file of the home with what the scripted stand-in replies (docs/testing.md)."""
_METRICS_PORTS = ("api", "beat", "model", "tools", "gateway", "browser", "mcp")
"""The roles that serve metrics; each has a port of its own, from the one of the settings on. That of beat stays free:
a scheduler is served with the model worker, and the others keep the ports that people scrape."""
_READY_PATIENCE_S = 60.0
"""Seconds until a role is ready: the first start on a slow disk compiles every module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan:
    """The roles of a stack beside its broker and, without a key, the scripted stand-in for a model."""

    model_concurrency: int = 32
    """Model calls at once."""
    tool_concurrency: int = 8
    has_beat: bool = True
    has_api: bool = True


class Stack:
    """The processes of one home, as specifications for a supervisor."""

    def __init__(self, settings: Settings, plan: StackPlan) -> None:
        self._plan = plan
        self._valkey = EmbeddedValkey(settings.home / "valkey") if settings.broker.url is None else None
        self.settings = settings
        """The settings; after ``prepare`` with the addresses of the servers that the stack brings along."""

    def prepare(self, say: Callable[[str], None]) -> list[ChildSpec]:
        """Bring the database up to date, choose every address and list what to start, in order. Starts nothing.

        Raises ``ConfigurationError``, ``UnavailableError``. Call ``release`` afterwards in any case.
        """
        from hermes_worker.workspaces.sandbox.groups import groups

        groups.find_parent()  # before there is any child, which would be in the way
        migrate_database(self.settings, say)
        if self._plan.has_api:
            keep_server_key(self.settings)  # said in words here, if it cannot be used
            server = self.settings.server
            self.settings = replace(self.settings, server=replace(server, port=server.port or find_free_port()))
            require_free_port(server.host, self.settings.server.port)
        specs: list[ChildSpec] = []
        if self._valkey is not None:
            specs.append(self._plan_broker(self._valkey))
            broker = replace(self.settings.broker, url=self._valkey.url)
            self.settings = replace(self.settings, broker=broker)
        if self.settings.model.is_scripted:
            specs.append(self._plan_scripted_model())
        # A role that holds credentials runs no commands, and one that runs commands gets as few credentials as
        # possible.
        more = (ProcessRole.BEAT,) if self._plan.has_beat else ()
        specs.append(self._plan_worker("model", "model,delivery,system", self._plan.model_concurrency, more))
        specs.append(self._plan_worker("tools", "tools", self._plan.tool_concurrency))
        if (
            self.settings.browser.is_enabled
            and self._plan.has_beat
            and (lacking := _find_browser_problem(self.settings)) is None
        ):
            alive = self._choose_mark_file("browser.alive")
            name = f"{socket.gethostname()}:{os.getpid()}:browser"
            arguments = ["start", "browser", "--name", name, "--alive-file", str(alive)]
            specs.append(self._plan_role("browser", arguments, (ProcessRole.BROWSER,), ready=alive.exists))
        elif self.settings.browser.is_enabled and self._plan.has_beat:
            say(f"starting no browser host ({lacking})")
        if self._plan.has_beat and _has_processes(self.settings):
            alive = self._choose_mark_file("mcp.alive")
            name = f"{socket.gethostname()}:{os.getpid()}:mcp"
            arguments = ["start", "mcp-host", "--name", name, "--alive-file", str(alive)]
            specs.append(self._plan_role("mcp", arguments, (ProcessRole.MCP,), ready=alive.exists))
        if self._plan.has_beat and _has_accounts(self.settings):
            alive = self._choose_mark_file("gateway.alive")
            known_as = f"{socket.gethostname()}:{os.getpid()}:gateway"
            arguments = ["start", "gateway", "--name", known_as, "--alive-file", str(alive)]
            role = self._plan_role("gateway", arguments, (ProcessRole.GATEWAY,), ready=alive.exists)
            specs.append(replace(role, after_exit=_end_leases_of("gateway", known_as)))
        if self._plan.has_api:
            server = self.settings.server
            specs.append(
                self._plan_role("api", ["start", "api"], (ProcessRole.API,), ready=_build_health_check(server))
            )
        return specs

    @property
    def preload(self) -> ChildEntry:
        """Import what the processes have in common, once, in the process that forks them."""
        used = (("scheduler.beat", self._plan.has_beat), (_API, self._plan.has_api))
        names = [name for name, is_used in used if is_used]
        return ChildEntry("hermes_worker.cli.stack:import_for_roles", [*self.settings.database.driver_modules, *names])

    @property
    def api_url(self) -> str | None:
        server = self.settings.server
        return f"{server.scheme}://{find_reachable_host(server.host)}:{server.port}" if self._plan.has_api else None

    @property
    def valkey(self) -> EmbeddedValkey | None:
        """Return the stack's embedded broker; the process that runs the stack releases its directory at the end."""
        return self._valkey

    def release(self) -> None:
        """Release the broker's directory. Idempotent."""
        if self._valkey is not None:
            self._valkey.release()

    def _plan_broker(self, valkey: EmbeddedValkey) -> ChildSpec:
        log_path = get_broker_log_path(self.settings.home)
        StackLog(log_path).keep_small()
        argv = [*valkey.prepare(), "--logfile", str(log_path)]
        return ChildSpec(
            name="valkey",
            argv=argv,
            env={},
            ready=valkey.is_ready,
            grace_s=_BROKER_GRACE_S,
            pass_fds=valkey.pass_fds,
            group=_SERVERS,
            log_path=log_path,
            recover=valkey.recover,
        )

    def _plan_scripted_model(self) -> ChildSpec:
        port = find_free_port()
        model = self.settings.model
        address, free = f"http://127.0.0.1:{port}/v1", ("custom:scripted=0/0", *model.prices)
        model = replace(model, provider="custom", name="scripted", base_url=address, prices=free)
        self.settings = replace(self.settings, model=model)
        ready = PortAnswers("127.0.0.1", port)
        # Its own entry point, because it starts in a fifth of the time of a command.
        pace = ["--port", str(port), "--chunks", "16", "--chunk-gap-s", "0.004"]
        if (replies := self.settings.home / REPLIES_FILE).exists():
            pace += ["--replies", str(replies)]
        return replace(
            self._plan_role("scripted", [], (), ready=ready),
            argv=[sys.executable, "-P", "-m", "hermes_worker.models.scripted", *pace],
            main=ChildEntry("hermes_worker.cli.stack:run_scripted_model_in_child", pace),
            group=_SERVERS,
        )

    def _plan_worker(self, name: str, queues: str, concurrency: int, more: Sequence[ProcessRole] = ()) -> ChildSpec:
        """Plan a worker, which is the roles ``more`` as well: a scheduler runs no commands either, and costs a quarter
        of a process in one that is there anyway."""
        # Unique in the fleet: the same database may serve other machines, and other homes of this one.
        known_as = f"{socket.gethostname()}:{os.getpid()}:{name}"
        # Two facts: it has a row among the workers and renews its lease, and it is connected to the broker.
        alive, consuming = self._choose_mark_file(f"{name}.alive"), self._choose_mark_file(f"{name}.ready")
        arguments = ["start", "worker", "--queues", queues, "--concurrency", str(concurrency), "--name", known_as]
        arguments += ["--alive-file", str(alive), "--ready-file", str(consuming)]
        roles = (*(ProcessRole(queue) for queue in queues.split(",")), *more)
        arguments += ["--beat"] if ProcessRole.BEAT in more else []
        get_waiting_file(consuming).unlink(missing_ok=True)
        role = self._plan_role(name, arguments, roles, ready=FilesExist((alive, consuming)))
        return replace(role, waits_for=partial(read_cause, consuming), after_exit=_end_leases_of("worker", known_as))

    def _choose_mark_file(self, name: str) -> Path:
        """Choose a file that a role will make, and that does not exist yet."""
        path = self.settings.home / "run" / name
        path.unlink(missing_ok=True)
        return path

    def _plan_role(
        self, name: str, arguments: Sequence[str], roles: Sequence[ProcessRole], ready: Callable[[], bool] | None = None
    ) -> ChildSpec:
        lease = self.settings.lease
        require_role_needs(self.settings, roles)  # said here: the role itself would say it into a log
        environ, secrets = build_handover(self._set_metrics_port(name), *roles)
        return ChildSpec(
            name=name,
            argv=[sys.executable, "-P", "-m", "hermes_worker.cli", *arguments],
            main=ChildEntry("hermes_worker.cli.stack:run_role_in_child", arguments),
            env=environ,
            secrets=secrets.to_bytes() if roles else None,
            ready=ready,
            ready_timeout_s=_READY_PATIENCE_S,
            grace_s=lease.drain_s + lease.drain_once_s + _LEAVING_S,
            group="roles",
        )

    def _set_metrics_port(self, name: str) -> Settings:
        metrics = self.settings.metrics
        if not metrics.port or name not in _METRICS_PORTS:
            return self.settings
        port = metrics.port + _METRICS_PORTS.index(name)
        return replace(self.settings, metrics=replace(metrics, port=port))


def _has_processes(settings: Settings) -> bool:
    """Whether there are MCP servers that have a command, or tenants may have such. Raises ``ConfigurationError``."""
    if settings.mcp.has_rows and settings.mcp.row_commands:
        return True
    if not mcp.has_servers(settings.home):
        return False
    from hermes_worker.mcp.servers import load_servers

    return any(server.is_process for server in load_servers(settings.home).values())


def _has_accounts(settings: Settings) -> bool:
    """Whether there are accounts of chat platforms to listen to. Raises ``ConfigurationError``."""
    if not settings.gateway.is_enabled:
        return False
    from hermes_worker.channels.receivers import list_gateway_accounts

    return bool(list_gateway_accounts(settings.variables, settings.gateway.accounts))


def _find_browser_problem(settings: Settings) -> str | None:
    """Find what keeps this machine from hosting browsers, as a sentence; ``None`` for nothing."""
    from hermes_worker.browser.chromium import NoBrowserHere, find_chromium

    try:
        find_chromium(settings.browser.chromium)
    except NoBrowserHere as error:
        return str(error)
    return None


def import_for_roles(more: Sequence[str]) -> None:
    """Import what every role needs, and the modules ``more``: the process that forks the roles calls this first."""
    import hermes_worker.cli.roles
    import hermes_worker.models.scripted.__main__  # noqa: F401
    from hermes_worker.worker.warm import warm_up

    for name in more:
        import_module(name)
    if _API in more:
        for declared in installed.get_installed().routers.values():
            load_reference(declared.implementation)
    warm_up()


def run_role_in_child(arguments: Sequence[str]) -> None:
    """Run the command ``arguments``, in a child that was forked."""
    sys.argv = ["hermes-worker", *arguments]
    main(arguments)


def _end_leases_of(kind: str, name: str) -> ChildEntry:
    return ChildEntry("hermes_worker.cli.stack:end_leases", [kind, name])


def end_leases(arguments: Sequence[str]) -> None:
    """End the leases of a role that ended by itself, so that others take over what it held now and not when they would
    have ended; in a child that has the settings of the role. ``arguments`` are ``worker`` or ``gateway``, and the name
    it was known by."""
    from hermes_worker.core.errors import HermesError
    from hermes_worker.observe import configure_logging, log
    from hermes_worker.store.build import build_database
    from hermes_worker.store.gateway import GatewayRows
    from hermes_worker.store.workers import Workers

    settings = load_settings()
    configure_logging(settings.log, "up", secrets=settings.secrets)
    kind, name, *_ = arguments
    database = build_database(settings)
    try:
        if kind == "worker":
            Workers(database).expire_leases(name)
        else:
            GatewayRows(database).release_leases_of(name)
    except HermesError as error:
        log.warning("database.unreachable", doing="expire", error=str(error))
    finally:
        database.close()


def run_scripted_model_in_child(arguments: Sequence[str]) -> None:
    """Run the stand-in for a model, in a child that was forked."""
    from hermes_worker.models.scripted.__main__ import main as serve

    title_process("scripted model")
    sys.exit(serve(arguments))


def migrate_database(settings: Settings, say: Callable[[str], None]) -> None:
    """Migrate the database to this version's schema. Raises ``ConfigurationError``, ``UnavailableError``."""
    if settings.database.url is None and _is_current(settings.home / "hermes-worker.db"):
        return
    from hermes_worker.store.build import build_database
    from hermes_worker.store.migrate import migrate

    say("preparing the database")
    with closing(build_database(settings)) as database:
        migrate(database)


def _is_current(path: Path) -> bool:
    """Whether a database file has the newest schema, found without importing what could change it (0.5 s)."""
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=1)) as connection:
            row = connection.execute("select version_num from alembic_version").fetchone()
    except sqlite3.Error:
        return False  # the slow way explains the problem better
    return row is not None and row[0] == find_newest()


def find_free_port() -> int:
    """Find a port of this machine on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def require_free_port(host: str, port: int) -> None:
    """Raise ``ConfigurationError`` when the port is taken, or when the address is not of this machine."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ConfigurationError(
            f"the API cannot listen on {host}:{port} ({error.strerror}); choose another port with --port"
        ) from error


def _build_health_check(server: ServerSettings) -> Callable[[], bool]:
    """Build a check whether the API reports that it is well."""
    where = find_reachable_host(server.host)
    if server.tls_client_ca is not None:
        return PortAnswers(where, server.port)  # it answers no client without a certificate
    return ApiIsWell(where, server.port, server.tls_certificate)


def find_reachable_host(host: str) -> str:
    """Find the address at which a server that listens on ``host`` can be reached from here."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]"}.get(host, host)
