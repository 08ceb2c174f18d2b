"""When this process collects garbage: hardly while it imports, and never among the objects that imports left."""

from __future__ import annotations

import gc

_STARTING = 200_000
"""Modules make 300,000 objects that stay. To look through them again and again takes an eighth of a start."""
_RUNNING = 10_000
"""New objects before the youngest are looked through: a step makes thousands that die by themselves."""


def collect_rarely() -> None:
    """Collect rarely from now on: the process starts and will import much."""
    gc.set_threshold(_STARTING, 10, 10)


def freeze_objects() -> None:
    """Keep all present objects out of every later search, since they stay. Idempotent.

    Nothing is collected before: one object in two hundred is garbage, and to find it takes 0.2 s of CPU.
    """
    gc.freeze()
    gc.set_threshold(_RUNNING, 10, 10)
