"""Names in, families out."""

from __future__ import annotations

import pytest

from hermes_worker.core.families import is_host, is_kimi


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
    assert is_kimi(model) is expected
