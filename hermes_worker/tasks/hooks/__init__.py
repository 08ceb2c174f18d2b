"""Hooks: code of others that is told of what is committed, or asked before a step is written."""
