"""Where settings come from, what they may hold, and what is said when they may not."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker import settings as settings_module
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings import (
    AgentSettings,
    BrokerSettings,
    ModelSettings,
    Secret,
    Settings,
    describe_settings,
    load_settings,
    render_environ,
)
from hermes_worker.settings.composed import DECLARATIONS
from hermes_worker.settings.declaring import Audience
from hermes_worker.settings.kinds import WEB_URL, convert_socket_url
from hermes_worker.settings.role_secrets import is_secret
from hermes_worker.settings.sentinels import SentinelAddresses, parse_sentinels
from hermes_worker.settings.servers import parse_servers_url

SERVER_KEY = "0123456789" * 2


def loaded(home: Path, environ: Mapping[str, str] | None = None, **files: str) -> Settings:
    """Settings of a home directory with the given ``config`` and ``dotenv`` files."""
    if "config" in files:
        (home / "config.yaml").write_text(files["config"], encoding="utf-8")
    if "dotenv" in files:
        (home / ".env").write_text(files["dotenv"], encoding="utf-8")
        (home / ".env").chmod(0o600)
    return load_settings(environ or {}, home=home)


def complaint(home: Path, environ: Mapping[str, str] | None = None, **files: str) -> str:
    with pytest.raises(ConfigurationError) as raised:
        loaded(home, environ, **files)
    return str(raised.value)


# --- where values come from ------------------------------------------------------------------------------------------


def test_without_any_configuration_everything_has_a_default(tmp_path: Path) -> None:
    settings = loaded(tmp_path)

    assert settings.database_url == f"sqlite:///{tmp_path}/hermes-worker.db"
    assert settings.broker.url is None
    assert settings.model.is_scripted
    assert (settings.server.host, settings.server.port, settings.server.key) == ("127.0.0.1", 8642, None)
    assert (settings.lease.ttl_s, settings.lease.lanes_max, settings.agent.iterations_max) == (15.0, 2, 90)
    assert (settings.terminal.timeout_s, settings.log.level, settings.log.format) == (180.0, "INFO", "console")
    assert settings.notes == ()


@pytest.mark.parametrize(
    ("given", "port"),
    [
        (("overrides", "environ", "dotenv", "config"), 1),
        (("environ", "dotenv", "config"), 2),
        (("dotenv", "config"), 3),
        (("config",), 4),
        ((), 8642),
    ],
)
def test_the_nearest_source_wins(tmp_path: Path, given: tuple[str, ...], port: int) -> None:
    if "dotenv" in given:
        (tmp_path / ".env").write_text("HERMES_SERVER_PORT=3\n")
    if "config" in given:
        (tmp_path / "config.yaml").write_text("server: {port: 4}\n")
    environ = {"HERMES_SERVER_PORT": "2"} if "environ" in given else {}
    overrides = {"server.port": 1} if "overrides" in given else {"server.port": None}

    assert load_settings(environ, home=tmp_path, overrides=overrides).server.port == port


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    settings = loaded(tmp_path, {"HERMES_SERVER_PORT": "", "OPENAI_API_KEY": " "}, config="server: {port: 4}")

    assert settings.server.port == 4
    assert settings.model.is_scripted


def test_the_home_directory_comes_from_the_call_the_variable_or_the_user() -> None:
    assert load_settings({"HERMES_HOME": "/a/b", "HOME": "/h"}, home=Path("/x")).home == Path("/x")
    assert load_settings({"HERMES_HOME": "/a/b", "HOME": "/h"}, overrides={"home": "/y"}).home == Path("/y")
    assert load_settings({"HERMES_HOME": "/a/b", "HOME": "/h"}).home == Path("/a/b")
    assert load_settings({"HOME": "/h"}).home == Path("/h/.hermes-worker")


def test_the_process_environment_is_read_when_none_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    monkeypatch.setenv("HERMES_MAX_ITERATIONS", "7")

    assert load_settings().agent.iterations_max == 7


def test_every_setting_can_be_given_in_every_place(tmp_path: Path) -> None:
    samples = {
        "model.proxy_url": "http://proxy:8080",
        "mcp.rows": "true",
        "mcp.row_commands": "desk-server --all",
        "tracing.endpoint": "http://collector:4318/v1/traces",
        "logging.endpoint": "http://collector:4318/v1/logs",
        "metrics.endpoint": "http://collector:4318/v1/metrics",
        "tracing.texts": "true",
        "extensions.modules": "myapp.tools",
        "extensions.settings": '{"ACME_PAGES": 7}',
        "compression.enabled": "false",
        "checkpoints.enabled": "false",
        "skills.writes": "ask",
        "skills.external_dirs": "/opt/skills,~/shared",
        "skills.disabled": "imessage",
        "memory.memory_enabled": "false",
        "memory.user_profile_enabled": "false",
        "memory.write_approval": "true",
        "memory.writers": "person,cron",
        "skills.writers": "person,cron",
        "memory.profile": "work",
        "memory.memory_char_limit": "3000",
        "memory.user_char_limit": "2000",
        "compression.threshold": "0.8",
        "compression.thresholds": "gpt-5.4*=0.85,*trinity*=0.7",
        "compression.target_ratio": "0.3",
        "model.compression_providers": "openrouter:some/model",
        "model.key_strategy": "random",
        "model.tenant_keys": "acme/openai=some-key",
        "tool_loop_guardrails.warnings_enabled": "false",
        "tool_loop_guardrails.hard_stop_enabled": "true",
        "tool_loop_guardrails.warn_after.exact_failure": "3",
        "tool_loop_guardrails.warn_after.same_tool_failure": "4",
        "tool_loop_guardrails.warn_after.idempotent_no_progress": "5",
        "tool_loop_guardrails.hard_stop_after.exact_failure": "6",
        "tool_loop_guardrails.hard_stop_after.same_tool_failure": "7",
        "tool_loop_guardrails.hard_stop_after.idempotent_no_progress": "9",
        "approvals.mode": "off",
        "approvals.cli_mode": "deny",
        "approvals.api_mode": "deny",
        "approvals.cron_mode": "approve",
        "approvals.webhook_mode": "approve",
        "approvals.delegation_mode": "approve",
        "delegation.budget": "mixed",
        "model.prices": "custom:m=1/2",
        "delivery.allow_private_urls": "true",
        "cron.wrap_response": "false",
        "database.url": "postgresql://u@h/d",
        "database.prepared_statements": "false",
        "broker.url": "redis://h/1",
        "encryption.keys": "k" * 32,
        "model.base_url": "https://h/v1",
        "chats.transcription_url": "https://speech.example.org/v1",
        "server.embeddings_url": "https://embed.example.org/v1",
        "model.token_url": "https://auth.test/token",
        "model.asked_elsewhere": "true",
        "model.title_providers": "openrouter:some/model",
        "model.approval_providers": "openrouter:some/model",
        "model.vision_providers": "openrouter:some/model",
        "model.web_extract_providers": "openrouter:some/model",
        "agent.allow_private_urls": "true",
        "security.redact_secrets": "false",
        "agent.context_files": "false",
        "model.api_mode": "anthropic_messages",
        "model.context_length": "4096",
        "agent.reasoning_effort": "high",
        "fallback_providers": "openrouter:some/model",
        "model.providers": '{"openai": {"region": "eu", "headers": {"X-Team": "a"}, "body": {"seed": 1}}}',
        "server.host": "localhost",
        "server.page": "false",
        "server.page_hosts": "hermes.example.org",
        "server.key": SERVER_KEY,
        "logging.level": "DEBUG",
        "logging.format": "json",
        "faults": "iterate.after_claim=kill",
        "terminal.env_passthrough": "A,B",
        "terminal.sandbox": "require",
        "terminal.profile": "tenant",
        "terminal.network": "none",
        "terminal.network_api": "proxy",
        "terminal.network_unattended": "open",
        "server.cors_origins": "https://chat.example.org,http://localhost:3000",
        "terminal.network_hosts": "pypi.org,*.example.org",
        "terminal.umask": "027",
        "worker.debuggable": "true",
        "terminal.processes_max": "100",
        "terminal.open_files_max": "100",
        "terminal.memory_mb_max": "100",
        "delivery.media_dirs": "/a,/b",
        "terminal.allow_hermes_worker": "true",
        "terminal.ssh_directory": "/srv/work",
        "terminal.docker_host": "tcp://engine.example.org:2376",
        "terminal.docker_user": "1000:1000",
        "terminal.docker_proxy": "http://proxy:3128",
        "terminal.kubernetes_url": "https://cluster.example.org:6443",
        "terminal.kubernetes_network": "proxy",
        "terminal.remote_idle_s": "600",
        "browser.enabled": "true",
        "browser.chromium": "/usr/bin/chromium",
        "browser.max": "9",
        "browser.idle_s": "60",
        "browser.host": "0.0.0.0",
        "browser.address": "browsers.example.org",
        "browser.cdp": "true",
        "mcp.max": "9",
        "mcp.idle_s": "60",
        "mcp.host": "0.0.0.0",
        "mcp.address": "servers.example.org",
        "delivery.media_strict": "false",
        "delivery.channels": "slack:#ops=C0123ABCD",
        "delivery.filter_silence_narration": "false",
        "worker.events": "true",
        "retention.rules": "runs=365d/1000,events=never",
        "worker.remote_control": "all",
        "chats.enabled": "true",
        "chats.groups": "guests",
        "chats.reset_mode": "daily",
        "chats.reset_told": "false",
        "chats.redact_pii": "true",
        "chats.streaming": "true",
        "chats.reset_modes": "telegram=daily,group=idle",
        "chats.strangers": "ignore",
        "chats.accounts": "telegram:ops,matrix:red",
        "chats.rules": "telegram:ops/*=acme,telegram:default/-100=globex/red",
        "chats.busy_input_mode": "queue",
        "chats.commands": "jobs=member,telegram:ops/-100/undo=owner,telegram:ops/@42/stop=no",
        "chats.reply_to_mode": "all",
        "chats.typing_indicator": "true",
        "chats.tool_progress": "short",
        "chats.tool_progress_modes": "telegram=full",
        "object_storage.url": "s3://hermes-files/production",
        "object_storage.endpoint": "https://minio.example.org",
        "object_storage.grace_days": "9",
        "preset": "team",
    }
    for row in describe_settings():
        sample = samples.get(row.key, "7")
        if row.key in ("home", "model.provider", "model.refresh_tokens"):
            continue  # the last needs others beside it
        by_variable = load_settings({row.variable: sample}, home=tmp_path)
        by_override = load_settings({}, home=tmp_path, overrides={row.key: sample})
        nested = row.key.replace(".", ": {") + f": '{sample}'" + "}" * row.key.count(".")
        (tmp_path / "config.yaml").write_text(nested)
        by_config = load_settings({}, home=tmp_path)
        (tmp_path / "config.yaml").unlink()

        assert by_variable == by_override == by_config != load_settings({}, home=tmp_path), row.key


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_config_file_of_hermes_agent_is_understood(tmp_path: Path) -> None:
    config = """
model:
  default: anthropic/claude
  provider: OpenRouter
  api_key: ${MY_KEY}
agent: {max_turns: 12, gateway_timeout: 0, api_max_retries: 5, verbose: true}
fallback_providers: [{provider: Groq, model: openai/gpt-oss-120b}]
terminal: {timeout: 60, backend: docker, env_passthrough: [FOO, BAR]}
logging: {level: debug}
display: {streaming: true}
toolsets: [hermes-cli]
"""
    settings = loaded(tmp_path, {"MY_KEY": "sk-abc"}, config=config)

    assert settings.model.name == "anthropic/claude"
    assert settings.model.provider == "openrouter"
    assert settings.model.api_key == Secret("sk-abc")
    assert (settings.agent.iterations_max, settings.agent.idle_s_max) == (12, None)
    assert (settings.terminal.timeout_s, settings.terminal.env_passthrough) == (60.0, ("FOO", "BAR"))
    assert settings.log.level == "DEBUG"
    (note,) = settings.notes
    assert settings.model.attempts_max == 5
    assert settings.model.fallbacks == ("groq:openai/gpt-oss-120b",)
    assert "agent.verbose, terminal.backend, display, toolsets" in note


@pytest.mark.parametrize(
    "config", ["model: some-model", "\ufeffmodel: {default: some-model}", "model: ''", "", "model:"]
)
def test_the_model_may_be_a_name_or_a_mapping_or_nothing(tmp_path: Path, config: str) -> None:
    assert loaded(tmp_path, config=config).model.name in ("some-model", None)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("X_API_KEY=abc", "abc"),
        ("export X_API_KEY = abc # comment", "abc"),
        ('X_API_KEY="a#b\\"c"', 'a#b"c'),
        ("X_API_KEY='a#b' # c", "a#b"),
        ("X_API_KEY=a#b", "a#b"),
        ("\ufeff# note\r\n\r\nX_API_KEY=abc\r", "abc"),
        ("X_API_KEY=${HOME}", "${HOME}"),
        ("X_API_KEY=$(id)", "$(id)"),
    ],
)
def test_a_dotenv_file_is_read_literally(tmp_path: Path, line: str, value: str) -> None:
    assert loaded(tmp_path, dotenv=line).model.vendor_keys["X_API_KEY"].reveal() == value


@pytest.mark.parametrize("line", ["no equals sign", "1X=a", 'X="open', "X='open", "A B=c"])
def test_a_broken_dotenv_line_is_named_and_not_shown(tmp_path: Path, line: str) -> None:
    message = complaint(tmp_path, dotenv=f"A=b\n{line}\n")

    assert message == f"line 2 of {tmp_path}/.env must have the form NAME=value."


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("lease: {ttl: 3}", "'lease.ttl' in {path} is not a setting (did you mean 'lease.ttl_s'?)."),
        ("agents: {}", "'agents' in {path} is not a setting (did you mean 'agent'?)."),
        ("displ: {}", "'displ' in {path} is not a setting (did you mean 'display'?)."),
        ("agent: 3", "agent in config.yaml must be a mapping of settings."),
        ("- a", "{path} must be a mapping of setting groups, such as 'model:'."),
        ("a: b: sk-secret", "{path} is not valid YAML at line 1."),
        ("a: !!python/object:os.system x", "{path} is not valid YAML at line 1."),
        ("home: /x", "'home' in {path} is not a setting."),
        ("model: {api_key: '${NOPE}'}", "model.api_key in config.yaml refers to ${{NOPE}}, which is not set."),
    ],
)
def test_a_mistake_in_the_config_file_is_one_sentence(tmp_path: Path, config: str, says: str) -> None:
    assert complaint(tmp_path, config=config) == says.format(path=tmp_path / "config.yaml")


def test_a_misspelt_variable_is_noted(tmp_path: Path) -> None:
    settings = loaded(tmp_path, {"HERMES_LEASE_TTL": "3", "HERMES_SOMETHING_ELSE": "x"})

    assert settings.notes == ("HERMES_LEASE_TTL is not a setting and has no effect; did you mean HERMES_LEASE_TTL_S?",)


def test_a_dotenv_file_that_others_can_read_is_noted(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=b")
    (tmp_path / ".env").chmod(0o644)

    assert "chmod 600" in load_settings({}, home=tmp_path).notes[0]


def test_a_file_in_the_place_of_the_home_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert "cannot be read: Not a directory" in complaint(tmp_path / "file")


# --- what values are allowed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("HERMES_LEASE_TTL_S", "soon", "lease.ttl_s must be a number of seconds from 0.5 to 3600, but "),
        ("HERMES_LEASE_TTL_S", "nan", "but HERMES_LEASE_TTL_S in the environment says 'nan'."),
        ("HERMES_LEASE_TTL_S", "0", "from 0.5 to 3600"),
        ("HERMES_LANES_MAX", "2.5", "lease.lanes_max must be a whole number from 1 to 100"),
        ("HERMES_SERVER_PORT", "70000", "server.port must be a whole number from 0 to 65535"),
        ("API_SERVER_PORT", "x", "API_SERVER_PORT in the environment says 'x'."),
        ("HERMES_SERVER_HOST", "a b", "server.host must be a host name or IP address"),
        ("HERMES_LOG_LEVEL", "loud", "logging.level must be one of DEBUG, INFO, WARNING, ERROR"),
        ("HERMES_API_MODE", "codex app server", "model.api_mode must be the name of a wire"),
        ("HERMES_ENV_PASSTHROUGH", "A,HERMES_API_KEY", "terminal.env_passthrough must be a list of variable names"),
        ("HERMES_ENV_PASSTHROUGH", '["A"', "terminal.env_passthrough must be a list"),
        ("HERMES_TOOLSETS", "a;b", "agent.toolsets must be a list of toolset names"),
        ("HERMES_FAULTS", "x=kill", "HERMES_FAULTS in the environment is wrong: fault 'x=kill' names no fault point"),
    ],
)
def test_a_wrong_value_is_named_with_its_source_and_what_is_allowed(
    tmp_path: Path, variable: str, value: str, says: str
) -> None:
    assert says in complaint(tmp_path, {variable: value})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HERMES_DATABASE_URL", "mysql://user:hunter22@host/db"),
        ("HERMES_DATABASE_URL", "sqlite://"),
        ("HERMES_DATABASE_URL", "sqlite:///:memory:"),
        ("HERMES_DATABASE_URL", "sqlite:///file:hunter22?mode=memory"),
        ("HERMES_DATABASE_URL", "postgresql://u:hunter22@h:port/db"),
        ("HERMES_DATABASE_URL", "hunter22"),
        ("HERMES_BROKER_URL", "amqp://u:hunter22@h"),
        ("HERMES_BROKER_URL", "redis://:hunter22@h/zero"),
        ("HERMES_BROKER_URL", "redis://:hunter22@/0"),
        ("HERMES_BROKER_URL", "redis+socket://:hunter22@h"),
        ("HERMES_BROKER_URL", "redis+sentinel://:hunter22@h:1,h:2"),
        ("HERMES_BROKER_URL", "redis+sentinel://:hunter22@h:1/service/zero"),
        ("HERMES_BROKER_URL", "redis+sentinel://:hunter22@h:1/service?option=1"),
        ("HERMES_BASE_URL", "https://u:hunter22@h/v1"),
        ("HERMES_BASE_URL", "file:///hunter22"),
        ("HERMES_BASE_URL", "http://h/hunter22\r\nX: y"),
        ("HERMES_API_KEY", "hunter22 hunter22"),
        ("HERMES_API_KEY", "hunter22\r\nX-Evil: 1"),
        ("HERMES_API_KEY", "hunter22é"),
        ("HERMES_SERVER_KEY", "hunter22"),
        ("OPENAI_API_KEY", "hunter22 hunter22"),
        ("OPENAI_BASE_URL", "hunter22"),
    ],
)
def test_a_wrong_secret_or_address_is_not_shown(tmp_path: Path, variable: str, value: str) -> None:
    message = complaint(tmp_path, {"OPENAI_API_KEY": "sk-a", variable: value})

    assert variable in message
    assert "must be" in message
    assert "hunter22" not in message


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("postgresql://u:p@h:5/d?sslmode=require", "postgresql+psycopg://u:p@h:5/d?sslmode=require"),
        (
            "postgresql://u:p%40@a:1,b:2/d?sslmode=require",
            "postgresql+psycopg://u:p%40@/d?sslmode=require&host=a:1&host=b:2&target_session_attrs=read-write",
        ),
        (
            "postgresql://u@/d?host=a:1&host=b:2&target_session_attrs=any",
            "postgresql+psycopg://u@/d?host=a:1&host=b:2&target_session_attrs=any",
        ),
        ("postgresql+psycopg://postgres@/d?host=/run/pg", "postgresql+psycopg://postgres@/d?host=/run/pg"),
        ("sqlite:////data/h.db", "sqlite:////data/h.db"),
    ],
)
def test_database_urls_are_brought_to_one_form(tmp_path: Path, given: str, used: str) -> None:
    assert loaded(tmp_path, {"HERMES_DATABASE_URL": given}).database_url == used


def test_a_relative_sqlite_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert load_settings({"HERMES_DATABASE_URL": "sqlite:///h.db"}).database_url == f"sqlite:///{tmp_path}/h.db"


@pytest.mark.parametrize(
    ("url", "celery_url", "client_url"),
    [
        ("rediss://u:p@h:1/2", "rediss://u:p@h:1/2", "rediss://u:p@h:1/2"),
        ("unix:///s?db=2", "redis+socket:///s?virtual_host=2", "unix:///s?db=2"),
        ("redis+socket://:p@/s?virtual_host=/3", "redis+socket://:p@/s?virtual_host=3", "unix://:p@/s?db=3"),
        ("unix:///s", "redis+socket:///s?virtual_host=0", "unix:///s?db=0"),
    ],
)
def test_a_broker_url_has_the_spelling_of_each_client(
    tmp_path: Path, url: str, celery_url: str, client_url: str
) -> None:
    broker = loaded(tmp_path, {"HERMES_BROKER_URL": url}).broker

    assert convert_socket_url(url, "redis+socket", "virtual_host") == celery_url
    assert broker.client_url == client_url


def test_an_open_address_needs_a_key(tmp_path: Path) -> None:
    assert "server.key (HERMES_SERVER_KEY) must be set" in complaint(tmp_path, {"HERMES_SERVER_HOST": "0.0.0.0"})

    settings = loaded(tmp_path, {"HERMES_SERVER_HOST": "0.0.0.0", "HERMES_SERVER_KEY": SERVER_KEY})
    assert settings.server.key == Secret(SERVER_KEY)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_a_loopback_address_needs_no_key(tmp_path: Path, host: str) -> None:
    assert loaded(tmp_path, {"HERMES_SERVER_HOST": host}).server.is_loopback


def test_an_unknown_override_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'server.prot' is not a setting .*'server.port'"):
        load_settings({}, overrides={"server.prot": 1})


# --- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "provider", "key", "base_url"),
    [
        ({"OPENAI_API_KEY": "o"}, "openai", "o", None),
        ({"ANTHROPIC_API_KEY": "a"}, "anthropic", "a", None),
        ({"OPENROUTER_API_KEY": "r"}, "openrouter", "r", None),
        ({"OPENAI_API_KEY": "o", "ANTHROPIC_API_KEY": "a"}, "openai", "o", None),
        ({"OPENAI_API_KEY": "o", "ANTHROPIC_API_KEY": "a", "HERMES_PROVIDER": "anthropic"}, "anthropic", "a", None),
        ({"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": "http://h/v1/"}, "openai", "o", "http://h/v1"),
        ({"OPENAI_BASE_URL": "http://localhost:11434/v1"}, None, None, "http://localhost:11434/v1"),
        ({"HERMES_API_KEY": "sk-ant-1"}, "anthropic", "sk-ant-1", None),
        ({"HERMES_API_KEY": "sk-or-1"}, "openrouter", "sk-or-1", None),
        ({"HERMES_API_KEY": "k", "OPENAI_API_KEY": "o"}, "openai", "k", None),
        ({"HERMES_BASE_URL": "https://eu.api.openai.com/v1", "OPENAI_API_KEY": "o"}, "openai", "o", ...),
        (
            {"HERMES_PROVIDER": "openai", "HERMES_BASE_URL": "http://proxy/v1", "OPENAI_API_KEY": "o"},
            "openai",
            "o",
            ...,
        ),
        ({"HERMES_PROVIDER": "deepseek", "OPENAI_API_KEY": "o"}, "deepseek", None, None),
        ({"HERMES_PROVIDER": "scripted", "OPENAI_API_KEY": "o"}, "scripted", None, None),
        ({}, "scripted", None, None),
    ],
)
def test_the_provider_and_its_key_are_found(
    tmp_path: Path, environ: dict[str, str], provider: str | None, key: str | None, base_url: object
) -> None:
    model = loaded(tmp_path, environ).model

    assert model.provider == provider
    assert model.api_key == (Secret(key) if key else None)
    assert model.base_url == (environ["HERMES_BASE_URL"] if base_url is ... else base_url)
    assert model.is_scripted == (provider == "scripted")


@pytest.mark.parametrize(
    "url", ["https://evil.example/v1", "https://api.openai.com.evil.example", "http://h/api.openai.com"]
)
def test_a_providers_key_is_not_sent_to_another_address(tmp_path: Path, url: str) -> None:
    model = loaded(tmp_path, {"HERMES_BASE_URL": url, "OPENAI_API_KEY": "o"}).model

    assert model.api_key is None
    assert not model.is_scripted


def test_a_named_provider_without_its_key_is_an_error(tmp_path: Path) -> None:
    message = complaint(tmp_path, {"HERMES_PROVIDER": "anthropic", "OPENAI_API_KEY": "o"})

    assert message.startswith("model.api_key must be set because model.provider is 'anthropic': ")
    assert message.endswith(": set HERMES_API_KEY or ANTHROPIC_API_KEY.")


def test_who_does_not_ask_the_model_needs_no_key_of_it(tmp_path: Path) -> None:
    environ = {"HERMES_PROVIDER": "anthropic", "HERMES_MODEL": "m", "HERMES_MODEL_ASKED_ELSEWHERE": "true"}
    model = loaded(tmp_path, environ).model
    assert (model.provider, model.name, model.api_key, model.is_scripted) == ("anthropic", "m", None, False)


def test_other_keys_are_kept_for_other_providers(tmp_path: Path) -> None:
    environ = {"DEEPSEEK_API_KEY": "d", "ODD_API_KEY": "not a key", "HERMES_API_KEY": "h"}

    assert loaded(tmp_path, environ).model.vendor_keys == {"DEEPSEEK_API_KEY": Secret("d")}


@pytest.mark.parametrize(
    ("model", "is_scripted"),
    [
        (ModelSettings(), True),
        (ModelSettings(provider="scripted", api_key=Secret("k")), True),
        (ModelSettings(api_key=Secret("k")), False),
        (ModelSettings(base_url="http://h"), False),
        (ModelSettings(provider="deepseek"), False),
    ],
)
def test_the_scripted_model_answers_when_there_is_nobody_else(model: ModelSettings, is_scripted: bool) -> None:
    assert model.is_scripted is is_scripted


# --- handing on ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": "http://h/v1"},
        {"HERMES_PROVIDER": "scripted", "OPENAI_API_KEY": "o", "HERMES_TOOLSETS": "a, b", "API_SERVER_PORT": "0"},
        {"HERMES_AGENT_TIMEOUT": "0", "HERMES_LEASE_TTL_S": "0.75", "HERMES_BROKER_URL": "redis://:p@h/1"},
        {"HERMES_FAULTS": "iterate.after_reply=stall:5@2", "HERMES_DATABASE_URL": "postgresql://u:p@h/d"},
    ],
)
def test_a_child_process_gets_the_same_settings(tmp_path: Path, environ: dict[str, str]) -> None:
    config = "agent: {max_turns: 5}\nserver: {key: 01234567890123456789}"
    settings = loaded(tmp_path, {"PATH": "/bin", **environ}, config=config, dotenv="HERMES_MODEL=m\nB_API_KEY=b")
    (tmp_path / "config.yaml").write_text("agent: {max_turns: 6}")

    handed = render_environ(settings)

    assert handed["PATH"] == "/bin"
    assert load_settings(handed) == settings


def test_changed_settings_reach_a_child_process_too(tmp_path: Path) -> None:
    settings = loaded(tmp_path, {"API_SERVER_PORT": "1", "HERMES_BROKER_URL": "redis://old"})
    changed = replace(
        settings, broker=BrokerSettings(url="redis://new"), agent=AgentSettings(idle_s_max=None, wall_s_max=60)
    )

    assert load_settings(render_environ(changed)) == changed


def test_secrets_do_not_show_themselves(tmp_path: Path) -> None:
    environ = {
        "HERMES_API_KEY": "hunter22",
        "HERMES_SERVER_KEY": "hunter22" * 2,
        "HERMES_DATABASE_URL": "postgresql://u:hunter22@h/d",
        "HERMES_BROKER_URL": "redis://:hunter%2022@h/0",
        "X_API_KEY": "hunter22",
    }
    settings = loaded(tmp_path, environ)

    shown = f"{settings} {settings!r} {settings.model.api_key} {[settings.server.key]}"
    assert "hunter" not in shown
    assert {secret.reveal() for secret in settings.secrets} == {"hunter22", "hunter22" * 2, "hunter 22"}


def test_a_secret_can_be_compared_and_copied_but_not_pickled() -> None:
    secret = Secret("abc")

    assert secret == Secret("abc") != Secret("abd")
    assert secret != "abc"
    assert len({secret, Secret("abc")}) == 1
    assert copy.deepcopy(secret) is copy.copy(secret) is secret
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(secret)


# --- documentation ---------------------------------------------------------------------------------------------------


def test_every_setting_has_a_docstring_and_its_own_names() -> None:
    rows = list(describe_settings())

    assert all(row.doc.endswith(".") for row in rows)
    assert len({row.key for row in rows}) == len({row.variable for row in rows}) == len(rows)
    assert all(row.variable.startswith("HERMES_") for row in rows)


def test_every_setting_says_who_sets_it_when_and_what_happens_without_it() -> None:
    rows = list(describe_settings())

    assert {row.audience for row in rows} == set(get_args(Audience))
    wrong = [row.key for row in rows if not re.fullmatch(r"[^;]{10,}; .{10,} without (it|one)\.", row.reason)]
    assert wrong == []
    assert len({row.reason.partition(";")[0] for row in rows}) > 0.9 * len(rows), "each has a reason of its own"


def test_only_settings_reads_the_environment() -> None:
    package = Path(settings_module.__file__).parents[1]
    readers = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if any(name in path.read_text(encoding="utf-8") for name in ("os.environ", "os.getenv", "getenvb", "environb"))
    ]

    # ``local.forking`` gives a forked child the environment that was made for it; the child reads it by settings.
    # ``handover`` takes the secrets out of the environment of a program that has just been started, for settings.
    # The command line looks for extensions before it says what there is, and starts a stack without secrets in its
    # environment.
    assert sorted(readers) == [
        "cli/__init__.py",
        "cli/code_watch.py",
        "cli/stack_process.py",
        "local/forking.py",
        "settings/loading.py",
        "settings/secret_transfer.py",
    ]


def test_a_url_with_sentinels_says_whom_to_ask_for_what() -> None:
    found = parse_sentinels(
        "rediss+sentinel://u:p%40%2F@a:1,b,[::1]:3/my%20service/2?sentinel_password=s%3A&ssl_ca_certs=/ca.pem"
    )
    assert found == SentinelAddresses(
        addresses=(("a", 1), ("b", 26_379), ("::1", 3)),
        service="my service",
        database=2,
        user="u",
        password="p@/",
        own={"password": "s:"},
        tls={"ssl_ca_certs": "/ca.pem"},
    )
    options = "ssl_cert_reqs=required&ssl_ca_certs=%2Fca.pem"
    assert found.kombu_url.split(";") == [
        f"sentinel://u:p%40%2F@{place}/2?{options}" for place in ("a:1", "b:26379", "[::1]:3")
    ]
    assert parse_sentinels("redis://h/0") is None


def test_several_servers_may_be_named_by_address(tmp_path: Path) -> None:
    """Python's own reader of URLs refuses a bracket behind a comma, in most releases."""
    url = "postgresql://u:p%21@a:1,[::1]:2/db"
    found = load_settings({"HERMES_HOME": str(tmp_path), "HERMES_DATABASE_URL": url})
    assert found.database.url == (
        "postgresql+psycopg://u:p%21@/db?host=a:1&host=[::1]:2&target_session_attrs=read-write"
    )
    assert "p!" in {secret.reveal() for secret in found.secrets}
    assert is_secret("STRANGE_URL", url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p%40@h:5432/db?sslmode=require#x",
        "redis://:p@h/0",
        "redis+socket:///run/v.sock?virtual_host=1",
        "sqlite:////data/x.db",
        "REDIS://h",
        "no url at all",
        "",
        "//u@h/p?q",
        "https://user:@[::1]:3/a?b=c?d",
    ],
)
def test_a_url_with_one_server_is_read_as_python_reads_it(url: str) -> None:
    found, usual = parse_servers_url(url), urlsplit(url)
    assert (found.scheme, found.path, found.query) == (usual.scheme, usual.path, usual.query)
    assert ",".join(found.servers) == usual.netloc.rpartition("@")[2]
    assert (found.user or "", found.password or "") == (unquote(usual.username or ""), unquote(usual.password or ""))


def test_the_passwords_of_sentinels_are_secrets(tmp_path: Path) -> None:
    url = "redis+sentinel://u:one%21@h/service?sentinel_password=two%21"
    secrets = load_settings({"HERMES_HOME": str(tmp_path), "HERMES_BROKER_URL": url}).secrets
    assert {"one!", "two!"} <= {secret.reveal() for secret in secrets}


# --- what others judge values by, before anything starts -------------------------------------------------------------

PATTERNED = [declaration for declaration in DECLARATIONS if declaration.kind.pattern]
ASCII = st.characters(max_codepoint=0x7E)


@pytest.mark.parametrize("text", ["0", "00", "-0", "+0"])
def test_a_number_that_may_be_none_is_given_as_any_zero(text: str) -> None:
    """Helm lets each of them through to the pods."""
    [found] = [each for each in DECLARATIONS if each.key == "model.context_length"]
    assert found.kind.parse(text) is None


@given(st.data())
def test_a_pattern_and_ranges_say_what_a_setting_takes(data: st.DataObject) -> None:
    declaration = data.draw(st.sampled_from(PATTERNED))
    kind = declaration.kind
    numbers = [f"{bound:.12g}" for bounds in kind.ranges for bound in (*bounds, bounds[0] - 1, bounds[1] + 0.5)]
    text = data.draw(
        st.one_of(
            st.text(ASCII, max_size=30),
            st.from_regex(re.compile(kind.pattern, re.ASCII), fullmatch=True),
            st.sampled_from(["0", "on", "off", " None ", "-1", "1e3", "http://models:8000/v1", *numbers]),
        )
    )
    try:
        kind.parse(text)
        is_taken = True
    except (ValueError, TypeError, ConfigurationError):
        is_taken = False

    fits = re.fullmatch(kind.pattern, text.strip()) is not None and (
        not kind.ranges or any(low <= float(text.strip().replace("_", "")) <= high for low, high in kind.ranges)
    )

    assert fits or not is_taken
    if kind is not WEB_URL and "_" not in text:
        assert is_taken == fits
