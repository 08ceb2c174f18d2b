"""The API over TLS, with certificates of an authority that the test makes."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from serving import Served
from support.certificates import Authority, CertificateFiles

from hermes_worker.cli.doctor import _check_api
from hermes_worker.cli.doctor_findings import Grade
from hermes_worker.cli.stack import _build_health_check
from hermes_worker.client import HermesClient
from hermes_worker.core.errors import ConfigurationError, UnavailableError
from hermes_worker.settings import ServerSettings, Settings
from hermes_worker.settings.tls import build_server_context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> CertificateFiles:
    """Of the server; not for the address that it listens on, but for the name that its clients use."""
    return authority.files("localhost")


def with_tls(settings: Settings, files: CertificateFiles, *, client_ca: Path | None = None) -> Settings:
    tls = {"tls_certificate": files.certificate, "tls_key": files.key, "tls_client_ca": client_ca}
    return replace(settings, server=replace(settings.server, **tls))


def submits(api: Served, context: ssl.SSLContext | None) -> str:
    client = HermesClient(api.url.replace("127.0.0.1", "localhost"), api_key=api.key, tls=context, patience_s=0.0)
    try:
        return client.submit("hello")
    finally:
        client.close()


def test_the_api_speaks_https_to_clients_that_know_its_authority(
    serve: Callable[..., Served], settings: Settings, files: CertificateFiles
) -> None:
    api = serve(with_tls(settings, files))
    assert api.url.startswith("https://")
    assert submits(api, ssl.create_default_context(cafile=files.authority)).startswith("run_")
    with pytest.raises(UnavailableError, match=r"(?i)certificate"):
        submits(api, None)


def test_commands_of_the_same_machine_know_it_by_its_certificate(
    serve: Callable[..., Served], settings: Settings, files: CertificateFiles, authority: Authority
) -> None:
    chosen = with_tls(settings, files)
    api = serve(chosen)
    here = replace(chosen, server=replace(chosen.server, port=int(api.url.rpartition(":")[2])))
    assert _build_health_check(here.server)()
    grade, text = _check_api(here)
    assert (grade is not Grade.BROKEN, "answers" in text) == (True, True), text
    another = with_tls(here, authority.files("another"))
    assert not _build_health_check(another.server)()


def test_where_client_certificates_are_asked_for_only_they_get_in(
    serve: Callable[..., Served], settings: Settings, files: CertificateFiles, authority: Authority
) -> None:
    api = serve(with_tls(settings, files, client_ca=files.authority))
    knows = ssl.create_default_context(cafile=files.authority)
    with pytest.raises(UnavailableError):
        submits(api, knows)
    mine = authority.files("client")
    knows.load_cert_chain(mine.certificate, mine.key)
    assert submits(api, knows).startswith("run_")


def served_certificate(api: Served, authority: Path) -> bytes:
    """What the API shows to a new connection."""
    knows = ssl.create_default_context(cafile=authority)
    address = ("127.0.0.1", int(api.url.rpartition(":")[2]))
    with socket.create_connection(address, 30) as plain, knows.wrap_socket(plain, server_hostname="localhost") as tls:
        return tls.getpeercert(binary_form=True) or b""


def test_a_renewed_certificate_is_shown_to_new_connections_and_old_ones_go_on(
    serve: Callable[..., Served], settings: Settings, tmp_path: Path
) -> None:
    mine = Authority(tmp_path / "mine").files("localhost")
    others = Authority(tmp_path / "others").files("localhost")
    first, second = (ssl.PEM_cert_to_DER_cert(each.certificate.read_text()) for each in (mine, others))
    told: list[ConfigurationError | None] = []
    api = serve(with_tls(settings, mine), tell=told.append)
    assert api.http.get("/health").status_code == 200
    assert served_certificate(api, mine.authority) == first

    shutil.copy(others.certificate, mine.certificate)  # and not yet the key, as somebody who copies two files
    assert served_certificate(api, mine.authority) == first
    assert "cannot use its certificate" in str(told.pop())
    served_certificate(api, mine.authority)
    assert told == []  # said once

    shutil.copy(others.key, mine.key)
    assert served_certificate(api, others.authority) == second
    assert told == [None]
    assert api.http.get("/health").status_code == 200  # over the connection of before


def test_whom_clients_must_know_can_be_replaced_while_it_serves(
    serve: Callable[..., Served], settings: Settings, tmp_path: Path, files: CertificateFiles
) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    trusted = Path(shutil.copy(old.path, tmp_path / "trusted.pem"))
    api = serve(with_tls(settings, files, client_ca=trusted))

    def gets_in(issuer: Authority) -> bool:
        shown = issuer.files("client")
        knows = ssl.create_default_context(cafile=files.authority)
        knows.load_cert_chain(shown.certificate, shown.key)
        try:
            return submits(api, knows).startswith("run_")
        except UnavailableError:
            return False

    assert (gets_in(old), gets_in(new)) == (True, False)
    shutil.copy(new.path, trusted)
    assert (gets_in(old), gets_in(new)) == (False, True)


def test_files_that_cannot_be_used_are_named(tmp_path: Path, files: CertificateFiles, authority: Authority) -> None:
    missing = ServerSettings(tls_certificate=tmp_path / "none.pem")
    with pytest.raises(ConfigurationError, match=r"cannot use its certificate .*none\.pem.*No such file"):
        build_server_context(missing)
    others = ServerSettings(tls_certificate=files.certificate, tls_key=authority.files("other").key)
    with pytest.raises(ConfigurationError, match=r"cannot use its certificate"):
        build_server_context(others)
    with pytest.raises(ConfigurationError, match=r"need server\.tls_certificate"):
        build_server_context(ServerSettings(tls_key=files.key))
