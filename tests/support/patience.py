"""How long a test waits for a fact: until pytest's own time limit ends what hangs, so a slow machine fails nothing."""

from __future__ import annotations

PATIENCE_S = 550.0
"""A little less than ``timeout`` in pyproject.toml, so that the test itself can say what it waited for."""
