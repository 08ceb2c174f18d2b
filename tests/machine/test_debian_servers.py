"""The servers that Debian has, beside the bundled one: a Redis of another version on PATH, for real."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.commandline import CommandLine, script
from support.valkey import administrator

from hermes_worker.local import valkey as valkey_module
from hermes_worker.local.valkey import DataOrigin, EmbeddedValkey, find_server, find_version, list_set_aside

pytestmark = pytest.mark.machine


@pytest.fixture
def debians() -> Path:
    found = shutil.which("redis-server")
    assert found, "install Debian's redis-server: apt-get install redis-server"
    return Path(found)


@pytest.fixture
def only_debians(debians: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As if nothing were bundled."""
    monkeypatch.setattr(valkey_module, "_find_bundled_binary", lambda: None)
    return debians


def server_in(directory: Path) -> EmbeddedValkey:
    return EmbeddedValkey(directory, has_administrator=True)


def test_the_bundled_server_goes_before_debians(debians: Path) -> None:
    server = find_server()
    assert server.origin is DataOrigin.BUNDLED
    assert server.binary != debians


def test_debians_server_works_as_a_broker_and_reads_its_own_files_again(only_debians: Path, tmp_path: Path) -> None:
    with server_in(tmp_path / "v") as server:
        assert administrator(server).info("server")["redis_version"] == find_version(only_debians)
        administrator(server).set("k", "v")

    found = find_server(directory=tmp_path / "v")
    assert (found.binary, found.origin) == (only_debians, DataOrigin.WROTE)
    with server_in(tmp_path / "v") as server:
        assert administrator(server).get("k") == "v"


def test_debians_server_begins_without_the_files_of_the_bundled_one(debians: Path, tmp_path: Path) -> None:
    with server_in(tmp_path / "v") as server:
        administrator(server).set("k", "v")
        administrator(server).bgrewriteaof()
    record = tmp_path / "v" / "valkey.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"server": str(debians)}))

    with server_in(tmp_path / "v") as server:
        assert administrator(server).get("k") is None

    assert [path.name.partition(".")[0] for path in list_set_aside(tmp_path / "v")] == ["appendonlydir"]


def test_a_home_that_the_bundled_server_wrote_works_where_debians_is_installed(debians: Path, tmp_path: Path) -> None:
    hermes = CommandLine(tmp_path / "home")
    assert str(debians.parent) in hermes.environ["PATH"].split(":")
    for answer in ("Once.", "Again."):
        ended = hermes("run", script(final=answer))
        assert ended.code == 0, ended.said
        assert answer in ended.out
    assert list_set_aside(hermes.home / "valkey") == []


def test_a_home_whose_files_debians_server_cannot_read_works_without_them(debians: Path, tmp_path: Path) -> None:
    hermes = CommandLine(tmp_path / "home")
    assert hermes("run", script(final="Once.")).code == 0
    record = hermes.home / "valkey" / "valkey.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"server": str(debians)}))

    with hermes.up() as up:
        up.wait_for_line(r"broker\.data_set_aside")
        assert hermes.inline("submit", script(final="Again."), "--watch").code == 0
    assert "redis-server" in hermes.inline("doctor").out
