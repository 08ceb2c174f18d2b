"""The image, and compose.yaml by Docker's own Compose, which starts every service but Grafana: the first hour with its
README, another image under a run at work, and what each service may do.

All stacks share one network, so each is gone before the next one is started: the order of the tests matters.
"""

from __future__ import annotations

import base64
import json
import os
import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import prometheus
from support.commandline import call, script, wait_for
from support.composed import IMAGE, PARTS, ROOT, Composed, build_servers, build_target, checking_health, missing_parts
from support.containers import ContainerEngine, container_engine, missing_programs, seconds
from support.first_hour import Hour
from support.podman_service import PodmanService
from support.previous import unpack_previous

from hermes_worker.store.revisions import find_newest

MEGABYTES_MAX = {"core": 300, "full": 450, "browser": 650}
"""Of each target, above the base; the browser's without Chromium, which is a Debian package."""
ROLES = ("api", "worker-model", "scripted-model", "worker-tools", "beat", "flower", "gateway", "mcp-host", "browser")
PROFILES = ("scripted", "gateway", "mcp", "browser")
NOW = f"{IMAGE}:full"
BEFORE = f"{IMAGE}:before"
BEFORE_FILE = f"""
FROM localhost/base AS build
RUN python3 -m venv /tools
COPY . /source
COPY --from={NOW} /opt/hermes /opt/hermes
ENV PIP_NO_INDEX=1 PIP_NO_DEPS=1 PIP_FIND_LINKS=/wheels
RUN /tools/bin/pip wheel --quiet --wheel-dir /built /source \\
    && /tools/bin/pip --python /opt/hermes/bin/python install --quiet --force-reinstall /built/*.whl
FROM {NOW}
COPY --from=build /opt/hermes /opt/hermes
COPY compose/healthy.sh compose/write_secrets.py /opt/hermes/bin/
"""
"""The version before with the libraries of this one: those of its own may not be among the wheels any more."""
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
SCRIPTED = {"HERMES_PROVIDER": "custom", "HERMES_BASE_URL": "http://127.0.0.1:8900/v1", "HERMES_MODEL": "scripted"}
CALLS = 20

pytestmark = [pytest.mark.machine, pytest.mark.timeout(3_000)]


@pytest.fixture(scope="module")
def engine() -> Iterator[ContainerEngine]:
    if os.geteuid() != 0 or missing_programs():
        pytest.skip("starting containers needs root, podman, crun and buildah")
    if why := missing_parts():
        pytest.skip(why)
    with container_engine() as engine:
        engine.imported(PARTS / "base.tar", "localhost/base")
        for target in MEGABYTES_MAX:
            build_target(engine, target, f"{IMAGE}:{target}")
        build_servers(engine, NOW)
        yield engine


@pytest.fixture(scope="module")
def podman_service(engine: ContainerEngine) -> Iterator[PodmanService]:
    service = PodmanService(engine, engine.directory / "engine.sock")
    try:
        with checking_health(engine):
            yield service
    finally:
        service.die()


@pytest.fixture
def before(engine: ContainerEngine, tmp_path: Path) -> Path:
    """The sources of the version before, of which an image is built."""
    source = unpack_previous(tmp_path)
    file = tmp_path / "before.Containerfile"
    file.write_text(BEFORE_FILE)
    engine.build(f"--volume={PARTS / 'wheels'}:/wheels:ro", f"--file={file}", f"--tag={BEFORE}", str(source))
    return source


@pytest.fixture(scope="module")
def stack(
    podman_service: PodmanService, engine: ContainerEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Composed]:
    """Everything of compose.yaml but the profile ``observe``, healthy, and a house that the gateway listens to."""
    stack = Composed(podman_service, engine, tmp_path_factory.mktemp("compose") / "checkout")
    browser = {"HERMES_BROWSER": "true", "HERMES_CHROMIUM": "/usr/bin/chromium"}
    stack.lay_out(ROOT, DOTENV, IMAGE=f"{IMAGE}:browser", **browser)
    house = ["--detach", "--name=house", "--network=host", "--entrypoint=python3", NOW, "-c", HOUSE]
    engine("podman", "run", *house)
    with stack.removed_at_end():
        stack(*(f"--profile={name}" for name in PROFILES), "up", "--detach")
        stack.wait_until_healthy(*ROLES)
        yield stack


def test_the_image_is_what_it_says(engine: ContainerEngine) -> None:
    image = json.loads(engine("podman", "image", "inspect", NOW).stdout)[0]
    config = image["Config"]
    assert config["User"] == "10001:10001"
    assert image["Healthcheck"]["Test"] == ["CMD", "bash", "/opt/hermes/bin/healthy.sh"]
    assert {"title", "description", "licenses", "version", "revision"} <= {
        name.rpartition(".")[2] for name in config["Labels"] if name.startswith("org.opencontainers.image.")
    }
    found = engine(
        "podman", "run", "--rm", "--network=none", "--entrypoint=bash", NOW, "-c",
        "for p in gcc cc make pip pip3; do command -v $p; done; ls /source /tools /opt/hermes/bin/pip; true",
    )  # fmt: skip
    assert found.stdout.strip() == "", "neither a compiler nor pip nor the first stage"


@pytest.mark.parametrize("target", MEGABYTES_MAX)
def test_each_target_has_its_extras_and_is_no_larger_than_it_was(engine: ContainerEngine, target: str) -> None:
    tag = f"{IMAGE}:{target}"
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


def test_the_first_hour_with_the_readme(podman_service: PodmanService, engine: ContainerEngine, tmp_path: Path) -> None:
    stack = Composed(podman_service, engine, tmp_path / "checkout")
    stack.lay_out(ROOT)
    with stack.removed_at_end():
        print(follow_readme(stack))


def follow_readme(stack: Composed) -> Hour:
    """Play compose/README.md, with the mistakes that its reader may make."""
    [first, second, *_] = re.findall(r"^```sh\n(.*?)^```$", (stack.directory / "README.md").read_text(), re.M | re.S)
    copying, passwords = first.split("\n", 1)
    up, *looking = [shlex.split(line)[2:] for line in second.splitlines()]
    logs = ["logs", "secrets", "migrate"]
    hour = Hour()

    def compose(*words: str, expected: str, succeeds: bool = True) -> None:
        def play() -> tuple[bool, str]:
            done = stack(*words, check=False)
            return done.returncode == 0, done.stdout + done.stderr

        hour.try_step(shlex.join(["docker", "compose", *words]), play, expected=expected, succeeds=succeeds)

    subprocess.run(["bash", "-euc", copying], cwd=stack.directory, check=True)
    stack.set(IMAGE=NOW, HERMES_METRICS_PORT="0")
    compose(*up, expected="POSTGRES_PASSWORD is missing a value: README.md has a loop.*", succeeds=False)

    subprocess.run(["bash", "-euc", passwords], cwd=stack.directory, check=True)
    stack.set(TOOLS_SECRETS="MEM0_API_KEY")
    compose(*up, expected='service "secrets" didn.t complete successfully.*', succeeds=False)
    compose(*logs, expected="TOOLS_SECRETS names MEM0_API_KEY, which is not set.*")

    stack.set(TOOLS_SECRETS="", HERMES_MAX_ITERATIONS="many")
    compose(*up, expected='service "migrate" didn.t complete successfully.*', succeeds=False)
    compose(*logs, expected=".*HERMES_MAX_ITERATIONS.*")

    stack.set(HERMES_MAX_ITERATIONS="90")
    compose(*up, expected="Started")
    wait_for(lambda: "must be set" in stack.logs("worker-model"))
    compose("logs", "worker-model", expected="model.api_key must be set because.*")

    stack.set(**SCRIPTED)
    compose("--profile=scripted", *up, expected="Started")
    stack.wait_until_healthy("api", "worker-model", "worker-tools")
    for command in looking:
        compose(*command, expected="^ok +workers.*|completed in.*")
    compose("exec", "worker-model", "hermes-worker", "doctor", expected="^ok +model.*")
    compose("stop", expected="Stopped")
    return hour


def test_another_image_goes_on_with_the_run_that_is_at_work(
    podman_service: PodmanService, engine: ContainerEngine, before: Path, tmp_path: Path
) -> None:
    stack = Composed(podman_service, engine, tmp_path / "checkout")
    stack.lay_out(before, DOTENV, IMAGE=BEFORE, HERMES_GATEWAY="false")
    with stack.removed_at_end():
        upgrade_at_work(stack)


def upgrade_at_work(stack: Composed) -> None:
    up = ("--profile=scripted", "up", "--detach")
    stack(*up)
    run_id = submitted(
        stack, *(call("terminal", command=f"sleep 1; echo {number} >> calls") for number in range(CALLS))
    ).split()[0]
    wait_for(lambda: shown(stack, run_id)["iteration"] >= 2, saying="of the run at work")
    servers = {name: stack.inspect(name)["Id"] for name in ("postgres", "valkey")}

    stack.lay_out(ROOT, DOTENV, IMAGE=NOW, HERMES_GATEWAY="false")
    stack(*up)

    assert 0 < shown(stack, run_id)["iteration"] <= CALLS, "the run was not at work any more"
    migrate = stack.inspect("migrate")["State"]
    assert migrate["ExitCode"] == 0
    ours = [stack.inspect(name) for name in ROLES if not {"profiles"} & stack.services[name].keys()]
    assert len(ours) == 5 and {each["ImageName"] for each in ours} == {NOW}
    assert all(migrate["FinishedAt"] <= each["State"]["StartedAt"] for each in ours)
    assert servers == {name: stack.inspect(name)["Id"] for name in servers}, "they were left alone"
    wait_for(lambda: shown(stack, run_id)["status"] == "completed", saying=stack.logs("worker-model")[-3000:])
    ended = shown(stack, run_id)
    assert (ended["iteration"], ended["tool_calls"]) == (CALLS + 1, {"succeeded": CALLS})
    assert (written(stack, "calls") or "").split() == [str(number) for number in range(CALLS)], "each ran once"
    assert find_newest() in stack.hermes("api", "fleet", "workers", "list")


def test_the_gateway_hears_a_platform_over_a_websocket(stack: Composed) -> None:
    wait_for(lambda: "subscribe_events" in stack.engine.logs("house"), saying=f"{stack.logs('gateway')[-3000:]}")

    assert "homeassistant" in stack.hermes("api", "gateway", "status")
    assert "gateway.look_failed" not in stack.logs("gateway")


def findings(stack: Composed, service: str) -> dict[str, dict[str, str]]:
    said = stack.hermes(service, "doctor", "--json", check=False)
    return {found["subject"]: found for found in map(json.loads, said.splitlines())}


@pytest.mark.parametrize("service", ["api", "worker-tools"])
def test_the_doctor_finds_nothing_wrong(stack: Composed, service: str) -> None:
    found = findings(stack, service)

    assert [row for row in found.values() if row["grade"] == "broken"] == []
    needed = ("home", "database", "broker", "workers", "user", "sandbox")
    assert {found[subject]["grade"] for subject in needed} == {"ok"}
    assert found["database"]["text"].startswith("postgresql") and "valkey" in found["broker"]["text"]


@pytest.mark.parametrize("service", [role for role in ROLES if role != "scripted-model"])
def test_a_role_is_an_ordinary_user_who_may_do_nothing_and_change_nothing(stack: Composed, service: str) -> None:
    look = "id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/1/status; touch /x /opt/hermes/x 2>&1; env"
    said = stack.execute(service, "bash", "-c", look).stdout

    assert said.startswith("10001\nCapBnd:\t0000000000000000\n") or "CapEff:\t0000000000000000" in said
    assert "CapBnd:\t0000000000000000" in said and "NoNewPrivs:\t1" in said
    assert said.count("Read-only file system") == 2
    assert "0123456789abcdef" not in said and "p@" not in said, "no secret is in the environment of a service"


def test_each_role_has_its_secrets_and_no_others(stack: Composed) -> None:
    def held(service: str) -> set[str]:
        return set(stack.execute(service, "ls", "/run/secrets").stdout.split())

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


def asked(stack: Composed, port: int, path: str, *header: str) -> int:
    """The status with which a published service answers."""
    program = (
        "import sys, urllib.request as r, urllib.error as e\n"
        "q = r.Request(sys.argv[1], headers=dict(h.split(': ', 1) for h in sys.argv[2:]))\n"
        "try: print(r.urlopen(q).status)\n"
        "except e.HTTPError as refused: print(refused.code)"
    )
    url = f"http://127.0.0.1:{port}{path}"
    return int(stack.execute("api", "python3", "-c", program, url, *header).stdout)


def test_what_is_published_asks_for_a_password(stack: Composed) -> None:
    basic = base64.b64encode(b"hermes:f:$a@b#c").decode()
    assert asked(stack, 8642, "/v1/runs") == 401
    assert asked(stack, 8642, "/v1/runs", 'Authorization: Bearer 0123456789abcdef$x&"#') == 200
    assert asked(stack, 5555, "/workers") == 401
    assert asked(stack, 5555, "/workers", f"Authorization: Basic {basic}") == 200


def submitted(stack: Composed, *steps: dict[str, Any]) -> str:
    return stack.hermes("api", "submit", script(*steps, final="Done.")).strip()


def shown(stack: Composed, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stack.hermes("api", "runs", "show", run_id, "--json"))
    return found


def written(stack: Composed, name: str) -> str | None:
    """What a command wrote into its workspace; ``None`` as long as the file is not there."""
    look = f"cat /var/lib/hermes/workspaces/*/{name}"
    done = stack.execute("worker-tools", "bash", "-c", look, check=False)
    return done.stdout if done.returncode == 0 else None


def test_a_run_is_completed_and_its_commands_are_confined(stack: Composed) -> None:
    look = "id -u; cat /run/secrets/*; ls -a /var/lib/hermes; cat /proc/1/environ; echo to the end"
    run_id = submitted(stack, call("terminal", command=f"{{ {look}; }} > seen 2>/dev/null"))

    assert "Done." in stack.hermes("api", "runs", "watch", run_id)

    assert shown(stack, run_id)["status"] == "completed"
    seen = (written(stack, "seen") or "").split("\n")
    assert seen[0] == "10001" and seen[-2] == "to the end"
    assert not [line for line in seen if "://" in line or "api.key" in line or "HERMES_" in line]


def test_a_worker_that_is_told_to_stop_finishes_its_call_within_the_grace_period(stack: Composed) -> None:
    run_id = submitted(stack, call("terminal", command="echo begun > begun; sleep 4; echo finished > finished"))
    wait_for(lambda: written(stack, "begun"))

    took = stack.stop("worker-tools")

    assert took < seconds(stack.services["worker-tools"]["stop_grace_period"])
    stack("start", "worker-tools")
    assert written(stack, "finished") == "finished\n"
    assert "Done." in stack.hermes("api", "runs", "watch", run_id)
    assert shown(stack, run_id)["status"] == "completed"


def test_prometheus_reads_its_files_as_its_service_does(stack: Composed) -> None:
    """What it scrapes goes by names that only Compose makes; tests/machine/test_prometheus.py scrapes a stack."""
    stack("--profile=observe", "up", "--detach", "--no-deps", "prometheus")
    stack.wait_until_healthy("prometheus")
    rules = json.loads(read_inside(stack, "http://127.0.0.1:9090/api/v1/rules"))
    loaded = {rule["name"] for group in rules["data"]["groups"] for rule in group["rules"]}
    assert loaded == set(prometheus.rules())
    targets = json.loads(read_inside(stack, "http://127.0.0.1:9090/api/v1/status/config"))["data"]["yaml"]
    assert all(name in targets for name in ("api", "beat", "worker-model", "worker-tools", "job_name: hermes"))
    assert stack.stop("prometheus") < seconds(stack.services["prometheus"]["stop_grace_period"])


def read_inside(stack: Composed, url: str) -> str:
    program = "import sys, urllib.request as r; sys.stdout.write(r.urlopen(sys.argv[1]).read().decode())"
    return stack.execute("api", "python3", "-c", program, url).stdout


def test_every_service_ends_in_order(stack: Composed) -> None:
    for name in (*reversed(ROLES), "valkey", "postgres"):
        grace = stack.services[name].get("stop_grace_period", "10s")
        assert stack.stop(name) < seconds(grace), name
