"""What the doctor says of clocks, disks, versions, sandboxes and further keys, each told apart."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.cli import doctor, doctor_providers
from hermes_worker.local.paths import StackNote, hold_home
from hermes_worker.settings import load_settings
from hermes_worker.store.tables import workers
from hermes_worker.workspaces.sandbox.backends import Sandbox, SandboxBackend
from hermes_worker.workspaces.sandbox.landlock import LandlockRung

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("ahead_s", "grade", "words"),
    [
        (0.0, "ok", "the database's"),
        (-10.0, "note", "10.0 s behind the database's; let both be set by NTP"),
        (3_600.0, "broken", "3600.0 s ahead of the database's; set the clock of one of them (NTP)"),
    ],
)
def test_this_clock_is_compared_with_the_databases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float, grade: str, words: str
) -> None:
    now = time.time()
    monkeypatch.setattr(doctor.time, "time", lambda: now)
    monkeypatch.setattr(doctor, "_read_database_clock", lambda settings: now - ahead_s)
    found, text = doctor._check_clock(load_settings({}, home=tmp_path))
    assert (found, words in text) == (grade, True), text


def test_a_disk_that_is_nearly_full_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings({}, home=tmp_path)
    assert doctor._check_disk(settings)[0] == "ok"
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 1, 1))
    grade, text = doctor._check_disk(settings)
    assert (grade, "free at least 200 MB" in text) == ("broken", True)


@pytest.mark.parametrize(
    ("mode", "rung", "grade", "words"),
    [
        ("auto", "landlock", "ok", "landlock ("),
        ("require", "landlock", "ok", "not better, because bubblewrap is not here"),
        ("auto", None, "note", "commands are not confined"),
        ("auto", None, "note", "install bubblewrap, or use a kernel with Landlock"),
        ("require", None, "broken", "terminal.sandbox is require, so they are refused"),
    ],
)
def test_what_confines_commands_is_told_and_nothing_is_broken_only_where_it_is_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, rung: str | None, grade: str, words: str
) -> None:
    standing = SandboxBackend(LandlockRung() if rung else None, ("bubblewrap is not here",))
    monkeypatch.setattr(Sandbox, "find_backend", lambda self: standing)
    found, text = doctor._check_sandbox(load_settings({"HERMES_SANDBOX": mode}, home=tmp_path))
    assert (found, words in text) == (grade, True), text


def test_a_sandbox_that_is_switched_off_is_a_note_that_says_so(tmp_path: Path) -> None:
    found, text = doctor._check_sandbox(load_settings({"HERMES_SANDBOX": "off"}, home=tmp_path))
    assert (found, "commands are not confined" in text, "install" in text) == ("note", True, False), text


def test_workers_of_another_version_are_counted(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HERMES_BROKER_URL", "redis://127.0.0.1:1/0")
    for name in ("old", "new"):
        store.workers.register(name=name, queues="model,tools,delivery,system", ttl_s=60.0)
    assert doctor._check_workers(load_settings())[0] == "ok"
    with store.database.write() as connection:
        connection.execute(sa.update(workers).where(workers.c.name == "old").values(version="0.0.1"))
    grade, text = doctor._check_workers(load_settings())
    assert (grade, "1 of 0.0.1" in text) == ("note", True)


@pytest.fixture
def served() -> Iterator[str]:
    """A server of models that takes one key."""

    class Models(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.headers["Authorization"] == "Bearer sk-good-good-good" else 401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Models) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_every_further_key_is_tried_and_one_that_is_refused_is_named(served: str, tmp_path: Path) -> None:
    given = {"HERMES_BASE_URL": served, "HERMES_API_KEY": "sk-good-good-good", "HERMES_MODEL": "m"}
    more = {**given, "HERMES_MORE_API_KEYS": "sk-good-good-good,sk-spent-spent-spent"}
    grade, text = doctor_providers.check_providers(load_settings(more, home=tmp_path))
    assert (grade, text) == ("broken", "0 more keys answer; the model's server refuses the key (401)")
    fallback = {
        **given,
        "HERMES_FALLBACK_PROVIDERS": f"custom:m@{served}$OTHER_API_KEY",
        "OTHER_API_KEY": "sk-good-good-good",
    }
    assert doctor_providers.check_providers(load_settings(fallback, home=tmp_path)) == ("ok", "1 more key answers")
    grade, text = doctor_providers.check_providers(
        load_settings({**given, "HERMES_FALLBACK_PROVIDERS": "openai:m"}, home=tmp_path)
    )
    assert (grade, "openai:m is never asked: " in text) == ("note", True)
    assert "sk-" not in text


def test_a_model_that_others_ask_is_not_asked_without_their_key(served: str, tmp_path: Path) -> None:
    """The API of a compose file has neither the key of the model nor, maybe, its network."""
    given = {"HERMES_BASE_URL": served, "HERMES_MODEL": "m"}
    assert doctor._check_model(load_settings(given, home=tmp_path))[0] == "broken"
    grade, text = doctor._check_model(load_settings({**given, "HERMES_MODEL_ASKED_ELSEWHERE": "true"}, home=tmp_path))
    assert (grade, "not asked from here" in text) == ("note", True)


def test_beside_a_running_stack_the_doctor_speaks_of_that_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    store.workers.register(name="w", queues="model,system", ttl_s=60.0)
    note = StackNote(
        pid=os.getpid(), command="up", started_at=0.0, broker_url="redis://x", model="big at there", model_key="there"
    )
    with hold_home(tmp_path / "home") as held:
        held.announce(note)
        grade, text = doctor._check_workers(load_settings())
        assert (grade, "start worker" in text) == ("broken", False)
        assert f"the one of 'hermes-worker up' (pid {os.getpid()}) hangs or has ended" in text
        grade, text = doctor._check_model(load_settings())
        assert (grade, "'hermes-worker up' runs with another one: big at there" in text) == ("note", True)
