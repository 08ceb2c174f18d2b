"""Tools of MCP servers (docs/mcp.md): which servers there are, what was approved of them, and one call as a request."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

FILE: Final = "mcp.json"
"""The servers of a home."""


def has_servers(home: Path) -> bool:
    """Whether there is a file of servers, readable or not: the code that reads it takes long to import."""
    return os.path.lexists(home / FILE)
