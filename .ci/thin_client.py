"""Build the wheel of the thin client, from the client of this tree: CONTRIBUTING.md says when to call this.

    python .ci/thin_client.py DIRECTORY

``hermes-worker-client`` holds the modules that the Python client needs, under the name ``hermes_worker_client``, so it
can be installed beside the server or without it. It is for programs that only ask a server: it brings no settings, so
the key of a server of this machine is not found by itself. Needs the extra "test". Nothing is fetched.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

from release import ROOT, run_backend, version

NAME, PACKAGE = "hermes-worker-client", "hermes_worker_client"
NEEDS = ("httpx2", "pydantic", "typing_extensions")
_OURS = re.compile(r"\bhermes_worker\.(?=\w)|\bhermes_worker(?= import )")
_EPOCH = 315_532_800
"""1980: the oldest time that an archive can give its files."""
_CLIENT = "hermes_worker.client"
_FUTURE = "from __future__ import annotations\n"
_LEFT_OUT = ("hermes_worker.settings", "hermes_worker.observe")
"""What the client imports where it is installed with the server, and does without elsewhere."""


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(build(Path(sys.argv[1])))


def build(directory: Path) -> Path:
    """Write the wheel into ``directory`` and return its path. Equal sources give equal bytes."""
    with tempfile.TemporaryDirectory() as folder:
        place, made = Path(folder) / "source", Path(folder) / "made"
        made.mkdir()
        lay_out(place)
        run_backend("build_wheel", place, made, _EPOCH)
        directory.mkdir(parents=True, exist_ok=True)
        (wheel,) = made.iterdir()
        return Path(shutil.copy(wheel, directory))


def lay_out(place: Path) -> None:
    """Write the sources of the distribution into ``place``: the package and its pyproject.toml."""
    for module in needed_modules():
        source = _path_of(module)
        target = place / PACKAGE / source.relative_to(ROOT / "hermes_worker")
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        if module == _CLIENT:
            # What the client exports is what the package exports. Modules of the client ask for the version.
            target = place / PACKAGE / "__init__.py"
            text = text.replace(_FUTURE, f'{_FUTURE}\n__version__ = "{version()}"\n', 1)
        target.write_text(_OURS.sub(lambda found: found[0].replace("hermes_worker", PACKAGE), text), encoding="utf-8")
    for folder in {path.parent for path in (place / PACKAGE).rglob("*.py")}:
        (folder / "__init__.py").touch()
    (place / PACKAGE / "py.typed").touch()
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    needs = [one for one in whole if re.split(r"[<>=!~\[ ]", one)[0].replace("-", "_") in NEEDS]
    if len(needs) != len(NEEDS):
        sys.exit(f"pyproject.toml does not name all of {', '.join(NEEDS)}: it names {', '.join(needs)}")
    (place / "pyproject.toml").write_text(
        f'[build-system]\nrequires = ["setuptools>=77"]\nbuild-backend = "setuptools.build_meta"\n\n'
        f'[project]\nname = "{NAME}"\nversion = "{version()}"\nrequires-python = ">=3.11"\n'
        f'description = "A client of the HTTP API of Hermes worker"\ndependencies = {needs!r}\n\n'
        f'[tool.setuptools.packages.find]\ninclude = ["{PACKAGE}*"]\n\n'
        f'[tool.setuptools.package-data]\n{PACKAGE} = ["py.typed"]\n',
        encoding="utf-8",
    )


def needed_modules() -> list[str]:
    """Return the modules that the client imports, directly or by others, in the order of their names."""
    wanted, found = [_CLIENT, f"{_CLIENT}.awaiting"], set[str]()
    while wanted:
        module = wanted.pop()
        if module not in found:
            found.add(module)
            wanted += _imports_of(module)
    return sorted(found)


def _imports_of(module: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(_path_of(module).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("hermes_worker."):
            continue
        name = str(node.module)
        if not name.startswith(_LEFT_OUT):
            inner = [f"{name}.{alias.name}" for alias in node.names]
            found += [each if _path_of(each).exists() else name for each in inner]
    return found


def _path_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() and module == _CLIENT else path.with_suffix(".py")


if __name__ == "__main__":
    main()
