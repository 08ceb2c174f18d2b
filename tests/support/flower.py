"""Flower, as ``hermes-worker start flower`` starts it, beside a fleet of a test."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from support.rig import Rig, until

USER, PASSWORD = "hermes", "petals"


def environ_of(rig: Rig, broker_url: str) -> dict[str, str]:
    """For a program that joins the rig's fleet."""
    return {
        "PATH": os.defpath,
        "HOME": str(rig.directory),
        "HERMES_HOME": str(rig.directory / "home"),
        "HERMES_BROKER_URL": broker_url,
        "HERMES_DATABASE_URL": f"sqlite:///{rig.directory / 'hermes.db'}",
    }


@dataclass(frozen=True)
class FlowerPage:
    """A Flower that runs."""

    process: subprocess.Popen[bytes]
    address: str

    def read(self, path: str, *, password: str | None = PASSWORD) -> tuple[int, str]:
        request = urllib.request.Request(f"{self.address}{path}")
        if password is not None:
            credentials = base64.b64encode(f"{USER}:{password}".encode()).decode()
            request.add_header("Authorization", f"Basic {credentials}")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return 0, ""

    def json(self, path: str) -> Any:
        return json.loads(self.read(path)[1] or "{}")

    def tasks_with_runtime(self) -> list[dict[str, Any]] | None:
        tasks = self.json("/api/tasks").values()
        return [task for task in tasks if task["name"] == "hermes.iterate" and task["runtime"]] or None


FLOWER = [sys.executable, "-m", "hermes_worker", "flower"]


@contextmanager
def flower(environ: Mapping[str, str]) -> Iterator[FlowerPage]:
    """One that watches the fleet of ``environ``, as ``hermes-worker start flower`` starts it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [*FLOWER, "--port", str(port)],
        env={**environ, "HERMES_FLOWER_PASSWORD": PASSWORD},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    page = FlowerPage(process, f"http://127.0.0.1:{port}")
    try:
        until(lambda: page.read("/healthcheck", password=None)[0] == 200 or None, "Flower to start")
        yield page
    finally:
        process.terminate()
        process.wait(20)
