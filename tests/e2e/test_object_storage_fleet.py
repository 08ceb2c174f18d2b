"""Roles on machines of their own that share PostgreSQL, the broker and a bucket, and no file. Tools workers die while
they put a snapshot into the bucket, and others with an empty disk take their place.

The bucket is moto's. Real object storage is untried.
"""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.commandline import CommandLine, Running, call, script
from support.object_server import BUCKET, moto_server

from hermes_worker.client import HermesClient

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
KEY = "0123456789abcdef-server"
SESSIONS = 4
LOOK = script(call("terminal", command="cat turn-*.txt"))
POINTS = ("snapshot.during_upload", "snapshot.after_upload", "snapshot.after_head")


def test_sessions_keep_what_was_told_though_workers_die_in_the_middle_of_snapshots(
    tmp_path: Path, postgres_url: str, broker_url: str
) -> None:
    with ExitStack() as stack:
        endpoint = stack.enter_context(moto_server())
        servers = {
            "HERMES_DATABASE_URL": postgres_url,
            "HERMES_BROKER_URL": broker_url,
            "HERMES_DRAIN_S": "3",
            "HERMES_LEASE_TTL_S": "5",
            "HERMES_WORKSPACE": "objects",
            "HERMES_OBJECT_STORAGE": f"s3://{BUCKET}/fleet",
            "HERMES_OBJECT_STORAGE_ENDPOINT": endpoint,
            "HERMES_OBJECT_STORAGE_ACCESS_KEY": "S3RVER",
            "HERMES_OBJECT_STORAGE_SECRET_KEY": "S3RVER",
        }

        def begin(machine: str, *words: str, **more: str) -> Running:
            (tmp_path / machine).mkdir()
            hermes = CommandLine(tmp_path / machine, {**servers, **more})
            return stack.enter_context(hermes.started(*words))

        scripted = begin("scripted", "dev", "scripted-model", "--port", "0")
        model = {"HERMES_BASE_URL": scripted.wait_for_line(r"(http://\S+/v1)")[1], "HERMES_MODEL": "scripted"}

        def begin_tools(machine: str, **more: str) -> Running:
            return begin(machine, "start", "worker", "--queues", "tools,system", **model, **more)

        others = [
            begin("model", "start", "worker", "--queues", "model", "--beat", **model),
            begin("api", "start", "api", "--port", "0", **model, HERMES_SERVER_KEY=KEY),
        ]
        for process in others:
            process.wait_for_line("worker.started")
        client = stack.enter_context(HermesClient(others[1].wait_for_line(r"url=(http://\S+)")[1], api_key=KEY))
        sessions: list[str | None] = [None] * SESSIONS
        for number, point in enumerate(POINTS):
            doomed = begin_tools(f"doomed-{number}", HERMES_FAULTS=f"{point}=kill@2")
            names = [f"turn-{number}-{step}.txt" for step in range(3)]
            asked = script(*(call("write_file", path=name, content=f"{name} was written\n") for name in names))
            begun = [client.submit(asked, session_id=session) for session in sessions]
            assert doomed.wait() == -signal.SIGKILL, doomed.output
            heir = begin_tools(f"heir-{number}")
            for run_id in begun:
                assert client.wait(run_id) == "completed", client.result(run_id)
            sessions = [client.run(run_id).session_id for run_id in begun]
            heir.interrupt()
            assert heir.wait() == 0, heir.output

        begin_tools("last")
        for run_id in [client.submit(LOOK, session_id=session) for session in sessions]:
            assert client.wait(run_id) == "completed", client.result(run_id)
            transcript = client.messages(client.run(run_id).session_id)
            told = [str(message["content"]) for message in transcript if message["role"] == "tool"]
            found = told.pop()
            kept = [f"turn-{number}-{step}.txt" for number in range(len(POINTS)) for step in range(3)]
            assert len(told) == len(kept)
            for name, result in zip(kept, told, strict=True):
                if "error" not in result:
                    assert f"{name} was written" in found, (name, result)
            assert sum("error" not in result for result in told) >= len(told) - len(POINTS)
