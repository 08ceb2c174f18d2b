"""Verbs of the command line against a server: they print what they print over the database, and need none."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
from remote_lines import TIME, at_server, keyed_file, local_line, said
from serving import Served, until
from support.certificates import Authority
from support.commandline import CommandLine, list_commands
from support.cutting import CuttingProxy
from support.questions import open_wait
from support.store import Store

from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.principals import KeyScope
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.settings import Settings
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.runs.waits import Waits

REPLY = ModelReply(text="Hello world", usage=Usage(input=3, output=2, cache_read=5))
DOCUMENT = Path(__file__).parents[2] / "docs" / "client.md"
_ID = re.compile(r"run_[0-9a-f]{32}")


@pytest.fixture
def local(api: Served) -> CommandLine:
    return local_line(api)


@pytest.fixture
def key_file(api: Served, tmp_path: Path) -> Path:
    return keyed_file(tmp_path / "key", f"{api.key}\n")


@pytest.fixture
def remote(api: Served, tmp_path: Path, key_file: Path) -> CommandLine:
    return at_server(api.url, tmp_path, key_file)


@pytest.fixture
def seeded(store: Store) -> dict[str, str]:
    """A run of each kind."""
    done = store.with_tools(Replay.PURE, tags=("eu",))
    store.settle(done)
    store.answer(done, REPLY)
    asking = store.with_tools(Replay.ONCE)
    parent = store.with_tools(Replay.PURE)
    store.delegate(parent, 2)
    return {"done": done, "asking": asking, "parent": parent, "queued": store.submit(tags=("t",)).run_id}


def readers(seeded: dict[str, str]) -> Iterator[list[str]]:
    for run_id in seeded.values():
        yield ["runs", "show", run_id]
        yield ["runs", "explain", run_id]
        yield ["runs", "export", run_id]
        yield ["runs", "wait", run_id, "--timeout", "0"]
    yield ["runs", "show", seeded["done"][:16]]
    yield ["runs", "list"]
    yield ["runs", "list", "--limit", "2"]
    yield ["runs", "list", "--tag", "eu", "--status", "completed"]
    yield ["runs", "list", "--before", seeded["queued"]]
    yield ["runs", "join", *seeded.values(), "--any"]
    yield ["runs", "watch", seeded["done"]]
    yield ["runs", "stop", "--tag", "t", "--dry-run"]
    yield ["runs", "list", "--columns", "run,usd,tokens"]
    yield ["runs", "list", "--source", "api"]
    yield ["runs", "list", "--text", "hello OR nobody"]
    yield ["runs", "list", "--parent", seeded["parent"]]
    yield ["runs", "tree", seeded["parent"]]
    yield ["runs", "calls", seeded["parent"]]
    yield ["runs", "calls", seeded["asking"], "1.0"]
    yield ["fleet", "workers", "list"]
    yield ["runs", "spend", "--by", "model"]
    yield ["fleet", "backlog"]
    yield ["data", "audit", "list"]


WITHOUT_JSON = {"export", "wait", "join", "stop"}


def test_what_is_read_over_a_server_is_what_the_database_says(
    local: CommandLine, remote: CommandLine, seeded: dict[str, str]
) -> None:
    assert local.inline("runs", "pause", seeded["parent"]).code == 0  # something for the audit log
    for words in readers(seeded):
        for form in ([], ["--json"]) if words[1:2] == [] or words[1] not in WITHOUT_JSON else ([],):
            here, there = local.inline(*words, *form), remote.inline(*words, *form)
            assert here.out, (words, here.err)
            assert said(there) == said(here), (words, there.err)
    assert not remote.home.exists()


def test_what_is_changed_over_a_server_is_changed_as_in_the_database(
    local: CommandLine, remote: CommandLine, store: Store
) -> None:
    def play(hermes: CommandLine) -> list[tuple[int, str]]:
        at_work, approval, question = (
            store.submit().run_id,
            store.with_tools(Replay.ONCE),
            store.with_tools(Replay.PURE),
        )
        done = store.submit().run_id
        store.answer(done)
        _ask(store, approval, WaitKind.APPROVAL)
        _ask(store, question, WaitKind.INPUT)
        words = [
            ["runs", "show", approval],
            ["runs", "pause", at_work],
            ["runs", "resume", at_work],
            ["runs", "approve", approval, "--wait-id", str(open_wait(store.database, approval))],
            ["runs", "answer", question, "--wait-id", str(open_wait(store.database, question)), "blue"],
            ["runs", "steer", question, "faster"],
            ["runs", "stop", at_work],
            ["runs", "retry", done],
            ["submit", "hello", "--tag", "x", "--meta", "a=b", "--priority", "high", "--json"],
        ]
        return [
            (code, TIME.sub("T", _ID.sub("ID", out))) for code, out in (said(hermes.inline(*each)) for each in words)
        ]

    assert play(remote) == play(local)


def _ask(store: Store, run_id: str, kind: WaitKind) -> None:
    command = (
        {"command": "rm -rf build", "description": "deletes"} if kind is WaitKind.APPROVAL else {"question": "colour?"}
    )
    choices = ("once", "session", "always", "deny") if kind is WaitKind.APPROVAL else ()
    Waits(store.database).ask(store.call(run_id), Question(kind=kind, request=command, choices=choices, expires_s=600))


def test_lines_of_a_file_are_submitted_and_refused_one_by_one(remote: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"input": "a"}\n{"input": " "}\n')
    ended = remote.inline("runs", "submit", str(path))
    first, second = map(json.loads, ended.out.splitlines())
    assert ended.code == 1
    assert first["run_id"].startswith("run_")
    assert "input" in second["error"]


def test_a_stream_that_is_cut_is_shown_once(
    api: Served, local: CommandLine, tmp_path: Path, key_file: Path, seeded: dict[str, str]
) -> None:
    port = int(api.url.rpartition(":")[2])
    with CuttingProxy(port, lambda n: (900, 1_100, 1_500, 9_000, None)[n % 5]) as proxy:
        hermes = at_server(proxy.url, tmp_path, key_file)
        assert said(hermes.inline("runs", "watch", seeded["done"])) == said(
            local.inline("runs", "watch", seeded["done"])
        )
    assert proxy.cuts > 0


def test_ctrl_c_leaves_the_run_at_work_and_says_how_to_come_back(
    remote: CommandLine, seeded: dict[str, str], store: Store
) -> None:
    with remote.started("runs", "watch", seeded["parent"]) as running:
        until(lambda: "tool0" in running.output or running.output.strip(), "the first event")
        running.interrupt()
        assert running.wait() == 130
        assert f"hermes-worker runs watch {seeded['parent']}" in running.output
    assert not store.status(seeded["parent"]).is_terminal


# -------------------------------------------------------------------------------------------------------------- errors


def test_wrong_servers_and_keys_are_told_in_a_sentence_without_the_key(
    api: Served, remote: CommandLine, key_file: Path, tmp_path: Path
) -> None:
    def told(*words: str) -> str:
        ended = remote.inline(*words)
        assert ended.code == 2, ended.out
        assert "Traceback" not in ended.err
        assert api.key not in ended.err + ended.out
        return ended.err

    assert "Invalid API key" in told(
        "runs", "list", "--key-file", str(keyed_file(tmp_path / "w", "wrong-key-0123456789"))
    )
    assert "holds no key" in told(
        "runs", "list", "--key-file", str(keyed_file(tmp_path / "two", f"{api.key} {api.key}"))
    )
    assert "cannot be read" in told("runs", "list", "--key-file", str(tmp_path / "none"))
    assert "--insecure" in told("runs", "list", "--server", "http://192.0.2.1:8642")
    assert "bears a password" in told("runs", "list", "--server", "http://me:pw@127.0.0.1:1")
    assert "is no address" in told("runs", "list", "--server", "nonsense")
    assert "the key says" in told("runs", "show", f"run_{'0' * 32}", "--tenant", "acme")
    assert "Tenant not found" in told("runs", "list", "--tenant", "acme")
    assert "Run not found" in told("runs", "show", f"run_{'0' * 32}")


def test_operators_list_the_runs_of_a_tenant_over_a_server(api: Served, remote: CommandLine, store: Store) -> None:
    Tenants(api.client.database).create_tenant("acme")
    theirs = store.submit(tenant="acme").run_id
    store.submit()
    listed = remote.inline("runs", "list", "--tenant", "acme", "--json").out.splitlines()
    assert [json.loads(line)["run_id"] for line in listed] == [theirs]


def test_a_key_file_that_others_may_read_is_remarked_upon(remote: CommandLine, key_file: Path) -> None:
    assert "chmod 600" not in remote.inline("runs", "list").err
    key_file.chmod(0o644)
    assert "chmod 600" in remote.inline("runs", "list").err


def test_a_key_that_may_only_read_is_told_which_scope_it_lacks(
    api: Served, remote: CommandLine, tmp_path: Path, seeded: dict[str, str]
) -> None:
    made = Tenants(api.client.database).create_key("default", "reader", [KeyScope.RUNS_READ])
    reads = ["--key-file", str(keyed_file(tmp_path / "reader", made.token))]
    assert remote.inline("runs", "show", seeded["done"], *reads).code == 0
    ended = remote.inline("runs", "stop", seeded["queued"], *reads)
    assert (ended.code, "runs:write" in ended.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["data", "migrate"], "where the database is"),
        (["data", "backup", "x"], "themselves"),
        (["up"], "a server of its own"),
        (["start", "worker"], "the installation itself"),
        (["dev", "chaos", "--runs", "1"], "a fleet of its own"),
        (["mcp", "login", "desk"], "where the workers are"),
        (["data", "workspaces", "list"], "where the workers are"),
        (["start", "browser"], "a process of the installation"),
    ],
)
def test_what_needs_the_installation_refuses_with_a_reason(remote: CommandLine, words: list[str], reason: str) -> None:
    ended = remote.inline(*words)
    assert ended.code == 2
    assert "cannot ask a server" in ended.err
    assert reason in ended.err
    assert not remote.home.exists()


def test_every_verb_that_needs_the_installation_refuses_before_it_reads_its_arguments(remote: CommandLine) -> None:
    refusing = [path for path, command in list_commands() if not _asks_server(command)]
    refusing.remove("data encryption new-key")  # it draws one, and asks nobody
    refusing.remove("config completion")
    for path in refusing:
        ended = remote.inline(*path.split())
        assert (ended.code, "cannot ask a server (" in ended.err) == (2, True), path
    assert len(refusing) > 15
    assert not {path.split()[0] for path in refusing} & {"runs", "cron", "tenants"}


class OlderServer(BaseHTTPRequestHandler):
    """Of a version without any operation but ``/health``."""

    def do_GET(self) -> None:
        status = 200 if self.path == "/health" else 404
        error = {"message": "There is nothing at this path.", "type": "x", "param": None, "code": "not_found"}
        body = json.dumps({"version": "0.1.0"} if status == 200 else {"error": error}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_what_goes_wrong_is_told_with_what_to_do(
    api: Served, remote: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_worker.cli.server._PATIENCE_S", 0.5)

    def told(*words: str) -> str:
        ended = remote.inline(*words)
        assert ended.code == 2, ended.out
        assert "Traceback" not in ended.err
        return ended.err

    wrong = str(keyed_file(tmp_path / "w", "wrong-key-0123456789"))
    assert "see that --key-file holds the whole key" in told("cron", "list", "--key-file", wrong)
    assert "the tenant of the key" in told("gateway", "deliveries", "show", f"dlv_{'0' * 32}")
    reader = Tenants(api.client.database).create_key("default", "reader", [KeyScope.RUNS_READ]).token
    for words in (
        ["tenants", "keys", "list"],
        ["data", "retention", "show"],
        ["fleet", "alerts", "list"],
        ["cron", "list"],
    ):
        refused = told(*words, "--key-file", str(keyed_file(tmp_path / "reader", reader)))
        assert "lacks the scope" in refused and "hermes-worker tenants keys create" in refused
    assert "see that the server runs" in told("cron", "list", "--server", "http://127.0.0.1:9")
    assert "see that the server runs" in told("data", "export", "--holder", "x", "--server", "http://127.0.0.1:9")
    with ThreadingHTTPServer(("127.0.0.1", 0), OlderServer) as older:
        threading.Thread(target=older.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{older.server_port}"
        for words in (
            ["cron", "list"],
            ["data", "retention", "show"],
            ["tenants", "list"],
            ["gateway", "webhooks", "list"],
        ):
            refused = told(*words, "--server", url)
            assert "has version 0.1.0 and no GET /v1/" in refused and "use the same on both sides" in refused
        older.shutdown()


def test_a_certificate_that_nobody_vouches_for_is_told_at_once(
    serve: Callable[..., Served], settings: Settings, tmp_path: Path
) -> None:
    files = Authority(tmp_path / "tls").files("127.0.0.1")
    tls = {"tls_certificate": files.certificate, "tls_key": files.key}
    secure = serve(replace(settings, server=replace(settings.server, **tls)))
    remote = at_server(secure.url, tmp_path, keyed_file(tmp_path / "key", secure.key))
    ended = remote.inline("cron", "list")
    assert (ended.code, "with --ca-file" in ended.err) == (2, True), ended.err
    assert remote.inline("--ca-file", str(files.authority), "cron", "list").code == 0


# ------------------------------------------------------------------------------------------------------------ document


def test_the_reference_says_which_verbs_ask_a_server_and_the_page_what_differs() -> None:
    reachable = {path for path, command in list_commands() if _asks_server(command)}
    reference = (DOCUMENT.parent / "reference" / "cli.md").read_text(encoding="utf-8")
    sections = re.split(r"^#+ hermes-worker ", reference, flags=re.MULTILINE)[1:]
    assert {text.partition("\n")[0] for text in sections if "| `--server URL` |" in text} == reachable
    table = DOCUMENT.read_text(encoding="utf-8").partition("| verbs over a server |")[2].partition("\n\n")[0]
    listed = [verb for row in table.splitlines()[2:] for verb in re.findall(r"`([a-z -]+)`", row.split("|")[1])]
    assert sorted(set(listed) & reachable) == sorted(listed)
    assert len(listed) > 15


def _asks_server(command: click.Command) -> bool:
    return any(isinstance(each, click.Option) and each.name == "server" and not each.hidden for each in command.params)
