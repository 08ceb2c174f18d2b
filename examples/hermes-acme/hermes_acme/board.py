"""A context source: what every new session is told of Acme."""

from __future__ import annotations

from hermes_worker.extending import ContextFacts


def board(facts: ContextFacts) -> str:
    """The site that sessions are about."""
    return f"You work for Acme's site {facts.values['site']}. Its stock is counted in pieces."
