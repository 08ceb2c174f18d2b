"""The tokens of a run, as streams and answers tell them. Apart from the models, so that it loads no pydantic."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict  # pydantic reads that of ``typing`` from Python 3.12 on only


class UsageObject(TypedDict):
    """Tokens. ``input_tokens`` includes those read from and written to the provider's cache."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    estimated_tokens: NotRequired[int]
    """How many of these were estimated from the size of texts, because the provider did not count them."""
    refused_attempts: NotRequired[int]
    """Requests that brought an error and nothing that is billed."""
    unknown_attempts: NotRequired[int]
    """Requests that may have been billed and whose reply was never written."""
    unknown_input_tokens: NotRequired[int]
    unknown_output_tokens: NotRequired[int]
