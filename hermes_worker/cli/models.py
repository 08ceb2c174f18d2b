"""The model of a configuration, for people and for comparing two configurations."""

from __future__ import annotations

from hermes_worker.models.identity import find_usual_model, identify_endpoint
from hermes_worker.settings import Settings

STAND_IN = (
    "no API key found: using the scripted stand-in, not a language model; "
    "set HERMES_API_KEY/OPENAI_API_KEY/ANTHROPIC_API_KEY or --base-url"
)


def describe_model(settings: Settings) -> str:
    """Describe the model on one line."""
    if settings.model.is_scripted:
        return STAND_IN
    return f"{find_model_name(settings) or '(no model named: set HERMES_MODEL)'} at {make_model_key(settings)}"


def find_model_name(settings: Settings) -> str | None:
    """Find the model of runs that name none; ``None`` when they must name one."""
    return find_usual_model(settings.model) or None


def make_model_key(settings: Settings) -> str:
    """Make a key that is equal for two configurations whose runs would be answered by the same server."""
    return identify_endpoint(settings.model)
