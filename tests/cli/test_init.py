"""``hermes-worker init``: what it asks, what it tries, what it writes, and what it never replaces unasked."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from support.commandline import CommandLine, Finished

from hermes_worker.cli import init as init_module
from hermes_worker.cli.init_files import COMPOSE_PASSWORDS, read_value
from hermes_worker.cli.mcp_clients import MCP_CLIENTS
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.models.scripted.server import ScriptedServer
from hermes_worker.settings import load_settings

ROOT = Path(__file__).parents[2]
KEY = "sk-of-a-test-0123456789"


@pytest.fixture
def hermes(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path / "home")


@pytest.fixture
def model() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    return private(tmp_path / "key", KEY)


@pytest.fixture
def compose_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "compose"
    directory.mkdir()
    (directory / "compose.yaml").write_text((ROOT / "compose" / "compose.yaml").read_text())
    return directory


def private(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def chosen(model: ScriptedServer, *more: str) -> list[str]:
    return ["init", "--yes", "--provider", "custom", "--base-url", model.base_url, "--model", "scripted", *more]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def settings_of(hermes: CommandLine) -> Any:
    return load_settings(hermes.environ, home=hermes.home)


def answered(
    monkeypatch: pytest.MonkeyPatch, hermes: CommandLine, *lines: str, words: tuple[str, ...] = ()
) -> Finished:
    """``init`` as a person sees it who types these lines, hidden ones among them."""
    monkeypatch.setattr(init_module, "_is_terminal", lambda: True)
    typed = iter(lines)
    monkeypatch.setattr(click.termui, "visible_prompt_func", lambda _: next(typed))
    monkeypatch.setattr(click.termui, "hidden_prompt_func", lambda _: next(typed))
    return hermes.inline("init", *words)


# --- a home ----------------------------------------------------------------------------------------------------------


def test_flags_alone_write_a_home_once_the_model_has_answered(
    hermes: CommandLine, model: ScriptedServer, key_file: str
) -> None:
    ended = hermes.inline(*chosen(model, "--model-key-file", key_file))
    assert ended.code == 0, ended.said
    assert "scripted answers in" in ended.err
    settings = settings_of(hermes)
    assert (settings.model.provider, settings.model.name) == ("custom", "scripted")
    assert settings.model.api_key.reveal() == KEY
    assert [mode_of(hermes.home / name) for name in (".env", "config.yaml")] == [0o600, 0o600]
    assert mode_of(hermes.home) == 0o700
    assert KEY not in ended.said + (hermes.home / "config.yaml").read_text()
    again = hermes.inline(*chosen(model, "--model-key-file", key_file))
    assert again.code == 0, "the same once more replaces nothing: " + again.said


@pytest.mark.parametrize("broken", ["nobody there", "no key file", "an unknown provider", "no model"])
def test_what_does_not_answer_writes_nothing(
    hermes: CommandLine, model: ScriptedServer, key_file: str, broken: str
) -> None:
    words = {
        "nobody there": ["--provider", "custom", "--base-url", "http://127.0.0.1:1/v1", "--model", "m"],
        "no key file": ["--provider", "openai", "--model-key-file", f"{key_file}.none"],
        "an unknown provider": ["--provider", "opneai"],
        "no model": ["--provider", "custom", "--base-url", model.base_url],
    }[broken]
    ended = hermes.inline("init", "--yes", *words)
    assert ended.code == 2, ended.said
    assert len(ended.err.strip().splitlines()) == 1, ended.err
    assert not (hermes.home / "config.yaml").exists()
    assert not (hermes.home / ".env").exists()
    if broken == "nobody there":
        assert hermes.inline("init", "--yes", *words, "--no-try").code == 0


def test_nothing_that_is_set_otherwise_is_replaced_unless_told_to(
    hermes: CommandLine, model: ScriptedServer, key_file: str, tmp_path: Path
) -> None:
    hermes.home.mkdir()
    config, dotenv = hermes.home / "config.yaml", hermes.home / ".env"
    config.write_text("# mine\nmodel:\n  default: other  # why\nagent:\n  max_turns: 7\n")
    dotenv.write_text("HERMES_API_KEY='sk-old-0123456789'\nOTHER='x'\n")
    before = config.read_text(), dotenv.read_text()
    refused = hermes.inline(*chosen(model, "--model-key-file", key_file))
    assert refused.code == 2
    assert "model.default: other" in refused.err and "another key is set" in refused.err
    assert "sk-old" not in refused.said
    assert (config.read_text(), dotenv.read_text()) == before
    assert hermes.inline(*chosen(model, "--model-key-file", key_file, "--force")).code == 0
    settings = settings_of(hermes)
    assert (settings.model.name, settings.agent.iterations_max) == ("scripted", 7)
    assert "# mine" in config.read_text()
    assert "OTHER='x'" in dotenv.read_text() and "sk-old" not in dotenv.read_text()


def test_a_person_is_asked_and_asked_again_when_the_model_does_not_answer(
    hermes: CommandLine, model: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = ("custom", "http://127.0.0.1:1/v1", KEY, "m", "ask")
    right = ("custom", model.base_url, KEY, "scripted")
    ended = answered(monkeypatch, hermes, *wrong, *right, "local", "Look around", "every 2h")
    assert ended.code == 0, ended.said
    assert "did not answer" in ended.err
    assert KEY not in ended.said
    assert settings_of(hermes).model.name == "scripted"
    assert "a test message went to local" in ended.out
    jobs = [json.loads(line) for line in hermes.inline("cron", "list", "--json").out.splitlines()]
    assert [(job["prompt"], job["deliver"]) for job in jobs] == [("Look around", ["local"])]


def test_a_person_who_says_no_changes_nothing(
    hermes: CommandLine, model: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hermes.home.mkdir()
    (hermes.home / "config.yaml").write_text("model: {default: other}\n")
    ended = answered(monkeypatch, hermes, "custom", model.base_url, "", "scripted", "n")
    assert ended.code != 0
    assert (hermes.home / "config.yaml").read_text() == "model: {default: other}\n"


def test_a_first_job_is_kept_once_and_a_target_without_credentials_is_named(
    hermes: CommandLine, model: ScriptedServer
) -> None:
    words = ["--provider", "scripted", "--job", "Look around", "--deliver", "local"]
    assert hermes.inline("init", "--yes", *words).code == 0
    again = hermes.inline("init", "--yes", *words)
    assert (again.code, "is there already" in again.err) == (0, True), again.said
    assert len(hermes.inline("cron", "list", "--json").out.splitlines()) == 1
    refused = hermes.inline("init", "--yes", "--provider", "scripted", "--deliver", "telegram:-100")
    assert refused.code == 2
    assert "TELEGRAM_BOT_TOKEN" in refused.err


# --- a fleet ---------------------------------------------------------------------------------------------------------


def test_a_compose_directory_gets_all_that_compose_and_its_job_of_secrets_ask_for(
    hermes: CommandLine, model: ScriptedServer, key_file: str, compose_directory: Path
) -> None:
    directory = compose_directory
    ended = hermes.inline(*chosen(model, "--model-key-file", key_file, "--compose", str(directory)))
    assert ended.code == 0, ended.said
    dotenv = directory / ".env"
    first = dotenv.read_text()
    assert mode_of(dotenv) == 0o600
    assert all(len(read_value(first, name) or "") >= 24 for name in COMPOSE_PASSWORDS)
    assert not hermes.home.exists()
    refused = hermes.inline(*chosen(model, "--model", "another", "--no-try", "--compose", str(directory)))
    assert refused.code == 2 and "another HERMES_MODEL" in refused.err
    assert dotenv.read_text() == first
    words = ["--model", "another", "--no-try", "--force", "--model-key-file", key_file, "--compose", str(directory)]
    assert hermes.inline(*chosen(model, *words)).code == 0
    assert {name: read_value(dotenv.read_text(), name) for name in COMPOSE_PASSWORDS} == {
        name: read_value(first, name) for name in COMPOSE_PASSWORDS
    }

    program = Path(sys.executable).with_name("docker-compose")
    if not program.exists():
        pytest.skip("docker-compose has no wheel for this machine")
    composed = [program, f"--file={directory / 'compose.yaml'}", f"--env-file={dotenv}", "config", "--format=json"]
    services = json.loads(subprocess.run(composed, capture_output=True, check=True).stdout)["services"]
    assert services["worker-model"]["environment"]["HERMES_MODEL"] == "another"
    given = services["secrets"]["environment"]
    assert given["HERMES_API_KEY"] == KEY
    assert given["POSTGRES_PASSWORD"] == read_value(first, "POSTGRES_PASSWORD")


def test_an_overlay_has_the_model_the_image_and_secrets_that_nobody_else_can_read(
    hermes: CommandLine, key_file: str, tmp_path: Path
) -> None:
    directory = tmp_path / "k8s" / "overlays" / "mine"
    (tmp_path / "k8s").mkdir()
    (tmp_path / "k8s" / "base").symlink_to(ROOT / "k8s" / "base")
    words = ["init", "--yes", "--no-try", "--provider", "openai", "--model", "gpt-x", "--model-key-file", key_file]
    words += ["--k8s", str(directory), "--image", "registry.example.com:5000/team/hermes-worker:1.2"]
    refused = hermes.inline(*words)
    assert refused.code == 2 and "--database-url-file" in refused.err
    assert not directory.exists()
    words += ["--database-url-file", private(tmp_path / "database", "postgresql://h:p@db/hermes")]
    words += ["--broker-url-file", private(tmp_path / "broker", "rediss://:p@broker:6379/0")]
    ended = hermes.inline(*words)
    assert ended.code == 0, ended.said
    secret_files = sorted((directory / "secrets").iterdir())
    assert [path.name for path in secret_files] == ["api-key", "broker-url", "database-url", "server-key"]
    assert {mode_of(path) for path in secret_files} == {0o600}
    assert (directory / ".gitignore").read_text() == "/secrets/\n"
    server_key = (directory / "secrets" / "server-key").read_text()
    assert hermes.inline(*words).code == 0, "the same once more replaces nothing"
    assert (directory / "secrets" / "server-key").read_text() == server_key
    assert yaml.safe_load((directory / "kustomization.yaml").read_text())["images"] == [
        {"name": "hermes-worker", "newName": "registry.example.com:5000/team/hermes-worker", "newTag": "1.2"}
    ]
    data = yaml.safe_load((directory / "settings.yaml").read_text())["data"]
    assert data == {"HERMES_PROVIDER": "openai", "HERMES_BASE_URL": None, "HERMES_MODEL": "gpt-x"}


TOKEN = "123456:ABC-of-a-test"


def for_fleet(key_file: str, *more: str) -> list[str]:
    return ["init", "--yes", "--no-try", "--provider", "openai", "--model", "m", "--model-key-file", key_file, *more]


def test_compose_starts_a_gateway_with_the_accounts_of_the_platforms_that_are_named(
    hermes: CommandLine, key_file: str, compose_directory: Path
) -> None:
    dotenv = compose_directory / ".env"
    dotenv.write_text("COMPOSE_PROFILES=observe\n")
    hermes.environ |= {"TELEGRAM_BOT_TOKEN": TOKEN, "DISCORD_BOT_TOKEN": "not-asked-for"}
    words = for_fleet(key_file, "--compose", str(compose_directory), "--listen", "telegram")
    ended = hermes.inline(*words)
    assert ended.code == 0, ended.said
    assert TOKEN not in ended.said
    assert "gateway pair telegram CODE" in ended.out
    written = dotenv.read_text()
    assert read_value(written, "COMPOSE_PROFILES") == "observe,gateway"
    assert "not-asked-for" not in written
    assert hermes.inline(*words).code == 0, "the same once more replaces nothing"
    assert dotenv.read_text().count("COMPOSE_PROFILES") == 1
    hermes.environ["TELEGRAM_BOT_TOKEN"] = "another"
    refused = hermes.inline(*words)
    assert refused.code == 2 and "another TELEGRAM_BOT_TOKEN" in refused.err

    program = Path(sys.executable).with_name("docker-compose")
    if not program.exists():
        pytest.skip("docker-compose has no wheel for this machine")
    composed = [program, f"--file={compose_directory / 'compose.yaml'}", f"--env-file={dotenv}", "config"]
    services = json.loads(subprocess.run([*composed, "--format=json"], capture_output=True, check=True).stdout)
    assert {"gateway", "prometheus", "api"} <= services["services"].keys()
    assert services["services"]["secrets"]["environment"]["TELEGRAM_BOT_TOKEN"] == TOKEN
    assert services["services"]["api"]["environment"]["HERMES_GATEWAY"] == "true"


def test_a_platform_that_brings_its_messages_to_the_api_starts_no_gateway(
    hermes: CommandLine, key_file: str, compose_directory: Path
) -> None:
    hermes.environ |= {"LINE_CHANNEL_SECRET": "s", "LINE_CHANNEL_ACCESS_TOKEN": "t"}
    ended = hermes.inline(*for_fleet(key_file, "--compose", str(compose_directory), "--listen", "line"))
    assert ended.code == 0, ended.said
    assert "Tell line the address" in ended.out
    written = (compose_directory / ".env").read_text()
    assert (read_value(written, "COMPOSE_PROFILES"), read_value(written, "HERMES_GATEWAY")) == (None, "true")


def test_a_person_is_asked_where_people_write_and_for_what_is_missing(
    hermes: CommandLine, key_file: str, compose_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--no-try", "--model-key-file", key_file, "--compose", str(compose_directory))
    ended = answered(
        monkeypatch,
        hermes,
        "openai",
        "m",
        "telegram, matrix",
        TOKEN,
        "https://chat.test",
        "secret-of-a-room",
        words=words,
    )
    assert ended.code == 0, ended.said
    assert TOKEN not in ended.said and "secret-of-a-room" not in ended.said
    written = (compose_directory / ".env").read_text()
    names = ("TELEGRAM_BOT_TOKEN", "MATRIX_HOMESERVER", "MATRIX_ACCESS_TOKEN")
    assert [read_value(written, name) for name in names] == [TOKEN, "https://chat.test", "secret-of-a-room"]


@pytest.mark.parametrize(
    ("platform", "environ", "said"),
    [
        ("telegram", {}, "set TELEGRAM_BOT_TOKEN"),
        ("slack", {"SLACK_APP_TOKEN": "t"}, "set SLACK_BOT_TOKEN"),
        ("telegrm", {}, "Did you mean 'telegram'?"),
        ("signal", {"SIGNAL_HTTP_URL": "http://a:b@c", "SIGNAL_ACCOUNT": "+1"}, "SIGNAL_HTTP_URL has a password"),
    ],
)
def test_a_platform_that_cannot_be_listened_to_writes_nothing(
    hermes: CommandLine, key_file: str, compose_directory: Path, platform: str, environ: dict[str, str], said: str
) -> None:
    hermes.environ |= environ
    ended = hermes.inline(*for_fleet(key_file, "--compose", str(compose_directory), "--listen", platform))
    assert (ended.code, said in ended.err) == (2, True), ended.said
    assert not (compose_directory / ".env").exists()


def test_an_overlay_has_the_gateway_and_gives_each_role_its_secrets_alone(
    hermes: CommandLine, key_file: str, tmp_path: Path
) -> None:
    directory = tmp_path / "k8s" / "overlays" / "mine"
    (tmp_path / "k8s").mkdir()
    (tmp_path / "k8s" / "base").symlink_to(ROOT / "k8s" / "base")
    hermes.environ |= {
        "SLACK_APP_TOKEN": "xapp",
        "SLACK_BOT_TOKEN": "xoxb",
        "TWILIO_AUTH_TOKEN": "twilio",
        "TWILIO_ACCOUNT_SID": "AC1",
        "TWILIO_PHONE_NUMBER": "+15550001",
        "SMS_WEBHOOK_URL": "https://api.test/sms",
    }
    words = for_fleet(key_file, "--k8s", str(directory), "--listen", "slack", "--listen", "sms")
    words += ["--database-url-file", private(tmp_path / "database", "postgresql://h:p@db/hermes")]
    words += ["--broker-url-file", private(tmp_path / "broker", "rediss://:p@broker:6379/0")]
    ended = hermes.inline(*words)
    assert ended.code == 0, ended.said
    document = yaml.safe_load((directory / "kustomization.yaml").read_text())
    assert document["components"] == ["../../components/gateway"]
    given = {
        secret["name"]: {Path(file).name: (directory / file).read_text() for file in secret["files"]}
        for secret in document["secretGenerator"]
        if secret["name"] not in ("hermes-state", "hermes-server", "hermes-models")
    }
    assert given == {
        "hermes-gateway": {"SLACK_APP_TOKEN": "xapp"},
        "hermes-webhooks": {"TWILIO_AUTH_TOKEN": "twilio"},
        "hermes-channels": {"SLACK_BOT_TOKEN": "xoxb", "TWILIO_AUTH_TOKEN": "twilio"},
    }
    assert {mode_of(path) for path in (directory / "secrets").rglob("*") if path.is_file()} == {0o600}
    data = yaml.safe_load((directory / "settings.yaml").read_text())["data"]
    assert (data["HERMES_GATEWAY"], data["TWILIO_ACCOUNT_SID"]) == ("true", "AC1")
    assert not {"xapp", "xoxb", "twilio"}.intersection(data.values())


def test_a_model_is_tried_at_the_address_that_is_going_to_be_written(
    hermes: CommandLine, model: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hermes.home.mkdir()
    (hermes.home / "config.yaml").write_text(f"model:\n  provider: custom\n  base_url: {model.base_url}\n")
    hermes.environ["OPENAI_API_KEY"] = KEY
    tried = []

    def note(settings: Any) -> Any:
        tried.append(settings.model)
        raise ConfigurationError("not asked")

    monkeypatch.setattr(init_module, "build_provider", note)
    assert hermes.inline("init", "--yes", "--force", "--provider", "openai", "--model", "gpt-x").code == 2
    assert [(each.provider, each.name, each.base_url) for each in tried] == [("openai", "gpt-x", None)]


def test_nobody_gets_the_scripted_stand_in_who_did_not_choose_it(hermes: CommandLine) -> None:
    ended = hermes.inline("init", "--yes")
    assert ended.code == 2
    assert "say with --provider" in ended.err
    assert not (hermes.home / "config.yaml").exists()
    assert hermes.inline("init", "--yes", "--provider", "scripted").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--compose", "x", "--k8s", "y"], "give one of them"),
        (["--compose", "x", "--job", "y"], "once it runs"),
        (["--image", "x"], "is for --k8s"),
        (["--listen", "telegram"], "is for --compose and --k8s"),
        (["--schedule", "x"], "is for --job"),
        (["--k8s", "x", "--provider", "scripted"], "is for one machine"),
        (["--compose", "x", "--provider", "openai", "--no-try"], "--model-key-file"),
    ],
)
def test_options_that_do_not_go_together_are_refused(hermes: CommandLine, words: list[str], said: str) -> None:
    ended = hermes.inline("init", "--yes", *words)
    assert ended.code == 2
    assert said in ended.err


def test_the_block_of_each_mcp_client_can_be_read_and_holds_no_key(hermes: CommandLine) -> None:
    for name in MCP_CLIENTS:
        done = hermes.inline("init", "--mcp-client", name)
        assert done.code == 0, done.err
        block = tomllib.loads(done.out) if name == "codex" else json.loads(done.out)
        server = next(iter(block.values()))["hermes"] if name != "vscode" else block["servers"]["hermes"]
        assert "http://127.0.0.1:8642/mcp" in str(server)
        assert MCP_CLIENTS[name].file in done.err and "server.key" in done.err.replace("api.key", "server.key")
    assert not (hermes.home / "config.yaml").exists()
    wrong = hermes.inline("init", "--mcp-client", "emacs")
    assert wrong.code == 2 and "vscode" in wrong.err
