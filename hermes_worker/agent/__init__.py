"""The prompt of an agent, and its tools."""
