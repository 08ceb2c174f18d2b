"""What a role needs before it starts (``role_needs``): a hidden module stands for an extra that is not installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.role_needs import list_missing_extras, require_role_needs
from hermes_worker.settings import load_settings
from hermes_worker.settings.role_secrets import ProcessRole

DISCORD = {"HERMES_GATEWAY": "true", "DISCORD_BOT_TOKEN": "a-token-of-a-bot"}
SOCKETS = "is listened to over a websocket, and websockets is missing: pip install 'hermes-worker[gateway]'"
BEDROCK = {
    "HERMES_PROVIDER": "bedrock",
    "HERMES_MODEL": "m",
    "AWS_BEARER_TOKEN_BEDROCK": "key",
    "HERMES_BASE_URL": "https://bedrock-runtime.eu-central-1.amazonaws.com",
}
SIGNER = "asked over the wire 'bedrock_converse', and botocore is missing: pip install 'hermes-worker[bedrock]'"


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The modules that are not installed."""
    names: set[str] = set()
    find_spec = importlib.util.find_spec

    def find_unless_hidden(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in names else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_unless_hidden)
    return names


@pytest.mark.parametrize(
    ("module", "said", "role", "sentence"),
    [
        ("websockets", DISCORD, ProcessRole.GATEWAY, f"discord {SOCKETS}"),
        ("botocore", BEDROCK, ProcessRole.MODEL, f"bedrock is {SIGNER}"),
        (
            "botocore",
            {"HERMES_BASE_URL": "http://127.0.0.1:1/v1", "HERMES_MODEL": "m"}
            | {"HERMES_FALLBACK_PROVIDERS": "bedrock:m", "AWS_BEARER_TOKEN_BEDROCK": "key"},
            ProcessRole.MODEL,
            f"bedrock is {SIGNER}",
        ),
        (
            "asyncssh",
            {"HERMES_SSH_HOST": "build.example.org"},
            ProcessRole.TOOLS,
            "workspaces on a host of ssh are configured, and asyncssh is missing: pip install 'hermes-worker[ssh]'",
        ),
        (
            "websockets",
            {"HERMES_WORKSPACE": "kubernetes"},
            ProcessRole.TOOLS,
            "HERMES_WORKSPACE is kubernetes, and websockets is missing: pip install 'hermes-worker[kubernetes]'",
        ),
        (
            "playwright",
            {"HERMES_BROWSER": "true"},
            ProcessRole.TOOLS,
            "HERMES_BROWSER is true, and playwright is missing: pip install 'hermes-worker[browser]'",
        ),
        (
            "opentelemetry.sdk",
            {"HERMES_TRACING_ENDPOINT": "http://127.0.0.1:4318"},
            ProcessRole.BEAT,
            "HERMES_TRACING_ENDPOINT is set, and opentelemetry.sdk is missing: pip install 'hermes-worker[otel]'",
        ),
    ],
)
def test_a_role_whose_configuration_needs_a_missing_extra_is_refused(
    tmp_path: Path, hidden: set[str], module: str, said: dict[str, str], role: ProcessRole, sentence: str
) -> None:
    settings = load_settings({"HERMES_HOME": str(tmp_path), **said})
    hidden.add(module)

    with pytest.raises(ConfigurationError) as refused:
        require_role_needs(settings, [role])

    assert str(refused.value) == sentence


@pytest.mark.parametrize("said", [DISCORD, BEDROCK, {"HERMES_SSH_HOST": "build.example.org"}])
def test_a_role_that_does_not_use_the_extra_starts_without_it(
    tmp_path: Path, hidden: set[str], said: dict[str, str]
) -> None:
    hidden.update({"websockets", "botocore", "asyncssh"})

    assert list_missing_extras(load_settings({"HERMES_HOME": str(tmp_path), **said}), [ProcessRole.API]) == []


def test_a_platform_that_brings_its_messages_to_the_api_needs_no_websocket(tmp_path: Path, hidden: set[str]) -> None:
    hidden.add("websockets")
    said = {"HERMES_HOME": str(tmp_path), "HERMES_GATEWAY": "true", "SLACK_SIGNING_SECRET": "secret"}

    assert list_missing_extras(load_settings(said), [ProcessRole.GATEWAY]) == []


@pytest.mark.parametrize("command", ["start gateway", "config check", "doctor"])
def test_a_process_says_the_sentence_and_ends(tmp_path: Path, command: str) -> None:
    program = "import sys; sys.modules['websockets'] = None; from hermes_worker.cli import main; sys.exit(main())"
    environ = {"HERMES_HOME": str(tmp_path), "HERMES_BASE_URL": "http://127.0.0.1:1/v1", "HERMES_MODEL": "m", **DISCORD}

    done = subprocess.run(
        [sys.executable, "-c", program, *command.split()], env=environ, capture_output=True, text=True, timeout=120
    )

    assert done.returncode != 0
    assert f"discord {SOCKETS}" in done.stdout + done.stderr
