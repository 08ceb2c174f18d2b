from __future__ import annotations


def render_greeting(name: str) -> str:
    return f"Good day, {name.strip() or 'stranger'}."
