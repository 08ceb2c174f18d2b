"""Who did something to a run: answered it, stopped it, said something to it. Kept as text beside what was done."""

from __future__ import annotations

from typing import Final

NAME_CHARS_MAX: Final = 200
TIMEOUT: Final = "timeout"
"""Nobody: the time for an answer was over."""


def user_of_machine(name: str) -> str:
    """Somebody at the command line, by the name of the system's user."""
    return _named("cli", name)


def holder_of_key(fingerprint: str) -> str:
    """Somebody who sent an API key, by the key's fingerprint."""
    return _named("api", f"key-{fingerprint}")


def _named(source: str, name: str) -> str:
    kept = "".join(char for char in name if char.isprintable())
    return f"{source}:{kept}"[:NAME_CHARS_MAX]


def author(by: str | None) -> dict[str, str]:
    """The field of an event that says who did it; none when nobody in particular did."""
    return {"by": by} if by is not None else {}
