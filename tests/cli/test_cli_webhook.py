"""``hermes-worker gateway webhooks``, in this process, over a database and no server."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from support.migrated import bring_up

from hermes_worker.cli.entry import main

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Calls the command; its exit code and what it said."""
    home = tmp_path / "home"
    home.mkdir()
    bring_up(f"sqlite:///{home / 'hermes-worker.db'}")
    monkeypatch.setenv("HERMES_SERVER_PORT", "1")

    def call(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["gateway", "webhooks", arguments[0], "--home", str(home), *arguments[1:]])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return call


def test_a_route_is_added_listed_replaced_and_removed(webhook: Command) -> None:
    code, said = webhook("add", "review", "--prompt", "Look at {title}", "--events", "push, issues", "--deliver", "log")
    assert code == 0
    assert "http://127.0.0.1:1/webhooks/review" in said
    secret = said.split()[-1]
    assert len(secret) > 40
    code, said = webhook("add", "review")
    assert code == 2
    assert "--replace" in said
    _, listed = webhook("list", "--json")
    assert secret not in listed
    assert json.loads(listed)["events"] == ["push", "issues"]
    _, said = webhook("add", "review", "--replace", "--disabled")
    assert "(as before)" in said
    _, table = webhook("list")
    assert "disabled" in table
    assert webhook("remove", "review")[0] == 0
    assert webhook("remove", "review")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("add", "Wrong Name"), "name"),
        (("add", "r", "--filter", "{"), "JSON"),
        (("add", "r", "--deliver", "nowhere"), "delivery target"),
        (("add", "r", "--deliver-only"), "--deliver"),
        (("test", "r"), "no route"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(webhook: Command, arguments: tuple[str, ...], reason: str) -> None:
    code, said = webhook(*arguments)
    assert code == 2
    assert reason in said
    assert "Traceback" not in said


def test_a_server_that_is_not_there_is_named(webhook: Command) -> None:
    webhook("add", "r")
    code, said = webhook("test", "r")
    assert code == 2
    assert "127.0.0.1:1" in said


def test_a_field_that_the_prompt_shows_and_the_payload_lacks_is_named(webhook: Command) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(202)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    webhook("add", "r", "--prompt", "Review {pull_request.html_url} of {event_type}")
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        code, said = webhook("test", "r", "--url", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert code == 0, said
    assert "the payload has no pull_request.html_url;" in said


def test_the_secret_is_in_no_row_and_still_signs(webhook: Command, tmp_path: Path) -> None:
    _, said = webhook("add", "review", "--secret", "my-own-secret-0123")
    assert "my-own-secret-0123" in said
    files = {path.name: path.read_bytes() for path in (tmp_path / "home").glob("hermes-worker.db*")}
    assert not [name for name, data in files.items() if b"my-own-secret-0123" in data]
    _, said = webhook("add", "review", "--replace", "--disabled")
    assert "(as before)" in said
    assert "my-own-secret-0123" not in webhook("list")[1] + webhook("list", "--json")[1]


def test_a_secret_may_come_from_a_pipe(webhook: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from-a-pipe-0123456789\n"))
    assert "secret  from-a-pipe-0123456789" in webhook("add", "review", "--secret", "-")[1]


def test_a_key_that_went_away_locks_a_route_until_it_has_a_new_secret(
    webhook: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_SERVER_KEY", "the-first-server-key")
    webhook("add", "review")
    monkeypatch.setenv("HERMES_SERVER_KEY", "the-second-server-key")
    assert " locked " in webhook("list")[1]
    code, said = webhook("add", "review", "--replace")
    assert code == 2
    assert "HERMES_SERVER_PREVIOUS_KEYS" in said
    assert webhook("test", "review")[0] == 2
    monkeypatch.setenv("HERMES_SERVER_PREVIOUS_KEYS", "the-first-server-key")
    assert " enabled " in webhook("list")[1]
    monkeypatch.delenv("HERMES_SERVER_PREVIOUS_KEYS")
    assert webhook("add", "review", "--replace", "--secret", "a-new-secret-0123")[0] == 0
    assert " enabled " in webhook("list")[1]


def test_on_a_database_of_many_machines_the_key_has_to_be_given(
    webhook: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HERMES_DATABASE_URL", f"sqlite:///{tmp_path / 'home' / 'hermes-worker.db'}")
    code, said = webhook("add", "review")
    assert code == 2
    assert "set HERMES_SERVER_KEY" in said
    assert not (tmp_path / "home" / "api.key").exists()
