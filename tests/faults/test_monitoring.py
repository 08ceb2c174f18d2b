"""Celery's own tools and Flower beside real workers: what they see, and what they may change."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery
from support import celerys_commands
from support.flower import FLOWER, environ_of, flower
from support.rig import Rig, rig_on, sink_call, until
from support.valkey import valkey_server

from hermes_worker.broker.queue import TaskName
from hermes_worker.core.run import RunStatus
from hermes_worker.lab.plan import FleetRole
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.worker.celery import build_celery_app

pytestmark = pytest.mark.faults


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'hermes.db'}"


@pytest.fixture
def small_rig(tmp_path: Path, database: str, own_valkey: EmbeddedValkey) -> Iterator[Rig]:
    with rig_on(tmp_path, database_url=database, broker_url=own_valkey.url, workers_per_role=1) as rig:
        yield rig


@pytest.fixture
def app(own_valkey: EmbeddedValkey) -> Celery:
    """What somebody's own script would use."""
    return build_celery_app(own_valkey.url)


class BothAnsweredError(Exception):
    pass


def ask(app: Celery, command: str, *, timeout_s: float = 20.0, **arguments: Any) -> dict[str, Any]:
    """The answers of both workers to a command of remote control, by node."""
    answers: dict[str, Any] = {}

    def take(answer: dict[str, Any]) -> None:
        answers.update(answer)
        # Celery counts reads and not answers: of two that come by one read it would wait for a third until the end.
        if len(answers) == 2:
            raise BothAnsweredError

    with suppress(BothAnsweredError):
        app.control.broadcast(command, arguments=arguments, reply=True, timeout=timeout_s, callback=take)
    return answers


def await_both(app: Celery) -> dict[str, Any]:
    """A worker hears a command once it consumes."""

    def answers() -> dict[str, Any] | None:
        found = ask(app, "ping", timeout_s=1.0)
        return found if len(found) == 2 else None

    return until(answers, "both workers to answer")


def test_nodes_say_their_role_and_reading_is_always_answered(small_rig: Rig, app: Celery) -> None:
    nodes = await_both(app)
    assert {name.partition(".")[0] for name in nodes} == {"model-system", "tools"}
    assert all(name.endswith(f"@{socket.gethostname()}") for name in nodes)
    assert all(answer == {"ok": "pong"} for answer in nodes.values())
    for command in ("report", "stats", "registered", "active_queues"):
        assert ask(app, command).keys() == nodes.keys(), command


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("shutdown", {}),
        ("rate_limit", {"task_name": "hermes.iterate", "rate_limit": "1/h"}),
        ("cancel_consumer", {"queue": "model"}),
        ("add_consumer", {"queue": "other"}),
        ("pool_grow", {"n": 5}),
        ("pool_shrink", {"n": 1}),
        ("autoscale", {"max": 9, "min": 1}),
        ("revoke", {"task_id": "x", "terminate": True}),
        ("time_limit", {"task_name": "hermes.iterate", "hard": 1, "soft": 1}),
    ],
)
def test_commands_that_change_a_fleet_are_answered_with_a_sentence(
    shared_rig: Rig, shared_app: Celery, command: str, arguments: dict[str, Any]
) -> None:
    answers = ask(shared_app, command, **arguments)
    assert len(answers) == 2
    assert all("is not allowed; set worker.remote_control" in answer["error"] for answer in answers.values())
    assert len(ask(shared_app, "ping")) == 2, "they are still there"


@pytest.fixture(scope="module")
def shared_broker() -> Iterator[str]:
    with valkey_server(is_durable=False) as server:
        yield server.url


@pytest.fixture(scope="module")
def shared_rig(tmp_path_factory: pytest.TempPathFactory, shared_broker: str) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("rig")
    url = f"sqlite:///{directory / 'hermes.db'}"
    with rig_on(directory, database_url=url, broker_url=shared_broker, workers_per_role=1) as rig:
        await_both(build_celery_app(shared_broker))
        yield rig


@pytest.fixture(scope="module")
def shared_app(shared_broker: str) -> Celery:
    return build_celery_app(shared_broker)


def test_where_it_is_allowed_a_command_that_cannot_work_says_so(
    tmp_path: Path, database: str, own_valkey: EmbeddedValkey, app: Celery
) -> None:
    allowed = {"HERMES_REMOTE_CONTROL": "all"}
    with rig_on(
        tmp_path, database_url=database, broker_url=own_valkey.url, workers_per_role=1, more_environ=allowed
    ) as rig:
        await_both(app)
        answers = ask(app, "pool_grow", n=1)
        assert len(answers) == 2
        assert all("cannot be done by this worker" in each["error"] for each in answers.values())
        app.control.shutdown()
        until(lambda: not rig.client.workers.list_alive() or None, "every worker to leave")


@contextmanager
def listening(app: Celery) -> Iterator[list[dict[str, Any]]]:
    """The events that are sent while the block runs."""
    seen: list[dict[str, Any]] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": seen.append})
        is_over = threading.Event()

        def listen() -> None:
            with receiver.consumer_context(wakeup=False) as (its_connection, *_):
                while not is_over.is_set():
                    with suppress(TimeoutError):
                        its_connection.drain_events(timeout=0.2)

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield seen
        finally:
            is_over.set()
            thread.join()


def test_events_can_be_switched_on_and_off_while_tasks_run(small_rig: Rig, app: Celery) -> None:
    await_both(app)
    with listening(app) as seen:

        def heard(kind: str) -> bool | None:
            return any(event["type"] == kind for event in list(seen)) or None

        small_rig.ended(small_rig.submit([]))
        answers = ask(app, "enable_events")
        assert all(answer == {"ok": "task events enabled"} for answer in answers.values())
        assert len(answers) == 2
        until(lambda: heard("worker-heartbeat"), "a sign of life")
        assert not heard("task-received"), "they were off until somebody asked for them"
        [view] = small_rig.ended(small_rig.submit([]))
        until(lambda: heard("task-succeeded"), "the end of a task")
        received = next(event for event in seen if event["type"] == "task-received")
        assert received["name"] == "hermes.iterate"
        assert view.run_id in received["args"]
        answers = ask(app, "disable_events")
        assert all(answer == {"ok": "task events disabled"} for answer in answers.values())


@pytest.mark.nightly
def test_a_worker_that_celery_starts_may_do_what_it_needs_on_the_broker(
    small_rig: Rig, app: Celery, own_valkey: EmbeddedValkey
) -> None:
    await_both(app)
    log = small_rig.directory / "plain.log"
    command = ["celery", "-A", "hermes_worker", "worker", "-Q", "model", "-P", "solo", "-n", "plain@here", "-l", "INFO"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], env=environ_of(small_rig, own_valkey.url), stdout=file, stderr=file
        )
    try:
        # Its gossip subscribes to a pattern of its own; a refused subscription ends its connection before this line.
        until(lambda: "plain@here ready." in log.read_text() or None, "the worker to be ready")
        assert "NoPermission" not in log.read_text()
    finally:
        process.terminate()
        process.wait(30)


CELERYS_COMMANDS = Path(celerys_commands.__file__)


def celerys_answers(environ: Mapping[str, str], *lines: str) -> dict[str, tuple[int, str]]:
    """The exit code and the words of each command line behind ``celery -A hermes_worker.tasks.app``."""
    command = [sys.executable, str(CELERYS_COMMANDS), *lines]
    told = subprocess.run(command, env=dict(environ), capture_output=True, text=True, timeout=90, check=True)
    answers = json.loads(told.stdout.splitlines()[-1])
    return {line: (code, said) for line, (code, said) in answers.items()}


@pytest.mark.nightly
def test_celerys_own_commands_answer_as_the_documents_say(shared_rig: Rig, shared_broker: str) -> None:
    reading = (
        "status",
        "inspect ping",
        "inspect active",
        "inspect registered",
        "inspect stats",
        "inspect conf",
        "report",
    )
    changing = ("control rate_limit hermes.iterate 1/h", "inspect objgraph")
    others = ("list bindings", "call hermes.maintain", "result some-id")
    answers = celerys_answers(environ_of(shared_rig, shared_broker), *reading, *changing, *others)
    assert {line: code for line, (code, _) in answers.items() if code} == {"result some-id": 1}
    assert "2 nodes online." in answers["status"][1]
    assert answers["inspect registered"][1].count("* hermes.") == 2 * len(TaskName)
    for line in changing:
        assert answers[line][1].count("is not allowed; set worker.remote_control") == 2, line
    assert re.search(r"^tools +system +tools$", answers["list bindings"][1], re.MULTILINE)
    assert "No result backend is configured" in answers["result some-id"][1]
    password = urlsplit(shared_broker).password
    assert password
    assert [line for line, (_, said) in answers.items() if password in said] == []


def test_celerys_commands_say_in_a_sentence_that_there_is_no_broker(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "celery", "-A", "hermes_worker.tasks.app", "status"]
    environ = {"PATH": os.defpath, "HOME": str(tmp_path)}
    refused = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("hermes-worker: HERMES_BROKER_URL is not set")
    assert "Traceback" not in refused.stderr


_PURGED = 24


def test_runs_whose_messages_were_purged_complete(shared_rig: Rig, shared_broker: str) -> None:
    workers = [shared_rig.fleet.find_worker(role, 0) for role in (FleetRole.MODEL, FleetRole.TOOLS)]
    for worker in workers:
        shared_rig.fleet.freeze(worker)
    try:
        run_ids = [shared_rig.submit([{"calls": [sink_call("once", f"purged-{number}")]}]) for number in range(_PURGED)]
        code, said = celerys_answers(environ_of(shared_rig, shared_broker), "purge -f")["purge -f"]
        purged = re.match(r"Purged (\d+) messages from 7 known task queues\.", said)
        assert (code, bool(purged)) == (0, True), said
        assert purged and int(purged[1]) >= 3, "idle connections were given one each"
    finally:
        for worker in workers:
            shared_rig.fleet.thaw(worker)
    views = shared_rig.ended(*run_ids)
    assert [view.error for view in views if view.status is not RunStatus.COMPLETED] == []
    marks = Counter(effect.mark for effect in shared_rig.effects() if effect.mark.startswith("purged-"))
    assert marks == {f"purged-{number}": 1 for number in range(_PURGED)}


def test_flower_does_not_start_without_a_password(tmp_path: Path) -> None:
    environ = {"PATH": os.defpath, "HOME": str(tmp_path), "HERMES_BROKER_URL": "redis://127.0.0.1:1/0"}
    refused = subprocess.run(FLOWER, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert "does not start without a password; set HERMES_FLOWER_PASSWORD" in refused.stderr


@pytest.mark.nightly
def test_flower_shows_workers_and_tasks_with_their_runs_to_who_knows_the_password(
    small_rig: Rig, own_valkey: EmbeddedValkey
) -> None:
    environ = environ_of(small_rig, own_valkey.url)
    with flower(environ) as page:
        for path in ("/", "/tasks", "/api/tasks", "/api/workers", "/broker", "/metrics"):
            assert page.read(path, password=None)[0] == 401, path
            assert page.read(path, password="guess")[0] == 401, path

        def workers() -> list[str] | None:
            listed = page.json("/api/workers?status=1")
            return sorted(listed) if len(listed) == 2 and all(listed.values()) else None

        names = until(workers, "both workers in Flower")
        assert [name.partition(".")[0] for name in names] == ["model-system", "tools"]

        def shown() -> list[dict[str, Any]] | None:
            small_rig.ended(small_rig.submit([]))
            return page.tasks_with_runtime()

        tasks = until(shown, "a task with its runtime")
        assert any(run_id in task["args"] for task in tasks for run_id in small_rig.submitted)
        lengths = page.json("/api/queues/length")
        assert {"model", "tools"} <= {queue["name"] for queue in lengths["active_queues"]}
        assert "Broker" in page.read("/broker")[1]
        assert "flower_events_total" in page.read("/metrics")[1]

    with flower(environ) as page:
        again = page.tasks_with_runtime()
        assert again, "a Flower that is started again shows what it had seen"
        assert {task["uuid"] for task in tasks} <= {task["uuid"] for task in again}
        own_valkey.kill()
        own_valkey.start()
        seen = {task["uuid"] for task in again}

        def newer() -> bool | None:
            small_rig.ended(small_rig.submit([]))
            return any(task["uuid"] not in seen for task in page.tasks_with_runtime() or ()) or None

        until(newer, "tasks from after the broker's restart")
