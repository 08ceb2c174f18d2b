"""Ship the examples in the wheel, as ``hermes_worker/examples``, for ``hermes-worker dev new``."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py

SHIPPED = ("*.md", "*.py", "*.sh", "*.yaml")
"""What an example is made of; one with a pyproject.toml is a package of its own. What one leaves where it was started,
keys among it, is not shipped."""


class BuildPy(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # they are read from the checkout
        source = Path(__file__).parent
        target = Path(self.build_lib, "hermes_worker", "examples")
        packages = [found.parent for found in source.glob("*/pyproject.toml")]
        for path in (found for pattern in SHIPPED for found in source.rglob(pattern)):
            copy = target / path.relative_to(source)
            if path != Path(__file__) and not set(packages) & set(path.parents):
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
