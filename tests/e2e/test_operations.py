"""The commands of docs/operations.md, played as they stand on a real PostgreSQL and Valkey while runs are at work."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import psycopg
import pytest
import redis
from support.commandline import script, wait_for
from support.documents import blocks_of, find_programs
from support.operating import OperatorsShell, Provider, Receiver, Traffic
from support.pgbouncer import free_port
from support.redis_servers import ODD_PASSWORD, RedisServer, directory_of_servers, running

from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.models.scripted.server import ScriptedServer

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900)]

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
SERVER_KEYS = ("0123456789abcdef-first", "0123456789abcdef-second")
DELIVERY_SECRETS = ("first-secret-of-deliveries", "second-secret-of-deliveries")
TEXT_KEY = "the-first-key-of-texts-0123456789abcdef"
ROUTE_SECRET = "secret-of-the-first-route"


def blocks_below(heading: str) -> list[str]:
    """The commands of one section of the page, without those of the sections in it."""
    sections = [part for part in re.split(r"^#{2,3} ", PAGE, flags=re.MULTILINE) if part.startswith(f"{heading}\n")]
    assert len(sections) == 1, heading
    return re.findall(r"^```sh\n(.*?)^```$", sections[0], re.MULTILINE | re.DOTALL)


@contextmanager
def database(server: EmbeddedPostgres) -> Iterator[tuple[str, str]]:
    """The URL of an administrator, and that of the role ``hermes``, who needs a password."""
    access = server.directory / "data" / "pg_hba.conf"
    access.write_text("local all postgres trust\nlocal all all scram-sha-256\n")
    administrator = server.create_database("hermes").replace("+psycopg", "")
    with psycopg.connect(administrator, autocommit=True) as connection:
        connection.execute("select pg_reload_conf()")
        connection.execute("create role hermes login password 'first'")
        connection.execute("alter database hermes owner to hermes")
    yield administrator, administrator.replace("//postgres@", "//hermes:first@")


@dataclass
class Installation:
    """What the page is played on."""

    shell: OperatorsShell
    administrator: str
    broker: RedisServer
    provider: Provider
    receiver: Receiver
    ports: tuple[int, int]
    secrets: Path
    played: list[str] = field(default_factory=list)

    def play(self, heading: str) -> str:
        """The commands of a section, with the places that they have here."""
        said = ""
        for block in blocks_below(heading):
            self.played.append(block)
            places = {"/etc/hermes/secrets": self.secrets, "8642": self.ports[0], "8643": self.ports[1]}
            for written, real in places.items():
                block = block.replace(written, str(real))
            said += self.shell(block)
        assert said, f"{heading} has no commands"
        return said

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.administrator) as connection:
            return connection.execute(statement.encode()).fetchall()

    def made_key(self, holder: str) -> dict[str, str]:
        found = re.search(r"^{.*}$", self.shell(f"hermes-worker tenants keys create {holder} --json"), re.MULTILINE)
        assert found
        key: dict[str, str] = json.loads(found[0])
        return key

    def lets_in(self, key: str) -> bool:
        """Whether the API that listens now takes a key."""
        for port in self.ports:
            asked = Request(f"http://127.0.0.1:{port}/v1/runs", headers={"Authorization": f"Bearer {key}"})
            try:
                with urlopen(asked, timeout=30):
                    return True
            except HTTPError as refused:
                assert refused.code == 401
                return False
            except URLError:
                continue
        raise AssertionError("no API listens")


@pytest.fixture
def installation(tmp_path: Path, own_postgres: EmbeddedPostgres) -> Iterator[Installation]:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    with ExitStack() as stack:
        broker = RedisServer(stack.enter_context(directory_of_servers()) / "broker")
        stack.enter_context(running(broker))
        administrator, database_url = stack.enter_context(database(own_postgres))
        provider = Provider(stack.enter_context(ScriptedServer()))
        receiver = Receiver(DELIVERY_SECRETS)
        stack.enter_context(provider.server)
        stack.enter_context(receiver.server)
        for name, value in {
            "HERMES_DATABASE_URL": database_url,
            "HERMES_BROKER_URL": broker.url(),
            "HERMES_API_KEY": "first-key",
            "HERMES_SERVER_KEY": SERVER_KEYS[0],
            "WEBHOOK_DELIVERY_SECRET": DELIVERY_SECRETS[0],
            "HERMES_ENCRYPTION_KEYS": TEXT_KEY,
        }.items():
            (secrets / name).write_text(f"{value}\n")
        ports = (free_port(), free_port())
        environ = {
            "HERMES_SERVER_PORT": str(ports[0]),
            "PATH": f"{find_programs()}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "HERMES_BASE_URL": provider.server.base_url,
            "HERMES_MODEL": "scripted",
            "HERMES_PROVIDER": "custom",
            "HERMES_DELIVERY_ALLOW_PRIVATE_URLS": "true",
            "NEW_API_KEY": "second-key",
            "NEW_DELIVERY_SECRET": DELIVERY_SECRETS[1],
            "NEW_SERVER_KEY": SERVER_KEYS[1],
            "NEW_DATABASE_PASSWORD": "second",
            "NEW_BROKER_PASSWORD": "second",
            "OLD_BROKER_PASSWORD": ODD_PASSWORD,
            "DATABASE_ADMINISTRATOR": administrator,
            "BROKER_ADMINISTRATOR": broker.url().replace("//hermes:", "//administrator:"),
        }
        shell = OperatorsShell(tmp_path, environ)
        stack.callback(shell.close)
        yield Installation(shell, administrator, broker, provider, receiver, ports, secrets)


def test_every_command_of_the_page_works_while_runs_are_at_work(installation: Installation) -> None:
    assert "broken" not in installation.play("Start, replace, stop")
    prompt = script(final="Reviewed.")
    installation.shell(
        f"hermes-worker gateway webhooks add review --prompt '{prompt}' --rate 6000 --secret - <<<{ROUTE_SECRET}"
    )
    ours, others = installation.made_key("traffic"), installation.made_key("ci")
    installation.shell(f"KEY_ID={others['key_id']}")
    target = f"webhook:{installation.receiver.server.base_url.removesuffix('/v1')}/"

    with Traffic(installation.ports, ours["key"], target, ROUTE_SECRET) as traffic:
        traffic.wait_for_more()
        assert re.search(r"^model .*\d", installation.play("Scaling"), re.MULTILINE)
        assert "broken" not in installation.play("Upgrade")
        traffic.wait_for_more()
        installation.play("Rotating every key")
        _rotate_keys_of_others(installation, traffic)
        _rotate_keys_of_the_api(installation, others["key"])
        _rotate_the_server_key(installation, traffic)
        _rotate_passwords_of_servers(installation, traffic)
        _rotate_the_keys_of_texts(installation, traffic)
    assert traffic.failures == []

    accepted = len(traffic.run_ids)
    assert accepted > 20
    ended = "select count(*) from runs where status = 'completed'"
    open_runs = "select run_id, status, exit_reason from runs where status <> 'completed'"
    wait_for(lambda: (installation.rows(ended)[0][0] > accepted and not installation.rows(open_runs)) or None)
    assert installation.provider.refused == 0
    installation.play("When the database is full")
    assert sorted(installation.played) == sorted(blocks_of("docs/operations.md"))


def _rotate_keys_of_others(installation: Installation, traffic: Traffic) -> None:
    installation.play("Keys of others")
    installation.provider.keys.remove("first-key")
    seen = len(installation.receiver.signed_with)
    traffic.wait_for_more()
    wait_for(lambda: len(installation.receiver.signed_with) > seen + 2 or None, saying="for answers")
    assert None not in installation.receiver.signed_with
    assert set(installation.receiver.signed_with[seen + 1 :]) == {DELIVERY_SECRETS[1]}


def _rotate_keys_of_the_api(installation: Installation, before: str) -> None:
    made = re.search(r"(hwk_\S+)", installation.play("Keys of the API"))
    assert made and made[1] != before
    assert installation.lets_in(made[1])
    wait_for(lambda: not installation.lets_in(before) or None, saying="for the revoked key to be refused")


def _rotate_the_server_key(installation: Installation, traffic: Traffic) -> None:
    """The routes take events all the while; afterwards nothing is left that the old key could read."""
    before = installation.rows("select secret from webhook_routes")
    assert "locked" not in installation.play("The server key")
    traffic.wait_for_more()
    assert set(before).isdisjoint(installation.rows("select secret from webhook_routes"))
    assert (installation.lets_in(SERVER_KEYS[0]), installation.lets_in(SERVER_KEYS[1])) == (False, True)
    traffic.route_secret = None
    assert '202 {"status":"accepted","route":"review-2"' in installation.play("Secrets of webhook routes")


def _rotate_passwords_of_servers(installation: Installation, traffic: Traffic) -> None:
    installation.play("The password of the database")
    traffic.wait_for_more()
    users = "select distinct usename from pg_stat_activity where application_name = 'hermes-worker'"
    assert installation.rows(users) == [("hermes_2",)]
    assert installation.rows("select distinct tableowner from pg_tables where schemaname = 'public'") == [("hermes",)]

    before = installation.broker.url()
    installation.play("The password of the broker")
    traffic.wait_for_more()
    with pytest.raises(redis.AuthenticationError), redis.Redis.from_url(before) as client:
        client.ping()
    now = before.replace(quote(ODD_PASSWORD, safe=""), "second")
    with redis.Redis.from_url(now) as client:
        assert client.ping()


def _rotate_the_keys_of_texts(installation: Installation, traffic: Traffic) -> None:
    """Every process writes with the new key, and reads what the old one wrote."""
    used = "select distinct split_part(body, ':', 2) from messages where body is not null"
    before = installation.rows(used)
    assert len(before) == 1
    assert re.search(r"rows changed, \d+ left", installation.play("The keys of texts"))
    traffic.wait_for_more()
    latest = (
        "select split_part(body, ':', 2) from messages where body is not null order by run_pk desc, seq desc limit 1"
    )
    wait_for(lambda: installation.rows(latest) != before or None, saying="for the processes to follow")

    def nothing_is_left() -> bool:
        installation.shell("hermes-worker data encryption reseal")
        return before[0] not in installation.rows(used)

    wait_for(nothing_is_left, saying="for every text to be encrypted anew")
