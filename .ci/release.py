"""Make the files of a release, the same ones whoever makes them: CONTRIBUTING.md says when to call this.

    python .ci/release.py check [--final]   the version is the same everywhere; with --final, it has its date, too
    python .ci/release.py build DIRECTORY   the source archive and the wheel, built twice and compared, and their SBOM

Needs the extra "test". Nothing is fetched and nothing is uploaded.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "hermes-worker"
PACKAGES = ("hermes_worker", "scheduler")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")
APART = frozenset({"typescript", "refunds", "hermes-acme"})
"""Folders that are packages of their own, of npm (``.ci/typescript_client.py``) or of Python, and no part of these
archives."""
VERSION = re.compile(r'^__version__ = "(\d+\.\d+\.\d+)"$', re.MULTILINE)
RELEASE = re.compile(r"^## \[(?P<version>[^]]+)\] - (?P<date>.+)$", re.MULTILINE)
COPIES = {
    "compose/Dockerfile": r"^ARG VERSION=(.+)$",
    "compose/compose.yaml": r"image: \$\{\w+:-hermes-worker:([0-9.]+)",
    "compose/.env.example": r"^# \w*IMAGE=hermes-worker:([0-9.]+)",
    "examples/fleet/compose.yaml": r"image: \$\{\w+:-hermes-worker:([0-9.]+)",
    "docs/guides/fleet-in-kubernetes.md": r"hermes-worker:(\d+\.\d+\.\d+)",
    "k8s/base/kustomization.yaml": r"newTag: (.+)$",
    "k8s/components/flower/kustomization.yaml": r"newTag: (.+)$",
    "k8s/components/browser/kustomization.yaml": r"newTag: (.+)$",
    "k8s/components/gateway/kustomization.yaml": r"newTag: (.+)$",
    "k8s/components/mcp-host/kustomization.yaml": r"newTag: (.+)$",
    "k8s/overlays/production/kustomization.yaml": r"newTag: (.+)$",
    "k8s/helm/hermes-worker/Chart.yaml": r"^(?:version|appVersion): (.+)$",
    "k8s/helm/hermes-worker/values-production.yaml": r"tag: (.+)$",
}
"""Where else the version stands, because what reads these files cannot ask the package."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check").add_argument("--final", action="store_true")
    commands.add_parser("build").add_argument("directory", type=Path)
    chosen = parser.parse_args()
    if complaints := disagreements(is_final=getattr(chosen, "final", False)):
        sys.exit("\n".join(complaints))
    if chosen.command == "check":
        print(f"{NAME} {version()}")
        return
    for path in build(chosen.directory):
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")


# --- the version ---


def version() -> str:
    found = VERSION.search((ROOT / "hermes_worker/__init__.py").read_text(encoding="utf-8"))
    if found is None:
        sys.exit("hermes_worker/__init__.py has no __version__ of three numbers")
    return found[1]


def disagreements(*, is_final: bool) -> list[str]:
    """Which files name another version than the package; with ``is_final`` also what keeps it from being released."""
    expected, said = version(), []
    newest = RELEASE.search((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if newest is None or newest["version"] != expected:
        said.append(f"CHANGELOG.md begins with {newest and newest['version']}, not {expected}")
    elif is_final and not re.fullmatch(r"\d{4}-\d\d-\d\d", newest["date"]):
        said.append(f"CHANGELOG.md: {expected} has no date yet, but {newest['date']!r}")
    for name, pattern in COPIES.items():
        found = re.findall(pattern, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        said += [f"{name} names {other}, not {expected}" for other in found if other.strip() != expected]
        if not found:
            said.append(f"{name} names no version where {pattern!r} is looked for")
    return said


# --- the archives ---


def build(directory: Path) -> list[Path]:
    """Two builds in two places; whoever compares finds no difference. Returns what lies in ``directory`` then."""
    epoch = _epoch()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        one, other = _built(Path(first), epoch), _built(Path(second), epoch)
        for each in one:
            if each.read_bytes() != (other[0].parent / each.name).read_bytes():
                sys.exit(f"{each.name} is not the same when it is built twice")
            _require_contents(each)
        directory.mkdir(parents=True, exist_ok=True)
        made = [Path(shutil.copy(each, directory)) for each in one]
    from sbom import sbom  # beside this file; it needs libraries that "check" can do without

    bom = directory / f"{NAME}-{version()}.cdx.json"
    bom.write_text(sbom(version(), made, epoch), encoding="utf-8")
    return [*made, bom]


def _epoch() -> int:
    """The time that everything in the archives has: SOURCE_DATE_EPOCH, else that of the commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    told = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True)
    return int(told.stdout)


def _built(place: Path, epoch: int) -> list[Path]:
    """From a copy of the sources in ``place`` that holds nothing else, with the same permissions everywhere."""
    source, made = place / f"{NAME}-{version()}", place / "made"
    source.mkdir()
    made.mkdir()
    for name in SOURCES:
        shutil.copyfile(ROOT / name, source / name)
    for folder in (*PACKAGES, "examples"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", *APART))
    for path in source.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for what in ("build_sdist", "build_wheel"):
        run_backend(what, source, made, epoch)
    for archive in made.glob("*.tar.gz"):
        _repack(archive, epoch)
    return sorted(made.iterdir())


def run_backend(what: str, source: Path, made: Path, epoch: int) -> None:
    """Have setuptools build the project in ``source`` into ``made``: ``what`` is a hook of PEP 517. Ends the program
    when that fails."""
    environ = {"PATH": os.environ["PATH"], "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    call = f"import setuptools.build_meta as backend, sys; backend.{what}(sys.argv[1])"
    command = [sys.executable, "-c", call, str(made)]
    done = subprocess.run(command, cwd=source, env=environ, umask=0o022, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)


def _repack(archive: Path, epoch: int) -> None:
    """setuptools writes the time and the user of the build into source archives."""
    packed = io.BytesIO()
    with tarfile.open(archive) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    archive.write_bytes(gzip.compress(packed.getvalue(), compresslevel=9, mtime=epoch))


def _require_contents(archive: Path) -> None:
    """Everything of the packages is inside, and nothing of the tests and of this machine."""
    if archive.suffix == ".whl":
        names = set(zipfile.ZipFile(archive).namelist())
    else:
        with tarfile.open(archive) as opened:
            names = {member.name.partition("/")[2] for member in opened.getmembers() if member.isfile()}
    missing = sorted(_wanted() - names)
    unwanted = sorted(name for name in names if name.split("/")[0] in ("tests", "benchmarks", ".ci", "docs"))
    if missing or unwanted:
        sys.exit(f"{archive.name} lacks {missing[:5]} and holds {unwanted[:5]}")


def _wanted() -> set[str]:
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*"))
    return {
        str(path.relative_to(ROOT))
        for path in paths
        if path.is_file() and not (APART | {"__pycache__"}) & {*path.parts}
    }


if __name__ == "__main__":
    main()
