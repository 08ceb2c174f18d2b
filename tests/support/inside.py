"""What stands inside the wrapper of untrusted text."""

from __future__ import annotations

from hermes_worker.safety.untrusted import TAG


def inside(text: str) -> str:
    """The text itself; text that is too short to be wrapped as it is."""
    if not text.startswith(f"<{TAG} "):
        return text
    closing = f"\n</{TAG}>"
    assert text.endswith(closing) and text.count(closing) == 1
    return text.partition("\n\n")[2].removesuffix(closing)
