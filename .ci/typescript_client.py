"""Build the npm package of the TypeScript client, from the sources and the API's document of this tree:
CONTRIBUTING.md says when to call this.

    python .ci/typescript_client.py DIRECTORY [--modules NODE_MODULES]

``DIRECTORY`` gets the package, ready for ``npm publish``. Types and operations are generated and not checked in: they
are thirty times the hand-written part, and every change of the API would change them. Needs the extra "test", and Node
with the package's ``devDependencies``: those in NODE_MODULES, or ``npm install`` fetches them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from release import ROOT, version

SOURCES = ROOT / "hermes_worker" / "client" / "typescript"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--modules", type=Path)
    chosen = parser.parse_args()
    lay_out(chosen.directory)
    if chosen.modules is None:
        _run(chosen.directory, "npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock")
    else:
        (chosen.directory / "node_modules").symlink_to(chosen.modules.resolve())
    for program in ("openapi-ts", "tsc"):
        _run(chosen.directory, str((chosen.directory / "node_modules/.bin" / program).absolute()))
    print(chosen.directory)


def lay_out(directory: Path) -> None:
    """Write what the package is built from: the sources with the version, the licence and the API's document."""
    sys.path.insert(0, str(ROOT / "docs"))
    from make_reference import openapi_document

    from hermes_worker.api.document import to_common_version

    shutil.copytree(SOURCES, directory, dirs_exist_ok=True)
    shutil.copyfile(ROOT / "LICENSE", directory / "LICENSE")
    described = directory / "package.json"
    package = json.loads(described.read_text(encoding="utf-8")) | {"version": version()}
    described.write_text(json.dumps(package, indent=2), encoding="utf-8")
    document = to_common_version(openapi_document())
    (directory / "openapi.json").write_text(json.dumps(document), encoding="utf-8")


def _run(directory: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
