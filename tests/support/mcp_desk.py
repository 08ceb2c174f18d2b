"""An MCP server over standard input and output, made with the reference SDK: what it keeps it keeps in memory."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

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


class Copies(BaseModel):
    copies: int


@DESK.tool()
async def order(page: int, context: Context) -> str:  # type: ignore[type-arg]
    """Order copies, of which a person is asked how many."""
    answer = await context.elicit(f"How many copies of page {page}?", Copies)
    return f"{answer.data.copies} of page {page}" if answer.action == "accept" else f"nothing: {answer.action}"


@DESK.tool()
def leave() -> str:
    """End at once."""
    os._exit(3)


if __name__ == "__main__":
    DESK.run("stdio")
