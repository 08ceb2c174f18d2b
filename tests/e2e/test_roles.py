"""Each role alone, against a PostgreSQL and a Valkey of their own, as in a deployment."""

from __future__ import annotations

import io
import json
import signal
import urllib.request
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from PIL import Image
from support.commandline import CommandLine, Running, call, script, wait_for
from support.fault_server import FaultServer, Received, Reply, finish_chunk, text_chunk
from support.inside import inside

from hermes_worker.core.run import RunStatus
from hermes_worker.store.engine.database import Database
from hermes_worker.store.runs.views import Views

pytestmark = pytest.mark.e2e


@pytest.fixture
def servers(empty_postgres_url: str, broker_url: str) -> dict[str, str]:
    return {"HERMES_DATABASE_URL": empty_postgres_url, "HERMES_BROKER_URL": broker_url}


def status_of(hermes: CommandLine, run_id: str) -> RunStatus:
    database = Database(hermes.environ["HERMES_DATABASE_URL"])
    try:
        return Views(database).load_run(run_id).status
    finally:
        database.close()


def leaves(process: Running) -> int:
    """Send SIGTERM; the exit code."""
    process.note_tree()
    process._process.send_signal(signal.SIGTERM)
    return process.wait(30)


def test_every_role_runs_alone_against_external_servers(tmp_path: Path, servers: dict[str, str], project: Path) -> None:
    environ = {**servers, "HERMES_DRAIN_S": "3"}
    hermes = CommandLine(tmp_path / "home", environ)
    early = hermes.inline("runs", "list")
    assert early.code == 2
    assert "hermes-worker data migrate" in early.err
    migrated = hermes.inline("data", "migrate")
    assert migrated.code == 0, migrated.said
    assert "upgraded from nothing" in migrated.out
    assert "was up to date" in hermes.inline("data", "migrate").out

    with ExitStack() as stack:
        model = stack.enter_context(hermes.started("dev", "scripted-model", "--port", "0"))
        hermes.environ["HERMES_BASE_URL"] = model.wait_for_line(r"(http://\S+/v1)")[1]
        hermes.environ["HERMES_MODEL"] = "scripted"
        roles = [
            stack.enter_context(hermes.started(*role))
            for role in (
                ("start", "worker", "--queues", "model", "--pool", "threads", "--concurrency", "20"),
                (
                    "start",
                    "worker",
                    "--queues",
                    "tools,system",
                    "--pool",
                    "prefork",
                    "--concurrency",
                    "2",
                    "--name",
                    "carpenter",
                ),
                ("start", "beat", "--alive-file", str(project / "beat.alive")),
                ("start", "api", "--port", "0"),
            )
        ]
        for role in roles:
            role.wait_for_line("worker.started")
        api = roles[3].wait_for_line(r"url=(http://\S+)")[1]
        watched = hermes.inline("submit", script(call("terminal", command="pwd"), final="Done."), "--watch")
        assert watched.code == 0, watched.said + "".join(role.output for role in roles)
        with urllib.request.urlopen(f"{api}/health", timeout=30) as answer:
            assert json.load(answer)["status"] == "ok"
        healthy = hermes("doctor")
        assert healthy.code == 0, healthy.said
        assert "consuming model, system, tools" in healthy.out
        assert (project / "beat.alive").exists()
        for role in roles:
            assert leaves(role) == 0, role.output
            assert "worker.stopped" in role.output or "prefork" in role.output
            assert not role.survivors()
        assert not any("Traceback" in role.output for role in roles)


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_that_is_told_to_leave_hands_its_model_call_over(
    tmp_path: Path, servers: dict[str, str], pool: str
) -> None:
    hermes = CommandLine(tmp_path / "home", {**servers, "HERMES_DRAIN_S": "1"})
    assert hermes.inline("data", "migrate").code == 0
    with hermes.started("dev", "scripted-model", "--port", "0") as model:
        hermes.environ["HERMES_BASE_URL"] = model.wait_for_line(r"(http://\S+/v1)")[1]
        hermes.environ["HERMES_MODEL"] = "scripted"
        slow = script({"text": "Slow.", "delay_s": 2, **call("todo")}, final="Done.")
        with hermes.started("start", "worker", "--pool", pool, "--concurrency", "2") as first:
            first.wait_for_line("worker.started")
            run_id = hermes.inline("submit", slow).out.strip()
            wait_for(lambda: status_of(hermes, run_id) is RunStatus.RUNNING)
            with hermes.started("start", "worker") as second:
                second.wait_for_line("worker.started")
                assert leaves(first) == 0, first.output
                watched = hermes.inline("runs", "watch", run_id)
                assert watched.code == 0, watched.said + first.output + second.output
    assert "a worker was lost" not in watched.out


def test_a_worker_that_is_a_scheduler_as_well_fires_jobs(tmp_path: Path, servers: dict[str, str]) -> None:
    hermes = CommandLine(tmp_path / "home", servers)
    assert hermes.inline("data", "migrate").code == 0
    with hermes.started("dev", "scripted-model", "--port", "0") as model:
        hermes.environ["HERMES_BASE_URL"] = model.wait_for_line(r"(http://\S+/v1)")[1]
        hermes.environ["HERMES_MODEL"] = "scripted"
        refused = hermes("start", "worker", "--beat", "--pool", "prefork")
        assert (refused.code, "start a beat of its own" in refused.err) == (2, True), refused.said

        with hermes.started("start", "worker", "--beat") as worker:
            worker.wait_for_line("worker.started .*schedule=maintenance")
            at = (datetime.now(UTC) + timedelta(seconds=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
            made = hermes.inline("cron", "create", at, "Say hello", "--name", "greeter")
            assert made.code == 0, made.said
            wait_for(lambda: "completed" in hermes.inline("runs", "list").out)
            assert leaves(worker) == 0, worker.output
            assert "Traceback" not in worker.output


def results_of(hermes: CommandLine, run_id: str) -> list[str]:
    database = Database(hermes.environ["HERMES_DATABASE_URL"])
    try:
        rows = [json.loads(row.body) for row in Views(database).load_transcript(run_id)]
        return [str(row["content"]) for row in rows if row["role"] == "tool"]
    finally:
        database.close()


class Specialist:
    """A page, and a model server that looks at images, sums pages up and judges commands."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, request: Received, reply: Reply) -> None:
        if request.head.startswith("GET"):
            reply.document(200, f"<p>{'word ' * 500}</p>".encode(), content_type="text/html")
            return
        model = str(request.document["model"])
        self.asked.append(model)
        text = "APPROVE" if model == "judge" else f"{model} answered"
        usage = {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 101}}
        reply.sse(text_chunk(text), finish_chunk(), usage, "[DONE]")


def test_a_tools_worker_without_any_model_key_lets_others_ask(
    tmp_path: Path, servers: dict[str, str], project: Path
) -> None:
    """``vision_analyze``, ``web_extract`` and smart approvals, where only the model worker knows a model or a key."""
    out = io.BytesIO()
    Image.new("RGB", (5, 5), "red").save(out, "PNG")
    (project / "a.png").write_bytes(out.getvalue())
    (project / "victim").mkdir()
    common = {**servers, "HERMES_APPROVALS_MODE": "smart", "HERMES_ALLOW_PRIVATE_URLS": "1"}
    tools = CommandLine(tmp_path / "tools", common)
    assert tools.inline("data", "migrate").code == 0
    specialist = Specialist()
    with ExitStack() as stack:
        other = stack.enter_context(FaultServer(specialist))
        model = stack.enter_context(tools.started("dev", "scripted-model", "--port", "0"))
        own = {f"HERMES_{task}_PROVIDERS": f"custom:{name}@{other.base_url}" for task, name in _SPECIALISTS.items()}
        keyed = {
            "HERMES_BASE_URL": model.wait_for_line(r"(http://\S+/v1)")[1],
            "HERMES_MODEL": "scripted",
            "HERMES_API_KEY": "sk-the-key-of-the-model-worker",
        }
        models = CommandLine(tmp_path / "models", {**common, **keyed, **own})
        for hermes, queues in ((models, "model"), (tools, "tools,system")):
            worker = stack.enter_context(hermes.started("start", "worker", "--queues", queues))
            worker.wait_for_line("worker.started")

        pages = [f"{other.base_url.removesuffix('/v1')}/page"]
        steps = (
            call("vision_analyze", image_url="a.png", question="colour?"),
            call("web_extract", urls=pages, char_limit=500),
            call("terminal", command="rm -r victim"),
        )
        run_id = models.inline("submit", script(*steps, final="Done."), "--workspace", str(project)).out.strip()
        watched = models.inline("runs", "watch", run_id)

        assert watched.code == 0, watched.said
        seen, read, _ = results_of(tools, run_id)
        assert json.loads(inside(seen))["analysis"] == "eyes answered"
        assert json.loads(inside(read))["results"][0]["content"] == "reader answered"
        assert not (project / "victim").exists()
        assert specialist.asked == ["eyes", "reader", "judge"]
        healthy = tools("doctor")
        assert healthy.code == 0, healthy.said


_SPECIALISTS = {"VISION": "eyes", "WEB_EXTRACT": "reader", "APPROVAL": "judge"}
