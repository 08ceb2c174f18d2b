"""What an operator has beside the product: a provider with keys, a receiver of answers, traffic, a shell."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hermes_worker.channels.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign, verify
from hermes_worker.models.scripted.server import ScriptedServer
from support.commandline import PATIENCE_S, script, wait_for
from support.fault_server import FaultServer, Received, Reply

_END = "<<<end of block>>>"


class Provider:
    """A scripted model behind a key: it takes those that were not revoked."""

    def __init__(self, model: ScriptedServer) -> None:
        self._model = model
        self.keys = {"first-key", "second-key"}
        self.refused = 0
        self.server = FaultServer(self._answer)

    def _answer(self, request: Received, reply: Reply) -> None:
        if (request.header("authorization") or "").removeprefix("Bearer ") not in self.keys:
            self.refused += 1
            reply.document(401, {"error": {"message": "Incorrect API key provided"}})
            return
        path = request.head.split()[1].removeprefix("/v1")
        method = request.head.split()[0]
        asked = urllib.request.Request(
            f"{self._model.base_url}{path}",
            request.body or None,
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            reply.document(answer.status, answer.read(), content_type=answer.headers["Content-Type"])


class Receiver:
    """Where answers are delivered, and with which secret each was signed."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets
        self.signed_with: list[str | None] = []
        """Of each answer; ``None`` for a secret that is none of ours."""
        self.server = FaultServer(self._take)

    def _take(self, request: Received, reply: Reply) -> None:
        headers = {
            name: request.header(name) or "" for name in (SIGNATURE_HEADER, TIMESTAMP_HEADER) if request.header(name)
        }
        now = datetime.now(UTC)
        fits = (secret for secret in self._secrets if verify(headers, request.body, secret, now).is_valid)
        self.signed_with.append(next(fits, None))
        reply.document(200, {})


@dataclass
class Traffic:
    """Somebody who submits runs and sends events all the while, through a balancer over the ports of the APIs."""

    ports: tuple[int, ...]
    key: str
    deliver: str
    route_secret: str | None
    """``None`` once there is no route any more."""
    run_ids: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _ends: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Traffic:
        self._thread = threading.Thread(target=self._go, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def wait_for_more(self, number: int = 2) -> None:
        wanted = len(self.run_ids) + number
        wait_for(lambda: len(self.run_ids) >= wanted or self.failures, saying="for runs to be accepted")
        assert self.failures == []

    def _go(self) -> None:
        number = 0
        while not self._ends.wait(1.0):
            number += 1
            steps = script({"calls": [{"name": "list_files", "arguments": {}}]}, final=f"Done {number}.")
            body = json.dumps({"input": steps, "deliver": self.deliver}).encode()
            said = self._send("/v1/runs", body, {"Authorization": f"Bearer {self.key}"}, expected=202)
            if said is not None:
                self.run_ids.append(said["run_id"])
            if self.route_secret is not None:
                event = json.dumps({"pull_request": {"title": f"{number}"}}).encode()
                headers = {"X-GitHub-Event": "pull_request", "X-GitHub-Delivery": f"event-{number}"}
                signed = sign(event, self.route_secret, datetime.now(UTC))
                self._send("/webhooks/review", event, {**headers, **signed}, expected=202)

    def _send(self, path: str, body: bytes, headers: dict[str, str], *, expected: int) -> Any:
        """To whichever API listens. One that ends while it is asked is left for another, as a balancer does it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for port in self.ports:
                request = urllib.request.Request(
                    f"http://127.0.0.1:{port}{path}", body, {"Content-Type": "application/json", **headers}
                )
                try:
                    with urllib.request.urlopen(request, timeout=30) as answer:
                        if answer.status != expected:
                            self.failures.append(f"{path}: {answer.status}")
                        return json.load(answer)
                except urllib.error.HTTPError as refused:
                    self.failures.append(f"{path}: {refused.code} {refused.read().decode()}")
                    return None
                except (OSError, ValueError):
                    continue
            if self._ends.is_set():
                return None
        self.failures.append(f"{path}: no API listens")
        return None


class OperatorsShell:
    """One bash that is given the blocks of the page, one after the other."""

    def __init__(self, directory: Path, environ: dict[str, str]) -> None:
        self._output = directory / "shell.txt"
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=self._output.open("w"),
            stderr=subprocess.STDOUT,
            env=environ,
            cwd=directory,
            start_new_session=True,
        )
        self._blocks = 0
        self("set -euo pipefail")

    @property
    def said(self) -> str:
        return self._output.read_text(errors="replace")

    def __call__(self, commands: str) -> str:
        """What they print, beside what those in the background do."""
        before = len(self.said)
        self._blocks += 1
        end = f"{_END} {self._blocks}"
        assert self._bash.stdin
        self._bash.stdin.write(f"{commands}\necho '{end}'\n".encode())
        self._bash.stdin.flush()

        def ended() -> bool:
            assert self._bash.poll() is None, f"the shell ended:\n{self.said[before:]}\nof:\n{commands}"
            return f"{end}\n" in self.said[before:]

        wait_for(ended, within_s=PATIENCE_S, saying=f"for the end of:\n{commands}\nso far:\n{self.said[before:]}")
        return self.said[before:]

    def begin(self, command: str) -> None:
        """One that goes on; nothing else can be typed until it has ended."""
        assert self._bash.stdin
        self._bash.stdin.write(f"{command}\n".encode())
        self._bash.stdin.flush()

    def close(self) -> None:
        """End the shell and all that was started in it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
