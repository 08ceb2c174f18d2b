"""A real PgBouncer before a real PostgreSQL, for tests."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa

from hermes_worker.local.process import ServerProcess

PROGRAM = shutil.which("pgbouncer", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin")))


@cache
def can_keep_statements() -> bool:
    """Whether this PgBouncer is 1.21 or later."""
    if PROGRAM is None:
        return False
    told = subprocess.run([PROGRAM, "-V"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"PgBouncer (\d+)\.(\d+)", told)
    assert version, told
    return (int(version[1]), int(version[2])) >= (1, 21)


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def pgbouncer(server_url: str, *, mode: str, statements_kept: int = 0) -> Iterator[str]:
    """SQLAlchemy URL of the database at ``server_url``, a socket's, behind PgBouncer in the pool mode ``mode``, which
    keeps so many prepared statements if it can."""
    assert PROGRAM is not None, "install PgBouncer: apt-get install pgbouncer"
    server = sa.make_url(server_url)
    directory = Path(tempfile.mkdtemp(prefix="hermes-pgb-"))
    port = free_port()
    (directory / "users.txt").write_text('"postgres" ""\n')
    configuration = directory / "pgbouncer.ini"
    configuration.write_text(
        f"[databases]\n* = host={server.query['host']} port=5432\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = trust\nauth_file = {directory / 'users.txt'}\n"
        f"pool_mode = {mode}\ndefault_pool_size = 8\nmax_client_conn = 500\n"
        + (f"max_prepared_statements = {statements_kept}\n" if can_keep_statements() else "")
    )
    process = ServerProcess("PgBouncer", directory / "pgbouncer.log")
    # Only who runs the server may open its socket, and PgBouncer does not run as root.
    owner = Path(str(server.query["host"])).stat()
    for path in (directory, *directory.iterdir()):
        os.chown(path, owner.st_uid, owner.st_gid)
    becomes = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    try:
        process.start([PROGRAM, str(configuration)], env=dict(os.environ), **becomes)
        process.wait_until(lambda: _answers(port), 30)
        yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/{quote(server.database or '')}"
    finally:
        process.stop((signal.SIGTERM, 5.0))
        shutil.rmtree(directory, ignore_errors=True)


def _answers(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
