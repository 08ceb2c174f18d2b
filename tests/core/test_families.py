"""Names in, families out."""

from __future__ import annotations

import pytest

from hermes_worker.core.model_capabilities import STANDARD, ThinkingRequest, WireNeeds
from hermes_worker.core.model_families import FAMILIES, find_traits, is_host


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("openrouter.ai", True),
        ("api.OpenRouter.ai", True),
        ("openrouter.ai.", True),
        ("notopenrouter.ai", False),
        ("openrouter.ai.evil.example", False),
        ("", False),
    ],
)
def test_a_host_belongs_to_its_domain_and_no_look_alike_does(host: str, expected: bool) -> None:
    assert is_host(host, "example.org", "openrouter.ai") is expected


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("kimi-k2.6", True),
        ("moonshotai/Kimi-K2", True),
        ("moonshot-v1", True),
        ("k2.5", True),
        ("k25-turbo", True),
        ("k3", True),
        ("k3nt", False),
        ("gpt-5.4", False),
        ("", False),
    ],
)
def test_kimi_goes_by_many_names(model: str, expected: bool) -> None:
    assert (find_traits(model).family == "kimi") is expected


def test_the_first_row_that_says_something_decides_a_field_and_no_other() -> None:
    sonnet = find_traits("anthropic/Claude-Sonnet-4.6")
    assert sonnet.messages_output_max == 64_000  # not that of its elder
    assert sonnet.thinking_request is ThinkingRequest.ADAPTIVE
    assert dict(sonnet.efforts or {}) == {"xhigh": "max"}
    assert (sonnet.family, sonnet.silence_s, sonnet.wire) == ("claude", None, None)
    assert find_traits("claude-opus-4-20250514").thinking_request is ThinkingRequest.BUDGET
    assert find_traits("claude-haiku-5").thinking_request is ThinkingRequest.NEVER


def test_nothing_is_known_of_a_name_that_nobody_lists() -> None:
    assert find_traits("olmo-3") == find_traits("")


def test_every_row_of_the_table_says_something_and_fits_some_name() -> None:
    for row in FAMILIES:
        assert any(getattr(row.traits, name) is not None for name in row.traits.__slots__), row.pattern


def test_needs_add_up() -> None:
    both = WireNeeds(echoes_reasoning=True) | WireNeeds(keeps_response_items=True)
    assert both == WireNeeds(echoes_reasoning=True, keeps_response_items=True)
    assert both | STANDARD == both
