"""Servers of object storage that the tests start: moto's, and s3rver of npm as a second reading of the protocol.

Real object storage is tried nowhere.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError

import pytest

from hermes_worker.features.object_storage.bucket_files import Bucket, BucketAccount
from support.patience import PATIENCE_S

BUCKET = "hermes-files"


@contextmanager
def moto_server() -> Iterator[str]:
    """The address of moto's server, with an empty bucket."""
    port = _find_port()
    program = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    with _running([sys.executable, "-c", program], port) as endpoint:
        yield endpoint


@contextmanager
def s3rver(directory: Path) -> Iterator[str]:
    """The address of s3rver with an empty bucket. ``HERMES_TEST_S3RVER`` names a directory in which somebody has said
    ``npm install s3rver``."""
    program = Path(os.environ.get("HERMES_TEST_S3RVER", ".")) / "node_modules" / ".bin" / "s3rver"
    if shutil.which("node") is None or not program.exists():
        pytest.skip("HERMES_TEST_S3RVER names no directory with 's3rver', or there is no node")
    port = _find_port()
    argv = [str(program), "--directory", str(directory), "--address", "127.0.0.1", "--port", str(port), "--silent"]
    with _running(argv, port) as endpoint:
        yield endpoint


def build_account(endpoint: str) -> BucketAccount:
    """An account that both servers let in."""
    return BucketAccount(bucket=BUCKET, endpoint=endpoint, region="us-east-1", access_key="S3RVER", secret_key="S3RVER")


@contextmanager
def _running(argv: Sequence[str], port: int) -> Iterator[str]:
    endpoint = f"http://127.0.0.1:{port}"
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not _answers(endpoint):
                assert running.poll() is None and time.monotonic() < deadline, "the server of object storage is not up"
                time.sleep(0.1)
            Bucket(build_account(endpoint))._client.create_bucket(Bucket=BUCKET)
            yield endpoint
        finally:
            running.terminate()


def _answers(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(endpoint, timeout=5):
            return True
    except HTTPError:
        return True
    except OSError:
        return False


def _find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
