"""What bad input and bad circumstances get: one sentence and exit code 2, never a traceback, nothing half started."""

from __future__ import annotations

import io
import json
import re
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from support.commandline import COMMAND, CommandLine, Finished
from support.valkey import administrator

from hermes_worker.broker.rights import USER
from hermes_worker.cli.entry import main
from hermes_worker.core.logins import LoginState
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.models.build import list_logins
from hermes_worker.settings import load_settings
from hermes_worker.store.access.logins import Logins
from hermes_worker.store.workers import Workers
from hermes_worker.wiring import open_database

Command = Callable[..., Finished]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home that does not exist yet; nothing of the machine's configuration."""
    for name in ("HERMES_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY", "HERMES_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def hermes(home: Path, capfd: pytest.CaptureFixture[str]) -> Command:
    """The command line, in this process: what is refused here is refused before anything is started."""

    def call(*arguments: str) -> Finished:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return Finished(ended.value.code, out, err)

    return call


def assert_one_sentence(ended: Finished, *words: str) -> None:
    said = [line for line in ended.err.splitlines() if not line.endswith("...")]
    assert ended.code == 2, ended.said
    assert "Traceback" not in ended.said
    assert len(said) == 1, ended.said
    for word in words:
        assert word in said[0]


@pytest.mark.parametrize("command", [["run"], ["up", "--port", "0"], ["data", "migrate"]])
def test_a_home_that_is_a_file(hermes: Command, home: Path, command: list[str]) -> None:
    home.write_text("")
    assert_one_sentence(hermes(*command), str(home), "Not a directory")


@pytest.mark.parametrize("command", [["run"], ["up", "--port", "0"], ["data", "migrate"]])
def test_a_home_whose_database_is_damaged(hermes: Command, home: Path, command: list[str]) -> None:
    home.mkdir(mode=0o700)
    (home / "hermes-worker.db").write_bytes(b"no database " * 1000)
    (home / "hermes-worker.db").chmod(0o600)
    assert_one_sentence(hermes(*command), "damaged", "--home")


def test_a_home_that_cannot_be_written(hermes: Command) -> None:
    # Root may write everywhere but there: no file system takes new names under /proc.
    assert_one_sentence(hermes("run", "--home", "/proc/hermes"), "/proc/hermes", "--home")


def test_a_port_that_is_taken(hermes: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_one_sentence(hermes("up", "--port", port), port, "--port")


def test_an_open_api_without_a_key(hermes: Command, home: Path) -> None:
    assert_one_sentence(hermes("up", "--host", "0.0.0.0", "--port", "0"), "HERMES_SERVER_KEY")
    assert not home.exists()


@pytest.mark.parametrize("prompt", ["", "   "])
def test_an_empty_prompt(hermes: Command, home: Path, prompt: str) -> None:
    assert_one_sentence(hermes("run", prompt), "PROMPT")
    assert not home.exists()


def test_a_prompt_that_is_too_long(hermes: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x" * (10 * 1024 * 1024 + 1))))
    assert_one_sentence(hermes("run", "-"), "10 MB")


def test_a_workspace_that_is_not_there(hermes: Command, tmp_path: Path) -> None:
    assert_one_sentence(hermes("run", "--workspace", str(tmp_path / "nowhere")), "nowhere")


def test_the_home_is_no_workspace(hermes: Command, home: Path) -> None:
    assert hermes("data", "migrate").code == 0
    assert_one_sentence(hermes("run", "--workspace", str(home), "x"), "workspace", str(home))


def test_a_broker_that_is_away(hermes: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_BROKER_URL", "redis://127.0.0.1:9/0")
    assert hermes("data", "migrate").code == 0
    sick = hermes("doctor")
    assert sick.code == 1
    assert "HERMES_BROKER_URL" in sick.out


def test_a_broker_that_refuses_the_password(hermes: Command, monkeypatch: pytest.MonkeyPatch, broker_url: str) -> None:
    wrong = broker_url.replace("unix://hermes:", "unix://hermes:wrong-")
    assert wrong != broker_url
    monkeypatch.setenv("HERMES_BROKER_URL", wrong)
    assert hermes("data", "migrate").code == 0
    sick = hermes("doctor")
    assert sick.code == 1
    assert "refuses the user name or the password" in sick.out
    assert "wrong-" not in sick.said


def test_a_broker_whose_user_may_do_too_much_or_too_little(
    hermes: Command, monkeypatch: pytest.MonkeyPatch, own_valkey: EmbeddedValkey
) -> None:
    assert hermes("data", "migrate").code == 0
    monkeypatch.setenv("HERMES_BROKER_URL", own_valkey.administrator_url)
    said = hermes("doctor").out
    assert "its user may do more than is needed (CONFIG, INFO, CLIENT, ACL, SCAN): give it the rights in docs" in said
    monkeypatch.setenv("HERMES_BROKER_URL", own_valkey.url)
    assert "may do more" not in hermes("doctor").out
    with administrator(own_valkey) as admin:
        admin.execute_command("ACL", "SETUSER", USER, "-xread")
    sick = hermes("doctor")
    assert sick.code == 1
    assert "the broker forbids what is needed" in sick.out
    assert "'xread'" in sick.out


@pytest.mark.parametrize("command", [["data", "migrate"], ["runs", "list"], ["submit", "x"], ["run", "x"]])
def test_a_database_that_is_away(hermes: Command, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setenv("HERMES_DATABASE_URL", "postgresql://u:hunter2-hunter2@127.0.0.1:9/x")
    monkeypatch.setenv("HERMES_BROKER_URL", "redis://127.0.0.1:9/0")
    ended = hermes(*command)
    assert_one_sentence(ended, "database")
    assert "hunter2" not in ended.said


@pytest.mark.parametrize(
    "url",
    [
        "mysql://localhost/x",
        "postgresql://u:hunter2-hunter2@no-such-host.invalid/x",
        "postgresql://u:hunter2-hunter2@127.0.0.1:9/x",
        "not a url",
        "sqlite:////proc/nowhere/chaos.db",
    ],
)
def test_chaos_with_a_database_that_cannot_be_used(hermes: Command, url: str) -> None:
    ended = hermes("dev", "chaos", "--runs", "1", "--kills", "0", "--database", url)
    assert_one_sentence(ended, "database")
    assert "hunter2" not in ended.said


def test_chaos_touches_no_database_that_holds_anything(hermes: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table letters (body text)")
        connection.execute("insert into letters values ('dear')")
        connection.commit()
    before = path.read_bytes()
    assert_one_sentence(hermes("dev", "chaos", "--database", f"sqlite:///{path}"), "refuses to touch", str(path))
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["mine.db"]


def test_chaos_touches_no_database_of_a_fleet(
    hermes: Command, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    monkeypatch.setenv("HERMES_DATABASE_URL", postgres_url)
    assert hermes("data", "migrate").code == 0
    assert_one_sentence(hermes("dev", "chaos", "--database", postgres_url), "refuses to touch")


def test_chaos_has_one_database(hermes: Command) -> None:
    ended = hermes("dev", "chaos", "--own-postgres", "--database", "sqlite:///x.db")
    assert ended.code == 2
    assert "--own-postgres and --sqlite exclude each other" in ended.err


@pytest.mark.parametrize("url", ["http://localhost:1", "redis//localhost", "nonsense", "redis://h:port/0"])
@pytest.mark.parametrize("command", [["submit", "x"], ["start", "worker"], ["start", "beat"]])
def test_a_broker_url_that_is_none(
    hermes: Command, monkeypatch: pytest.MonkeyPatch, command: list[str], url: str
) -> None:
    monkeypatch.setenv("HERMES_BROKER_URL", url)
    assert_one_sentence(hermes(*command), "HERMES_BROKER_URL")


@pytest.mark.parametrize(
    "url", ["http://localhost:1", "postgresql//x", "nonsense", "postgresql://h:port/x", "oracle://x"]
)
@pytest.mark.parametrize("command", [["submit", "x"], ["start", "worker"], ["data", "migrate"], ["runs", "list"]])
def test_a_database_url_that_is_none(
    hermes: Command, monkeypatch: pytest.MonkeyPatch, command: list[str], url: str
) -> None:
    monkeypatch.setenv("HERMES_DATABASE_URL", url)
    assert_one_sentence(hermes(*command), "HERMES_DATABASE_URL")


def test_a_worker_without_a_model_says_so_before_it_takes_work(
    hermes: Command, monkeypatch: pytest.MonkeyPatch, broker_url: str
) -> None:
    monkeypatch.setenv("HERMES_BROKER_URL", broker_url)
    assert hermes("data", "migrate").code == 0
    assert_one_sentence(hermes("start", "worker", "--queues", "model"), "HERMES_BASE_URL", "scripted-model")


def test_a_model_server_that_is_away(hermes: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_MODEL", "m")
    monkeypatch.setenv("HERMES_BASE_URL", "http://127.0.0.1:9/v1")
    sick = hermes("doctor")
    assert sick.code == 1
    assert "broken  model" in sick.out
    assert "HERMES_BASE_URL" in sick.out


@pytest.mark.parametrize(
    ("status", "grade"), [(200, "ok"), (404, "ok"), (401, "broken"), (403, "broken"), (500, "broken")]
)
def test_the_doctor_tries_the_model_servers_key(
    hermes: Command, monkeypatch: pytest.MonkeyPatch, status: int, grade: str
) -> None:
    asked: list[tuple[str, str | None]] = []

    class Model(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setenv("HERMES_MODEL", "m")
        monkeypatch.setenv("HERMES_API_KEY", "sk-secret-secret-secret")
        monkeypatch.setenv("HERMES_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
        examined = hermes("doctor")
    assert asked == [("/v1/models", "Bearer sk-secret-secret-secret")]
    assert re.search(rf"^{grade} +model ", examined.out, re.MULTILINE)
    assert "sk-secret" not in examined.said


def test_the_doctor_says_that_a_login_is_dead_and_spends_none(
    hermes: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_PROVIDER", "openai")
    monkeypatch.setenv("HERMES_TOKEN_URL", "https://auth.test/token")
    monkeypatch.setenv("HERMES_REFRESH_TOKENS", "refresh-0123456789")
    home.mkdir()
    assert re.search(r"^note +logins ", hermes("doctor").out, re.MULTILINE)
    assert hermes("data", "migrate").code == 0
    assert re.search(r"^ok +logins +1 configured", hermes("doctor").out, re.MULTILINE)
    settings = load_settings()
    (login,) = list_logins(settings)
    logins = Logins(open_database(settings))
    assert logins.claim(login.name, LoginState(), "c", ttl_s=1)
    assert logins.revoke(login.name, "c", "sign in again")

    examined = hermes("doctor")

    assert re.search(r"^broken +logins +login 1 of 1 is dead: sign in again", examined.out, re.MULTILINE)
    assert examined.code == 1
    assert "refresh-0123456789" not in examined.said


@pytest.mark.parametrize(
    ("installed", "grade", "said"),
    [
        (("bash", "git", "rg"), "ok", "bash found"),
        (("bash", "git"), "ok", "bash found; not found: rg (agents do without)"),
        (("bash",), "ok", "bash found; not found: git, rg (agents do without)"),
        (("git", "rg"), "broken", "bash is not on PATH; the terminal tool needs it"),
    ],
)
def test_the_doctor_says_which_programs_agents_have(
    hermes: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: tuple[str, ...], grade: str, said: str
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in installed:
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))

    counted = r"(; \d+ of \d+ tools .*)?"
    assert re.search(rf"^{grade} +tools +{re.escape(said)}{counted}$", hermes("doctor").out, re.MULTILINE)


@pytest.mark.parametrize(
    ("model", "listed", "grade"),
    [
        ("big-1", '{"data": [{"id": "big-1"}]}', "ok"),
        ("big", '{"data": [{"id": "big-20260101"}]}', "ok"),
        ("bgi-1", '{"data": [{"id": "big-1"}]}', "broken"),
        ("bgi-1", '{"data": [{"id": "big-1"}], "has_more": true}', "ok"),
        ("bgi-1", '{"data": 7}', "ok"),
        ("bgi-1", "[]", "ok"),
        ("bgi-1", "<html>", "ok"),
    ],
)
@pytest.mark.parametrize("mode", ["chat_completions", "anthropic_messages"])
def test_the_doctor_looks_for_the_model_among_those_that_are_served(
    hermes: Command, monkeypatch: pytest.MonkeyPatch, model: str, listed: str, grade: str, mode: str
) -> None:
    asked: list[tuple[str, str | None]] = []

    class Model(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["x-api-key"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(listed.encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setenv("HERMES_MODEL", model)
        monkeypatch.setenv("HERMES_API_KEY", "sk-secret-secret-secret")
        monkeypatch.setenv("HERMES_API_MODE", mode)
        suffix = "/v1" if mode == "chat_completions" else ""
        monkeypatch.setenv("HERMES_BASE_URL", f"http://127.0.0.1:{server.server_port}{suffix}")
        examined = hermes("doctor")
    assert asked == [("/v1/models", "sk-secret-secret-secret" if mode == "anthropic_messages" else None)]
    assert re.search(rf"^{grade} +model ", examined.out, re.MULTILINE), examined.out
    assert ("HERMES_MODEL" in examined.out) == (grade == "broken")


@pytest.mark.parametrize(
    ("environ", "named"),
    [({"HERMES_PROVIDER": "groq"}, "GROQ_API_KEY"), ({"HERMES_PROVIDER": "opnai"}, "model.provider")],
)
def test_the_doctor_names_a_missing_key_and_an_unknown_provider(
    hermes: Command, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], named: str
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    sick = hermes("doctor")
    assert sick.code == 1
    assert named in sick.out


def test_a_reader_that_goes_away_is_no_error(home: Path) -> None:
    environ = CommandLine(home).environ
    ended = subprocess.run(
        ["bash", "-c", f"'{COMMAND}' --help | head -n 1"], env=environ, capture_output=True, text=True, check=False
    )
    assert ended.stderr == ""


@pytest.mark.parametrize("command", [["doctor"], ["runs", "list"], ["data", "migrate"], ["submit", "Hello"]])
def test_a_database_of_a_newer_version_is_not_to_be_migrated(hermes: Command, home: Path, command: list[str]) -> None:
    assert hermes("data", "migrate").code == 0
    with closing(sqlite3.connect(home / "hermes-worker.db")) as connection:
        connection.execute("update alembic_version set version_num = '9999'")
        connection.commit()
    said = hermes(*command).said
    assert "a newer hermes-worker made it: install that version here" in said
    assert "hermes-worker data migrate'" not in said


def test_the_doctor_fails_when_nobody_consumes_a_needed_queue(
    hermes: Command, home: Path, monkeypatch: pytest.MonkeyPatch, broker_url: str
) -> None:
    monkeypatch.setenv("HERMES_BROKER_URL", broker_url)
    monkeypatch.setenv("HERMES_SERVER_PORT", "1")
    assert hermes("data", "migrate").code == 0
    sick = hermes("doctor")
    assert sick.code == 1
    assert re.search(r"^broken +workers +0 alive, and none consumes model or tools", sick.out, re.MULTILINE)
    workers = Workers(open_database(load_settings()))
    workers.register(name="w", queues="model,system", ttl_s=600)
    assert "none consumes tools or delivery" in hermes("doctor").out
    workers.register(name="v", queues="tools", ttl_s=600)
    well = hermes("doctor")
    assert well.code == 0, well.said
    assert re.search(r"^note +workers +2 alive.*none consumes delivery", well.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("status", "body", "line"),
    [
        (200, '{"readiness": {"checks": {"disk": {"status": "ok"}}}}', r"^ok +API +http://127.0.0.1:\d+ answers"),
        (200, '{"readiness": {"checks": {"disk": {"error": "full"}}}}', r"^note +API +.* says: disk: full"),
        (503, '{"readiness": {"checks": {"state_db": {"error": "gone"}}}}', r"^broken +API +.*state_db: gone"),
        (401, "{}", r"^broken +API +.*HERMES_SERVER_KEY"),
        (200, "<html>", r"^broken +API +.*is no hermes-worker"),
    ],
)
def test_the_doctor_asks_the_configured_api_with_its_key(
    hermes: Command, monkeypatch: pytest.MonkeyPatch, broker_url: str, status: int, body: str, line: str
) -> None:
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers['Authorization']}")
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HERMES_BROKER_URL", broker_url)
        monkeypatch.setenv("HERMES_SERVER_PORT", str(server.server_port))
        monkeypatch.setenv("HERMES_SERVER_KEY", "a-key-of-the-server")
        examined = hermes("doctor")
        server.shutdown()
    assert re.search(line, examined.out, re.MULTILINE), examined.out
    assert asked == ["/health/detailed Bearer a-key-of-the-server"]


def test_no_number_of_an_error_reaches_a_person(hermes: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_BROKER_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("HERMES_MODEL", "m")
    monkeypatch.setenv("HERMES_BASE_URL", "http://127.0.0.1:9/v1")
    assert hermes("data", "migrate").code == 0
    for command in (
        ["doctor"],
        ["gateway", "webhooks", "add", "r"],
        ["gateway", "webhooks", "test", "r", "--url", "http://127.0.0.1:9"],
    ):
        assert not re.search(r"Errno|Error \d+", hermes(*command).said)


def test_the_doctor_reports_for_programs_too(hermes: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    examined = hermes("doctor", "--json")
    found = [json.loads(line) for line in examined.out.splitlines()]
    assert examined.code == 0 and "settings" in {row["subject"] for row in found}
    assert all(set(row) == {"subject", "grade", "text"} and row["grade"] in ("ok", "note", "broken") for row in found)

    monkeypatch.setenv("HERMES_BROKER_URL", "redis://127.0.0.1:1/0")
    sick = hermes("doctor", "--json")
    broken = [row["subject"] for row in map(json.loads, sick.out.splitlines()) if row["grade"] == "broken"]
    assert sick.code == 1 and "broker" in broken


def test_the_doctor_is_content_with_an_api_whose_key_is_not_here(
    hermes: Command, monkeypatch: pytest.MonkeyPatch, broker_url: str
) -> None:
    class Closed(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert "Authorization" not in self.headers
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Closed) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        monkeypatch.setenv("HERMES_BROKER_URL", broker_url)
        monkeypatch.setenv("HERMES_SERVER_PORT", str(server.server_port))
        said = hermes("doctor").out
    assert re.search(r"^note +API .* has no key of it$", said, re.MULTILINE), said
