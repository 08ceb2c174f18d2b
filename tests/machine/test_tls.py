"""TLS to Debian's PostgreSQL and Redis, verified on both sides, with passwords that have every odd character."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from support.certificates import Authority, CertificateFiles
from support.debian_postgres import DebianPostgres, directory_of_postgres
from support.redis_servers import ODD_PASSWORD, tls_query, watched
from support.rig import rig_on, sink_call

from hermes_worker.broker.queue import build_redis_client
from hermes_worker.cli.doctor import _check_broker, _check_database
from hermes_worker.cli.doctor_findings import Grade
from hermes_worker.core.run import RunStatus
from hermes_worker.settings import load_settings
from hermes_worker.store.build import build_database

pytestmark = pytest.mark.machine

RUNS = 10
ACCESS = ("local all all trust", "hostssl all hermes 127.0.0.1/32 scram-sha-256 clientcert=verify-full")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def client(authority: Authority) -> CertificateFiles:
    """Whose common name is the database's user."""
    return authority.files("client.test", common_name="hermes")


@pytest.fixture(scope="module")
def server(authority: Authority) -> CertificateFiles:
    return authority.files("localhost", "127.0.0.1")


@pytest.fixture(scope="module")
def postgres(server: CertificateFiles) -> Iterator[DebianPostgres]:
    with directory_of_postgres() as directory:
        postgres = DebianPostgres(directory / "server")
        postgres.initialise(ACCESS)
        for name, path in {"ca": server.authority, "certificate": server.certificate, "key": server.key}.items():
            copy = Path(shutil.copy(path, postgres.directory / f"{name}.pem"))
            copy.chmod(0o600)
            postgres.own(copy)
        postgres.configure(
            "ssl = on",
            f"ssl_ca_file = {postgres.directory / 'ca.pem'}",
            f"ssl_cert_file = {postgres.directory / 'certificate.pem'}",
            f"ssl_key_file = {postgres.directory / 'key.pem'}",
        )
        postgres.start()
        try:
            password = ODD_PASSWORD.replace("'", "''")
            postgres.execute(f"create role hermes login password '{password}'")
            postgres.execute("grant create on schema public to hermes")
            yield postgres
        finally:
            postgres.stop()


def database_url(
    postgres: DebianPostgres, client: CertificateFiles, authority: Path, *, has_certificate: bool = True
) -> str:
    shown = f"&sslcert={client.certificate}&sslkey={client.key}" if has_certificate else "&sslcert=none&sslkey=none"
    who = f"hermes:{quote(ODD_PASSWORD, safe='')}"
    where = f"localhost:{postgres.port}/postgres"
    return f"postgresql://{who}@{where}?sslmode=verify-full&sslrootcert={authority}{shown}"


def test_a_fleet_works_over_tls_to_both(
    tmp_path: Path, postgres: DebianPostgres, client: CertificateFiles, server: CertificateFiles
) -> None:
    debians = shutil.which("redis-server")
    assert debians, "install Debian's redis-server: apt-get install redis-server"
    with watched(binary=Path(debians), tls=server) as group:
        files = {name: tmp_path / name for name in ("database", "broker")}
        files["database"].write_text(database_url(postgres, client, client.authority))
        files["broker"].write_text(group.url.replace(tls_query(server), tls_query(client)))
        given = {f"HERMES_{name.upper()}_URL_FILE": str(path) for name, path in files.items()}
        settings = load_settings({"HERMES_HOME": str(tmp_path / "home"), **given})
        assert settings.database.url and settings.broker.url
        with rig_on(tmp_path, database_url=settings.database.url, broker_url=settings.broker.url) as rig:
            run_ids = [rig.submit([{"calls": [sink_call("once", f"{number}")]}]) for number in range(RUNS)]
            assert {view.status for view in rig.ended(*run_ids)} == {RunStatus.COMPLETED}
            assert rig.broken_invariants() == []
        database = build_database(settings)
        with database.read() as connection:
            subject = connection.scalar(sa.text("select client_dn from pg_stat_ssl where pid = pg_backend_pid()"))
        database.close()
        assert "CN=hermes" in subject.replace(" ", "")
        assert _check_database(settings)[0] is Grade.OK
        assert _check_broker(settings)[0] is Grade.OK
        plain = build_redis_client(group.primary.url().replace("rediss://", "redis://"))
        with pytest.raises(Exception, match=r"(?i)connection|reset|closed"):
            plain.ping()


def test_whom_nobody_vouches_for_is_told_apart(
    tmp_path: Path, postgres: DebianPostgres, client: CertificateFiles
) -> None:
    strangers = Authority(tmp_path / "strangers").path
    wrong = database_url(postgres, client, strangers)
    bare = database_url(postgres, client, client.authority, has_certificate=False)
    for url, words in ((wrong, "certificate verify failed"), (bare, "valid client certificate")):
        settings = load_settings({"HERMES_HOME": str(tmp_path / "home"), "HERMES_DATABASE_URL": url})
        grade, said = _check_database(settings)
        assert grade is Grade.BROKEN
        assert words in said
        assert "start the server or change HERMES_DATABASE_URL" in said
        assert quote(ODD_PASSWORD, safe="") not in said
