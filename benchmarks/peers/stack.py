"""Other systems under the load of ``benchmarks.compare``, each in an environment of its own with pinned versions."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.run import floor
from benchmarks.stack import Load, model_server
from hermes_worker.local.postgres import EmbeddedPostgres

_PROGRAMS = Path(__file__).resolve().parent / "programs"
_ENVIRONMENTS = Path.home() / ".cache" / "hermes-benchmark-peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A system, the program that runs the load with it, and the packages that it needs."""

    program: str
    packages: Sequence[str]
    server: str | None = None
    """The npm package that brings its server."""


PEERS = {
    "dbos": Peer(program="dbos_steps.py", packages=("dbos==3.4.0", "openai", "psycopg[binary]")),
    "restate": Peer(
        program="restate_steps.py",
        packages=("restate-sdk[serve]", "hypercorn", "openai"),
        server="@restatedev/restate-server@1.7.12",
    ),
}


class SdkLoop:
    """The bare SDK loop, over as many messages as a run of the load has in the middle. Use as a context manager."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._exit = ExitStack()

    def __enter__(self) -> SdkLoop:
        self._url, _ = self._exit.enter_context(model_server(latency_s=self._load.latency_s))
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def measure(self) -> dict[str, float]:
        messages = self._load.history + 2 * (self._load.steps // 2)
        found = floor("sdk", self._url, messages=messages, steps=100)
        return {**found, "cpu_ms_per_step_all": found["cpu_ms_per_step"]}


class PeerStack:
    """One peer with its servers. Use as a context manager."""

    def __init__(self, name: str, load: Load) -> None:
        self._peer, self._place, self._load = PEERS[name], _ENVIRONMENTS / name, load
        self._exit = ExitStack()
        self._servers: list[int] = []

    def __enter__(self) -> PeerStack:
        _make_environment(self._peer, self._place)
        directory = Path(self._exit.enter_context(tempfile.TemporaryDirectory(prefix="hermes-peer-")))
        directory.chmod(0o755)
        url, model_pid = self._exit.enter_context(model_server(latency_s=self._load.latency_s))
        self._servers.append(model_pid)
        state = self._start_state(directory)
        argv = [str(self._place / "bin/python"), str(_PROGRAMS / self._peer.program), url, state]
        argv += [str(self._load.runs), str(self._load.steps)]
        environ = {"PATH": os.environ["PATH"], "HOME": str(directory), "PYTHONPATH": str(_PROGRAMS.parents[2])}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, env=environ, stdin=pipe, stdout=pipe, text=True)
        self._exit.callback(self._process.wait)
        self._exit.callback(self._process.kill)
        self._read_line()  # once it is warm
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def measure(self) -> dict[str, float]:
        assert self._process.stdin is not None
        own, servers = _count_cpu_s([self._process.pid]), _count_cpu_s(self._servers)
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        elapsed_s = float(json.loads(self._read_line()))
        own, servers = _count_cpu_s([self._process.pid]) - own, _count_cpu_s(self._servers) - servers
        steps = self._load.runs * self._load.steps
        return {
            "steps_per_s": steps / elapsed_s,
            "cpu_ms_per_step": own / steps * 1e3,
            "cpu_ms_per_step_all": (own + servers) / steps * 1e3,
        }

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _start_state(self, directory: Path) -> str:
        """Start what the peer keeps its state in; return where it is, as its program takes it."""
        if self._peer.server is not None:
            return self._start_restate(directory)
        if self._load.database == "sqlite":
            return f"sqlite:///{directory / 'state.db'}"
        postgres = self._exit.enter_context(EmbeddedPostgres(directory / "postgres"))
        self._servers.append(postgres.pid or 0)
        return str(postgres.create_database("bench"))

    def _start_restate(self, directory: Path) -> str:
        [binary] = self._place.glob("node_modules/@restatedev/restate-server-linux-*/bin/restate-server")
        ingress, admin, node = (_find_free_port() for _ in range(3))
        environ = {
            "HOME": str(directory),
            "RESTATE_BASE_DIR": str(directory / "restate"),
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
            "RESTATE_DISABLE_TELEMETRY": "true",
        }
        log = self._exit.enter_context((directory / "server.log").open("w"))
        server = subprocess.Popen([binary], env=environ, stdout=log, stderr=log)
        self._exit.callback(server.wait)
        self._exit.callback(server.kill)
        self._servers.append(server.pid)
        while server.poll() is None and not all(map(_is_open, (ingress, admin))):
            time.sleep(0.1)
        return f"http://127.0.0.1:{ingress},http://127.0.0.1:{admin}"


def _make_environment(peer: Peer, place: Path) -> None:
    if (place / "ready").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    subprocess.run([str(place / "bin/python"), "-m", "pip", "install", "-q", *peer.packages], check=True)
    if peer.server is not None:
        subprocess.run(["npm", "install", "--silent", "--prefix", str(place), peer.server], check=True)
    (place / "ready").touch()


def _count_cpu_s(pids: Sequence[int]) -> float:
    """Count the seconds of CPU that processes and their children have used."""
    every = (one for pid in pids for root in [psutil.Process(pid)] for one in (root, *root.children(recursive=True)))
    return sum(sum(one.cpu_times()[:2]) for one in every)


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
