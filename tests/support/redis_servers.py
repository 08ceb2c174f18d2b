"""Redis or Valkey servers on ports of this machine, as other people run them: replicas, Sentinels, clusters, TLS."""

from __future__ import annotations

import hashlib
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import redis

from hermes_worker.broker.rights import USER, build_acl_rules
from hermes_worker.local.process import ServerProcess
from hermes_worker.local.valkey import find_server
from support.certificates import CertificateFiles
from support.pgbouncer import free_port

ADMINISTRATOR = "administrator"
ODD_PASSWORD = "p@:/%#? ä€'\"\\x"
"""Every character that means something in a URL, and some that do in a configuration or in UTF-8."""
SERVICE = "hermes-broker"
SENTINELS_PASSWORD = "a sentinel's own"


class RedisServer:
    """One server, or one Sentinel, in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        lines: Sequence[str] = (),
        *,
        binary: Path | None = None,
        tls: CertificateFiles | None = None,
        is_sentinel: bool = False,
    ) -> None:
        self.port = free_port()
        self.tls = tls
        self._binary = binary or find_server().binary
        self._is_sentinel = is_sentinel
        directory.mkdir()
        self._configuration = directory / "server.conf"
        ports = [f"port {self.port}"] if tls is None else ["port 0", f"tls-port {self.port}", *_tls_lines(tls)]
        text = [*ports, "bind 127.0.0.1", f"dir {directory}", *([] if is_sentinel else _data_lines()), *lines]
        self._configuration.write_text("\n".join(text) + "\n")
        self._process = ServerProcess("a Redis server", directory / "server.log")

    def start(self) -> None:
        mode = ["--sentinel"] if self._is_sentinel else []
        self._process.start([str(self._binary), str(self._configuration), *mode], env={})
        self._process.wait_until(self._answers, 30)

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        self._process.stop((signal.SIGTERM, 3.0))

    def url(self, query: str = "") -> str:
        scheme, more = ("redis", []) if self.tls is None else ("rediss", [tls_query(self.tls)])
        options = "&".join([*more, *filter(None, [query])])
        return f"{scheme}://{USER}:{quote(ODD_PASSWORD, safe='')}@localhost:{self.port}/0{'?' * bool(options)}{options}"

    def administrator(self) -> redis.Redis:
        login = (
            {"password": SENTINELS_PASSWORD}
            if self._is_sentinel
            else {"username": ADMINISTRATOR, "password": ODD_PASSWORD}
        )
        tls = _tls_options(self.tls) if self.tls is not None else {}
        return redis.Redis(host="localhost", port=self.port, decode_responses=True, **login, **tls)  # type: ignore[arg-type]

    def _answers(self) -> bool:
        try:
            with self.administrator() as client:
                return bool(client.ping())
        except (redis.RedisError, OSError):
            return False


def _tls_lines(tls: CertificateFiles) -> list[str]:
    return [
        f"tls-ca-cert-file {tls.authority}",
        f"tls-cert-file {tls.certificate}",
        f"tls-key-file {tls.key}",
        "tls-auth-clients yes",
        "tls-replication yes",
    ]


def tls_query(tls: CertificateFiles) -> str:
    """The options of a URL for a client with a certificate."""
    return f"ssl_ca_certs={tls.authority}&ssl_certfile={tls.certificate}&ssl_keyfile={tls.key}"


def _tls_options(tls: CertificateFiles) -> dict[str, object]:
    names = {"ssl_ca_certs": tls.authority, "ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
    return {"ssl": True, **{name: str(path) for name, path in names.items()}}


def _data_lines() -> list[str]:
    digest = hashlib.sha256(ODD_PASSWORD.encode()).hexdigest()
    return [
        'save ""',
        "appendonly no",
        "repl-diskless-sync-delay 0",
        "user default off",
        f"user {USER} on #{digest} {build_acl_rules((7, 0))}",
        f"user {ADMINISTRATOR} on #{digest} ~* &* +@all",
        f"masteruser {ADMINISTRATOR}",
        f"masterauth {in_configuration(ODD_PASSWORD)}",
    ]


def in_configuration(text: str) -> str:
    """A word of a server's configuration."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in text.encode()) + '"'


def sentinel_lines(primary_port: int) -> list[str]:
    return [
        f'requirepass "{SENTINELS_PASSWORD}"',
        f"sentinel monitor {SERVICE} 127.0.0.1 {primary_port} 1",
        f"sentinel auth-user {SERVICE} {ADMINISTRATOR}",
        f"sentinel auth-pass {SERVICE} {in_configuration(ODD_PASSWORD)}",
        f"sentinel down-after-milliseconds {SERVICE} 1000",
        f"sentinel failover-timeout {SERVICE} 3000",
    ]


@dataclass(frozen=True)
class Watched:
    """A primary, its replica and the Sentinel that watches both."""

    primary: RedisServer
    replica: RedisServer
    sentinel: RedisServer

    @property
    def url(self) -> str:
        """With a Sentinel in front that does not exist."""
        own = f"sentinel_password={quote(SENTINELS_PASSWORD)}"
        scheme, options = "redis+sentinel", own
        if self.sentinel.tls is not None:
            scheme, options = "rediss+sentinel", f"{own}&{tls_query(self.sentinel.tls)}"
        who = f"{USER}:{quote(ODD_PASSWORD, safe='')}"
        return f"{scheme}://{who}@localhost:1,localhost:{self.sentinel.port}/{SERVICE}/0?{options}"


@contextmanager
def directory_of_servers() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="hermes-redis-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def running(*servers: RedisServer) -> Iterator[None]:
    try:
        for server in servers:
            server.start()
        yield
    finally:
        for server in servers:
            server.stop()


@contextmanager
def watched(*, binary: Path | None = None, tls: CertificateFiles | None = None) -> Iterator[Watched]:
    """All three, with the replica in step and known to the Sentinel."""
    with directory_of_servers() as directory:
        primary = RedisServer(directory / "primary", binary=binary, tls=tls)
        follows = [f"replicaof 127.0.0.1 {primary.port}"]
        replica = RedisServer(directory / "replica", follows, binary=binary, tls=tls)
        lines = sentinel_lines(primary.port)
        sentinel = RedisServer(directory / "sentinel", lines, binary=binary, tls=tls, is_sentinel=True)
        with running(primary, replica, sentinel):
            yield Watched(primary, replica, sentinel)
