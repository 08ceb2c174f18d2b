"""The key of the API: made once, kept, shared, and seen by its owner only."""

from __future__ import annotations

import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.safety.redaction import redact
from hermes_worker.settings import Secret, ServerSettings, Settings, load_settings, render_environ
from hermes_worker.settings.server_key import (
    compute_fingerprint,
    describe_key_place,
    find_server_key,
    get_key_file_path,
    is_open_to_others,
    keep_server_key,
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"HOME": str(tmp_path)})


def test_the_key_is_made_once_and_kept(settings: Settings) -> None:
    assert find_server_key(settings) is None
    made = keep_server_key(settings)
    assert len(made.reveal().removeprefix("hwk_")) >= 43  # 256 bits, six to a character
    assert keep_server_key(settings) == find_server_key(settings) == made
    file = get_key_file_path(settings.home)
    assert file.read_text() == f"{made.reveal()}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert describe_key_place(settings) == str(file)


def test_two_homes_have_two_keys(settings: Settings, tmp_path: Path) -> None:
    other = replace(settings, home=tmp_path / "other")
    assert keep_server_key(settings) != keep_server_key(other)


MAKER = """
import sys
from pathlib import Path
from hermes_worker.settings.server_key import keep_server_key
from hermes_worker.settings import load_settings
settings = load_settings({"HOME": sys.argv[1]})
print("ready", flush=True)
sys.stdin.readline()
print(keep_server_key(settings).reveal())
"""


def test_of_many_processes_at_once_one_makes_the_key(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    makers = [subprocess.Popen(command, **pipes) for _ in range(4)]  # type: ignore[call-overload]
    for maker in makers:
        assert maker.stdout.readline() == "ready\n"
    said = {maker.communicate("go\n", timeout=60)[0] for maker in makers}
    assert len(said) == 1
    assert said == {(tmp_path / ".hermes-worker" / "api.key").read_text()}


def test_what_an_operator_set_is_the_key_and_no_file_is_made(settings: Settings) -> None:
    own = replace(settings, server=ServerSettings(key=Secret("an-operators-own-key")))
    assert keep_server_key(own) == find_server_key(own) == Secret("an-operators-own-key")
    assert not get_key_file_path(settings.home).exists()
    assert "HERMES_SERVER_KEY" in describe_key_place(own)


def test_an_operator_may_write_the_file(settings: Settings) -> None:
    settings.home.mkdir()
    get_key_file_path(settings.home).write_text("written-by-hand-0123\n")
    assert keep_server_key(settings) == Secret("written-by-hand-0123")
    get_key_file_path(settings.home).chmod(0o644)
    assert is_open_to_others(settings)
    get_key_file_path(settings.home).chmod(0o400)
    assert not is_open_to_others(settings)


def test_an_empty_file_of_somebody_elses_making_is_filled_and_closed(settings: Settings) -> None:
    settings.home.mkdir()
    get_key_file_path(settings.home).touch(mode=0o644)
    assert find_server_key(settings) is None
    keep_server_key(settings)
    assert not is_open_to_others(settings)


@pytest.mark.parametrize(
    "text", [b"short", b"two words of a key", b"\xff\xfenot text at all", b"k\xc3\xa9y-0123456789abc"]
)
def test_a_file_that_holds_no_key_is_a_sentence_without_its_content(settings: Settings, text: bytes) -> None:
    settings.home.mkdir()
    get_key_file_path(settings.home).write_bytes(text)
    for ask in (find_server_key, keep_server_key):
        with pytest.raises(ConfigurationError, match=r"api\.key.*remove it to have a new key made") as raised:
            ask(settings)
        assert text.decode("latin-1") not in str(raised.value)
        assert "two words" not in str(raised.value)


def test_the_key_is_not_handed_on_and_known_for_a_secret_by_its_shape(settings: Settings) -> None:
    key = keep_server_key(settings).reveal()
    assert key not in "".join(render_environ(settings).values())
    assert key not in repr(settings)
    assert key not in redact(f"I found {key} there")
    assert compute_fingerprint(Secret(key)) not in key
