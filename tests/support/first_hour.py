"""The first hour of somebody who follows a manual: what is typed, how long it takes, what is said."""

from __future__ import annotations

import re
import time
from collections.abc import Callable


class Hour:
    """The steps so far. ``pytest -s`` shows them."""

    def __init__(self) -> None:
        self._rows: list[str] = []

    def try_step(
        self, typed: str, play: Callable[[], tuple[bool, str]], *, expected: str, succeeds: bool = True
    ) -> None:
        """Play one step, which answers whether it succeeded and what was said. Fails unless that matches."""
        began = time.monotonic()
        succeeded, said = play()
        took = time.monotonic() - began
        found = re.search(expected, said, re.MULTILINE)
        assert found and succeeded is succeeds, f"{typed}: {succeeded}\n{said[-4000:]}"
        self._rows.append(f"{took:6.1f} s  {typed}\n          {found[0]}")

    def __str__(self) -> str:
        return "\n".join(["", *self._rows])
