"""Which configurations ask the same server."""

from __future__ import annotations

import pytest

from hermes_worker.models.identity import STAND_IN, describe_endpoint, identify_endpoint
from hermes_worker.settings import ModelSettings, Secret


@pytest.mark.parametrize(
    ("settings", "identity"),
    [
        (ModelSettings(), STAND_IN),
        (ModelSettings(provider="scripted"), STAND_IN),
        (ModelSettings(provider="custom", base_url="http://127.0.0.1:4711/v1", name="scripted"), STAND_IN),
        (ModelSettings(base_url="http://me:secret@models.example:81/v1/?key=1"), "http://models.example:81/v1"),
        (ModelSettings(base_url="https://models.example/v1/", name="scripted"), "https://models.example/v1"),
        (ModelSettings(provider="anthropic", api_key=Secret("sk-0123456789")), "https://api.anthropic.com"),
    ],
)
def test_an_endpoint_is_known_by_its_address_alone(settings: ModelSettings, identity: str) -> None:
    assert identify_endpoint(settings) == identity


def test_the_stand_in_is_called_by_its_name() -> None:
    assert describe_endpoint(STAND_IN) == "the scripted stand-in"
    assert describe_endpoint("https://x.test") == "https://x.test"
