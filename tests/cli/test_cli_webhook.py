"""``hermes-worker webhook``, in this process, over a database and no server."""

from __future__ import annotations

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
            main(["webhook", arguments[0], "--home", str(home), *arguments[1:]])
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
