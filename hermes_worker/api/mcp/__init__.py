"""``/mcp``: the runs of this installation as a server of the Model Context Protocol (docs/mcp.md)."""
