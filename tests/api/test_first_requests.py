"""What a process of the API does before it lets anybody in, so that its first requests wait for nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from serving import until
from support.migrated import bring_up
from support.patience import PATIENCE_S

from hermes_worker.api.server import ApiServer, open_sockets
from hermes_worker.settings import Settings
from hermes_worker.wiring import open_client

FUNCTION = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
MESSAGES = [{"role": "user", "content": "hello"}]
FIRST = {
    "/v1/runs": {"input": "hello", "output_schema": {"type": "object"}, "tags": ["t"], "delay_s": 600},
    "/v1/batch/runs": {"runs": [{"input": "hello"}, {"input": ""}]},
    "/v1/responses": {"input": "hello", "background": True, "tools": [{"type": "function", **FUNCTION}]},
    "/v1/conversations": {"items": [{"type": "message", **MESSAGES[0]}]},
    "/v1/chat/completions": {"messages": [], "tools": [{"type": "function", "function": FUNCTION}]},
    "/api/sessions": {"title": "a"},
    "/api/jobs": {"name": "n", "schedule": "0 9 * * *", "prompt": "hello", "deliver": "local"},
}
_IMPORTED = re.compile(r"^import time: .*\| +(\S+)$", re.MULTILINE)


@pytest.fixture
def api(tmp_path: Path, broker_url: str) -> Iterator[tuple[httpx.Client, Path]]:
    """A process of the API as operators start it, and where it writes what it imports."""
    home, database, said = tmp_path / "home", f"sqlite:///{tmp_path / 'test.db'}", tmp_path / "said"
    home.mkdir()
    bring_up(database)
    variables = {"HERMES_HOME": str(home), "HERMES_BROKER_URL": broker_url, "HERMES_DATABASE_URL": database}
    ours = {name: value for name, value in os.environ.items() if not name.startswith("HERMES_")}
    command = [sys.executable, "-X", "importtime", "-m", "hermes_worker", "start", "api", "--port", "0"]
    with (
        said.open("w") as output,
        subprocess.Popen(command, env=ours | variables, stdout=output, stderr=output) as process,
    ):
        try:
            url = until(lambda: re.search(r"url=(http://\S+)", said.read_text()), "it serves")[1]
            key = (home / "api.key").read_text().strip()
            with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S) as http:
                yield http, said
        finally:
            process.send_signal(signal.SIGTERM)


def test_the_first_submissions_import_nothing(api: tuple[httpx.Client, Path]) -> None:
    http, said = api
    before = len(_IMPORTED.findall(said.read_text()))
    assert before > 500, "it tells what it imports"
    for path, body in FIRST.items():
        answer = http.post(path, json=body, headers={"Idempotency-Key": f"first {path}"})
        assert answer.status_code < 300 or path == "/v1/chat/completions", answer.text
        assert _IMPORTED.findall(said.read_text())[before:] == [], path


def test_the_document_of_operations_is_made_before_anybody_asks(settings: Settings) -> None:
    client = open_client(settings)
    try:
        server = ApiServer(client, open_sockets(settings.server))
        assert server.application.openapi_schema is None
        server.warm_up()
        assert server.application.openapi_schema is not None
    finally:
        client.close()


APART = """
import os, threading
from hermes_worker.system.heap import compute_apart

def fail():
    raise LookupError("broken")

print(compute_apart(lambda: {"pid": os.getpid()})["pid"] == os.getpid())
try:
    compute_apart(fail)
except LookupError as error:
    print(error)
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(compute_apart(lambda: {"pid": os.getpid()})["pid"] == os.getpid())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork")
def test_what_is_computed_apart_takes_no_memory_here_and_fails_as_it_would_here() -> None:
    done = subprocess.run([sys.executable, "-c", APART], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False", "broken", "True"], "a process with threads is not forked"
