"""A hook: says at the end of every answer who counted. Imported by workers for models and by nobody else."""

from __future__ import annotations

from hermes_worker.extending import HookEvent


def sign(event: HookEvent) -> str:
    """The answer that stands in for the model's (``transform_llm_output``)."""
    return f"{event.payload['response_text']}\n\nCounted by Acme {event.values['site']}."
