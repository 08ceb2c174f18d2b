"""Which role gets which secrets: one table, complete, and kept when a process is handed its settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from hermes_worker.channels.adapters import find_secret_variables
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.models.catalog import list_provider_rows
from hermes_worker.settings import (
    Secret,
    SettingLayer,
    Settings,
    build_handover,
    list_with_sources,
    load_settings,
    loading,
)
from hermes_worker.settings.composed import DECLARATIONS
from hermes_worker.settings.role_secrets import (
    DELIVERY_SECRETS,
    PROVIDER_SECRETS,
    SECRET_SETTINGS,
    ProcessRole,
    find_owners,
    is_secret,
)
from hermes_worker.settings.secret_transfer import SECRETS_FD, Handover, open_sealed

KEY = "0123456789abcdef-server"
ENVIRON = {
    "PATH": "/bin",
    "HERMES_DATABASE_URL": "postgresql://u:database-password@h/d",
    "HERMES_BROKER_URL": "redis://:broker-password@h/1",
    "HERMES_API_KEY": "model-key",
    "HERMES_MORE_API_KEYS": "second-key,third-key",
    "HERMES_TENANT_KEYS": "acme/openai=key-of-acme",
    "HERMES_PROVIDER": "openrouter",
    "HERMES_REFRESH_TOKENS": "refresh-token-0123456789",
    "HERMES_TOKEN_URL": "https://login.example/token",
    "HERMES_OAUTH_CLIENT_SECRET": "client-secret",
    "HERMES_SERVER_KEY": KEY,
    "HERMES_SERVER_HOST": "0.0.0.0",
    "GROQ_API_KEY_2": "vendor-key",
    "TELEGRAM_BOT_TOKEN": "1:bot-token",
    "AWS_SECRET_ACCESS_KEY": "somebody-elses",
    "BUILD_TOKEN": "for-commands",
    "HERMES_ENV_PASSTHROUGH": "BUILD_TOKEN",
    "HTTPS_PROXY": "http://u:proxy-password@h:1",
    "PGPASSWORD": "library-password",
}
STATE = {"HERMES_DATABASE_URL", "HERMES_BROKER_URL", "HTTPS_PROXY", "PGPASSWORD"}
MODELS = {
    "HERMES_API_KEY",
    "HERMES_MORE_API_KEYS",
    "HERMES_TENANT_KEYS",
    "HERMES_REFRESH_TOKENS",
    "HERMES_OAUTH_CLIENT_SECRET",
}


def test_every_secret_setting_has_a_row_and_every_row_is_a_setting() -> None:
    declared = {known.key: known.variables for known in DECLARATIONS if known.kind.is_secret}
    assert {row.key: row.variables for row in SECRET_SETTINGS} == declared


def test_a_setting_that_is_parsed_to_a_secret_is_marked_as_one() -> None:
    for known in DECLARATIONS:
        try:
            value = known.kind.parse("0123456789abcdef")
        except (ValueError, TypeError, ConfigurationError):
            continue
        values = value if isinstance(value, tuple) else (value,)
        assert known.kind.is_secret or not any(isinstance(item, Secret) for item in values), known.key


def test_every_credential_of_a_platform_is_known() -> None:
    assert find_secret_variables() == DELIVERY_SECRETS


def test_every_credential_of_a_model_provider_is_known() -> None:
    named = {name for row in list_provider_rows().values() for name in row.key_variables}
    assert {name for name in named if not name.endswith("_API_KEY")} == PROVIDER_SECRETS
    assert all(find_owners(name, "x") == {ProcessRole.MODEL} for name in named)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OPENAI_API_KEY", "k"),
        ("OPENAI_API_KEY_12", "k"),
        ("AWS_SESSION_TOKEN", "t"),
        ("DB_PASSWORD", "p"),
        ("DB_PASSWORD_2", "p"),
        ("DJANGO_SECRET_KEY", "p"),
        ("SERVICE_URL", "https://user:pass@host/"),
        ("http_proxy", "http://user:pass@host/"),
    ],
)
def test_what_sounds_like_a_secret_or_has_a_password_in_it_does_not_stay(variable: str, value: str) -> None:
    assert is_secret(variable, value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PWD", "/home/u"),
        ("OLDPWD", "/"),
        ("PATH", "/bin"),
        ("HERMES_MAX_TOKENS", "4000"),
        ("HERMES_TOKEN_URL", "https://login.example/token"),
        ("SSH_AUTH_SOCK", "/tmp/agent"),
        ("HTTPS_PROXY", "http://proxy:3128"),
        ("SERVICE_URL", "https://host/a@b"),
        ("OPENAI_API_KEY", " "),
    ],
)
def test_other_variables_stay(variable: str, value: str) -> None:
    assert not is_secret(variable, value)


@pytest.mark.parametrize(
    ("role", "gets"),
    [
        (ProcessRole.MODEL, STATE | MODELS | {"GROQ_API_KEY_2"}),
        (ProcessRole.DELIVERY, STATE | {"TELEGRAM_BOT_TOKEN"}),
        (ProcessRole.SYSTEM, STATE),
        (ProcessRole.BEAT, STATE),
        (ProcessRole.API, STATE | {"HERMES_SERVER_KEY"}),
        (ProcessRole.SCRIPTED, set()),
    ],
)
def test_a_role_gets_its_secrets_and_no_others(tmp_path: Path, role: ProcessRole, gets: set[str]) -> None:
    environ, handed = build_handover(load_settings(ENVIRON, home=tmp_path), role)
    assert set(handed.variables) == gets
    assert not {name for name, value in environ.items() if is_secret(name, value)}


SMS = {"TWILIO_AUTH_TOKEN": "twilio", "SMS_WEBHOOK_URL": "https://api.test/sms", "HERMES_GATEWAY": "true"}


@pytest.mark.parametrize(
    ("environ", "gets"),
    [
        (SMS, {"TWILIO_AUTH_TOKEN"}),
        ({**SMS, "SMS_WEBHOOK_URL": " "}, set()),
        ({**SMS, "HERMES_GATEWAY": "false"}, set()),
        (
            {"TWILIO_AUTH_TOKEN__OPS": "t", "SMS_WEBHOOK_URL__OPS": "https://a", "HERMES_GATEWAY": "1"},
            {"TWILIO_AUTH_TOKEN__OPS"},
        ),
        ({"TWILIO_AUTH_TOKEN__OPS": "t", "HERMES_GATEWAY": "true"}, set()),
        ({"LINE_CHANNEL_SECRET": "s", "HERMES_GATEWAY": "true"}, {"LINE_CHANNEL_SECRET"}),
    ],
)
def test_the_api_gets_the_secret_of_a_webhook_where_the_platform_brings_messages(
    tmp_path: Path, environ: Mapping[str, str], gets: set[str]
) -> None:
    """Answers by SMS are sent with the same secret, and nothing comes in by that."""
    settings = load_settings({"PATH": "/bin", **environ}, home=tmp_path)
    assert set(build_handover(settings, ProcessRole.API)[1].variables) == gets
    sent_with = {name for name in environ if name.startswith("TWILIO")}
    assert sent_with <= set(build_handover(settings, ProcessRole.DELIVERY)[1].variables)


PAGE = Path(__file__).parents[1] / "docs" / "security.md"
OF_ROWS = {
    "passwords of database and broker": {"HERMES_DATABASE_URL", "HERMES_BROKER_URL"},
    "keys of encrypted texts": {"HERMES_ENCRYPTION_KEYS"},
    "keys and logins of model providers": {*MODELS, "GROQ_API_KEY_2"},
    "credentials of delivery channels": {"TELEGRAM_BOT_TOKEN"},
    "the server key and earlier ones": {"HERMES_SERVER_KEY"},
    "variables of `terminal.env_passthrough`": {"BUILD_TOKEN"},
    "other variables that sound secret": {"AWS_SECRET_ACCESS_KEY"},
}
COLUMNS = ["model", "tools", "delivery", "system", "beat", "api", "gateway", "mcp", "browser"]


def test_the_page_says_of_each_role_what_it_gets(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8").partition("| secret | model |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    settings = load_settings(
        {**ENVIRON, "HERMES_ENCRYPTION_KEYS": "k" * 32, "HERMES_GATEWAY": "true"}, home=tmp_path / "home"
    )
    gets = [set(build_handover(settings, ProcessRole(role))[1].variables) for role in COLUMNS]
    assert [row[0].partition(" (")[0] for row in rows] == list(OF_ROWS)
    for named, *cells in rows:
        variables = OF_ROWS[named.partition(" (")[0]]
        assert [not cell.startswith("no") for cell in cells] == [bool(variables & held) for held in gets], named


def test_tools_get_what_commands_may_have_and_no_credentials_of_chats_or_of_the_api(tmp_path: Path) -> None:
    gets = build_handover(load_settings(ENVIRON, home=tmp_path), ProcessRole.TOOLS)[1].variables
    assert {*STATE, "BUILD_TOKEN"} <= set(gets)
    assert not {*MODELS, "TELEGRAM_BOT_TOKEN", "HERMES_SERVER_KEY", "AWS_SECRET_ACCESS_KEY"} & set(gets)


def test_a_worker_of_several_queues_gets_what_each_of_them_needs(tmp_path: Path) -> None:
    gets = build_handover(
        load_settings(ENVIRON, home=tmp_path), ProcessRole.MODEL, ProcessRole.DELIVERY, ProcessRole.SYSTEM
    )[1].variables
    assert {"HERMES_API_KEY", "TELEGRAM_BOT_TOKEN"} <= set(gets)
    assert "HERMES_SERVER_KEY" not in gets


@pytest.mark.parametrize("role", sorted(ProcessRole))
def test_a_role_reads_the_same_settings_but_for_the_secrets_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: ProcessRole
) -> None:
    (tmp_path / ".env").write_text("DISCORD_BOT_TOKEN=in-a-file\nHERMES_OAUTH_CLIENT_ID=me\n")
    (tmp_path / "config.yaml").write_text("agent: {max_turns: 7}")
    given = load_settings(ENVIRON, home=tmp_path)

    found = _as_child(monkeypatch, *build_handover(given, role))

    assert found.agent.iterations_max == 7
    assert found.model.provider == given.model.provider
    assert found.model.client_id == "me"
    assert found.server.host == "0.0.0.0"
    sends_or_listens = role in (ProcessRole.DELIVERY, ProcessRole.GATEWAY)
    assert found.environ.get("DISCORD_BOT_TOKEN") == ("in-a-file" if sends_or_listens else None)
    assert (found.server.key is not None) == (role is ProcessRole.API)
    assert (found.database.url is not None) == (role is not ProcessRole.SCRIPTED)
    assert (found.model.api_key is not None) == (role in find_owners("HERMES_API_KEY", "x"))


def test_a_role_knows_where_whoever_started_it_read_each_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("HERMES_OAUTH_CLIENT_ID=me\n")
    (tmp_path / "config.yaml").write_text("agent: {max_turns: 7}")
    given = load_settings(ENVIRON, home=tmp_path)

    told = {
        each.key: each for each in list_with_sources(_as_child(monkeypatch, *build_handover(given, ProcessRole.API)))
    }

    assert (told["agent.max_turns"].value, told["agent.max_turns"].layer) == ("7", SettingLayer.FILE)
    assert told["model.client_id"].origin == "HERMES_OAUTH_CLIENT_ID in .env"
    assert told["server.host"].layer is SettingLayer.ENVIRONMENT
    assert told["lease.ttl_s"].layer is SettingLayer.DEFAULT
    assert (told["model.api_key"].value, told["model.api_key"].is_set) == (None, True)


def test_no_role_reads_a_file_that_was_changed_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed = build_handover(load_settings(ENVIRON, home=tmp_path), ProcessRole.TOOLS)
    (tmp_path / ".env").write_text("HERMES_SERVER_KEY=0123456789abcdef-later\n")
    (tmp_path / "config.yaml").write_text("nonsense: [")
    assert _as_child(monkeypatch, *handed).server.key is None


def _as_child(monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str], handed: Handover) -> Settings:
    """What ``load`` gives in a process that was started with these."""
    with open_sealed(handed.to_bytes()) as descriptor:
        monkeypatch.setattr(loading, "_handed", Handover())
        for name in os.environ:
            monkeypatch.delenv(name)
        for name, value in {**environ, SECRETS_FD: str(os.dup(descriptor))}.items():
            monkeypatch.setenv(name, value)
        return load_settings()
