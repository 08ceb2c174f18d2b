"""The wheel of the thin client: built from this tree, installed by itself, and asked to do its work."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from serving import Served

ROOT = Path(__file__).resolve().parents[2]
_USE = """
import sys
sys.modules["hermes_worker"] = None  # importing the server's package fails
from hermes_worker_client import AsyncHermesClient, HermesClient, RefusedError

assert AsyncHermesClient.memory

with HermesClient(sys.argv[1], api_key=sys.argv[2]) as client:
    [changed] = client.change_memory("user", [{"action": "add", "content": "likes tea"}]).changed
    assert [entry.content for entry in client.memory().user.entries] == ["likes tea"]
    assert client.run(client.submit("hello"))["status"]
    try:
        client.run("run_doesnotexist")
    except RefusedError as error:
        assert error.status == 404
try:
    HermesClient(sys.argv[1]).memory()  # no settings, so no key is found
except RefusedError as error:
    assert error.status == 401
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("thin")
    subprocess.run([sys.executable, ROOT / ".ci" / "thin_client.py", folder], check=True)
    (built,) = folder.iterdir()
    return built


def test_the_thin_client_works_without_the_server(wheel: Path, api: Served, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    done = subprocess.run([sys.executable, "-c", _USE, api.url, api.key], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_wheel_holds_a_package_of_its_own_and_nothing_of_the_server(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"hermes_worker_client"}
    assert not {"store", "settings"} & {name.split("/")[1] for name in names}
    texts = [zipfile.ZipFile(wheel).read(name).decode() for name in names if name.endswith(".py")]
    assert not any("from hermes_worker." in text or "import hermes_worker." in text for text in texts)
