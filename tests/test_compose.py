"""compose/: what each service may do, sees and is given, read as Compose reads it; and its manual, played."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support.commandline import find_command
from support.containers import seconds

from hermes_worker import installed
from hermes_worker.api.server import GRACE_S
from hermes_worker.channels import adapters, catalog
from hermes_worker.channels.receivers import load_receivers
from hermes_worker.settings import describe_settings, load_settings
from hermes_worker.settings.composed import SECRET_VARIABLES, VARIABLES
from hermes_worker.settings.role_secrets import SECRET_SETTINGS, ProcessRole, find_owners
from hermes_worker.settings.secret_files import DIRECTORIES

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "compose"
FILE = COMPOSE / "compose.yaml"
SCHEMA = Path(__file__).parent / "cases" / "compose_spec.json"
"""The compose specification's, as compose-go 2.16.1 has it (schema/compose-spec.json of
github.com/compose-spec/compose-go, Apache 2.0: compose_spec.LICENSE)."""

JOBS = ("secrets", "migrate")
OURS = (
    *("secrets", "migrate", "api", "worker-model", "worker-tools", "beat", "gateway", "mcp-host", "browser"),
    *("flower", "scripted-model"),
)
ROLES: dict[str, tuple[ProcessRole, ...]] = {
    "migrate": (ProcessRole.SYSTEM,),
    "api": (ProcessRole.API,),
    "worker-model": (ProcessRole.MODEL, ProcessRole.DELIVERY, ProcessRole.SYSTEM),
    "worker-tools": (ProcessRole.TOOLS,),
    "beat": (ProcessRole.BEAT,),
    "gateway": (ProcessRole.GATEWAY,),
    "mcp-host": (ProcessRole.MCP,),
    "browser": (ProcessRole.BROWSER,),
}
DOCUMENT: dict[str, Any] = yaml.load(FILE.read_text(encoding="utf-8"), yaml.CSafeLoader)
SERVICES: dict[str, dict[str, Any]] = DOCUMENT["services"]
ALL = pytest.mark.parametrize("name", sorted(SERVICES))
PASSWORDS = {"POSTGRES_PASSWORD", "VALKEY_PASSWORD", "GRAFANA_PASSWORD", "GRAFANA_DATABASE_PASSWORD"}
CHOOSING = {"MODEL_SECRETS", "TOOLS_SECRETS", "MCP_SECRETS"}
"""What only compose knows; everything else that it hands on is a setting or a variable of a channel."""
HAND_BACK_S = 15
"""What a worker has, after its drain, to hand back the rest and to end."""


def program(name: str) -> Path:
    """A program of a wheel of the extra ``test``, which exists for Linux on x86-64."""
    found = Path(sys.executable).with_name(name)
    if not found.exists():
        pytest.skip(f"{name} has no wheel for this machine")
    return found


# --- the file as a whole ---------------------------------------------------------------------------------------------


def test_the_file_is_what_the_compose_specification_describes() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(DOCUMENT)] == []
    assert not validator.is_valid({**DOCUMENT, "services": {"api": {**SERVICES["api"], "read_onyl": True}}})


def composed(directory: Path, dotenv: str) -> dict[str, Any]:
    """The file as Docker's own Compose understands it, with this ``.env``."""
    done = read_by_compose(directory, dotenv)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def read_by_compose(directory: Path, dotenv: str) -> subprocess.CompletedProcess[str]:
    file = directory / ".env"
    file.write_text(dotenv, encoding="utf-8")
    command = [program("docker-compose"), f"--file={FILE}", f"--env-file={file}", "--profile=*", "config"]
    return subprocess.run([*command, "--format=json"], capture_output=True, encoding="utf-8")


def test_compose_itself_reads_it_and_finds_the_same_services(tmp_path: Path) -> None:
    assert set(composed(tmp_path, write_passwords())["services"]) == set(SERVICES)


def test_there_are_the_services_of_a_deployment() -> None:
    wanted = {"valkey", "postgres", "migrate", "api", "worker-model", "worker-tools", "beat", "flower"}
    profiles = {name: tuple(service.get("profiles", ())) for name, service in SERVICES.items()}
    assert {name for name, found in profiles.items() if not found} == wanted | {"secrets"}
    assert {name for name, found in profiles.items() if found == ("observe",)} == {"prometheus", "grafana"}
    assert [profiles[name] for name in ("gateway", "mcp-host", "browser")] == [("gateway",), ("mcp",), ("browser",)]


# --- what every service may do ---------------------------------------------------------------------------------------


@ALL
def test_a_service_is_confined(name: str) -> None:
    service = SERVICES[name]
    user, _, group = service["user"].partition(":")
    assert int(user) > 0 and int(group) > 0, "root"
    assert name not in OURS or user == "10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"] and not service.get("cap_add") and not service.get("privileged")
    # A browser is confined by what the usual filter keeps from containers, and by more than that filter.
    more = ["seccomp:unconfined", "systempaths=unconfined"] if name == "browser" else []
    assert service["security_opt"] == ["no-new-privileges:true", *more]
    limits = service["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory", "pids"}
    assert service["restart"] == ("no" if name in JOBS else "unless-stopped")


@ALL
def test_a_service_has_a_health_check_that_looks_at_what_it_does(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    if name in JOBS:
        assert check == {"disable": True}
    else:
        assert check["test"][0] in ("CMD", "CMD-SHELL") and check["interval"] and check["timeout"] and check["retries"]
        assert not {"true", "exit 0"} & set(check["test"])


def test_only_the_api_and_flower_are_published_and_on_this_machine_alone() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if service.get("ports")}
    assert published == {
        "api": ["${API_ADDRESS:-127.0.0.1:8642}:8642"],
        "flower": ["${FLOWER_ADDRESS:-127.0.0.1:5555}:5555"],
    }
    assert DOCUMENT["networks"]["state"] == {"internal": True}
    for name in ("postgres", "valkey", "migrate", "beat", "prometheus", "grafana"):
        assert SERVICES[name]["networks"] == ["state"], name


def test_valkey_keeps_what_it_is_given_and_lets_nobody_in_without_a_password() -> None:
    words = SERVICES["valkey"]["command"]
    said = dict(zip(words[1::2], words[2::2], strict=True))
    assert (said["--appendonly"], said["--maxmemory-policy"]) == ("yes", "noeviction")
    assert said["--aclfile"] == "/run/secrets/users.acl"
    assert int(said["--maxmemory"].removesuffix("mb")) < megabytes(SERVICES["valkey"])


def megabytes(service: dict[str, Any]) -> float:
    limit = service["deploy"]["resources"]["limits"]["memory"]
    return float(limit[:-1]) * {"M": 1, "G": 1024}[limit[-1]]


# --- draining and limits, compared with the settings -----------------------------------------------------------------


def test_a_worker_has_the_time_that_its_drain_takes() -> None:
    model, tools = (SERVICES[name] for name in ("worker-model", "worker-tools"))
    drain, once = (float(tools["environment"][name]) for name in ("HERMES_DRAIN_S", "HERMES_DRAIN_ONCE_S"))
    assert seconds(tools["stop_grace_period"]) == drain + once + HAND_BACK_S
    # It holds no tool call, so it waits for none.
    assert seconds(model["stop_grace_period"]) == float(model["environment"]["HERMES_DRAIN_S"]) + HAND_BACK_S


def test_the_api_has_the_time_in_which_it_ends_requests() -> None:
    api = SERVICES["api"]
    assert seconds(api["stop_grace_period"]) > GRACE_S + float(api["environment"]["HERMES_SERVER_DRAIN_S"])


@pytest.mark.parametrize("name", ["worker-model", "worker-tools"])
def test_a_step_that_eats_memory_ends_its_lane_and_not_the_container(name: str) -> None:
    lane = int(SERVICES[name]["environment"]["HERMES_LANE_MEMORY_MB"])
    assert lane < megabytes(SERVICES[name]) / 2


def test_commands_cannot_use_up_the_container_of_their_worker() -> None:
    tools = SERVICES["worker-tools"]
    assert int(tools["environment"]["HERMES_COMMAND_MEMORY_MB_MAX"]) < megabytes(tools)
    assert int(tools["environment"]["HERMES_COMMAND_PROCESSES_MAX"]) < tools["deploy"]["resources"]["limits"]["pids"]


# --- settings and secrets --------------------------------------------------------------------------------------------


NOT_FROM_DOTENV = (
    "home",
    "faults",
    "worker.debuggable",
    "database.url",
    "broker.url",
    "server.",
    "flower.host",
    "flower.port",
)
"""Keys, or groups of them, of what a service's place in the file decides. For TLS a proxy stands in front."""


def test_every_setting_can_stand_in_dotenv() -> None:
    """One that is new belongs into ``x-settings`` of compose.yaml; a secret one into the job ``secrets`` as well."""
    given = {variable for name in OURS for variable in SERVICES[name]["environment"]}.union(
        *writer()["VOLUMES"].values()
    )
    wanted = {row.variable for row in describe_settings() if not row.key.startswith(NOT_FROM_DOTENV)}
    assert wanted - given == set()


def settings_variables() -> frozenset[str]:
    return frozenset(VARIABLES)


def channel_variables() -> frozenset[str]:
    """Those that are no secret: addresses, names and home channels."""
    named = {
        variable for adapter in adapters.load_adapters().values() for variable in adapter.sending.variables.values()
    }
    listened = load_receivers()
    named |= {variable for one in listened.values() for variable in one.receiving.variables.values()}
    named |= {
        f"{name.upper()}_{whom}" for name in listened for whom in ("ALLOWED_USERS", "GUESTS", "GROUP_ALLOWED_CHATS")
    }
    homes = [catalog.find_platform(name) for name in catalog.list_platforms()]
    named |= {platform.home_variable for platform in homes if platform and platform.home_variable}
    others = adapters.find_secret_variables() | set(installed.get_installed().secret_variables)
    return frozenset(named | set(adapters.EMAIL_VARIABLES.values())) - others


def test_what_is_no_secret_of_a_channel_can_stand_in_dotenv() -> None:
    given = {variable for name in OURS for variable in SERVICES[name]["environment"]}
    bridged = {row.home_variable for row in catalog.list_platforms().values() if not row.has_adapter}
    assert channel_variables() - bridged - given == set()


@pytest.mark.parametrize("name", OURS)
def test_every_variable_of_a_service_is_one_that_the_product_knows(name: str) -> None:
    given = {variable.removesuffix("_FILE") for variable in SERVICES[name]["environment"]}
    channels = channel_variables() | {f"{variable}_THREAD_ID" for variable in channel_variables()}
    others = {variable for variable in given - settings_variables() - channels if not owners_of(variable)}
    assert others - PASSWORDS - CHOOSING - {"EMAIL_SMTP_TLS", DIRECTORIES} == set()


@pytest.mark.parametrize("name", sorted(ROLES))
def test_a_service_gets_each_secret_of_its_roles_by_file_and_no_other(name: str) -> None:
    environment = SERVICES[name]["environment"]
    assert environment[DIRECTORIES] == "/run/secrets"
    assert not {variable for variable in environment if is_secret_variable(variable)}
    held = writer()["VOLUMES"][name_volume(name)]
    needed = {row.variables[0] for row in SECRET_SETTINGS if not row.roles.isdisjoint(ROLES[name])}
    unneeded = {"HERMES_OBJECT_STORAGE_SECRET_KEY"} if name == "migrate" else set()  # it opens no files
    assert needed - unneeded <= held
    # The scheduler, the hosts of browsers and the migration share a volume.
    roles = {role for other in ROLES if name_volume(other) == name_volume(name) for role in ROLES[other]}
    assert {variable for variable in held if owners_of(variable).isdisjoint(roles)} == set()


def name_volume(name: str) -> str:
    """The volume that a service finds its secrets in."""
    mounts = [volume for volume in SERVICES[name]["volumes"] if volume.endswith(":/run/secrets:ro")]
    assert len(mounts) == 1, mounts
    return str(mounts[0]).removesuffix(":/run/secrets:ro").removeprefix("secrets-")


def owners_of(variable: str) -> frozenset[ProcessRole]:
    declared = installed.get_installed().secret_variables.get(variable, ())
    return frozenset(ProcessRole(role) for role in declared) | (find_owners(variable, "x") or frozenset())


def test_a_service_gets_what_it_listens_to_accounts_with() -> None:
    held = writer()["VOLUMES"]
    assert "SLACK_SIGNING_SECRET" in held["api"] and "TELEGRAM_BOT_TOKEN" in held["gateway"]


def is_secret_variable(variable: str) -> bool:
    return variable in SECRET_VARIABLES or (
        variable not in settings_variables() and find_owners(variable, "") is not None
    )


def written_files(environ: dict[str, str]) -> dict[str, str]:
    """What the job ``secrets`` writes."""
    return dict(writer()["files_of"](environ))


@cache
def writer() -> dict[str, Any]:
    """The names of compose/write_secrets.py."""
    return runpy.run_path(str(COMPOSE / "write_secrets.py"))


ODD = "p@:/?#$x%41 \"'\\&=ü$HOME"
KEY = "0123456789'\"$x\\#&"
NEEDED = {"POSTGRES_PASSWORD": ODD, "VALKEY_PASSWORD": ODD, "HERMES_SERVER_KEY": KEY, "HERMES_FLOWER_PASSWORD": KEY}


def test_the_job_is_given_what_it_writes_and_each_service_what_it_names() -> None:
    assert set(SERVICES["secrets"]["environment"]) == writer()["GIVEN"]
    files = written_files(NEEDED)
    for name, service in SERVICES.items():
        for mount in service.get("volumes", ()):
            volume, _, target = mount.removesuffix(":ro").partition(":")
            if name == "secrets" or not volume.startswith("secrets-"):
                continue
            assert target == "/run/secrets" and mount.endswith(":ro")
            provisioned = [path.read_text(encoding="utf-8") for path in (COMPOSE / "observe" / name).rglob("*.yml")]
            said = json.dumps([service.get("environment"), service.get("command"), provisioned])
            wanted = {
                f"{volume.removeprefix('secrets-')}/{file}" for file in re.findall(r"/run/secrets/(\w[\w.]*)", said)
            }
            assert (wanted or DIRECTORIES in service["environment"]) and wanted <= set(files), name


def test_the_api_gets_the_token_of_sms_only_where_sms_come_to_it() -> None:
    sends = {**NEEDED, "TWILIO_AUTH_TOKEN": "t"}
    assert (written_files(sends)["api/TWILIO_AUTH_TOKEN"], written_files(sends)["model/TWILIO_AUTH_TOKEN"]) == ("", "t")
    assert written_files({**sends, "SMS_WEBHOOK_URL": "https://a"})["api/TWILIO_AUTH_TOKEN"] == "t"


EXTENSION = {**NEEDED, "TOOLS_SECRETS": "MEM0_API_KEY, HERMES_MCP_TICKETS_TOKEN", "MEM0_API_KEY": "m"}


def test_a_tools_worker_gets_the_secrets_that_dotenv_names_for_it_and_no_other_does(tmp_path: Path) -> None:
    given = {**EXTENSION, "HERMES_MCP_TICKETS_TOKEN": "t", "MCP_SECRETS": "HERMES_MCP_GITHUB_TOKEN"}
    given |= {"HERMES_MCP_GITHUB_TOKEN": "g", "NOT_NAMED_TOKEN": "n"}
    files = written_files(given)
    named = ("MEM0_API_KEY", "HERMES_MCP_TICKETS_TOKEN", "HERMES_MCP_GITHUB_TOKEN", "NOT_NAMED_TOKEN")
    assert sorted(file for file in files if file.endswith(named)) == [
        *("mcp/HERMES_MCP_GITHUB_TOKEN", "tools/HERMES_MCP_TICKETS_TOKEN", "tools/MEM0_API_KEY"),
    ]
    for volume in {file.partition("/")[0] for file in files}:
        (tmp_path / volume).mkdir()
    writer()["write"](files, tmp_path)
    settings = load_settings({DIRECTORIES: str(tmp_path / "tools")}, home=tmp_path / "home")
    assert (settings.environ["MEM0_API_KEY"], settings.environ["HERMES_MCP_TICKETS_TOKEN"]) == ("m", "t")
    assert settings.database.url is not None and "HERMES_API_KEY" not in settings.environ

    writer()["write"](written_files(NEEDED), tmp_path)
    assert not (tmp_path / "tools/MEM0_API_KEY").exists(), "what is named no more goes"


def test_a_model_worker_gets_the_keys_that_only_a_fallback_names(tmp_path: Path) -> None:
    files = written_files({**NEEDED, "MODEL_SECRETS": "GROQ_TEAM_API_KEY", "GROQ_TEAM_API_KEY": "g"})
    assert [file for file in files if file.endswith("GROQ_TEAM_API_KEY")] == ["model/GROQ_TEAM_API_KEY"]
    for volume in {file.partition("/")[0] for file in files}:
        (tmp_path / volume).mkdir()
    writer()["write"](files, tmp_path)
    given = {
        DIRECTORIES: str(tmp_path / "model"),
        "HERMES_FALLBACK_PROVIDERS": "groq:openai/gpt-oss-120b$GROQ_TEAM_API_KEY",
    }
    settings = load_settings(given, home=tmp_path / "home")
    assert settings.model.vendor_keys["GROQ_TEAM_API_KEY"].reveal() == "g"


def test_what_cannot_be_given_to_a_tools_worker_is_one_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"^TOOLS_SECRETS names HERMES_MCP_TICKETS_TOKEN, which is not set in \.env\.$"
    ):
        written_files(EXTENSION)
    with pytest.raises(ValueError, match=r"^TOOLS_SECRETS names HERMES_API_KEY, which is a secret of another role\.$"):
        written_files({**NEEDED, "TOOLS_SECRETS": "HERMES_API_KEY", "HERMES_API_KEY": "k"})


@pytest.mark.parametrize("name", sorted(writer()["REQUIRED"]))
def test_a_password_that_is_missing_is_one_sentence(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be set in \.env; .*\.$"):
        written_files({**NEEDED, name: ""})


def write_passwords(*, without: str = "") -> str:
    return "".join(f"{name}=secret\n" for name in writer()["REQUIRED"] if name != without)


@pytest.mark.parametrize("name", sorted(writer()["REQUIRED"]))
def test_compose_stops_at_a_missing_password_before_it_touches_what_runs(name: str, tmp_path: Path) -> None:
    done = read_by_compose(tmp_path, write_passwords(without=name))
    assert done.returncode != 0
    assert f"{name} is missing a value: README.md has a loop that makes all passwords" in done.stderr


def test_odd_passwords_of_dotenv_arrive_as_they_are(tmp_path: Path) -> None:
    """From ``.env`` through Docker's own Compose and the job to the settings of a role, and to the two servers."""
    quoted = {name: value.replace("'", "\\'") for name, value in NEEDED.items()}
    given = composed(tmp_path, "".join(f"{name}='{value}'\n" for name, value in quoted.items()))
    environ = {
        name: (value or "").replace("$$", "$") for name, value in given["services"]["secrets"]["environment"].items()
    }
    assert {name: environ[name] for name in NEEDED} == NEEDED

    for file, content in written_files(environ).items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(content, encoding="utf-8")
    settings = load_settings({DIRECTORIES: str(tmp_path / "api")}, home=tmp_path / "home")

    assert settings.server.key is not None and settings.server.key.reveal() == KEY
    assert [secret.reveal() for secret in settings.secrets].count(ODD) == 2
    assert (tmp_path / "postgres/password").read_text(encoding="utf-8") == ODD
    assert ODD not in (tmp_path / "valkey/users.acl").read_text(encoding="utf-8")


# --- the image -------------------------------------------------------------------------------------------------------


def test_a_linter_of_dockerfiles_has_nothing_to_say() -> None:
    done = subprocess.run([program("hadolint"), COMPOSE / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_has_a_directory_for_every_volume_of_secrets() -> None:
    dockerfile = (COMPOSE / "Dockerfile").read_text(encoding="utf-8")
    loop = re.search(r"for volume in ([\w ]+);", dockerfile)
    assert loop is not None
    made = {f"secrets-{name}:/secrets/{name}" for name in loop[1].split()}
    assert made == set(SERVICES["secrets"]["volumes"])


def test_the_image_is_built_with_extras_that_there_are_and_as_compose_says() -> None:
    dockerfile = (COMPOSE / "Dockerfile").read_text(encoding="utf-8")
    usual = dict(re.findall(r"^ARG (\w+)=\"?([^\"\n]+)", dockerfile, re.MULTILINE))
    there_are = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(usual["EXTRAS"].split(",")) <= set(there_are)
    for name, value in SERVICES["api"]["build"]["args"].items():
        assert value.partition(":-")[2].removesuffix("}") == usual.get(name, "")


def test_what_is_copied_into_the_image_is_let_through() -> None:
    dockerfile = (COMPOSE / "Dockerfile").read_text(encoding="utf-8")
    copied = {
        word for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile, re.MULTILINE) for word in line.split()[:-1]
    }
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


# --- the manual ------------------------------------------------------------------------------------------------------


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_readme_makes_a_dotenv_that_compose_and_the_job_take(tmp_path: Path) -> None:
    shutil.copy(COMPOSE / ".env.example", tmp_path)
    subprocess.run(["bash", "-euc", blocks(COMPOSE / "README.md")[0]], cwd=tmp_path, check=True)

    given = composed(tmp_path / ".." / tmp_path.name, (tmp_path / ".env").read_text())["services"]
    environ = {name: (value or "").replace("$$", "$") for name, value in given["secrets"]["environment"].items()}

    assert written_files(environ)["postgres/password"] == environ["POSTGRES_PASSWORD"] != ""
    assert given["worker-model"]["environment"]["HERMES_PROVIDER"] == "openai"


def test_the_example_names_every_variable_that_compose_asks_for() -> None:
    asked = set(re.findall(r"\$\{(\w+)", FILE.read_text(encoding="utf-8")))
    example = set(re.findall(r"^(?:# )?(\w+)=", (COMPOSE / ".env.example").read_text(encoding="utf-8"), re.MULTILINE))
    assert asked | set(writer()["REQUIRED"]) <= example


@pytest.mark.parametrize("page", [COMPOSE / "README.md", ROOT / "docs" / "deployment.md"], ids=lambda page: page.name)
def test_the_commands_of_the_pages_name_services_and_parse(page: Path) -> None:
    lines = [line for block in blocks(page) for line in block.splitlines() if line.startswith("docker compose exec ")]
    assert lines
    for line in lines:
        _, _, _, service, called, *words = shlex.split(line, comments=True)
        assert service in SERVICES and called == "hermes-worker", line
        command, rest = find_command(words)
        command.make_context(line, rest)


def test_the_images_are_pinned_by_the_block_of_the_readme(tmp_path: Path) -> None:
    """A stand-in for Docker says what the digest of an image is; Compose's own program reads what the block wrote."""
    [block] = [block for block in blocks(COMPOSE / "README.md") if "imagetools" in block]
    stand_in = tmp_path / "docker"
    stand_in.write_text(
        '#!/bin/sh\n[ "$1 $2 $3 $4 $5" = "buildx imagetools inspect --format {{.Manifest.Digest}}" ] || exit 9\n'
        'printf \'sha256:%s\\n\' "$(printf %s "$6" | sha256sum | cut -c 1-64)"\n'
    )
    stand_in.chmod(0o755)
    shutil.copy(COMPOSE / ".env.example", tmp_path)
    (tmp_path / ".env").write_text(write_passwords() + "HERMES_MODEL=m\nPOSTGRES_IMAGE=registry.example/postgres:17\n")
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for _ in range(2):  # again, for newer ones
        subprocess.run(["bash", "-euc", block], cwd=tmp_path, env=environ, check=True)

    services = composed(tmp_path, (tmp_path / ".env").read_text())["services"]

    base = services["api"]["build"]["args"]["BASE"]
    pinned = [base, *(services[name]["image"] for name in ("postgres", "valkey", "prometheus", "grafana"))]
    for image in pinned:
        name, _, digest = image.partition("@sha256:")
        assert digest == hashlib.sha256(name.encode()).hexdigest(), image
    assert pinned[1].startswith("registry.example/postgres:17@")


def test_the_health_check_knows_every_role() -> None:
    script = (COMPOSE / "healthy.sh").read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", COMPOSE / "healthy.sh"], check=True)
    for name in ("worker-model", "worker-tools", "beat", "gateway"):
        command = SERVICES[name]["command"]
        assert command[command.index("--alive-file") + 1] == "/tmp/alive" and "/tmp/alive" in script
    assert ast.literal_eval(str(SERVICES["scripted-model"]["command"]))[-1] == "8900"
