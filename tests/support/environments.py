"""Fresh environments of Python, with something installed by pip that sees this environment's libraries."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

_HERE = sysconfig.get_paths()["purelib"]


def environment_with(source: Path, folder: Path, *seen: Path) -> Path:
    """The interpreter of a new environment in ``folder / "env"``, with the package at ``source`` installed.

    It sees our libraries and what lies in ``seen``; what is installed stands before both.
    """
    environment = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    [site] = (environment / "lib").glob("python*/site-packages")
    (site / "host.pth").write_text("".join(f"{path}\n" for path in (_HERE, *seen)))
    python = environment / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*install, "--ignore-installed", str(source)],
        env={**os.environ, "PYTHONPATH": _HERE},  # for a setuptools that is new enough
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return python
