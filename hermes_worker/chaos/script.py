"""What the runs of the crash lab do: every step calls one sink of each replay class, each with a mark of its own."""

from __future__ import annotations

from hermes_worker.core.messages import canonical_json
from hermes_worker.core.replay import Replay

MODEL_DELAY_S = 0.02
"""Long enough for a kill to fall into a model call."""


def prompt_for(number: int, steps: int) -> str:
    """The prompt of run ``number``: a script for the scripted model."""
    calls = [
        {"name": f"sink_{replay.value}", "arguments": {"mark": f"{number}.{{i}}.{replay.value}"}} for replay in Replay
    ]
    step = {"calls": calls, "repeat": steps}
    return f"scripted: {canonical_json({'steps': [step], 'final': 'done', 'delay_s': MODEL_DELAY_S})}"


def expected_iterations(steps: int) -> int:
    """Model replies of a run that goes undisturbed: one for each step, and the answer."""
    return steps + 1
