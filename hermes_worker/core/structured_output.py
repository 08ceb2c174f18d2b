"""Texts for a model about an answer that has to fit a JSON Schema, or to be the call of a tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_worker.core.messages import dump_canonical_json

REPAIRS_MAX = 2
"""How often an answer that does not fit is sent back in a run; each time costs an iteration."""
_QUOTED_CHARS_MAX = 500


def build_schema_request(schema: Mapping[str, Any]) -> str:
    """The text after the user's message that asks for an answer in this schema."""
    return (
        "Give your final answer as one JSON value that fits this JSON Schema, and write nothing else with it:\n"
        f"{dump_canonical_json(schema)}"
    )


def build_correction(problems: Sequence[str]) -> str:
    """The text that sends an answer back because of ``problems``."""
    told = "\n".join(f"- {problem}" for problem in problems)
    return (
        "Your answer does not fit the JSON Schema that was asked for:\n"
        f"{told}\nGive the whole answer again, as one JSON value that fits it, and write nothing else."
    )


def build_call_demand(tools: Sequence[str]) -> str:
    """The text that sends back an answer where one of these tools has to be called."""
    return f"Do not answer in text. Call {' or '.join(tools)}: the answer is taken from the arguments of the call."


def quote_refused(text: str) -> str:
    """Quote, at the end of a failure's message, the last answer that was refused: it stands in no transcript."""
    text = text.strip()
    more = f" [{len(text) - _QUOTED_CHARS_MAX:,} more characters]" if len(text) > _QUOTED_CHARS_MAX else ""
    return f" The last answer was: {text[:_QUOTED_CHARS_MAX]}{more}" if text else ""
