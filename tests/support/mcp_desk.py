"""An MCP server over standard input and output, made with the reference SDK: what it keeps it keeps in memory."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from mcp.server.mcpserver import MCPServer

DESK = MCPServer("desk")
KEPT: list[str] = []


@DESK.tool()
def keep(what: str) -> str:
    """Keep something."""
    KEPT.append(what)
    return ", ".join(KEPT)


@DESK.tool()
def around(path: str) -> str:
    """What is to be seen from here."""
    try:
        names = sorted(one.name for one in Path(path).iterdir())
    except OSError:  # it is not there, or must not be seen: the walls differ
        names = []
    return f"{os.getpid()} {names} {sorted(os.environ)} {os.environ.get('DESK_KEY')}"


@DESK.tool()
def connect(port: int) -> str:
    """Whether a port of this machine can be reached."""
    with socket.socket() as one:
        return str(one.connect_ex(("127.0.0.1", port)))


@DESK.tool()
def leave() -> str:
    """End at once."""
    os._exit(3)


if __name__ == "__main__":
    DESK.run("stdio")
