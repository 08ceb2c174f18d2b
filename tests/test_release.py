"""What a release is made of: the version in all its places, archives that are the same again, and their SBOM."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from hermes_worker import __version__

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EPOCH = "1700000000"


def lines_of_the_document() -> list[list[str]]:
    """The commands of CONTRIBUTING.md, "Releasing", that are run here: those that need neither a key nor a registry."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Releasing\n")[2]
    return [shlex.split(line) for block in _BLOCK.findall(text) for line in block.splitlines()]


def release(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / ".ci/release.py"), *arguments]
    environ = {"PATH": os.environ["PATH"], "SOURCE_DATE_EPOCH": _EPOCH, "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, timeout=110)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the document's commands leave."""
    place = tmp_path_factory.mktemp("release") / "dist"
    commands = lines_of_the_document()
    assert commands, "CONTRIBUTING.md shows no command to release with"
    for program, script, *arguments in commands:
        assert (program, script) == ("python", ".ci/release.py")
        done = release(*[str(place) if word == "dist" else word for word in arguments])
        assert done.returncode == 0, done.stderr
    return place


def test_the_version_is_the_same_everywhere() -> None:
    done = release("check")
    assert (done.returncode, done.stdout) == (0, f"hermes-worker {__version__}\n"), done.stderr


def test_a_forgotten_place_is_named(tmp_path: Path) -> None:
    for name in ("compose", "k8s", "docs", "examples", ".ci", "CHANGELOG.md"):
        (tmp_path / name).symlink_to(ROOT / name) if name != ".ci" else (tmp_path / name).mkdir()
    (tmp_path / ".ci/release.py").write_text((ROOT / ".ci/release.py").read_text(encoding="utf-8"))
    (tmp_path / "hermes_worker").mkdir()
    (tmp_path / "hermes_worker/__init__.py").write_text('__version__ = "9.9.9"\n')
    done = release("check", root=tmp_path)
    assert done.returncode == 1
    assert f"CHANGELOG.md begins with {__version__}, not 9.9.9" in done.stderr
    assert done.stderr.count("not 9.9.9") >= 10


@pytest.mark.nightly
def test_the_archives_hold_the_packages_and_no_tests(built: Path) -> None:
    wheel = zipfile.ZipFile(built / f"hermes_worker-{__version__}-py3-none-any.whl")
    names = wheel.namelist()
    assert "hermes_worker/store/migrations/versions/0100_first_schema.sqlite.sql" in names
    assert "scheduler/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs"))]
    assert f"Version: {__version__}\n" in wheel.read(f"hermes_worker-{__version__}.dist-info/METADATA").decode()
    with tarfile.open(built / f"hermes_worker-{__version__}.tar.gz") as source:
        members = source.getmembers()
    assert {(member.mtime, member.uid, member.uname) for member in members} == {(int(_EPOCH), 0, "")}
    assert not [member.name for member in members if "/tests/" in member.name]


@pytest.mark.nightly
def test_the_bill_of_materials_names_what_is_needed(built: Path) -> None:
    """CycloneDX's own validator looked at it when it was made."""
    document = json.loads((built / f"hermes-worker-{__version__}.cdx.json").read_text(encoding="utf-8"))
    assert document["specVersion"] == "1.6"
    assert document["metadata"]["component"]["version"] == __version__
    assert len(document["metadata"]["component"]["externalReferences"]) == 2
    names = {each["name"] for each in document["components"]}
    assert {"celery", "sqlalchemy", "psycopg", "flower", "botocore"} <= names
    assert not {"pytest", "hypothesis", "mypy"} & names
    needs = {each["ref"]: set(each.get("dependsOn", ())) for each in document["dependencies"]}
    ours = needs[f"hermes-worker@{__version__}"]
    assert any(ref.startswith("celery@") for ref in ours)
    assert set().union(*needs.values()) <= set(needs)
