"""Where keys of encrypted texts come from, and that they change without a restart."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.settings import build_handover, load_settings
from hermes_worker.settings.role_secrets import ProcessRole
from hermes_worker.settings.text_keys import CommandOfKeys, FileOfKeys, load_current_keys

OLD, NEW = "o" * 40, "n" * 40


def put(file: Path, content: str) -> None:
    fresh = file.with_suffix(".new")
    fresh.write_text(content)
    fresh.replace(file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    put(tmp_path / "keys", f"{OLD}\n")
    return tmp_path / "keys"


def test_without_a_setting_there_are_no_keys(tmp_path: Path) -> None:
    assert load_current_keys(load_settings({}, home=tmp_path)) == ((), None)


@pytest.mark.parametrize("written", [f"{NEW},{OLD}", f"{NEW}\n{OLD}\n", f" {NEW} , {OLD} "])
def test_keys_are_separated_by_commas_or_lines(tmp_path: Path, written: str) -> None:
    assert load_current_keys(load_settings({"HERMES_ENCRYPTION_KEYS": written}, home=tmp_path)) == ((NEW, OLD), None)


def test_a_short_key_is_refused_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="at least 32") as raised:
        load_settings({"HERMES_ENCRYPTION_KEYS": "hunter2"}, home=tmp_path)
    assert "hunter2" not in str(raised.value)


def test_a_file_is_read_again_when_it_changed(tmp_path: Path, file: Path) -> None:
    keys, source = load_current_keys(load_settings({"HERMES_ENCRYPTION_KEYS_FILE": str(file)}, home=tmp_path / "home"))
    assert keys == (OLD,) and isinstance(source, FileOfKeys)
    assert source.read_if_changed(at_once=False) is None
    put(file, f"{NEW}\n{OLD}")
    assert source.read_if_changed(at_once=False) == (NEW, OLD)
    put(file, "half a k")
    with pytest.raises(ConfigurationError) as raised:
        source.read_if_changed(at_once=False)
    assert "half" not in str(raised.value)
    file.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        source.read_if_changed(at_once=False)


def test_a_role_that_starts_later_reads_the_keys_of_now(tmp_path: Path, file: Path) -> None:
    settings = load_settings({"HERMES_ENCRYPTION_KEYS_FILE": str(file)}, home=tmp_path / "home")
    environ, handover = build_handover(settings, ProcessRole.TOOLS)
    assert OLD not in str(environ) and handover.variables["HERMES_ENCRYPTION_KEYS"] == OLD
    assert environ["HERMES_ENCRYPTION_KEYS_FILE"] == str(file)
    put(file, f"{NEW},{OLD}")
    assert load_current_keys(settings)[0] == (NEW, OLD)


def test_the_stand_in_for_a_model_gets_no_key(tmp_path: Path, file: Path) -> None:
    settings = load_settings({"HERMES_ENCRYPTION_KEYS_FILE": str(file)}, home=tmp_path / "home")
    _, handover = build_handover(settings, ProcessRole.SCRIPTED)
    assert OLD not in str(handover.variables) and "encryption.keys" in handover.withheld


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_command_prints_the_keys_and_sees_no_secret(tmp_path: Path, file: Path) -> None:
    command = script(tmp_path / "print", f'env > {tmp_path}/seen; cat "$1"')
    environ = {"HERMES_ENCRYPTION_KEYS_COMMAND": f"{command} {file}", "MY_TOKEN": "t0ps3cret", "PATH": "/usr/bin:/bin"}
    keys, source = load_current_keys(load_settings(environ, home=tmp_path / "home"))
    assert keys == (OLD,) and isinstance(source, CommandOfKeys)
    seen = (tmp_path / "seen").read_text()
    assert "t0ps3cret" not in seen and "PATH=" in seen


@pytest.mark.parametrize(
    ("body", "said"),
    [("exit 3", "status 3"), (f"echo {OLD[:9]}", "at least 32"), ("printf '\\377'", "plain text"), ("", "must give")],
)
def test_a_command_that_fails_is_one_sentence_without_what_it_printed(tmp_path: Path, body: str, said: str) -> None:
    command = script(tmp_path / "print", body)
    with pytest.raises(ConfigurationError, match=said) as raised:
        load_current_keys(load_settings({"HERMES_ENCRYPTION_KEYS_COMMAND": command}, home=tmp_path / "home"))
    assert OLD[:9] not in str(raised.value)


def test_both_a_command_and_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="both set"):
        load_settings({"HERMES_ENCRYPTION_KEYS": OLD, "HERMES_ENCRYPTION_KEYS_COMMAND": "cat x"}, home=tmp_path)
