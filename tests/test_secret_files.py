"""Secrets from files: ``NAME_FILE`` for every secret, its rules, and that no command sees the file."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from hermes_worker import installed
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings import Settings, build_handover, load_settings, render_environ
from hermes_worker.settings import secret_files as secret_files_module
from hermes_worker.settings.role_secrets import DELIVERY_SECRETS, PROVIDER_SECRETS, SECRET_SETTINGS, ProcessRole
from hermes_worker.workspaces.build import build_sandbox

KEY = "0123456789abcdef-server"


def by_file(tmp_path: Path, variable: str, content: str | bytes) -> dict[str, str]:
    """An environment that names a file with this content."""
    file = tmp_path / variable.lower()
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return {f"{variable}_FILE": str(file)}


def complaint(tmp_path: Path, environ: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as raised:
        load_settings(environ, home=tmp_path)
    return str(raised.value)


VALUES = {
    "HERMES_DATABASE_URL": "postgresql://u:p%40@h/d",
    "HERMES_BROKER_URL": "redis://:p%40@h/0",
    "HERMES_SERVER_KEY": KEY,
    "API_SERVER_KEY": KEY,
    "HERMES_SERVER_PREVIOUS_KEYS": f"{KEY}-1,{KEY}-2",
    "HERMES_MORE_API_KEYS": "a,b",
    "HERMES_TENANT_KEYS": "acme/openai=a,acme/openai=b",
    "HERMES_ENCRYPTION_KEYS": f"{'k' * 32},clear",
}
BY_FILE = sorted(
    {name for row in SECRET_SETTINGS for name in row.variables}
    | DELIVERY_SECRETS
    | PROVIDER_SECRETS
    | {"OPENAI_API_KEY", "GROQ_API_KEY_2"}
)


@pytest.mark.parametrize("variable", BY_FILE)
def test_every_secret_can_come_from_a_file(tmp_path: Path, variable: str) -> None:
    others = {"HERMES_TOKEN_URL": "https://login.example/token", "HERMES_PROVIDER": "openrouter", "HERMES_API_KEY": "k"}
    others.pop(variable, None)
    value = VALUES.get(variable, "0123456789abcdef")

    settings = load_settings({**others, **by_file(tmp_path, variable, value)}, home=tmp_path)

    assert comparable(settings) == comparable(load_settings({**others, variable: value}, home=tmp_path))
    assert settings.environ[variable] == value


def comparable(settings: Settings) -> tuple[Settings, dict[str, str]]:
    return settings, dict(settings.environ)


@pytest.mark.parametrize("content", [f"{KEY}\n", f"{KEY}\r\n", f"\n{KEY}\n\n"])
def test_line_ends_around_a_secret_do_not_count(tmp_path: Path, content: str) -> None:
    key = load_settings(by_file(tmp_path, "HERMES_SERVER_KEY", content), home=tmp_path).server.key
    assert key is not None and key.reveal() == KEY


def test_only_one_line_end_is_taken_from_what_a_platform_is_told(tmp_path: Path) -> None:
    environ = load_settings(by_file(tmp_path, "EMAIL_PASSWORD", " with spaces \n"), home=tmp_path).environ
    assert environ["EMAIL_PASSWORD"] == " with spaces "


def test_an_empty_file_is_not_set(tmp_path: Path) -> None:
    assert load_settings(by_file(tmp_path, "HERMES_SERVER_KEY", "\n"), home=tmp_path).server.key is None


def test_a_file_may_be_named_in_dotenv(tmp_path: Path) -> None:
    name, file = next(iter(by_file(tmp_path, "HERMES_SERVER_KEY", KEY).items()))
    (tmp_path / ".env").write_text(f"{name}={file}\n")
    settings = load_settings({}, home=tmp_path)
    assert settings.server.key is not None and settings.secret_files == {name: file}


def test_what_the_environment_says_wins_over_a_file_of_dotenv(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"HERMES_SERVER_KEY={KEY}\n")
    settings = load_settings(by_file(tmp_path, "HERMES_SERVER_KEY", f"{KEY}-nearer"), home=tmp_path)
    assert settings.server.key is not None and settings.server.key.reveal() == f"{KEY}-nearer"


def test_a_secret_that_is_given_twice_is_one_sentence(tmp_path: Path) -> None:
    environ = {"HERMES_SERVER_KEY": KEY, **by_file(tmp_path, "HERMES_SERVER_KEY", KEY)}
    assert complaint(tmp_path, environ) == (
        "HERMES_SERVER_KEY and HERMES_SERVER_KEY_FILE are both set in the environment; remove one of them."
    )


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    assert complaint(tmp_path, {"TELEGRAM_BOT_TOKEN_FILE": "/nowhere/token"}) == (
        "TELEGRAM_BOT_TOKEN_FILE in the environment names '/nowhere/token', and there is no such file."
    )


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    said = f"HERMES_API_KEY_FILE in the environment names '{tmp_path}', which cannot be read: Is a directory."
    assert complaint(tmp_path, {"HERMES_API_KEY_FILE": str(tmp_path)}) == said

    closed = by_file(tmp_path, "HERMES_API_KEY", "k")
    Path(closed["HERMES_API_KEY_FILE"]).chmod(0)
    if os.geteuid() != 0:  # root reads everything
        assert complaint(tmp_path, closed).endswith("which cannot be read: Permission denied.")


@pytest.mark.parametrize(("content", "why"), [(b"\xff", "is not UTF-8 text"), (b"k" * 70_000, "has more than 65536")])
def test_a_file_with_something_else_is_one_sentence_without_its_content(
    tmp_path: Path, content: bytes, why: str
) -> None:
    said = complaint(tmp_path, by_file(tmp_path, "HERMES_API_KEY", content))
    assert said.startswith("HERMES_API_KEY_FILE in the environment names ") and why in said and "kkk" not in said


def test_a_wrong_value_of_a_file_is_not_shown(tmp_path: Path) -> None:
    said = complaint(tmp_path, by_file(tmp_path, "HERMES_SERVER_KEY", "hunter2"))
    assert "server.key" in said and "hunter2" not in said


def test_variables_of_others_that_end_so_are_left_alone(tmp_path: Path) -> None:
    others = {
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere",
        "SSL_CERT_FILE": "/nowhere",
        "HTTPS_PROXY_FILE": "/nowhere",
        "PGPASSWORD_FILE": "/nowhere",
    }
    settings = load_settings(others, home=tmp_path)
    assert others.items() <= settings.environ.items() and not settings.secret_files


def test_a_secret_of_an_extension_can_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = SimpleNamespace(secret_variables={"PAGER_TOKEN": frozenset({"delivery"})})
    monkeypatch.setattr(installed, "get_installed", lambda: declared)
    assert load_settings(by_file(tmp_path, "PAGER_TOKEN", "p"), home=tmp_path).environ["PAGER_TOKEN"] == "p"


def test_a_child_process_gets_the_value_and_does_not_read_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = by_file(tmp_path, "HERMES_SERVER_KEY", KEY)
    settings = load_settings(named, home=tmp_path)

    environ, handover = build_handover(settings, ProcessRole.API)
    tools_environ, of_tools = build_handover(settings, ProcessRole.TOOLS)

    assert load_settings(render_environ(settings)) == settings
    assert handover.variables["HERMES_SERVER_KEY"] == KEY and KEY not in str(environ)
    assert KEY not in str((tools_environ, of_tools.variables))
    assert named.items() <= tools_environ.items(), "it must know which file to hide"


def test_no_command_sees_the_file(tmp_path: Path) -> None:
    named = by_file(tmp_path, "HERMES_SERVER_KEY", KEY)
    sandbox = build_sandbox(load_settings(named, home=tmp_path / "home"))
    assert str(tmp_path / "hermes_server_key") in sandbox._policy.hidden


def test_the_files_are_named_once() -> None:
    assert secret_files_module.find_named_files({"A_FILE": " ", "B_FILE": "/b", "C": "/c"}, lambda name: True) == {
        "B_FILE": "/b"
    }


# --- directories of secrets, as Kubernetes mounts them ----------------------------------------------------------------


def by_directories(tmp_path: Path, *names: str) -> dict[str, str]:
    return {"HERMES_SECRETS_DIRECTORIES": ":".join(str(tmp_path / name) for name in names)}


def test_each_file_of_a_directory_is_the_secret_of_its_name(tmp_path: Path) -> None:
    """Kubernetes lays them out behind links, and leaves its own ``..data`` beside them."""
    data = tmp_path / "models" / "..data"
    data.mkdir(parents=True)
    for name, value in {"OPENAI_API_KEY": "k1\n", "HERMES_MCP_TICKETS_TOKEN": "t", "api-key": "no variable"}.items():
        (data / name).write_text(value)
        (tmp_path / "models" / name).symlink_to(f"..data/{name}")

    settings = load_settings(by_directories(tmp_path, "models", "not-made-yet"), home=tmp_path / "home")

    assert (settings.environ["OPENAI_API_KEY"], settings.environ["HERMES_MCP_TICKETS_TOKEN"]) == ("k1", "t")
    assert "api-key" not in settings.environ
    assert settings.secret_files["OPENAI_API_KEY_FILE"] == str(tmp_path / "models" / "OPENAI_API_KEY")
    assert settings.notes == ()


def test_what_is_given_otherwise_stands_above_the_file_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "HERMES_API_KEY").write_text("of-the-directory")
    given = {**by_directories(tmp_path, "given"), "HERMES_API_KEY": "given"}
    settings = load_settings(given, home=tmp_path / "home")
    assert settings.model.api_key is not None and settings.model.api_key.reveal() == "given"


def test_a_directory_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "HERMES_SECRETS_DIRECTORIES names" in complaint(tmp_path, by_directories(tmp_path, "file"))
